"""Options that several commands share, and what their values mean. Nothing heavy is imported for --help."""

import json
import os
from ast import literal_eval
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from acclimate.errors import InputError, reason

if TYPE_CHECKING:
    from acclimate.prompts import LearnedPrompts

# `encoders.BUNDLED` and `methods.DEFAULT_METHOD`; to import these would make --help wait for NumPy
DEFAULT_MODEL, DEFAULT_METHOD = "bundled", "halves"
DEFAULT_FEW_SHOT_METHOD = "tip-adapter-f"
COMPARED = ("zero-shot", "tda", DEFAULT_METHOD)  # where methods are compared and none is named
MODEL_HELP = "bundled, onnx:DIR, hf:ID, local:DIR or open_clip:NAME/TAG; see `acclimate models`."
TEMPLATE_HELP = "A prompt with {}, the name of a set, a file of prompts (.txt, .json) or learned:FILE; repeatable."

Source = Annotated[
    str,
    typer.Argument(
        help="A folder, image, glob, list (.txt, .csv, .jsonl), - for paths on stdin, coop:, wds: or hfds:."
    ),
]
LABELS_HELP = "Labels, separated by commas, or a file with one label per line."
Labels = Annotated[str, typer.Option(help=LABELS_HELP)]
Model = Annotated[str, typer.Option(help=MODEL_HELP)]
Settings = Annotated[list[str] | None, typer.Option("--set", help="A setting of the method, KEY=VALUE; repeatable.")]
Templates = Annotated[
    list[str] | None, typer.Option("--template", "--prompts", help=TEMPLATE_HELP, show_default="single")
]
Views = Annotated[
    int,
    typer.Option(help="Views per image: the image itself and augmented versions; TDA's authors use 64.", min=1),
]
ViewsKind = Annotated[
    Literal["augmix", "crop", "large-crop", "diffusion"] | None,
    typer.Option(
        help="Crops with AugMix, crops, crops of at least half of the image, or crops and generated images.",
        show_default="that of the method's authors",
    ),
]
Generated = Annotated[
    str | None,
    typer.Option(help="For diffusion views: a folder made by `acclimate generate`, or diffusers:MODEL."),
]
Order = Annotated[str, typer.Option(help="path (as listed), or seed:N to shuffle.")]
BatchSize = Annotated[int, typer.Option(help="Images encoded at once.", min=1)]
Workers = Annotated[int | None, typer.Option(help="Threads that read images.", min=1)]
Device = Annotated[str, typer.Option(help="Where the model runs: auto, cpu, cuda, ...")]


def read_lines(path: Path, what: str) -> list[str]:
    """The lines of a text file that are neither blank nor comments."""
    lines = _read_text(path, what).split("\n")
    return [line for each in lines if (line := each.strip()) and not line.startswith("#")]


def read_labels(text_or_path: str) -> tuple[str, ...]:
    """Labels from a comma-separated list, or from a file with one per line, where # begins a comment line."""
    from acclimate.prompts import clean_labels

    text = text_or_path.strip()
    if os.path.exists(text):  # noqa: PTH110 (pathlib raises an error for a long list, which is not a file name)
        return clean_labels(read_lines(Path(text), "label file"))
    if "," not in text and ("/" in text or text.endswith(".txt")):
        raise InputError(f"no label file at {text}.")
    return clean_labels(text.split(",") if text else [])


def read_templates(values: Sequence[str] | None) -> "list[str] | dict[str, list[str]] | LearnedPrompts":
    """The templates that --template gives; the set `single` if it is not given.

    A value is a template, the name of a set, or a file: .txt with one template per line, .json with a list of templates
    or with a dict from class to full prompts, or `learned:FILE`. The last two cannot be mixed with others.
    """
    from acclimate.prompts.learned import PREFIX, LearnedPrompts
    from acclimate.prompts.templates import DEFAULT_SET, resolve

    found: list[str] = []
    for value in values or (DEFAULT_SET,):
        if value.startswith(PREFIX):
            if len(values or ()) > 1:
                raise InputError(f"{value} holds learned prompts and cannot be mixed with other templates.")
            return LearnedPrompts.load(value.removeprefix(PREFIX))
        is_file = value.lower().endswith((".json", ".txt")) and "{}" not in value and "{c}" not in value
        content = _template_file(Path(value)) if is_file else [value]
        if isinstance(content, dict):
            if len(values or ()) > 1:
                raise InputError(f"{value} holds full prompts per class and cannot be mixed with other templates.")
            return content
        for template in content:
            resolve(template)  # refuses what is not a template
        found += content
    return found


def parse_settings(method: str, settings: Sequence[str] | None, methods: Sequence[str] = ()) -> dict[str, Any]:
    """The settings that --set gives for one of the methods of a command, by default the only one.

    They are KEY=VALUE, for every method that has KEY, or METHOD.KEY=VALUE; KEY may have dashes or underscores.
    """
    from acclimate.methods import check_settings, find_method

    chosen = {key: _value(text) for key, text in _given(method, settings, methods or [method]).items()}
    return check_settings(find_method(method), chosen)


def parse_sweep(method: str, settings: Sequence[str] | None, methods: Sequence[str]) -> dict[str, list[Any]]:
    """As `parse_settings`, for commands that take several values of a setting: all values, separated by commas.

    A value in brackets or quotes may have commas of its own.
    """
    return {
        key: [_value(each) for each in _split(text, key)] for key, text in _given(method, settings, methods).items()
    }


def _given(method: str, settings: Sequence[str] | None, methods: Sequence[str]) -> dict[str, str]:
    """The texts that --set gives for the settings of a method."""
    from acclimate.methods import find_method

    chosen = {}
    for text in settings or ():
        name, equals, value = text.partition("=")
        target, _, key = name.strip().rpartition(".")
        key = key.replace("-", "_")
        if not equals:
            raise InputError(f"--set takes KEY=VALUE, got {text!r}.")
        if target and target not in methods:
            raise InputError(f"--set {text}: {target!r} is not among the methods of this run.")
        owners = [each for each in methods if key in find_method(each).default_settings()]
        if target == method or (not target and (method in owners or not owners)):
            chosen[key] = value.strip()
    return chosen


def _split(text: str, key: str) -> list[str]:
    """The parts of a text between commas that are not in brackets or quotes."""
    parts, start, depth, quote = [], 0, 0, ""
    for place, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'" and not text[start:place].strip():  # an apostrophe within a word is not a quote
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        elif sign == "," and not depth:
            parts.append(text[start:place].strip())
            start = place + 1
    parts.append(text[start:].strip())
    if len(parts) > 1 and not all(parts):
        raise InputError(f"--set {key}={text}: there is no value between two commas; write {key}=1,2,3.")
    return parts


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _template_file(path: Path) -> list[str] | dict[str, list[str]]:
    from acclimate.prompts.templates import check_prompts

    if path.suffix.lower() != ".json":
        content: Any = read_lines(path, "template file")
    else:
        try:
            content = json.loads(_read_text(path, "template file"))
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"the template file {path} is not JSON: {error}.") from None
    if not isinstance(content, list | dict) or not content:
        raise InputError(f"the template file {path} must hold templates, or a dict from class to prompts.")
    return check_prompts(content, str(path)) if isinstance(content, dict) else content


def _read_text(path: Path, what: str) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"no {what} at {path}.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; give a {what}.") from None
    except UnicodeDecodeError:
        text = "\0"
    except OSError as error:
        raise InputError(f"the {what} {path} cannot be read: {reason(error)}.") from error
    if "\0" in text:
        raise InputError(f"the {what} {path} is not UTF-8 text; save it as such.")
    return text
