"""All streams of a service: made, found, listed, deleted, and loaded from disk at the start."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex
from threading import Event, Lock, Thread
from typing import Any

from acclimate.classifier import Prediction, predictions_from
from acclimate.encoders import Encoder
from acclimate.errors import (
    ExistsError,
    InputError,
    NotFoundError,
    StateError,
    StorageError,
    TooManyError,
    UnusableError,
)
from acclimate.evidence import observe
from acclimate.methods import create
from acclimate.methods.base import configure, find
from acclimate.serve.batcher import Batcher, Encoded
from acclimate.serve.events import Events
from acclimate.serve.guard import GuardRules
from acclimate.serve.lane import Lane
from acclimate.serve.learner import Learner
from acclimate.serve.limits import Limits
from acclimate.serve.setup import Setup, check_labels
from acclimate.serve.stream import Stream

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
THREADS = 8  # streams that work at once; those that write to the disk or encode labels hold no others up


class Streams:
    """The streams of a folder; its methods may be called from any thread, and may block.

    Args:
        folder: where streams are kept; made if it is not there. One service at a time may use it.
        encoder: the model that all streams share.
        limits: on everything.
        events: told of what happens; metrics count it.

    Raises:
        InputError: the folder cannot be used, or another service uses it.
    """

    def __init__(
        self, folder: Path, encoder: Encoder, limits: Limits | None = None, events: Events | None = None
    ) -> None:
        self.limits = limits or Limits()
        self._folder, self._events = Path(folder) / "streams", events or Events()
        self._lock_file = _claim(Path(folder), self._folder)
        self.batcher = Batcher(encoder, self.limits, Path(folder) / "texts", self._events)
        self._pool = ThreadPoolExecutor(THREADS, "acclimate-stream")
        self._lock = Lock()
        self._streams: dict[str, Stream] = {}
        self._unusable: dict[str, str] = {}
        for path in sorted(self._folder.iterdir()):
            if NAME.fullmatch(path.name) and path.is_dir():
                try:
                    self._streams[path.name] = self._open(path.name)
                except StateError as error:
                    self._unusable[path.name] = str(error)
            elif path.name.startswith("."):  # half made or half deleted
                shutil.rmtree(path, ignore_errors=True)
        self._closing = Event()
        self._ticker = Thread(target=self._tick, name="acclimate-tick", daemon=True)
        self._ticker.start()

    def create(
        self,
        name: str,
        labels: Sequence[str],
        templates: Any = "single",
        method: str = "tda",
        settings: Mapping[str, Any] | None = None,
        thumbnails: bool = False,
        guard: GuardRules | None = None,
    ) -> Stream:
        """Make a stream; it is on disk when this returns.

        Args:
            name: lower-case letters, digits, and `.`, `_`, `-` after the first; 64 characters at most.
            labels: names of the classes, at least two.
            templates: prompts, as for `Classifier`.
            method: name of the adapter.
            settings: of the method.
            thumbnails: keep a small picture of every cached image.
            guard: rules against poisoning.

        Raises:
            InputError: something cannot be used.
            ExistsError: the name is taken.
            TooManyError: there are as many streams as are allowed.
            StorageError: it could not be written.
        """
        if not NAME.fullmatch(name):
            raise InputError(f"a stream is named with a-z, 0-9, and after the first also . _ -, not {name[:80]!r}.")
        self._check_room(name)
        labels = check_labels(labels, templates, self.limits)
        settings = dict(settings or {})
        self._check_capacity(asdict(configure(find(method), settings)))
        setup = Setup(self.batcher.encoder.fingerprint, templates, method, settings, thumbnails, guard)
        unfinished = self._folder / f".new-{token_hex(8)}"
        try:
            Learner.create_files(unfinished, setup, labels, self.batcher)
            with self._lock:
                self._check_room(name)
                os.replace(unfinished, self._folder / name)
                stream = self._streams[name] = self._open(name)
                return stream
        except OSError as error:
            raise StorageError(f"stream {name!r} could not be written: {error.strerror or error}.") from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def get(self, name: str) -> Stream:
        """The stream of that name.

        Raises:
            NotFoundError: there is none.
            UnusableError: there is one, but its files cannot be used.
        """
        stream = self._streams.get(name)
        if stream is not None:
            return stream
        if name in self._unusable:
            raise UnusableError(f"stream {name!r} cannot be used: {self._unusable[name]}")
        raise NotFoundError(f"there is no stream {name[:80]!r}; create it first.")

    def names(self) -> list[str]:
        """The names of all streams, usable or not."""
        return sorted([*self._streams, *self._unusable])

    def describe(self) -> list[dict[str, Any]]:
        """Every stream as `Stream.describe` tells it; of those that cannot be used, `name` and `broken` alone."""
        usable = [stream.describe() for stream in list(self._streams.values())]
        unusable = [{"name": name, "broken": reason} for name, reason in self._unusable.items()]
        return sorted([*usable, *unusable], key=lambda each: str(each["name"]))

    def entries(self) -> Counter[str]:
        """How many entries all caches of a kind hold together."""
        total: Counter[str] = Counter()
        for stream in list(self._streams.values()):
            total.update(stream.entries())
        return total

    def delete(self, name: str) -> None:
        """Finish what the stream has queued, then remove it and its files."""
        with self._lock:
            stream = self._streams.pop(name, None)
            if stream is None and self._unusable.pop(name, None) is None:
                raise NotFoundError(f"there is no stream {name[:80]!r} to delete.")
        if stream is not None:
            stream.close().result()
        gone = self._folder / f".deleted-{token_hex(8)}"
        try:
            os.replace(self._folder / name, gone)
        except OSError as error:
            raise StorageError(f"stream {name!r} could not be removed: {error.strerror or error}.") from error
        shutil.rmtree(gone, ignore_errors=True)

    def zero_shot(
        self, images: Sequence[bytes], labels: Sequence[str], templates: Any = "single", top_k: int = 5
    ) -> "Future[list[Prediction]]":
        """The model's own answers for images and any labels; no stream, nothing learnt.

        Raises:
            InputError, BusyError: as for `Stream.classify`; the future may raise ImageError.
        """
        names = check_labels(labels, templates, self.limits)
        encoder = self.batcher.encoder

        def answer(encoded: Encoded) -> list[Prediction]:
            vectors = self.batcher.class_vectors(names, templates, keep=False)
            adapter = create("zero-shot", vectors, logit_scale=encoder.logit_scale, logit_bias=encoder.logit_bias)
            seen = observe(encoded.features, adapter.class_vectors, adapter.logit_scale, adapter.logit_bias)
            return predictions_from(names, seen, seen.logits, top_k, range(len(images)))

        return Lane(self._pool).put(answer, self.batcher.submit(images))

    def close(self) -> None:
        """Finish all that is queued, keep every stream's state, and let go of the folder."""
        self._closing.set()
        self._ticker.join()
        self.batcher.close()
        wait([stream.close() for stream in self._streams.values()])
        self._pool.shutdown()
        self._lock_file.close()

    def _open(self, name: str) -> Stream:
        return Stream(name, self._folder / name, self.batcher, self._pool, self._events)

    def _check_capacity(self, settings: Mapping[str, Any]) -> None:
        for key, value in settings.items():
            if key.endswith("capacity") and value > self.limits.capacity:
                raise InputError(f"{key} may be at most {self.limits.capacity} here, got {value}.")

    def _check_room(self, name: str) -> None:
        if name in self._streams or name in self._unusable:
            raise ExistsError(f"there is a stream {name!r} already; use it, or delete it first.")
        if len(self._streams) + len(self._unusable) >= self.limits.streams:
            raise TooManyError(f"there are {self.limits.streams} streams, the most allowed; delete one first.")

    def _tick(self) -> None:
        while not self._closing.wait(self.limits.sync_s):
            for stream in list(self._streams.values()):
                stream.tick()


def _claim(folder: Path, streams: Path) -> Any:
    """Make the folders and lock them for this process, where the platform can."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is learnt from images is private
        streams.mkdir(exist_ok=True)
        file = open(folder / "lock", "w")  # noqa: SIM115 (held until the service ends)
    except OSError as error:
        raise InputError(f"cannot keep streams in {folder}: {error.strerror or error}.") from error
    with suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise InputError(
                f"another service uses {folder}; stop it, or give this one a folder of its own."
            ) from error
    return file
