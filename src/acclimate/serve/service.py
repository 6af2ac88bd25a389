"""The base of all services: checks and creates streams, wherever they run, and answers without a stream."""

import asyncio
import os
import re
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol

import numpy as np
from pydantic import ValidationError

from acclimate.errors import InputError, reason
from acclimate.evidence import Head
from acclimate.files import sync_folder
from acclimate.methods import Adapter, Step, create, duplicate, find_method, require
from acclimate.predict import Prediction, Predictions, refuse_none
from acclimate.serve.http_errors import NotFoundError, StorageError, TooManyError, validation_message
from acclimate.serve.interfaces import AnyBatcher, AnyStream
from acclimate.serve.limits import Limits
from acclimate.serve.logs import logger
from acclimate.serve.pools import FairPool
from acclimate.serve.prometheus import Metrics
from acclimate.serve.schemas import NAME_PATTERN, NAME_RULE, StreamSetup
from acclimate.serve.setups import StreamRecord, create_files
from acclimate.serve.texts import Texts

NAME = re.compile(NAME_PATTERN)
# how names of folders begin whose streams are being created or deleted
NEW = ".new-"
DELETED = ".deleted-"
CALL_THREADS = 8  # concurrent calls that create, delete, read or write streams; they may wait for a stream or a disk
REPORT_THREADS = 2  # concurrent reports on all streams; they wait for nothing
BODY_THREADS = 2  # large bodies that are parsed or written concurrently; few, as the parsed copy needs memory, too


class AnyAudit(Protocol):
    """A log of administrative calls; see `AuditLog`."""

    def write(self, action: str, caller: str, outcome: str, **details: Any) -> None:
        """Append a line; may block."""


