"""What a method is given: its settings, checked against the types that it declares for them, and what it needs."""

from collections.abc import Mapping
from numbers import Integral, Real
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from acclimate.errors import InputError, is_text, nearest

if TYPE_CHECKING:
    from acclimate.methods.adapter import Adapter

LARGEST = 2**63  # whole number
LARGEST_REAL = 1_000_000  # more than any method can use; single precision still holds the sum of their products


def check_settings(method: "type[Adapter]", settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with NumPy scalars made plain; an unknown name or a value of the wrong type is an error."""
    known = method.default_settings()
    hints = get_type_hints(method)
    checked = {}
    for name, value in settings.items():
        if name not in known:
            raise InputError(f"{method.name!r} has no setting {name[:80]!r}; {nearest(name[:80], known)}")
        checked[name] = value.item() if isinstance(value, np.generic) else value
        if not _fits(checked[name], hints[name]):
            large = isinstance(value, Real) and value == value and not _within(value, LARGEST_REAL)  # NaN is not large
            bounds = f" from -{LARGEST_REAL} to {LARGEST_REAL}" if large else ""
            raise InputError(f"{name} must be {_described(hints[name])}{bounds}, got {value!r:.80}.")
    return checked


def require(method: "type[Adapter]", views: bool = False, text: bool = False, labels: bool = False) -> None:
    """Refuse a method that needs what is not there."""
    there = {"views": views, "text": text, "labels": labels}
    how = {
        "views": "several views per image; encode them with views=64, for instance",
        "text": "the text tower of a model, which stored features do not have",
        "labels": "to be fitted to labelled samples first: `acclimate fit`, or `fit(features, labels)`",
    }
    for need in sorted(method.needs):
        if not there[need]:
            raise InputError(f"the method {method.name!r} needs {how[need]}.")


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool) and _within(value, LARGEST_REAL)
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool) and _within(value, LARGEST)
    if hint is str:
        return is_text(value)
    return hint not in (bool, str, type(None)) or isinstance(value, hint)


def _within(value: Any, most: float) -> bool:
    return bool(-most <= value <= most)


def _described(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_described(each) for each in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(repr(each) for each in get_args(hint))
    words = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", type(None): "None"}
    return words.get(hint, str(hint))
