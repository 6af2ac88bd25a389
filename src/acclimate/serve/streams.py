"""All streams of a service: created, found by name, listed, deleted, and loaded from disk at the start."""

import asyncio
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from threading import Event, Lock, Thread
from typing import Any

import numpy as np
from pydantic import ValidationError

from acclimate.encoders import Encoder
from acclimate.errors import InputError, StateError, reason
from acclimate.evidence import Head
from acclimate.files import remove_leftovers, sync_folder
from acclimate.methods import Adapter, Step, create, duplicate, find_method, require
from acclimate.predict import Adapted, Prediction, predictions, refuse_none
from acclimate.prompts import LearnedPrompts
from acclimate.serve.audit import AuditLog
from acclimate.serve.batcher import Batcher
from acclimate.serve.errors import (
    ExistsError,
    NotFoundError,
    StorageError,
    TooManyError,
    UnusableError,
    validation_message,
)
from acclimate.serve.limits import Limits
from acclimate.serve.logs import logger
from acclimate.serve.metrics import Metrics
from acclimate.serve.pools import FairPool
from acclimate.serve.schemas import NAME_PATTERN, NAME_RULE, Setup
from acclimate.serve.setups import Made, create_files
from acclimate.serve.stream import Stream
from acclimate.serve.texts import Texts

NAME = re.compile(NAME_PATTERN)
NEW, DELETED = ".new-", ".deleted-"  # how names of folders begin whose streams are being created or deleted
THREADS = 8  # streams that work at the same time
CALLS = 8  # calls that create, delete, read or write streams at the same time; they may wait for a stream or a disk
REPORTS = 2  # reports on all streams that are written at the same time; they wait for nothing
BODIES = 2  # large bodies that are parsed or written at the same time; few, as the parsed copy needs memory, too


