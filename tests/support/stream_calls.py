"""Calls of streams in tests without HTTP."""


def names(streams):
    """Return the names of all streams, usable or not."""
    return [each["name"] for each in streams.describe()]
