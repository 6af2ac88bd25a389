"""The model as the other processes see it: calls of encoder replicas."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any

from ray import serve
from ray.exceptions import RayActorError

from acclimate.arrays import HostArray
from acclimate.cluster.serving.answers import unwrapped, within
from acclimate.cluster.serving.service_settings import Model, Settings
from acclimate.serve.batcher import Encoded
from acclimate.views import Kind

MAX_TRIES = 4  # attempts of a call whose replica has died; replicas keep no state
PAUSE_S = 0.2  # pause between two attempts
TEXT_S = 120.0  # time limit of a batch of texts, waiting included


class RemoteEncoder:
    """A caller of the encoder replicas, from any thread, with the text side of the model."""

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
        for left in reversed(range(MAX_TRIES)):
            response = getattr(self._handle, method).remote(*args)
            try:
                return await response
            except asyncio.CancelledError:
                response.cancel()
                raise
            except RayActorError as error:
                if not left:
                    raise unwrapped(error, "the model") from None
                await asyncio.sleep(PAUSE_S)
            except Exception as error:
                raise unwrapped(error, "the model") from None
        raise AssertionError

    def encode_text(self, texts: Sequence[str]) -> HostArray:
        """Return the features (n, d) of n texts; blocks."""
        vectors: HostArray = within(TEXT_S, self.call("encode_text", list(texts)))
        return vectors


class RemoteBatcher:
    """A batcher whose work encoder replicas do. They refuse too many images, so this does not."""

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