class Streams:
    """The streams in a folder; methods may be called from any thread, and may block.

    Args:
        folder: where streams are stored; created if it does not exist. Only one service at a time may use it.
        encoder: the model that all streams share.
        limits: limits on everything.
        defaults: arguments of `create` for streams that are created by their first images; None to refuse those.
        prompts: learned prompts, which streams name as their templates.

    Attributes:
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
        self.limits, self.metrics, self.defaults = limits or Limits(), Metrics(), defaults
        self._folder = Path(folder) / "streams"
        self._lock_file = _claim(Path(folder), self._folder)
        self.audit = AuditLog(Path(folder))
        texts = Path(folder) / "texts"
        remove_leftovers(texts)
        self.batcher = Batcher(encoder, self.limits, self.metrics)
        self.texts = Texts(encoder, self.limits, texts, prompts)
        self.calls = FairPool("acclimate-call", CALLS, self.limits.calls)
        self.reports = FairPool("acclimate-report", REPORTS, self.limits.calls)
        self.bodies = FairPool("acclimate-body", BODIES, sys.maxsize)  # whoever was let in must get his answer
        self._pool = ThreadPoolExecutor(THREADS, "acclimate-stream")
        self._lock = Lock()
        self._streams: dict[str, Stream] = {}
        self._unusable: dict[str, str] = {}
        self.unsaved: dict[str, str] = {}
        for path in sorted(self._folder.iterdir()):
            if NAME.fullmatch(path.name) and path.is_dir():
                remove_leftovers(path)
                try:
                    self._streams[path.name] = self._open(path.name)
                except StateError as error:
                    self._unusable[path.name] = str(error)
            elif path.name.startswith((NEW, DELETED)):  # half created or half deleted
                shutil.rmtree(path, ignore_errors=True)
        self.metrics.watch_degraded(lambda: len(self.degraded()))
        self._closing = Event()
        self._ticker = Thread(target=self._tick, name="acclimate-tick", daemon=True)
        self._ticker.start()

    def check_new(
        self,
        name: str,
        labels: Sequence[str],
        options: Mapping[str, Any],
        fitted: Adapter | None = None,
        client: str = "",
    ) -> tuple[tuple[str, ...], Setup]:
        """Labels and setup of a new stream; raises what `create` would, before anything is encoded."""
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
    ) -> Stream:
        """Create a stream with the fields of `Setup` as options; it is on disk when this returns.

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
        made = Made(setup, self.batcher.encoder.fingerprint, client)
        try:
            create_files(unfinished, made, adapter, self.limits.history)
            with self._lock:
                self.check_room(name, client)
                os.replace(unfinished, self._folder / name)
                try:
                    stream = self._streams[name] = self._open(name)
                except (OSError, StateError, MemoryError) as error:
                    os.replace(self._folder / name, unfinished)  # the name is free again
                    why = str(error) or "not enough memory"
                    raise StorageError(f"the stream {name!r} could not be opened: {why}") from error
            sync_folder(self._folder)
            return stream
        except OSError as error:
            raise StorageError(f"the stream {name!r} could not be written: {reason(error)}.") from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def get(self, name: str) -> Stream:
        """The stream with this name; NotFoundError if there is none, UnusableError if its files cannot be used."""
        stream = self._streams.get(name)
        if stream is not None:
            return stream
        if name in self._unusable:
            raise UnusableError(f"the stream {name!r} cannot be used: {self._unusable[name]}")
        raise NotFoundError(f"there is no stream {name[:80]!r}; create it first.")

    def create_default(self, name: str, client: str) -> Stream:
        """Create a stream with the `defaults`, for a client's first images; the audit log says so."""
        stream = self.create(name, client=client, **(self.defaults or {}))
        self.audit.write("create_stream", client, "done", stream=name, by="its first images")
        return stream

    def describe(self) -> list[dict[str, Any]]:
        """`Stream.describe` of every stream; for those that cannot be used, only `name` and `broken`."""
        usable = [stream.describe() for stream in list(self._streams.values())]
        unusable = [{"name": name, "broken": reason} for name, reason in self._unusable.items()]
        return sorted([*usable, *unusable], key=lambda each: str(each["name"]))

    def entries(self) -> Counter[str]:
        """Number of entries per cache, summed over all streams."""
        total: Counter[str] = Counter()
        for stream in list(self._streams.values()):
            total.update(stream.history.entries())
        return total

    def degraded(self) -> list[str]:
        """Why the states of streams cannot be written, for each that has this problem."""
        return [why for stream in list(self._streams.values()) if (why := stream.degraded)]

    def corrections(self) -> int:
        """Number of corrections in all streams."""
        return sum(len(stream.history.corrected) for stream in list(self._streams.values()))

    def delete(self, name: str) -> Future[None]:
        """Finish the stream's queued work, then remove it and its files, for good when the future is done.

        It raises NotFoundError if there is no such stream, and StorageError if the files cannot be removed; the stream
        can then be used as before. If `cancel` returns True, nothing is removed.
        """
        stream, remove = self._streams.get(name), partial(self._remove, name)
        return self._pool.submit(remove) if stream is None else stream.later(Stream.end, remove)

    async def zero_shot(
        self,
        image: bytes | str,
        labels: Sequence[str],
        template: str,
        client: str = "",
        waiting: Callable[[Future[Any]], Awaitable[Any]] = asyncio.wrap_future,
    ) -> Prediction:
        """The zero-shot prediction for an image and any labels, without a stream; nothing is learnt."""
        names = self.limits.check_labels(labels, template, self.limits.task_labels)
        encoded = await waiting(self.batcher.submit([image], client=client))
        head = await waiting(self.texts.head_for_request(names, template, client))
        evidence = head.observe(encoded.features)
        found = predictions(head, Adapted(evidence, Step(evidence.logits)), len(names), [0])
        self.metrics.answered(found, len(head))
        return found[0]

    def close(self) -> None:
        """Finish all queued work, write the state of every stream, and release the folder; see `unsaved`."""
        self._closing.set()
        self._ticker.join()
        for closing in (self.texts, self.batcher, self.calls, self.reports, self.bodies):
            closing.close()
        written = {stream: stream.close() for stream in self._streams.values()}
        wait(written.values())
        self.unsaved = {
            stream.name: why
            for stream, closed in written.items()
            if (why := stream.degraded or (closed.exception() and repr(closed.exception())))
        }
        self._pool.shutdown()
        self._lock_file.close()

    def _open(self, name: str) -> Stream:
        return Stream(name, self._folder / name, self.batcher, self.texts, self._pool, self.metrics)

    def _remove(self, name: str) -> None:
        """Move the files of a stream away, take it out of the list only then, and remove them."""
        gone = self._folder / f"{DELETED}{token_hex(8)}"
        with self._lock:
            if name not in self._streams and name not in self._unusable:
                raise NotFoundError(f"there is no stream {name[:80]!r} to delete.")
            try:
                os.replace(self._folder / name, gone)
            except FileNotFoundError:  # somebody else has removed them
                pass
            except OSError as error:
                raise StorageError(f"the stream {name!r} could not be removed: {reason(error)}.") from error
            self._streams.pop(name, None)
            self._unusable.pop(name, None)
        sync_folder(self._folder)
        shutil.rmtree(gone, ignore_errors=True)
        if gone.exists():
            logger.warning("files of a deleted stream could not be removed", extra={"fields": {"folder": str(gone)}})

    def check_room(self, name: str, client: str) -> None:
        """Raise ExistsError or TooManyError if a client may not create a stream with this name."""
        if name in self._streams or name in self._unusable:
            raise ExistsError(f"there already is a stream {name!r}; use it, or delete it first.")
        if len(self._streams) + len(self._unusable) >= self.limits.streams:
            raise TooManyError(f"the maximum of {self.limits.streams} streams is reached; delete one first.")
        most = self.limits.client_streams
        if client and sum(stream.client == client for stream in list(self._streams.values())) >= most:
            raise TooManyError(
                f"{client!r} has made the maximum of {most} streams for one client; delete one first, or have the "
                "service started with a higher --max-client-streams."
            )

    def _tick(self) -> None:
        while not self._closing.wait(self.limits.sync_s):
            for stream in list(self._streams.values()):
                stream.tick()


def check_setup(
    labels: Sequence[str], options: Mapping[str, Any], limits: Limits, fitted: Adapter | None = None
) -> tuple[tuple[str, ...], Setup]:
    """The labels and the setup of a new stream; InputError if they cannot be used, before anything is encoded."""
    try:
        setup = Setup(**options)
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
    kept = create(setup.method, Head(np.eye(2), logit_scale=1.0), **setup.settings).capacity
    if kept > limits.capacity:
        raise InputError(f"the settings keep {kept} samples per label; lower them to {limits.capacity} at most.")
    return names, setup


def _claim(folder: Path, streams: Path) -> Any:
    """Create the folders and lock them for this process, where the platform supports it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is learnt from images is private
        streams.mkdir(exist_ok=True)
        for parent in (folder, folder.parent):
            sync_folder(parent)
        file = open(folder / "lock", "w")  # noqa: SIM115 (held until the service ends)
    except OSError as error:
        raise InputError(f"cannot store streams in {folder}: {reason(error)}.") from error
    with suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise InputError(f"another service uses {folder}; stop it, or use another folder for this one.") from error
    return file
