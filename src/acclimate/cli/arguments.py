"""Options that several commands share, and what their values mean. Nothing heavy is imported for --help."""

import csv
import json
import os
import re
import warnings
from ast import literal_eval
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli.console import say
from acclimate.errors import InputError, missing, nearest, reason

if TYPE_CHECKING:
    from acclimate.prompts import LearnedPrompts
    from acclimate.sources.source import Sample, Samples

# `encoders.BUNDLED` and `methods.DEFAULT_METHOD`; to import these would make --help wait for NumPy
DEFAULT_MODEL = "bundled"
DEFAULT_METHOD = "accord"
DEFAULT_MAX_PIXELS = 178_956_970  # `images.MAX_PIXELS`
COMPARED = ("zero-shot", "tda", DEFAULT_METHOD)  # where methods are compared and none is named
MODEL_HELP = (
    "bundled (reads English labels only), onnx:DIR, hf:ID, local:DIR or open_clip:NAME/TAG; see `acclimate models`."
)

# Sections of a command's help; options without one come first
ANSWERS = "Answers"
OUTPUT = "Output"
ADAPTING = "Adapting"
READING = "Reading"
SPEED = "Speed"


def _limit_pixels(pixels: int) -> int:
    from acclimate.images.opening import limit_pixels

    limit_pixels(pixels)
    return pixels


def _load_plugins(paths: list[Path] | None) -> list[Path]:
    for path in paths or ():
        from acclimate.methods import load_plugin

        load_plugin(path)
    return paths or []


# Sources and labels
Source = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE",
        help="Folders, images, videos, globs, lists (.txt, .csv, .jsonl, .parquet), - for stdin, coop:, wds: or hfds:.",
        show_default=False,
    ),
]
Order = Annotated[
    str,
    typer.Option(
        help="path (as listed), shuffled:N, or auto: shuffled where folders are classes.",
        rich_help_panel=READING,
    ),
]
MaxPixels = Annotated[
    int,
    typer.Option(
        help="Refuse images that hold more pixels, or take more memory or time than so many should.",
        min=1_000_000,
        show_default="179 million",
        callback=_limit_pixels,  # the limit holds as soon as the option is parsed
        rich_help_panel=READING,
    ),
]
LABELS_HELP = (
    "English labels in one argument, separated by commas ('cat, dog'), or a file: one label per line, .csv or .json."
)
LabelsUnlessFitted = Annotated[str | None, typer.Option(help=f"{LABELS_HELP} Not needed with a fitted file.")]

# Models
Model = Annotated[str, typer.Option(help=MODEL_HELP)]
Templates = Annotated[
    list[str] | None,
    typer.Option(
        "--template",
        "--prompts",
        help="A prompt with {}, the name of a set, a file of prompts (.txt, .json) or learned:FILE; repeatable.",
        show_default="single",
        rich_help_panel=ANSWERS,
    ),
]
Views = Annotated[
    int,
    typer.Option(
        help="Views per image: the image itself and augmented versions; TDA's authors use 64.",
        min=1,
        rich_help_panel=ADAPTING,
    ),
]
Device = Annotated[str, typer.Option(help="Where the model runs: auto, cpu, cuda, cuda:1, mps.", rich_help_panel=SPEED)]
Encode = Annotated[
    list[str] | None,
    typer.Option(
        "--encode",
        metavar="KEY=VALUE",
        help="How images are read and encoded: batch_size (32, on a GPU 256), workers, precision (float32, float16, "
        "bfloat16), compile (true), decoder (pillow, nvjpeg), fps of videos (1), max_pixels of an image (179 million), "
        "views_kind (augmix, crop, large-crop, diffusion), generated (a folder of `acclimate generate`, or "
        "diffusers:MODEL); repeatable.",
        rich_help_panel=SPEED,
    ),
]

# Methods and states
Method = Annotated[
    str | None,
    typer.Option(help="How to adapt; see `acclimate methods`.", show_default=DEFAULT_METHOD, rich_help_panel=ADAPTING),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting of the method, KEY=VALUE; repeatable.", rich_help_panel=ADAPTING),
]
SweptSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="KEY=VALUE or METHOD.KEY=VALUE; several values, KEY=1,2,3, are run one by one; repeatable."
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        callback=_load_plugins,
        help="A Python file with methods of your own (@acclimate.register); repeatable.",
        rich_help_panel=ADAPTING,
    ),
]
Freeze = Annotated[
    bool, typer.Option("--freeze", help="Answer from the state without learning.", rich_help_panel=ADAPTING)
]
PASSES_HELP = "2 to answer once more at the end, from everything seen; 1 for the answers as they come."
SkipDuplicates = Annotated[
    bool | None,
    typer.Option(
        help="Do not learn from near-duplicates of the last images.",
        show_default="for videos and --follow",
        rich_help_panel=ADAPTING,
    ),
]

