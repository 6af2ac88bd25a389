"""All streams of a service: created, found by name, listed, deleted; in memory only while they are used."""

import asyncio
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from secrets import token_hex
from threading import Lock
from time import monotonic
from typing import Any

import numpy as np
from pydantic import ValidationError

from acclimate.encoders import Encoder
from acclimate.errors import AcclimateError, InputError
from acclimate.evidence import Head
from acclimate.files import remove_leftovers, sync_folder
from acclimate.methods import (
    Adapter,
    Step,
    check_settings,
    create,
    duplicate,
    find_method,
    list_methods,
    require,
    takes_kinds,
)
from acclimate.predict import Prediction, Predictions, refuse_none
from acclimate.prompts import LearnedPrompts
from acclimate.reading.batcher import Batcher
from acclimate.serve.http_errors import ExistsError, NotFoundError, TooManyError, validation_message
from acclimate.serve.limits import Limits
from acclimate.serve.logs import AuditLog, logger
from acclimate.serve.prometheus import Metrics
from acclimate.serve.queues import FairPool
from acclimate.serve.schemas import NAME_PATTERN, NAME_RULE, StreamSetup
from acclimate.serve.storage import SUFFIX, TEMPORARY, claim_folder, lacking_files, list_files, remove_file, write_file
from acclimate.serve.stream import Stream
from acclimate.serve.texts import Texts

NAME = re.compile(NAME_PATTERN)


