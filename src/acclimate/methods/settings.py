"""Settings of a method, checked against the types that it declares for them, and the things that it needs."""

from collections.abc import Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from acclimate.errors import InputError, is_text, nearest

if TYPE_CHECKING:
    from acclimate.methods.adapter import Adapter

LARGEST_INTEGER = 2**63
LARGEST_REAL = 1_000_000  # more than any method can use; single precision still holds the sum of their products
WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", type(None): "None"}
NEEDS = {
    "views": "several views per image; encode them with views=64, for instance",
    "text": "the text tower of a model, which stored features do not have",
    "labels": "to be fitted to labelled samples first: `acclimate fit`, or `fit(features, labels)`",
}


def check_settings(method: "type[Adapter]", settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with NumPy scalars made plain; an unknown name or a value of the wrong type is an error."""
    known = method.default_settings()
    hints = get_type_hints(method)
    checked = {}
    for name, value in settings.items():
        if name not in known:
            raise InputError(f"{method.name!r} has no setting {name[:80]!r}; {nearest(name[:80], known)}")
        checked[name] = value.item() if isinstance(value, np.generic) else value
        choices = _choices(hints[name])
        if not any(_fits(checked[name], choice) for choice in choices):
            words = " or ".join(WORDS.get(choice) or repr(choice) for choice in choices)
            large = isinstance(value, (int, float)) and abs(value) > LARGEST_REAL
            bounds = f" from -{LARGEST_REAL} to {LARGEST_REAL}" if large else ""
            raise InputError(f"{name} must be {words}{bounds}, got {value!r:.80}.")
    return checked


def _choices(hint: Any) -> list[Any]:
    """Return the types and the literal values that a type hint allows."""
    if get_origin(hint) in (Union, UnionType, Literal):
        return [choice for each in get_args(hint) for choice in _choices(each)]
    return [hint]


def _fits(value: Any, choice: Any) -> bool:
    if choice in (int, float):
        kinds = (int, float) if choice is float else int
        largest = LARGEST_REAL if choice is float else LARGEST_INTEGER
        return isinstance(value, kinds) and not isinstance(value, bool) and abs(value) <= largest
    if choice in WORDS:
        return isinstance(value, choice) and (choice is not str or is_text(value))
    return value == choice or not isinstance(choice, (str, int))  # a type that is not checked


def require(method: "type[Adapter]", views: bool = False, text: bool = False, labels: bool = False) -> None:
    """Refuse a method that needs what is not there."""
    there = {"views": views, "text": text, "labels": labels}
    for need in sorted(method.needs):
        if not there[need]:
            raise InputError(f"the method {method.name!r} needs {NEEDS[need]}.")