# Answers and results
TopK = Annotated[int, typer.Option(help="Number of labels in a row.", min=1, rich_help_panel=ANSWERS)]
Unsure = Annotated[
    float,
    typer.Option(
        help="Mark answers with a lower score as unsure.", min=0, max=1, show_default=False, rich_help_panel=ANSWERS
    ),
]
NoneOfThese = Annotated[
    bool, typer.Option("--none-of-these", help="Recognise images that belong to no label, and learn nothing there.")
]
Expand = Annotated[
    bool,
    typer.Option(help="Answer broad labels, such as 'mammal', through nouns below them.", rich_help_panel=ANSWERS),
]

# Clusters
Address = Annotated[
    str | None,
    typer.Option(
        help="A Ray cluster: auto for that of this machine, or HOST:PORT of its head node.",
        envvar="RAY_ADDRESS",
        show_default="a Ray on this machine alone, which ends with the command",
    ),
]
Cpus = Annotated[float, typer.Option(help="CPUs per encoder.", min=0, rich_help_panel=SPEED)]
Gpus = Annotated[
    float | None,
    typer.Option(
        help="GPUs per encoder, such as 1 or 0.5.",
        min=0,
        show_default="1 for a PyTorch model if there are GPUs",
        rich_help_panel=SPEED,
    ),
]


LABEL_COLUMNS = (
    "label",
    "name",
    "class",
    "labels",
    "names",
    "classes",
    "class_name",
    "classname",
    "category",
    "species",
)
LABEL_TABLES = (".csv", ".tsv", ".xlsx")
PARENT_COLUMNS = ("parent", "group", "genus", "family")


def read_lines(path: Path, what: str) -> list[str]:
    """Return the lines of a text file that are neither blank nor comments; `what` names the file in errors."""
    stripped = map(str.strip, read_text(path, what).split("\n"))
    return [line for line in stripped if line and not line.startswith("#")]


def read_labels(text_or_path: str) -> tuple[str, ...]:
    """Return the labels of a list with commas or semicolons, or of a file.

    A file has one label per line, where # begins a comment line, or all in one line with commas; a .csv, .tsv or .xlsx
    file has a column named label, name or class, or a single column; a .json file has a list.
    """
    from acclimate.prompts import clean_labels

    text = text_or_path.strip()
    path = Path(text)
    suffix = path.suffix.lower()
    if not os.path.exists(text):  # noqa: PTH110 (pathlib raises an error for a long list, which is not a file name)
        if re.fullmatch(r"[^,;\n]*([/\\][^,;\n]*|\.(csv|tsv|txt|json|jsonl|xlsx?|ods|ya?ml))", text, re.IGNORECASE):
            raise InputError(f"no label file at {text}.")
        return clean_labels(_split(text) if text else [])
    if suffix in (".xls", ".ods"):
        raise InputError(f"{path} is a spreadsheet of another kind; save it as .xlsx or .csv.")
    if suffix in LABEL_TABLES:
        labels = _label_table(path)
    elif suffix == ".json":
        labels = _read_json(path, "label file")
        if not isinstance(labels, list):
            raise InputError(f'the label file {path} must hold a list, such as ["cat", "dog"].')
    else:
        labels = read_lines(path, "label file")
        labels = _split(labels[0]) if len(labels) == 1 else labels
    if not labels:
        raise InputError(f"{text} holds no labels; write at least two, one per line.")
    return clean_labels(labels)


def _split(text: str) -> list[str]:
    return text.split(next((separator for separator in "\n,;" if separator in text), ","))


def read_parents(text_or_path: str) -> dict[str, str]:
    """Return the parent of each label of a table with a column for it, {} without; a label with none is its own.

    Says on stderr that other columns of a table of labels are not used.
    """
    from acclimate.sources.table import FILE_KEYS

    path = Path(text_or_path.strip())
    if path.suffix.lower() not in LABEL_TABLES or not path.is_file():
        return {}
    rows = _label_rows(path)
    header = [cell.lower() for cell in rows[0]]
    columns = [
        next((header.index(name) for name in names if name in header), -1) for names in (LABEL_COLUMNS, PARENT_COLUMNS)
    ]
    if min(columns) < 0:
        if columns[0] >= 0 and len(header) > 1 and not {*FILE_KEYS}.intersection(header):
            say(
                f"note: of {path}, only {header[columns[0]]!r} is used; name another column 'parent' to group.",
                err=True,
            )
        return {}
    found: dict[str, str] = {}
    for row in rows[1:]:
        label, parent = (row[column] if len(row) > column else "" for column in columns)
        if label and found.setdefault(label, parent or label) != (parent or label):
            raise InputError(f"{path} gives {label!r} two parents: {found[label]!r} and {parent!r}; leave one of them.")
    return found