class Streams:
    """The streams in a folder, for the event loop; only one service at a time may use the folder.

    Args:
        folder: the folder of the service; created if it does not exist.
        encoder: the model that all streams share.
        limits: limits on everything.
        defaults: arguments of `create` for streams that are created by their first images; None to refuse those.
        prompts: learned prompts, which streams name as their templates.

    Attributes:
        pool: threads for everything that blocks, which clients use in turns.
        audit: the log of administrative calls in the folder.
        unsaved: once it is closed, why the state of a stream could not be written, for each that has this problem.

    Raises:
        InputError: the folder cannot be used, or another service uses it.
    """

    def __init__(
        self,
        folder: Path,
        encoder: Encoder,
        limits: Limits | None = None,
        defaults: Mapping[str, Any] | None = None,
        prompts: LearnedPrompts | None = None,
    ) -> None:
        self._folder = folder / "streams"
        self._lock_file = claim_folder(folder)
        remove_leftovers(folder / "texts")
        self.limits = limits or Limits()
        self.defaults = defaults
        self.metrics = Metrics()
        self.audit = AuditLog(folder)
        self.batcher = Batcher(
            encoder,
            workers=self.limits.workers,
            pixels=self.limits.pixels,
            decode_s=self.limits.decode_s,
            batch=self.limits.batch,
            wait_s=self.limits.wait_s,
            queue=self.limits.queue,
            on_encoded=self.metrics.encoded,
            on_unreadable=self.metrics.unreadable,
        )
        self.texts = Texts(encoder, self.limits, folder / "texts", prompts)
        self.pool = FairPool("acclimate-call", 8, self.limits.queue)  # most calls wait for the disk
        self.unsaved: dict[str, str] = {}
        self._closed = False
        self._placing = Lock()
        self._copying = FairPool("acclimate-copy", 2, self.limits.queue)  # of a client, one is at work
        self._open = partial(
            Stream,
            limits=self.limits,
            batcher=self.batcher,
            texts=self.texts,
            pool=self.pool,
            copying=self._copying,
            metrics=self.metrics,
            room=self._room,
        )
        self._streams = {
            stream.name: stream for stream in map(self._open, list_files(self._folder)) if NAME.fullmatch(stream.name)
        }

    async def create(
        self, name: str, labels: Sequence[str], *, client: str = "", fitted: Adapter | None = None, **options: Any
    ) -> Stream:
        """Create a stream with the fields of `StreamSetup` as options; it is on disk when this returns.

        A few-shot method needs an adapter that was `fitted`, of this method, these settings and these labels. What a
        client, unless it is "", may make is limited.

        Raises InputError, ExistsError, TooManyError (streams, bytes), or StorageError if it could not be written.
        """
        if not NAME.fullmatch(name):
            raise InputError(f"a stream cannot be named {name[:80]!r}. {NAME_RULE}")
        self.check_room(name, client, len(labels) * self.batcher.encoder.dim * 4)
        names, setup = await self.pool.run(client, lambda: check_setup(labels, options, self.limits, fitted))
        self.batcher.preparer(setup.views, setup.views_kind)  # refuses a model that cannot make views
        if setup.reject:
            await self.texts.negatives()  # encoded once per model, which may take longer than a request
        start = fitted or await self.texts.head(names, setup.templates, client, expand=setup.expand)
        await self.pool.run(client, partial(self._create, name, setup, client, start))
        return await self.get(name, client)

    async def create_default(self, name: str, client: str) -> Stream:
        """Create a stream with the `defaults`, for a client's first images; the audit log says so."""
        stream = await self.create(name, client=client, **(self.defaults or {}))
        await self.pool.run(
            client, partial(self.audit.write, "create_stream", client, "done", stream=name, by="its first images")
        )
        return stream

    async def get(self, name: str, client: str = "") -> Stream:
        """Find a stream by name, loaded; NotFoundError if there is none, UnusableError if its file cannot be used.

        Others are unloaded if memory is short.
        """
        stream = self._streams.get(name)
        if stream is None:
            raise NotFoundError(f"there is no stream {name[:80]!r}; create it first.")
        loaded = stream.loaded_bytes
        await stream.load(client)
        if not loaded:
            await self._unload()
        return stream

    def methods(self) -> list[str]:
        """Return the names of the methods that `create` accepts, those of plugins and of a fitted file included."""
        fitted = (self.defaults or {}).get("fitted")
        accepted = [] if fitted is None else [fitted.name]
        for name, method in list_methods().items():
            options = {"method": name, "views": 1 + ("views" in method.needs)}
            with suppress(Exception):  # whatever a plugin raises, no stream can have its method
                _, setup = check_setup(("cat", "dog"), options, self.limits)
                self.batcher.preparer(setup.views, setup.views_kind)
                accepted.append(name)
        return sorted(accepted)

    def describe(self) -> list[dict[str, Any]]:
        """Describe every stream; for those that cannot be used, only `name` and `broken`."""
        return sorted((stream.describe() for stream in self._all()), key=lambda each: str(each["name"]))

    async def delete(self, name: str, client: str = "") -> None:
        """Finish the stream's waiting calls, then remove it and its file; NotFoundError if there is none."""
        stream = self._streams.get(name)
        if stream is None:
            raise NotFoundError(f"there is no stream {name[:80]!r} to delete.")
        await stream.delete(lambda: self._streams.pop(name, None), client)

    def readiness(self) -> str | None:
        """Return the reason why images are not accepted, or what is learnt cannot be written; None if all is well."""
        if self.batcher.full:
            return "the queue is full; try again in a moment."
        if lacking := lacking_files():
            return lacking
        degraded = [stream.degraded for stream in self._all() if stream.degraded]
        return f"degraded streams: {len(degraded)}; they answer, but {degraded[0]}" if degraded else None

    async def metrics_text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""

        def text() -> bytes:
            described = self.describe()
            return self.metrics.text(
                entries=sum((Counter(each.get("entries", {})) for each in described), Counter[str]()),
                corrections=sum(each.get("corrections", 0) for each in described),
                degraded=sum(each.get("degraded") is not None for each in described),
            )

        return await self.pool.run("", text)

    async def zero_shot(
        self, image: bytes | str, labels: Sequence[str], template: str, client: str = "", *, expand: bool = True
    ) -> Prediction:
        """Predict an image zero-shot with any labels, without a stream; nothing is learnt."""
        names = self.limits.check_labels(labels, template, self.limits.task_labels)
        encoded = await asyncio.wrap_future(self.batcher.submit([image], client=client))
        head = await self.texts.head_for_request(names, template, client, expand=expand)
        evidence = head.observe(encoded.features)
        found = Predictions.of(head, evidence, Step(evidence.logits), len(names))
        self.metrics.answered(found, len(head))
        return found.rows[0]

    async def run(self) -> None:
        """Do periodic work for ever: checkpoints, snapshots by time, and unloading what nobody uses."""
        while True:
            await asyncio.sleep(self.limits.sync_s)
            for error in await asyncio.gather(*(stream.tick() for stream in self._all()), return_exceptions=True):
                if isinstance(error, Exception) and not isinstance(error, AcclimateError):
                    logger.error("periodic work failed", exc_info=error)
            await self._unload(self.limits.idle_s)

    async def close(self) -> None:
        """Finish all calls, write the state of every stream, and release the folder; see `unsaved`."""
        if self._closed:
            return
        self._closed = True
        self.texts.pool.stop()
        await asyncio.to_thread(self.batcher.close, self.limits.timeout_s)
        streams = self._all()
        closed = await asyncio.gather(*(stream.close() for stream in streams), return_exceptions=True)
        for stream, error in zip(streams, closed, strict=True):
            if why := stream.degraded or (error and repr(error)):
                self.unsaved[stream.name] = str(why)
        await self.texts.pool.close()
        await self._copying.close()
        await self.pool.close()
        self._lock_file.close()

    def check_room(self, name: str, client: str, size: int = 0) -> None:
        """Raise ExistsError or TooManyError if a client may not create a stream with this name, of so many bytes."""
        if name in self._streams:
            raise ExistsError(f"there already is a stream {name!r}; use it, or delete it first.")
        if len(self._streams) >= self.limits.streams:
            raise TooManyError(f"the maximum of {self.limits.streams} streams is reached; delete one first.")
        mine = [stream for stream in self._all() if stream.client == client]
        if client and len(mine) >= self.limits.client_streams:
            raise TooManyError(
                f"{client!r} has made the maximum of {self.limits.client_streams} streams for one client; delete one "
                "first, or have the service started with a larger `client_streams` in its [limits]."
            )
        if client and sum(stream.file_bytes for stream in mine) + size > self.limits.client_bytes:
            raise TooManyError(
                f"the streams of {client!r} take the maximum of {self.limits.client_bytes} bytes for one client; "
                "delete one first, or have the service started with larger `client_bytes` in its [limits]."
            )

    def _room(self, stream: Stream) -> float:
        """Return the bytes that the file of a stream may have, beside the other streams that its client has made."""
        if not stream.client:
            return inf
        others = (each for each in self._all() if each.client == stream.client and each is not stream)
        return self.limits.client_bytes - sum(each.file_bytes for each in others)

    def _all(self) -> list[Stream]:
        return list(self._streams.values())

    def _create(self, name: str, setup: StreamSetup, client: str, start: Head | Adapter) -> None:
        """Write the file of a new stream; it gets its name if there is still room for it."""
        if isinstance(start, Head):
            adapter = create(setup.method, start, origin=name, **setup.settings)
        else:
            adapter = duplicate(start)
        about = {"model": self.batcher.encoder.fingerprint, "client": client, "setup": setup.model_dump()}
        path = self._folder / f"{name}{SUFFIX}"
        written = self._folder / f"{TEMPORARY}{token_hex(8)}{SUFFIX}"
        try:
            write_file(written, about, adapter, self.limits)
            with self._placing:
                self.check_room(name, client, written.stat().st_size)
                remove_file(path)  # what is left of a stream of this name whose file somebody has removed
                os.replace(written, path)
                sync_folder(self._folder)
                self._streams[name] = self._open(path)
        finally:
            with suppress(OSError):
                remove_file(written)

    async def _unload(self, idle_s: float = inf) -> None:
        """Unload streams that were not used for so many seconds, and the least recently used if memory is short."""
        total = sum(stream.loaded_bytes for stream in self._all())
        for stream in sorted(self._all(), key=lambda each: each.used):
            if stream.loaded_bytes and (total > self.limits.loaded_bytes or monotonic() - stream.used > idle_s):
                total -= stream.loaded_bytes
                with suppress(AcclimateError):  # it was deleted in the meantime
                    await stream.unload()


