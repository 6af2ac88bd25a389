"""The errors acclimate raises. Every message says what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class AcclimateError(Exception):
    """Base of all errors that a caller or a file can cause.

    Examples:
        >>> import acclimate
        >>> try:
        ...     acclimate.read_stream("missing.safetensors")
        ... except acclimate.AcclimateError as error:
        ...     print(error)
        no feature file at missing.safetensors.
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


def reason(error: OSError) -> str:
    """Why the operating system refused, in its own words: "No space left on device"."""
    return error.strerror or str(error)


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the known words that are nearest to an unknown one."""
    known = list(known)
    near = get_close_matches(word, known, n=3)
    if near:
        return "did you mean " + " or ".join(repr(name) for name in near) + "?"
    return f"there are: {', '.join(known[:20]) or 'none'}."
