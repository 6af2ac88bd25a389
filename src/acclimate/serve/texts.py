"""All text encoding of the service: in one thread, a batch of prompts at a time, in turns."""

from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from acclimate.arrays import HostArray
from acclimate.errors import InputError
from acclimate.evidence import Head
from acclimate.prompts import LearnedPrompts
from acclimate.prompts.head import Steps, TextEncoder, head_steps, negative_steps
from acclimate.prompts.templates import LEARNED_PREFIX
from acclimate.serve.limits import Limits
from acclimate.serve.pools import FairPool

MAX_RECENT_HEADS = 32  # heads of single requests' labels that are kept in memory
Result = TypeVar("Result")


@dataclass(eq=False)
class _Shared:
    """A job, and the futures of those who wait for it."""

    job: Future[Any]
    waiting: list[Future[Any]] = field(default_factory=list)


class Texts:
    """An encoder of labels into heads, and of the nouns of "none of these".

    Only one thread encodes, as tokenizers are not thread-safe. Clients take turns after each batch of prompts, so that
    few labels do not wait for many. Cancelling a future stops its encoding after the batch that is running, unless
    somebody else waits for the same. BusyError is raised if too much is waiting.

    Args:
        encoder: the model.
        limits: `texts` is the number of jobs of one client that may wait.
        cache: the folder of the vectors of streams' labels; None for the default.
        prompts: the learned prompts that streams may name as their templates.
    """

    def __init__(
        self, encoder: TextEncoder, limits: Limits, cache: Path | None = None, prompts: LearnedPrompts | None = None
    ) -> None:
        self._encoder = encoder
        self._cache = cache
        self._prompts = prompts
        self._pool = FairPool("acclimate-text", 1, limits.texts)
        self._lock = Lock()
        self._jobs: dict[Hashable, _Shared] = {}
        self._recent: OrderedDict[Hashable, Head] = OrderedDict()
        self._negatives: HostArray | None = None

    def head(self, labels: tuple[str, ...], templates: Any, client: str = "") -> Future[Head]:
        """Return the head of a stream's labels; their vectors are stored on disk.

        Learned prompts are given by their name, and have to be those that the service was started with.
        """
        key = (client, labels, repr(templates))
        if isinstance(templates, str) and templates.startswith(LEARNED_PREFIX):
            if self._prompts is None or self._prompts.name != templates:
                raise InputError(
                    "the stream has learned prompts, which this service was not started with; start it with "
                    "--prompts learned:FILE to add labels."
                )
            templates = self._prompts
        return self._share(key, client, partial(head_steps, self._encoder, labels, templates, self._cache))

    def negatives(self) -> Future[HostArray]:
        """Return the vectors (M, d) of nouns that stand for all else; encoded once, even if a caller stops waiting."""
        if self._negatives is not None:
            return _done(self._negatives)

        def steps() -> Steps[HostArray]:
            self._negatives = yield from negative_steps(self._encoder, self._cache)
            return self._negatives

        if "negatives" not in self._jobs:
            self._share("negatives", "", steps)  # a future that nobody cancels
        return self._share("negatives", "", steps)

    def head_for_request(self, labels: tuple[str, ...], template: str, client: str = "") -> Future[Head]:
        """Return the head of the labels of a single request; only the most recent are kept, in memory."""
        recent = (labels, template)
        with self._lock:
            if recent in self._recent:
                self._recent.move_to_end(recent)
                return _done(self._recent[recent])

        def steps() -> Steps[Head]:
            head = yield from head_steps(self._encoder, labels, template, False)
            with self._lock:
                self._recent[recent] = head
                while len(self._recent) > MAX_RECENT_HEADS:
                    self._recent.popitem(last=False)
            return head

        return self._share((client, *recent), client, steps)

    def stop(self) -> None:
        """Accept nothing more, and fail what is waiting; a batch that is running still ends."""
        self._pool.stop()

    def close(self) -> None:
        """Call `stop`, and return when no batch is running."""
        self._pool.close()

    def _share(self, key: Hashable, client: str, start: Callable[[], Steps[Result]]) -> Future[Result]:
        """Return a future of the job with this key; it is begun if it is new, and stopped once nobody waits for it."""
        mine: Future[Result] = Future()
        with self._lock:
            shared = self._jobs.get(key)
            if new := shared is None:
                shared = self._jobs[key] = _Shared(self._pool.submit_steps(client, _turns(start())))
            shared.waiting.append(mine)
        if new:
            shared.job.add_done_callback(lambda _: self._hand_over(key, shared))
        mine.add_done_callback(lambda _: self._give_up(key, shared, mine) if mine.cancelled() else None)
        return mine

    def _forget(self, key: Hashable, shared: "_Shared") -> None:
        if self._jobs.get(key) is shared:
            del self._jobs[key]

    def _hand_over(self, key: Hashable, shared: "_Shared") -> None:
        """Give the result of a job to all who wait for it."""
        with self._lock:
            self._forget(key, shared)
        for future in tuple(shared.waiting):
            with suppress(InvalidStateError):  # cancelled in the meantime
                if error := shared.job.exception():
                    future.set_exception(error)
                else:
                    future.set_result(shared.job.result())

    def _give_up(self, key: Hashable, shared: "_Shared", future: Future[Any]) -> None:
        """Stop waiting for a job, and stop the job if nobody else waits for it."""
        with self._lock:
            shared.waiting.remove(future)
            if unwanted := not shared.waiting:
                self._forget(key, shared)
        if unwanted:
            shared.job.cancel()


def _turns(steps: Steps[Result]) -> Generator[None, None, Result]:
    """Yield after the steps after which it is another job's turn: those with prompts left to encode."""
    encoded = 0
    while True:
        try:
            new, total = next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        encoded += new
        if 0 < encoded < total:
            yield


def _done(result: Result) -> Future[Result]:
    future: Future[Result] = Future()
    future.set_result(result)
    return future