class Service(ABC):
    """All streams of a service, as the routes use them; methods may be called from any thread, and may block.

    Args:
        folder: the folder of the streams.
        batcher: encodes images.
        texts: encodes labels.
        limits: limits on everything.
        metrics: the metrics of this process.
        audit: the log of administrative calls.
        defaults: arguments of `create` for streams that are created by their first images; None to refuse those.
    """

    batcher: AnyBatcher

    def __init__(
        self,
        folder: Path,
        batcher: AnyBatcher,
        texts: Texts,
        limits: Limits,
        metrics: Metrics,
        audit: AnyAudit,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.limits = limits
        self.metrics = metrics
        self.defaults = defaults
        self.audit = audit
        self.batcher = batcher
        self.texts = texts
        self.calls = FairPool("acclimate-call", CALL_THREADS, limits.calls)
        self.reports = FairPool("acclimate-report", REPORT_THREADS, limits.calls)
        self.bodies = FairPool("acclimate-body", BODY_THREADS, sys.maxsize)  # accepted requests must be answered
        self._folder = folder

    @abstractmethod
    def get(self, name: str) -> AnyStream:
        """Return the stream with this name; NotFoundError if there is none. It does not block."""

    @abstractmethod
    def check_room(self, name: str, client: str) -> None:
        """Raise ExistsError or TooManyError if a client may not create a stream with this name."""

    @abstractmethod
    def describe(self) -> list[dict[str, Any]]:
        """Describe every stream; for those that cannot be used, only `name` and `broken`."""

    @abstractmethod
    def delete(self, name: str) -> "Future[None]":
        """Finish the stream's queued work, then remove it and its files; they are removed when the future is done."""

    @abstractmethod
    def readiness(self) -> "Future[str | None]":
        """Return the reason why images are not accepted, or what is learnt cannot be written; None if all is well."""

    @abstractmethod
    def metrics_text(self) -> bytes:
        """Return the metrics of the whole service in Prometheus' text format."""

    @abstractmethod
    def close(self) -> None:
        """Finish all work that was accepted."""

    @abstractmethod
    def _place(self, unfinished: Path, name: str, client: str) -> AnyStream:
        """Give the files of a new stream their name, and open it; raises what `create` does."""

    def check_new(
        self,
        name: str,
        labels: Sequence[str],
        options: Mapping[str, Any],
        fitted: Adapter | None = None,
        client: str = "",
    ) -> tuple[tuple[str, ...], StreamSetup]:
        """Check the labels and the setup of a new stream; raises what `create` would, before anything is encoded."""
        if not NAME.fullmatch(name):
            raise InputError(f"a stream cannot be named {name[:80]!r}. {NAME_RULE}")
        self.check_room(name, client)
        labels, setup = check_setup(labels, options, self.limits, fitted)
        self.batcher.preparer(setup.views, setup.views_kind)  # refuses a model that cannot make views
        return labels, setup

    def create(
        self,
        name: str,
        labels: Sequence[str],
        *,
        client: str = "",
        head: Head | None = None,
        fitted: Adapter | None = None,
        **options: Any,
    ) -> AnyStream:
        """Create a stream with the fields of `StreamSetup` as options; it is on disk when this returns.

        The `head` of the labels is encoded if it is not given. A few-shot method needs an adapter that was `fitted`, of
        this method, these settings and these labels. A client, unless it is "", may make so many streams only.

        Raises InputError, ExistsError, TooManyError (streams), or StorageError if it could not be written.
        """
        labels, setup = self.check_new(name, labels, options, fitted, client)
        if setup.reject:
            self.texts.negatives().result()  # encoded once per model, which may take longer than a request
        if fitted is None:
            head = head or self.texts.head(labels, setup.templates).result()
            adapter = create(setup.method, head, origin=name, **setup.settings)
        else:
            adapter = duplicate(fitted)
        unfinished = self._folder / f"{NEW}{token_hex(8)}"
        record = StreamRecord(setup, self.batcher.encoder.fingerprint, client)
        try:
            create_files(unfinished, record, adapter, self.limits.history)
            stream = self._place(unfinished, name, client)
            sync_folder(self._folder)
            return stream
        except OSError as error:
            raise StorageError(f"the stream {name!r} could not be written: {reason(error)}.") from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def create_default(self, name: str, client: str) -> AnyStream:
        """Create a stream with the `defaults`, for a client's first images; the audit log says so."""
        stream = self.create(name, client=client, **(self.defaults or {}))
        self.audit.write("create_stream", client, "done", stream=name, by="its first images")
        return stream

    async def zero_shot(
        self,
        image: bytes | str,
        labels: Sequence[str],
        template: str,
        client: str = "",
        waiting: Callable[[Future[Any]], Awaitable[Any]] = asyncio.wrap_future,
    ) -> Prediction:
        """Predict an image zero-shot with any labels, without a stream; nothing is learnt."""
        names = self.limits.check_labels(labels, template, self.limits.task_labels)
        encoded = await waiting(self.batcher.submit([image], client=client))
        head = await waiting(self.texts.head_for_request(names, template, client))
        evidence = head.observe(encoded.features)
        found = Predictions.of(head, evidence, Step(evidence.logits), len(names))
        self.metrics.answered(found, len(head))
        return found.rows[0]

    def _check_streams(self, streams: int, client: str, of_client: int) -> None:
        """Refuse a stream that would be one too many: of all, or of those that this client has made."""
        if streams >= self.limits.streams:
            raise TooManyError(f"the maximum of {self.limits.streams} streams is reached; delete one first.")
        most = self.limits.client_streams
        if client and of_client >= most:
            raise TooManyError(
                f"{client!r} has made the maximum of {most} streams for one client; delete one first, or have the "
                "service started with a higher --max-client-streams."
            )


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
    setup = setup.model_copy(update={"views_kind": setup.views_kind or method.views_kind})
    if fitted is not None:
        return names, setup
    if "text" in method.needs and method.kind != "few-shot":
        raise InputError(f"the service does not run {method.name!r}, which tunes prompts; use `acclimate classify`.")
    require(method, views=setup.views > 1)
    adapter = create(setup.method, Head(np.eye(2), logit_scale=1.0), **setup.settings)
    kept = sum(part.capacity for part in adapter.parts.values())
    if kept > limits.capacity:
        raise InputError(f"the settings keep {kept} samples per label; lower them to {limits.capacity} at most.")
    return names, setup


def move_away(folder: Path, name: str) -> Path:
    """Take the files of a stream out of the folder of all streams; returns where they are until they are removed."""
    gone = folder / f"{DELETED}{token_hex(8)}"
    try:
        os.replace(folder / name, gone)
    except FileNotFoundError:  # somebody else has removed them
        pass
    except OSError as error:
        raise StorageError(f"the stream {name!r} could not be removed: {reason(error)}.") from error
    return gone


def remove_for_good(gone: Path) -> None:
    """Remove the files that `move_away` has moved; that the stream does not exist any more is on the disk first."""
    sync_folder(gone.parent)
    shutil.rmtree(gone, ignore_errors=True)
    if gone.exists():
        logger.warning("files of a deleted stream could not be removed", extra={"fields": {"folder": str(gone)}})


def not_there(name: str) -> NotFoundError:
    """Return the error for a stream that does not exist."""
    return NotFoundError(f"there is no stream {name[:80]!r}; create it first.")


def claim_folder(folder: Path, streams: Path, *, shared: bool = False) -> Any:
    """Create the folders and lock them for this process, where the platform supports it; the lock is a file to close.

    A `shared` lock leaves room for others that are shared, and none for one that is not.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is learnt from images is private
        streams.mkdir(exist_ok=True)
        for parent in (folder, folder.parent):
            sync_folder(parent)
        file = open(folder / "lock", "a")  # noqa: SIM115 (held until the service ends)
    except OSError as error:
        raise InputError(f"cannot store streams in {folder}: {reason(error)}.") from error
    with suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise InputError(f"another service uses {folder}; stop it, or use another folder for this one.") from error
    return file
