"""Calls of streams that the routes make in more than one step, for tests without HTTP."""


def names(streams):
    """Return the names of all streams, usable or not."""
    return [each["name"] for each in streams.describe()]


def change_labels(stream, add=(), remove=()):
    stream.put_labels(add, remove, stream.head_of(add, remove).result(60))


def continue_with(stream, content):
    stream.continue_from(stream.read_state(content))
