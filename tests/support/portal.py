"""Streams for tests without an event loop: one runs in a thread, and calls block until they are answered."""

import inspect
from contextlib import contextmanager
from functools import partial

from anyio.from_thread import start_blocking_portal

from acclimate.serve.stream import Stream
from acclimate.serve.streams import Streams


class Blocking:
    """Streams or a stream whose coroutines are called as functions; everything else is as it is.

    `soon` begins a call and returns its future, for calls that come at the same time.
    """

    def __init__(self, portal, target):
        self._portal = portal
        self.target = target

    def __getattr__(self, name):
        found = getattr(self.target, name)
        return partial(self._call, found) if inspect.iscoroutinefunction(found) else found

    def __eq__(self, other):
        return isinstance(other, Blocking) and self.target is other.target

    def soon(self, name, *arguments, **options):
        return self._portal.start_task_soon(partial(getattr(self.target, name), *arguments, **options))

    def _call(self, method, /, *arguments, **options):
        found = self._portal.call(partial(method, *arguments, **options))
        return Blocking(self._portal, found) if isinstance(found, Stream) else found


@contextmanager
def running(*arguments, periodic=True, **options):
    """Run `Streams(*arguments, **options)` in an event loop of its own; they are closed at the end.

    Without `periodic` nothing is done between two calls.
    """
    with start_blocking_portal() as portal:
        streams = portal.call(partial(Streams, *arguments, **options))
        work = portal.start_task_soon(streams.run) if periodic else None
        try:
            yield Blocking(portal, streams)
        finally:
            if work is not None:
                work.cancel()
            portal.call(streams.close)
