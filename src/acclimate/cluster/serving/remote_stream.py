"""Streams as the front sees them: calls of the actors that have them."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray
from ray.exceptions import ActorDiedError, RayActorError

from acclimate.cluster.serving.answers import RemoteFuture, unwrapped, within
from acclimate.cluster.serving.images import SentImages
from acclimate.cluster.serving.service_settings import STREAM, Model, Settings
from acclimate.cluster.serving.stream_actor import StreamActor
from acclimate.evidence import Head
from acclimate.methods import Adapter
from acclimate.predict import Predictions
from acclimate.serve.http_errors import NotFoundError
from acclimate.serve.service import not_there
from acclimate.serve.stream import Stream

CALL_THREADS = 8  # threads that start actors and put images into the object store
START_S = 60.0  # time limit for an actor to read its files
MAX_TRIES = 3  # attempts of a call that may be repeated
Options = ParamSpec("Options")
Result = TypeVar("Result")


class StreamActors:
    """The actors of all streams, found or started when they are first asked for something."""

    def __init__(self, settings: Settings, model: Model) -> None:
        self._settings = settings
        self._model = model
        self.timeout_s = settings.limits.timeout_s
        self._handles: dict[str, Any] = {}
        self._lock = Lock()
        self.pool = ThreadPoolExecutor(CALL_THREADS, "acclimate-ask")

    def exists(self, name: str) -> bool:
        """Return True if there is a stream with this name: whether it has a folder."""
        return (self._settings.streams / name).is_dir()

    def ask(self, name: str, method: str, *args: Any, put: bool = False) -> "RemoteFuture[Any]":
        """Call a method of a stream's actor, without waiting. If it has to `put` images, that is done in a thread."""
        asked: RemoteFuture[Any] = RemoteFuture()

        def send(handle: Any) -> None:
            given = [SentImages(each) if isinstance(each, _Images) else each for each in args]
            asked.follow(getattr(handle, method).remote(*given), lambda error: self._translate(name, handle, error))

        def find_and_send() -> None:
            try:
                send(self.handle(name))
            except Exception as error:
                asked.set_exception(unwrapped(error, f"the stream {name!r}"))

        handle = self._handles.get(name)
        if handle is None or put:
            self.pool.submit(find_and_send)
        else:
            send(handle)
        return asked

    def handle(self, name: str) -> Any:
        """Return the actor of a stream, which is started if there is none; blocks for a moment."""
        handle = self._handles.get(name)
        if handle is None:
            if not self.exists(name):
                raise not_there(name)
            options = {"name": actor_name(name), "namespace": self._settings.name, "lifetime": "detached"}
            options["scheduling_strategy"] = "SPREAD"  # a lost node should take few streams with it
            # Calls are never repeated by Ray: images would be learnt twice.
            made = ray.remote(StreamActor).options(
                num_cpus=0, max_restarts=-1, max_task_retries=0, max_concurrency=1000, get_if_exists=True, **options
            )
            handle = made.remote(self._settings, name, self._model)
            with self._lock:
                self._handles[name] = handle
        return handle

    def open(self, name: str) -> None:
        """Start the actor of a stream whose files have just got their name; blocks until it is ready."""
        for left in reversed(range(MAX_TRIES)):
            try:
                self.reach(name, "describe", START_S)
                return
            except Exception as error:
                if (handle := self._handles.get(name)) is not None:
                    self.kill(name, handle)  # else it would go on with files that are removed now
                # The actor of a stream of this name that was deleted before says that there is none.
                if not left or not isinstance(error, NotFoundError):
                    raise

    def reach(self, name: str, method: str, seconds: float) -> Any:
        """Call a method that may be repeated; blocks until it is done, and returns the actor that has done it.

        The actor that is known here may be that of a stream which another replica has deleted and made anew.
        """
        for left in reversed(range(MAX_TRIES)):
            handle = self.handle(name)
            try:
                ray.get(getattr(handle, method).remote(), timeout=seconds)
                return handle
            except Exception as error:
                translated = self._translate(name, handle, error)
                if not left or not isinstance(error, ActorDiedError):
                    raise translated from error
        raise AssertionError

    def kill(self, name: str, handle: Any) -> None:
        """End an actor, which is not restarted."""
        self._forget(name, handle)
        ray.kill(handle, no_restart=True)

    def _forget(self, name: str, handle: Any) -> None:
        with self._lock:
            if self._handles.get(name) is handle:
                del self._handles[name]

    def _translate(self, name: str, handle: Any, error: Exception) -> Exception:
        """Return the error that a client gets for a failed call."""
        if isinstance(error, ActorDiedError):  # it will not return; the next call starts another one
            self._forget(name, handle)
        if isinstance(error, RayActorError) and not self.exists(name):
            return not_there(name)
        return unwrapped(error, f"the stream {name!r}")


class _Images(list[Any]):
    """Images that are sent with a call."""


class RemoteStream:
    """A stream whose actor may be anywhere; see `Stream`, whose methods it calls there."""

    def __init__(self, name: str, actors: StreamActors) -> None:
        self.name = name
        self._actors = actors

    def classify(
        self,
        images: Sequence[bytes | str],
        *,
        names: Sequence[str] = (),
        adapt: bool = True,
        top_k: int = 5,
        unsure: float | None = None,
        client: str = "",
    ) -> "Future[Predictions]":
        """Call `Stream.classify`; its immediate errors are raised by the future."""
        options = {"names": list(names), "adapt": adapt, "top_k": top_k, "unsure": unsure, "client": client}
        return self._actors.ask(self.name, "classify", _Images(images), options, put=SentImages.is_large(images))

    def correct(
        self, label: str, sample_id: int | None = None, image: bytes | str | None = None, client: str = ""
    ) -> "Future[int]":
        """Call `Stream.correct`."""
        return self._actors.ask(self.name, "correct", label, sample_id, image, client)

    def described(self) -> "Future[dict[str, Any]]":
        """Call `Stream.describe`."""
        return self._actors.ask(self.name, "describe")

    def head_of(self, add: Sequence[str], remove: Sequence[str], client: str = "") -> "Future[Head | None]":
        """Call `Stream.head_of`."""
        return self._actors.ask(self.name, "head_of", list(add), list(remove), client)

    def read_state(self, content: bytes) -> Adapter:
        """Call `Stream.read_state`; blocks."""
        adapter: Adapter = within(self._actors.timeout_s, self._actors.ask(self.name, "read_state", content))
        return adapter

    def enqueue(
        self, method: "Callable[Concatenate[Stream, Options], Result]", *args: Options.args, **kwargs: Options.kwargs
    ) -> "Future[Result]":
        """Call `Stream.enqueue`."""
        return self._actors.ask(self.name, "enqueue", method.__name__, args, kwargs)

    def enqueue_read(self, method: "Callable[[Stream], Result]") -> "Future[Result]":
        """Call `Stream.enqueue_read`."""
        return self._actors.ask(self.name, "enqueue_read", method.__name__)


def actor_name(stream: str) -> str:
    """Return the name of a stream's actor."""
    return STREAM + stream