def _label_rows(path: Path) -> list[list[str]]:
    """Return the rows of a table that are neither blank nor comments."""
    from acclimate.classify.table import sheet_rows
    from acclimate.files import from_cell, separator_of

    try:
        if path.suffix.lower() == ".xlsx":
            rows = [["" if cell is None else str(cell).strip() for cell in row] for row in sheet_rows(path)]
        else:
            text = read_text(path, "label file")
            separator = separator_of(text.lstrip().split("\n", 1)[0])
            table = csv.reader(text.splitlines(), delimiter=separator)
            rows = [[from_cell(cell.strip()) for cell in row] for row in table]
    except csv.Error as error:
        raise InputError(f"the label file {path} is not a table: {error}.") from None
    return [row for row in rows if any(row) and not row[0].startswith("#")]


def _label_table(path: Path) -> list[str]:
    """Return the labels of a table: of the column that is named so, of the only one, or of the only row."""
    rows = _label_rows(path)
    header = [cell.lower() for cell in rows[0]] if rows else []
    if name := next((name for name in LABEL_COLUMNS if name in header), None):
        column = header.index(name)
        labels = [row[column] for row in rows[1:] if len(row) > column and row[column]]
        return labels if len(header) == 1 else list(dict.fromkeys(labels))  # a table of images repeats their labels
    if all(len(row) == 1 for row in rows):
        return [row[0] for row in rows]
    if len(rows) == 1:
        return rows[0]
    raise InputError(f"{path} has the columns {', '.join(rows[0])}; name the one with the labels 'label'.")


def _read_json(path: Path, what: str) -> Any:
    try:
        return json.loads(read_text(path, what))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"the {what} {path} is not JSON: {error}.") from None


def list_images(
    source: Sequence[str],
    order: str = "path",
    classes: Sequence[str] | None = None,
    fps: float = 1.0,
    find: "Callable[..., Samples] | None" = None,
) -> "Sequence[Sample]":
    """List the images of a command's sources in order; says on stderr what was skipped, and if they were shuffled.

    `find` lists them; None for `open_source`, or where there is a URL of a store for `sources.urls.list_images`.
    """
    from acclimate.sources.source import choose_order, order_samples

    words = [each for each in source if re.fullmatch(r"[\w, -]+", each) and each != "-" and not Path(each).exists()]
    if words and len(source) > 1:
        raise InputError(
            f"no file or folder at {', '.join(words)}; "
            'if these are labels, write them all in one argument: --labels "cat, dog".'
        )
    samples = (find or _lister(source))(source, fps=fps)
    if samples.skipped:
        say(f"note: skipped {samples.left_out}.", err=True)
    if order == "auto" and (order := choose_order(samples, classes)) != "path":
        say("note: folders are classes, so the images are shuffled; --order path keeps them as listed.", err=True)
    return order_samples(samples, order)


def _lister(source: Sequence[str]) -> "Callable[..., Samples]":
    """Return the function that lists sources; that for URLs of stores needs pyarrow."""
    from acclimate.sources.source import open_source

    if not any(re.match(r"(wds:)?(s3|gs|gcs|abfss?)://", each, re.IGNORECASE) for each in source):
        return open_source
    try:
        from acclimate.sources.urls import list_images
    except ModuleNotFoundError as error:
        raise missing("images by URL need pyarrow", "parquet") from error
    return list_images


def note_labels(labels: Sequence[str], model: str) -> None:
    """Say on stderr what is to be said of labels by their spelling, and that the bundled model reads English."""
    from acclimate.prompts.spelling import label_notes

    note_language(labels, model)
    for note in label_notes(labels, english=model == DEFAULT_MODEL):
        say(f"note: {note}", err=True)


def note_language(labels: Sequence[str], model: str) -> None:
    """Say on stderr that the bundled model reads English, if the labels do not look like it."""
    from acclimate.prompts import language_note

    if model == DEFAULT_MODEL and (note := language_note(labels)):
        say(f"note: {note.removesuffix('.')} with --model.", err=True)
        warnings.filterwarnings("ignore", re.escape(note))  # the classifier would say it again


