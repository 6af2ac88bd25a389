"""Settings of methods, checked against the types that a method declares for them."""

from collections.abc import Mapping
from math import isfinite
from numbers import Integral, Real
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from acclimate.errors import InputError, nearest

if TYPE_CHECKING:
    from acclimate.methods.base import Adapter


def check_settings(method: "type[Adapter]", settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with NumPy scalars made plain; an unknown name or a value of the wrong type is an error."""
    known, hints = method.default_settings(), get_type_hints(method)
    checked = {}
    for name, value in settings.items():
        if name not in known:
            raise InputError(f"{method.name!r} has no setting {name!r}; {nearest(name, known)}")
        checked[name] = value.item() if isinstance(value, np.generic) else value
        if not _fits(checked[name], hints[name]):
            raise InputError(f"{name} must be {_described(hints[name])}, got {value!r}.")
    return checked


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    return hint not in (bool, str, type(None)) or isinstance(value, hint)


def _described(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_described(each) for each in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(repr(each) for each in get_args(hint))
    words = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", type(None): "None"}
    return words.get(hint, str(hint))
