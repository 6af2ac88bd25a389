"""The model as the other processes see it: calls of encoder replicas."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any

from ray import serve
from ray.exceptions import RayActorError

from acclimate.arrays import HostArray
from acclimate.cluster.serving.answers import plain, within
from acclimate.cluster.serving.service_settings import Model, Settings
from acclimate.serve.batcher import Encoded
from acclimate.views import Kind

TRIES = 4  # of a call whose replica has died; replicas keep nothing, so that it may be repeated
PAUSE_S = 0.2  # before it is repeated
TEXT_S = 120.0  # that a batch of texts may take, behind all others


class RemoteEncoder:
    """Calls the encoder replicas from any thread; for others it has the text side of the model."""

    def __init__(self, settings: Settings, model: Model) -> None:
        self.dim = model.dim
        self.fingerprint = model.fingerprint
        self.logit_scale = model.logit_scale
        self.logit_bias = model.logit_bias
        self._handle = serve.get_deployment_handle("Encoders", settings.encoders)
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, name="acclimate-encoders", daemon=True).start()

    def call(self, method: str, *args: Any) -> "Future[Any]":
        """Call a method of a replica, which must have this model; cancelling the future cancels the call."""
        return asyncio.run_coroutine_threadsafe(self._call(method, (self.fingerprint, *args)), self._loop)

    async def _call(self, method: str, args: Sequence[Any]) -> Any:
        for left in reversed(range(TRIES)):
            response = getattr(self._handle, method).remote(*args)
            try:
                return await response
            except asyncio.CancelledError:
                response.cancel()
                raise
            except RayActorError as error:
                if not left:
                    raise plain(error, "the model") from None
                await asyncio.sleep(PAUSE_S)
            except Exception as error:
                raise plain(error, "the model") from None
        raise AssertionError

    def encode_text(self, texts: Sequence[str]) -> HostArray:
        """The features (n, d) of n texts; blocks."""
        vectors: HostArray = within(TEXT_S, self.call("encode_text", list(texts)))
        return vectors


class RemoteBatcher:
    """What streams ask of a batcher, done by encoder replicas. They refuse too many images, hence not before."""

    def __init__(self, encoder: RemoteEncoder, settings: Settings) -> None:
        self.encoder = encoder
        self.limits = settings.limits
        self._lock = Lock()
        self._possible: set[tuple[int, Any]] = set()  # views that the model can make

    def preparer(self, views: int, kind: Any) -> None:
        """Refuse a model that cannot make views of this kind; blocks."""
        if (views, kind) not in self._possible:
            within(self.limits.timeout_s, self.encoder.call("check_views", views, kind))
            with self._lock:
                self._possible.add((views, kind))

    def submit(
        self,
        images: Sequence[bytes | str],
        *,
        names: Sequence[str] = (),
        thumbnails: bool = False,
        views: int = 1,
        kind: Kind = "augmix",
        start: int = 0,
        client: str = "",
    ) -> "Future[Encoded]":
        """Have images encoded; see `Batcher.submit`, whose errors the future raises."""
        options = {"names": list(names), "thumbnails": thumbnails, "views": views, "kind": kind, "start": start}
        return self.encoder.call("encode", images, {**options, "client": client})