def read_templates(values: Sequence[str] | None) -> "list[str] | dict[str, list[str]] | LearnedPrompts":
    """Return the templates that --template gives; the set `single` if it is not given.

    A value is a template, the name of a set, or a file: .txt with one template per line, .json with a list of templates
    or with a dict from class to full prompts, or `learned:FILE`. The last two cannot be mixed with others.
    """
    from acclimate.prompts.templates import DEFAULT_SET, LEARNED_PREFIX, LearnedPrompts, PromptFile, resolve

    found: list[str] = []
    for value in values or (DEFAULT_SET,):
        content: Any = [value]
        if value.startswith(LEARNED_PREFIX):
            content = LearnedPrompts.load(value.removeprefix(LEARNED_PREFIX))
        elif value.lower().endswith((".json", ".txt")) and "{}" not in value and "{c}" not in value:
            read = _read_json if value.lower().endswith(".json") else read_lines
            content = read(Path(value), "template file")
            if not isinstance(content, list | dict) or not content:
                raise InputError(f"the template file {value} must hold templates, or a dict from class to prompts.")
        if not isinstance(content, list):
            if values and len(values) > 1:
                raise InputError(f"{value} holds whole prompts and cannot be mixed with other templates.")
            return PromptFile(content, value) if isinstance(content, dict) else content
        for template in content:
            resolve(template)  # refuses what is not a template
        found += content
    return found


def parse_settings(method: str, settings: Sequence[str] | None, methods: Sequence[str] = ()) -> dict[str, Any]:
    """Return the settings that --set gives for one of the methods of a command, by default the only one.

    They are KEY=VALUE, for every method that has KEY, or METHOD.KEY=VALUE; KEY may have dashes or underscores.
    """
    from acclimate.methods import check_settings, find_method

    chosen = {key: _value(text) for key, text in _given(method, settings, methods or [method]).items()}
    return check_settings(find_method(method), chosen)


# Values that --encode takes: one of some words, or a number from a least one on; `generated` takes any text
ENCODE_WORDS: dict[str, tuple[str, ...]] = {
    "precision": ("auto", "float32", "float16", "bfloat16"),
    "decoder": ("auto", "pillow", "nvjpeg"),
    "compile": ("true", "false"),
    "views_kind": ("augmix", "crop", "large-crop", "diffusion"),
}
ENCODE_LEAST = {"batch_size": 1, "workers": 1, "max_pixels": 1_000_000, "fps": 0.001}
ENCODE_KEYS = (*ENCODE_WORDS, *ENCODE_LEAST, "generated")


def parse_encoding(options: Sequence[str] | None) -> dict[str, Any]:
    """Return the values that --encode gives; a limit on pixels holds from then on.

    Raises:
        InputError: a key is unknown, or a value is none that it takes.
    """
    found: dict[str, Any] = {}
    for text in options or ():
        key, equals, written = (part.strip() for part in text.partition("="))
        key = key.replace("-", "_")
        if not equals or key not in ENCODE_KEYS:
            raise InputError(f"--encode takes KEY=VALUE, got {text!r}; {nearest(key, ENCODE_KEYS)}")
        found[key] = written if key == "generated" else _value(written)
        if key in ENCODE_WORDS and written not in ENCODE_WORDS[key]:
            raise InputError(f"--encode {key} takes {', '.join(ENCODE_WORDS[key])}; got {written!r}.")
        if key in ENCODE_LEAST:
            kinds = (int, float) if key == "fps" else (int,)
            if type(found[key]) not in kinds or not found[key] >= ENCODE_LEAST[key]:
                raise InputError(f"--encode {key} takes a number from {ENCODE_LEAST[key]:,} on; got {written!r}.")
    _limit_pixels(found.pop("max_pixels", DEFAULT_MAX_PIXELS))
    return found


def parse_sweep(method: str, settings: Sequence[str] | None, methods: Sequence[str]) -> dict[str, list[Any]]:
    """Return all values of each setting, separated by commas, for commands that take several; see `parse_settings`.

    Values that are lists or tuples, or text with commas, are written as in Python.
    """
    found = {}
    for key, text in _given(method, settings, methods).items():
        try:
            found[key] = list(literal_eval(f"({text.rstrip(',')},)"))
        except (SyntaxError, ValueError):  # a value is a word
            found[key] = [_value(each.strip()) for each in text.split(",")]
        if "" in found[key] and len(found[key]) > 1:
            raise InputError(f"--set {key}={text}: there is no value between two commas; write {key}=1,2,3.")
    return found


def _given(method: str, settings: Sequence[str] | None, methods: Sequence[str]) -> dict[str, str]:
    """Return the texts that --set gives for the settings of a method."""
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


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def read_text(path: Path, what: str, limit_bytes: int | None = None) -> str:
    """Return the text of a file; `what` names it in errors.

    Raises:
        InputError: the file does not exist, is too long, or is not UTF-8 text.
    """
    from acclimate.files import MAX_TEXT, open_text

    try:
        text = open_text(path, limit_bytes or MAX_TEXT).read()
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
