"""The registry: methods by name."""

from typing import Any, TypeVar

from acclimate.errors import InputError, nearest
from acclimate.evidence import Head
from acclimate.methods.base import Adapter
from acclimate.methods.settings import check_settings

DEFAULT_METHOD = "halves"
AnyAdapter = TypeVar("AnyAdapter", bound=type[Adapter])
_REGISTRY: dict[str, type[Adapter]] = {}


def register(method: AnyAdapter) -> AnyAdapter:
    """Class decorator: make a method known by its name to `create`, `load_state` and `Classifier`.

    Examples:
        >>> from acclimate import TDA, list_methods, register
        >>> list_methods()["tda"] is register(TDA)
        True
    """
    _REGISTRY[method.name] = method
    return method


def list_methods() -> dict[str, type[Adapter]]:
    """Every known method by name.

    Examples:
        >>> from acclimate import list_methods
        >>> list_methods()["tda"].summary
        'positive and negative caches of the most useful samples of the stream'
    """
    return dict(sorted(_REGISTRY.items()))


def find_method(name: str) -> type[Adapter]:
    """The method of that name."""
    if name not in _REGISTRY:
        raise InputError(f"unknown method {name!r}; {nearest(name, list_methods())}")
    return _REGISTRY[name]


def create(name: str, head: Head, **settings: Any) -> Adapter:
    """Make an adapter by the name of its method.

    Args:
        name: of the method; see `list_methods`.
        head: the zero-shot classifier to start from.
        **settings: of the method, and `origin` and `text` as for `Adapter`.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> create("tda", Head(np.eye(2), logit_scale=100.0), positive_capacity=5).settings["positive_capacity"]
        5
    """
    method = find_method(name)
    check_settings(method, {key: value for key, value in settings.items() if key not in ("origin", "text")})
    return method(head, **settings)
