"""Errors, whose messages say what to do, and rules for foreign text, such as labels and names of files."""

import unicodedata
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path

CONTROL = ("Cc", "Zl", "Zp")  # Unicode categories: control characters and line separators
HALVES = ("Cs",)  # halves of characters, which cannot be written as UTF-8
FORMAT = ("Cf",)  # marks without a shape of their own
JOINERS = "\u200c\u200d"  # harmless format characters: Persian, Hindi and emoji are spelled with them
COMPARED_NAMES = 200  # of more names, none is looked for that is near a wrong one
LONGEST_TEXT = 4096  # characters of a name


class AcclimateError(Exception):
    """Base of all errors that a caller or a file can cause.

    Examples:
        >>> import acclimate
        >>> try:
        ...     acclimate.read_stream("missing.safetensors")
        ... except acclimate.AcclimateError as error:
        ...     print(error)
        no run or feature file at missing.safetensors.
    """


class InputError(AcclimateError, ValueError):
    """An argument or a feature file that cannot be used as it is."""


class StateError(AcclimateError):
    """A state that cannot be written, read, or used here."""


class MissingExtraError(AcclimateError, ImportError):
    """An optional package is needed and not installed."""


class ImageError(AcclimateError):
    """An image that cannot be read."""


class RunError(AcclimateError):
    """A run that had to stop; what was done so far is kept."""


class ModelError(AcclimateError):
    """A model that cannot be found or used."""


class BusyError(AcclimateError):
    """A full queue; the same call may succeed a moment later."""


def reason(error: Exception) -> str:
    """Return the reason of an error in its own words, for one of the operating system "No space left on device"."""
    return getattr(error, "strerror", None) or str(error)


def missing(what: str, extra: str, otherwise: str = "") -> MissingExtraError:
    """Return the error for an optional package: what needs it, the command that installs it, and what else to do.

    Examples:
        >>> print(missing("plots need matplotlib", "plot", "or leave out --plot"))
        plots need matplotlib: ... install ...[plot]"; or leave out --plot.
    """
    return MissingExtraError(f"{what}: {install_command(extra)}{otherwise and f'; {otherwise}'}.")


def install_command(extra: str, alone: str = "") -> str:
    """Return the command that adds an extra to the running environment, from the checkout or index it came from.

    Without an extra, the command that adds the package `alone`.

    It works from any folder, in the shells of Unix and Windows, and in environments of uv, which have no pip.
    """
    import json
    import shutil
    import sys
    from importlib.metadata import distributions
    from importlib.util import find_spec
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    installed = next(iter(distributions(name="acclimate")), None)
    origin = json.loads((installed and installed.read_text("direct_url.json")) or "{}")
    url = urlsplit(origin.get("url", ""))
    package = "acclimate"
    option = ""
    if url.scheme == "file" and (checkout := Path(url2pathname(url.path))).is_dir():
        package = "." if checkout == Path.cwd() else str(checkout)
        option = "-e " if origin.get("dir_info", {}).get("editable") else ""
    python = "python" if shutil.which("python") == sys.executable else sys.executable
    python = f'"{python}"' if " " in python else python
    pip = f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    return f'{pip} {option}"{package}[{extra}]"' if extra else f"{pip} {alone}"


def lacking(module: str, package: str, extra: str = "") -> str:
    """Return why an optional package cannot be used, and what to do; "" if it can be used. Not all are in an extra.

    Examples:
        >>> print(lacking("no_such_module", "PyAV", "video"))
        needs PyAV: ... install ...[video]"
        >>> lacking("json", "json", "json")
        ''
    """
    from importlib import import_module

    try:
        import_module(module)
    except Exception as error:  # a library that was built for another system fails in many ways
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            return f"needs {package}: {install_command(extra, package)}"
        return f"needs {package}, which is installed but cannot be imported ({root_cause(error)}); reinstall it"
    return ""


def root_cause(error: BaseException) -> str:
    """Return the first line of the error that caused this one, and those between them."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def count(number: int, thing: str) -> str:
    """Return a number of things in words, in the singular or the plural.

    Examples:
        >>> count(1, "image"), count(1200, "image")
        ('1 image', '1,200 images')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the known words that are nearest to an unknown one."""
    known = list(known)
    few = known if len(known) <= COMPARED_NAMES else ()
    if near := get_close_matches(word[:100], few, n=3):  # the time grows with the length of all of them
        return "did you mean " + " or ".join(repr(name) for name in near) + "?"
    more = f", ... (20 of {len(known)})" if len(known) > 20 else ""
    return f"there are: {', '.join(known[:20]) or 'none'}{more}."


def as_words(label: str) -> str:
    """Return the form of a label in prompts: underscores become spaces, and repeated spaces collapse."""
    return " ".join(label.replace("_", " ").split())


def same_words(label: str) -> str:
    """Return what two spellings of a class have in common: its words without regard to case.

    Examples:
        >>> same_words("Sea_Lion") == same_words("sea  lion")
        True
    """
    return as_words(label).casefold()


def is_text(value: object) -> bool:
    r"""Return True for a string that can be a name: at most LONGEST_TEXT characters, and no lone surrogates.

    Examples:
        >>> is_text("chat noir"), is_text("\ud800"), is_text(7)
        (True, False, False)
    """
    return isinstance(value, str) and len(value) <= LONGEST_TEXT and not _characters(value, HALVES)


def check_text(text: str, what: str) -> str:
    r"""Return the same text; InputError if it has characters that cannot be written on one line of UTF-8.

    Examples:
        >>> check_text("chat noir", "label 1")
        'chat noir'
        >>> check_text("cat\0", "label 1")
        Traceback (most recent call last):
        acclimate.errors.InputError: label 1 has the control character '\x00'; remove it.
    """
    if found := _characters(text, CONTROL + HALVES):
        first = min(found, key=text.index)
        kind = "half a character (a lone surrogate)," if first in _characters(text, HALVES) else "the control character"
        raise InputError(f"{what} has {kind} {first!a}; remove it.")
    return text


def printable(text: object) -> str:
    r"""Return the text in one line, with everything escaped that could control a terminal or misplace other text.

    Names of files and classes are foreign text: they may hold escape sequences, newlines, marks that turn the direction
    of writing, or bytes that are not Unicode.

    Examples:
        >>> printable("Größe \U0001f408 \x1b[2J\n\u202e\udcff.jpg")
        'Größe \U0001f408 \\x1b[2J\\n\\u202e\\udcff.jpg'
    """
    text = str(text)
    hidden = _characters(text, CONTROL + HALVES + FORMAT) - {*JOINERS}
    return text.translate({ord(each): each.encode("unicode_escape").decode() for each in hidden}) if hidden else text


def _characters(text: str, categories: Collection[str]) -> set[str]:
    return {each for each in set(text) if unicodedata.category(each) in categories}
