"""All streams of a service on Ray, for one replica of its front; the folders on shared storage are the list of them."""

import errno
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

from acclimate.cluster.serving.answers import TIMEOUT_S, answer, unwrapped
from acclimate.cluster.serving.remote_encoder import RemoteBatcher, RemoteEncoder
from acclimate.cluster.serving.remote_stream import RemoteStream, StreamActors, actor_name
from acclimate.cluster.serving.reports import RemoteAudit, Reporter, find_reports
from acclimate.cluster.serving.service_settings import Model, Settings
from acclimate.errors import StateError
from acclimate.serve.http_errors import ExistsError, NotFoundError, StorageError
from acclimate.serve.prometheus import Metrics
from acclimate.serve.service import CALL_THREADS, NAME, Service, not_there
from acclimate.serve.setups import read_setup
from acclimate.serve.texts import Texts

READY_S = 1.0  # time for which an answer on readiness is reused


class ClusterStreams(Service):
    """The streams of a service whose actors may be anywhere; see `acclimate.serve.streams.Streams`."""

    def __init__(self, settings: Settings, model: Model, defaults: Mapping[str, Any] | None = None) -> None:
        encoder = RemoteEncoder(settings, model)
        metrics = Metrics()
        limits = settings.limits
        self._settings = settings
        self._encoder = encoder
        self._actors = StreamActors(settings, model)
        texts = Texts(encoder, limits, settings.data / "texts")
        batcher = RemoteBatcher(encoder, settings)
        audit = RemoteAudit(settings)
        super().__init__(settings.streams, batcher, texts, limits, metrics, audit, defaults)
        self._reporter = Reporter(settings, "front", lambda: metrics.text({}, 0))
        self._clients: dict[tuple[str, int], str] = {}  # who made a stream, by name and inode
        self._probe = ThreadPoolExecutor(1, "acclimate-ready")
        self._deleting = ThreadPoolExecutor(CALL_THREADS, "acclimate-delete")  # may wait for streams
        self._ready: tuple[float, str | None] = (0.0, None)

    def get(self, name: str) -> RemoteStream:
        """Find a stream by name; NotFoundError if there is none. Its actor checks that its files can be used."""
        if not self._actors.exists(name):
            raise not_there(name)
        return RemoteStream(name, self._actors)

    def check_room(self, name: str, client: str) -> None:
        """Raise ExistsError or TooManyError if a client may not create a stream with this name."""
        names = names_in(self._folder)
        if name in names:
            raise ExistsError(f"there already is a stream {name!r}; use it, or delete it first.")
        of_client = sum(self._client(each) == client for each in names) if client else 0
        self._clients = {key: made for key, made in self._clients.items() if key[0] in names}
        self._check_streams(len(names), client, of_client)

    def describe(self) -> list[dict[str, Any]]:
        """Describe every stream; only `name` and `broken` for those that do not answer."""
        latest = monotonic() + TIMEOUT_S
        described = []
        for name, asked in [(name, self._actors.ask(name, "describe")) for name in names_in(self._folder)]:
            try:
                described.append(asked.result(max(0.0, latest - monotonic())))
            except NotFoundError:  # it was deleted in the meantime
                continue
            except Exception as error:
                described.append({"name": name, "broken": str(error) or "it does not answer at the moment."})
        return described

    def delete(self, name: str) -> "Future[None]":
        """Finish the stream's queued work, then remove it and its files; they are removed when the future is done."""
        return self._deleting.submit(self._delete, name)

    def readiness(self) -> "Future[str | None]":
        """Return the reason why images are not accepted, or what is learnt cannot be written; None if all is well."""
        return self._probe.submit(self._unready)

    def metrics_text(self) -> bytes:
        """Return the metrics of all processes, as they reported them within the last seconds."""
        self._reporter.report()
        reports = find_reports(self._settings)
        text: bytes = answer(reports.metrics.remote())
        return text

    def close(self) -> None:
        """Finish what this replica of the front has accepted; the streams go on."""
        self._reporter.close()
        for closing in (self.texts, self.calls, self.reports, self.bodies):
            closing.close()
        for pool in (self._probe, self._deleting, self._actors.pool):
            pool.shutdown()

    def _place(self, unfinished: Path, name: str, client: str) -> RemoteStream:
        self.check_room(name, client)
        path = self._folder / name
        try:
            os.replace(unfinished, path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # another replica was first
                raise ExistsError(f"there already is a stream {name!r}; use it, or delete it first.") from None
            raise
        try:
            self._actors.open(name)
        except Exception as error:
            os.replace(path, unfinished)  # the name is free again
            raise StorageError(f"the stream {name!r} could not be opened: {unwrapped(error)}") from error
        return RemoteStream(name, self._actors)

    def _delete(self, name: str) -> None:
        if not self._actors.exists(name):
            raise NotFoundError(f"there is no stream {name[:80]!r} to delete.")
        handle = self._actors.reach(name, "end", self.limits.timeout_s)
        self._actors.kill(name, handle)
        reports = find_reports(self._settings)
        reports.forget.remote(actor_name(name))

    def _client(self, name: str) -> str:
        """Return the client that has made a stream; "" if its files do not name one."""
        try:
            key = (name, (self._folder / name).stat().st_ino)
            if key not in self._clients:
                self._clients[key] = read_setup(self._folder / name).client
            return self._clients[key]
        except (OSError, StateError):
            return ""

    def _unready(self) -> str | None:
        if monotonic() - self._ready[0] > READY_S:
            self._ready = monotonic(), self._find_problem()
        return self._ready[1]

    def _find_problem(self) -> str | None:
        try:
            if self._encoder.call("full").result(TIMEOUT_S):
                return "the queue is full; try again in a moment."
            reports = find_reports(self._settings)
            problems = answer(reports.degraded.remote())
        except Exception as error:
            return f"the model or the reports of the streams cannot be reached: {unwrapped(error) or 'no answer'}"
        return f"degraded streams: {len(problems)}; they answer, but {problems[0]}" if problems else None


def names_in(folder: Path) -> list[str]:
    """Return the names of all streams in their folder."""
    with os.scandir(folder) as found:
        return sorted(each.name for each in found if NAME.fullmatch(each.name) and each.is_dir())
