"""Methods with settings, as somebody who compares them names them; and sweeps, one variant per value of a setting."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np

from acclimate.bench.prequential import Variant
from acclimate.errors import InputError
from acclimate.methods import Adapter, FewShot, register

LARGEST = 256  # adapters that share a pass; all of them are in memory
Method: TypeAlias = str | type[Adapter] | Adapter | tuple[str | type[Adapter], Mapping[str, Any]]


def as_variants(methods: Method | Sequence[Method]) -> list[Variant]:
    """What `evaluate` takes as methods; zero-shot, which always runs, is left out."""
    single = isinstance(methods, (str, type, Adapter)) or (len(methods) == 2 and isinstance(methods[1], Mapping))
    every: list[Any] = [methods] if single else list(methods)  # type: ignore[arg-type]
    variants: dict[str, Variant] = {}
    for each in every:
        method, settings = each if isinstance(each, tuple) else (each, {})
        for variant in _variants(method, settings):
            if variants.setdefault(variant.title, variant) != variant:
                raise InputError(f"two methods would be called {variant.title!r}; evaluate them one after the other.")
    return limited([variant for variant in variants.values() if variant.method != "zero-shot"])


def sweep(method: str, settings: Mapping[str, Any]) -> list[Variant]:
    """A method with settings, named after them; one variant per combination where values are lists."""
    lists = [list(value) if isinstance(value, list | range | np.ndarray) else [value] for value in settings.values()]
    count = prod(map(len, lists))
    if not count:
        raise InputError(f"the sweep of {method!r} has a setting without values; give at least one.")
    if count > LARGEST:
        raise InputError(f"the sweep of {method!r} has {count:,} combinations; take at most {LARGEST} at once.")
    variants = []
    for values in product(*lists):
        chosen = dict(zip(settings, values, strict=True))
        words = [method, *(f"{key}={value}" for key, value in chosen.items())]
        variants.append(Variant(method, chosen, label=" ".join(words) if chosen else ""))
    return variants


def limited(variants: list[Variant]) -> list[Variant]:
    """The variants, if they are not too many to share a pass."""
    if len(variants) > LARGEST:
        raise InputError(f"{len(variants)} methods and settings are too many for one run; take at most {LARGEST}.")
    return variants


def _variants(method: Any, settings: Mapping[str, Any]) -> list[Variant]:
    """The variants of a method that is a name, a class or an adapter."""
    if isinstance(method, FewShot):
        return [Variant(register(type(method)).name, method.settings, fitted=method)]
    if isinstance(method, Adapter):
        usual = method.default_settings()
        changed = {key: value for key, value in method.settings.items() if value != usual[key]}
        return sweep(register(type(method)).name, changed)
    if isinstance(method, type) and issubclass(method, Adapter):
        method = register(method).name
    if not isinstance(method, str):
        raise InputError(f"a method is a name, a class, an adapter or (method, settings), not {method!r}.")
    return sweep(method, settings)