def check_setup(
    labels: Sequence[str], options: Mapping[str, Any], limits: Limits, fitted: Adapter | None = None
) -> tuple[tuple[str, ...], StreamSetup]:
    """Check the labels and the setup of a new stream; InputError if they cannot be used. Nothing is encoded."""
    try:
        setup = StreamSetup(**options)
    except ValidationError as error:
        raise InputError(validation_message(error)) from None
    names = limits.check_labels(labels, setup.templates)
    if setup.reject:
        refuse_none(names)
    most = min(limits.views, limits.queue)
    if setup.views > most:
        raise InputError(f"views must be from 1 to {most}, got {setup.views}; use fewer.")
    method = find_method(setup.method)
    expand = setup.expand and takes_kinds(method)
    setup = setup.model_copy(update={"views_kind": setup.views_kind or method.views_kind, "expand": expand})
    if fitted is not None:
        if setup.method != fitted.name:
            raise InputError(f"the labels of the service were fitted with {fitted.name!r}; leave out the method.")
        return names, setup
    if method.kind == "collection" or ("text" in method.needs and method.kind != "few-shot"):
        raise InputError(
            f"the service does not run {method.name!r}, which tunes prompts or answers a collection as a whole; use "
            "`acclimate classify`."
        )
    require(method, views=setup.views > 1)
    adapter = create(setup.method, Head(np.eye(2), logit_scale=1.0), **check_settings(method, setup.settings))
    kept = sum(part.capacity for part in adapter.parts.values())
    if kept > limits.capacity:
        raise InputError(f"the settings keep {kept} samples per label; lower them to {limits.capacity} at most.")
    return names, setup
