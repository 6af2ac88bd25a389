"""The errors acclimate raises. Every message says what to do."""


class AcclimateError(Exception):
    """Base of all errors that a caller or a file can cause."""


class InputError(AcclimateError, ValueError):
    """An argument or a feature file that cannot be used as it is."""


class StateError(AcclimateError):
    """A snapshot that cannot be written, read, or used here."""


class StorageError(StateError):
    """What was to be kept could not be written; everything is as it was before."""


class MissingExtraError(AcclimateError, ImportError):
    """An optional package is needed and not installed."""


class ImageError(AcclimateError):
    """An image that cannot be read; `index` is its position in a stream, where it is of one."""

    index: int = 0


class RunError(AcclimateError):
    """A run that had to stop; what was done so far is kept."""


class ModelError(AcclimateError):
    """A model that cannot be found or used."""
