"""Settings of methods as the command line gives them: `--set KEY=VALUE`."""

from ast import literal_eval
from collections.abc import Sequence
from typing import Any


def parse_settings(method: str, settings: Sequence[str], methods: Sequence[str]) -> dict[str, Any]:
    """The settings given for one method; a bare KEY is for every method that has it.

    Args:
        method: whose settings to pick.
        settings: KEY=VALUE or METHOD.KEY=VALUE, KEY with dashes or underscores.
        methods: all methods of the command.
    """
    from acclimate.errors import InputError
    from acclimate.methods.base import configure, find

    own = {}
    for text in settings:
        name, equals, value = text.partition("=")
        target, _, key = name.strip().rpartition(".")
        key = key.replace("-", "_")
        if not equals:
            raise InputError(f"--set takes KEY=VALUE, got {text!r}.")
        if target and target not in methods:
            raise InputError(f"--set {text}: {target!r} is not among the methods of this run.")
        owners = [each for each in methods if key in find(each).Config.__dataclass_fields__]
        if target == method or (not target and (method in owners or not owners)):
            own[key] = _value(value)
    configure(find(method), own)
    return own


def _value(text: str) -> Any:
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return literal_eval(text)
    except (SyntaxError, ValueError):
        return text
