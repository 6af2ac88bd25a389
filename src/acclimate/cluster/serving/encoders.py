"""Replicas that encode images and texts, and keep nothing; Ray Serve starts as many as there is work for."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

from acclimate.arrays import HostArray, to_host
from acclimate.cluster.serving.images import SentImages
from acclimate.cluster.serving.reports import Reporter
from acclimate.cluster.serving.service_settings import Model, Settings
from acclimate.encoders import load_encoder
from acclimate.errors import AcclimateError, ModelError
from acclimate.serve.batcher import Batcher, Encoded
from acclimate.serve.prometheus import Metrics

MAX_ONGOING_REQUESTS = 256  # concurrent requests per replica; its batcher refuses images beyond its own queue
FAILED_REPLICA_S = 30.0  # lifetime of a replica whose model cannot be loaded
MAX_QUEUED_REQUESTS = 1024  # waiting requests per process


class Encoders:
    """One replica: a model, with a `Batcher` that decodes in processes of its own.

    `load` has the arguments of `load_encoder`.
    """

    def __init__(self, settings: Settings, load: Mapping[str, Any]) -> None:
        settings.begin()
        self._problem: AcclimateError | None = None
        self._began = monotonic()
        metrics = Metrics()
        try:
            self._encoder = load_encoder(**load)
        except AcclimateError as error:  # Ray Serve would try again for minutes, and say where, not why
            self._problem = error
            return
        self._batcher = Batcher(self._encoder, settings.limits, metrics)
        self._batcher.warm_up()
        self._texts = ThreadPoolExecutor(1, "acclimate-text")  # tokenizers are not thread-safe
        self._reporter = Reporter(settings, "encoders", lambda: metrics.text({}, 0))

    def check_health(self) -> None:
        """Fail if the model could not be loaded, once the reason could be read; Ray Serve then replaces the replica."""
        if monotonic() - self._began > FAILED_REPLICA_S:
            self._check_loaded()

    async def model(self) -> Model:
        """Return the description of the model for other processes; raises what loading it has raised."""
        self._check_loaded()
        model = self._encoder
        return Model(model.dim, model.logit_scale, model.logit_bias, model.fingerprint)

    async def encode(self, model: str, images: Sequence[bytes | str], options: Mapping[str, Any]) -> Encoded:
        """Encode images; the options are those of `Batcher.submit`, which is where errors are documented.

        Here and below, `model` is the fingerprint of the model that the caller knows.
        """
        self._check_loaded(model)
        if isinstance(images, SentImages):
            images = await asyncio.to_thread(images.fetch)
        return await asyncio.wrap_future(self._batcher.submit(images, **options))

    async def encode_text(self, model: str, texts: Sequence[str]) -> HostArray:
        """Return the features (n, d) of n texts."""
        self._check_loaded(model)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._texts, lambda: to_host(self._encoder.encode_text(texts)))

    async def check_views(self, model: str, views: int, kind: Any) -> None:
        """Refuse a model that cannot make views of this kind."""
        self._check_loaded(model)
        self._batcher.preparer(views, kind)

    async def full(self, model: str) -> bool:
        """Return True if no more images are accepted at the moment."""
        self._check_loaded(model)
        return self._batcher.full

    def _check_loaded(self, model: str | None = None) -> None:
        """Raise what loading the model has raised; refuse one that is not that of the caller."""
        if self._problem is not None:
            raise self._problem
        if model not in (None, self._encoder.fingerprint):
            raise ModelError(
                "the model of a node is not that of the others: its weights or preprocessing differ. Copy the same "
                "files to all nodes, and start the service again."
            )

    def __del__(self) -> None:
        for closing in (getattr(self, "_reporter", None), getattr(self, "_batcher", None)):
            if closing is not None:
                closing.close()
