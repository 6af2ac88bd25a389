"""The service on a Ray cluster: start, wait for the signal to stop, save everything."""

import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from threading import Event, Thread
from typing import Any

import ray
from ray import serve as ray_serve
from ray.serve.exceptions import RayServeException

from acclimate.cluster.serving.answers import answer, unwrapped
from acclimate.cluster.serving.encoders import MAX_ONGOING_REQUESTS, MAX_QUEUED_REQUESTS, Encoders
from acclimate.cluster.serving.front import Application, Front
from acclimate.cluster.serving.remote_stream import StreamActors
from acclimate.cluster.serving.remote_streams import names_in
from acclimate.cluster.serving.reports import RemoteAudit, find_reports, start_reports
from acclimate.cluster.serving.service_settings import STREAM, Model, Settings
from acclimate.encoders.loading import BUNDLED, absolute_model
from acclimate.errors import InputError, RunError, reason
from acclimate.files import write_atomically
from acclimate.serve.app import bind, is_loopback
from acclimate.serve.limits import Limits
from acclimate.serve.logs import logger
from acclimate.serve.security import LOOPBACK_NAMES, TokenFile
from acclimate.serve.service import DELETED, NEW, claim_folder

TARGET_REQUESTS = 8  # concurrent requests per replica; more start another one
ROUTE = "/"  # path prefix of the front
MAX_FRONT_REQUESTS = 512  # concurrent requests per replica of the front
LOGGING = {"enable_access_log": False, "log_level": "WARNING"}  # the application has a log of its requests
CLOSE_S = 120.0  # time limit for a stream to finish its work and to write its snapshot


@dataclass(kw_only=True)
class ClusterService:
    """A service on the Ray cluster that this process is connected to when it is started.

    Args:
        data: the folder of the streams, on a file system that all nodes see and that can lock files and append to
            them, such as NFS, EFS or CephFS; the same files as those of `acclimate serve`.
        model: the name of the model, as for `load_encoder`.
        device: device of `load_encoder` on each replica.
        precision: precision of `load_encoder`.
        compile: True to compile the image tower.
        limits: limits of the service; those of queues hold per replica.
        defaults: arguments for streams that are created by their first images; None to refuse those.
        token_file: the tokens; every address but a loopback one needs it.
        allow_hosts: other host names of the service, besides those of this machine.
        host: the address that Ray Serve's proxy listens on.
        port: its port; 0 for any free one, on a cluster of one node.
        replicas: the least and the largest number of encoder replicas.
        cpus: CPUs of an encoder replica.
        gpus: GPUs of an encoder replica.
        fronts: replicas that answer HTTP.
        every_node: have a proxy on every node, not just on the head node.
        plugins: Python files with methods, which all nodes see.
        name: name of the application in Ray Serve, and of the namespace of its actors.

    Raises:
        InputError: the folder, the address or the token file cannot be used.

    Examples:
        >>> ClusterService(data="s3://bucket/streams")
        Traceback (most recent call last):
        acclimate.errors.InputError: streams cannot be stored in s3://bucket/streams: ...
    """

    data: str | os.PathLike[str]
    model: str = BUNDLED
    device: str = "auto"
    precision: str = "auto"
    compile: bool = False
    limits: Limits = field(default_factory=Limits)
    defaults: Mapping[str, Any] | None = None
    token_file: Path | None = None
    allow_hosts: Sequence[str] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    replicas: tuple[int, int] = (1, 1)
    cpus: float = 1.0
    gpus: float = 0.0
    fronts: int = 1
    every_node: bool = False
    plugins: Sequence[Path] = ()
    name: str = "acclimate"

    def __post_init__(self) -> None:
        self._tokens = None if self.token_file is None else TokenFile(self.token_file)
        self._local = is_loopback(self.host)
        if self._tokens is None and not self._local:
            raise InputError(
                f"{self.host} can be reached from other machines; give --token-file, or listen on 127.0.0.1."
            )
        if not 1 <= self.replicas[0] <= self.replicas[1]:
            raise InputError(
                f"the encoder replicas must be at least 1, and at most as many as the most: {self.replicas}."
            )
        if self.fronts < 1:
            raise InputError(f"at least 1 replica has to answer HTTP, got {self.fronts}.")
        plugins = tuple(Path(each).absolute() for each in self.plugins)
        self._settings = Settings(self.name, _folder(self.data), self.limits, plugins)

    def serve(self, announce: Callable[[str], None] = print) -> None:
        """Serve until SIGINT or SIGTERM; then finish the running requests and write the state of every stream.

        SIGHUP reads the token file again. `announce` is called with the address once the service answers. Raises what
        `running` does.
        """
        stopping = Event()
        handlers: dict[int, Any] = {number: lambda *_: stopping.set() for number in (signal.SIGINT, signal.SIGTERM)}
        if self._tokens is not None and hasattr(signal, "SIGHUP"):
            # In a thread: a handler must not wait for a lock that the interrupted code holds.
            handlers[signal.SIGHUP] = lambda *_: Thread(target=self.reload_tokens).start()
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            with self.running() as url:
                announce(url)
                stopping.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Run the service within this block; yields its address.

        Raises:
            InputError: another service uses the folder, or the address is taken.
            ModelError: the model cannot be loaded.
            RunError: the replicas cannot be started.
        """
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        settings = self._settings
        # Services on one machine take this folder for themselves, those on clusters the one within.
        alone = claim_folder(settings.data, settings.streams, shared=True)
        with alone, claim_folder(settings.data / "cluster", settings.streams), self._started() as port:
            check_data(settings)
            self._stop()  # what is left of a service whose own process was killed
            write_tokens(settings.tokens, self._tokens)
            remove_unfinished(settings.streams)
            try:
                start_reports(settings)
                model = self._start_encoders()
                actors = StreamActors(settings, model)
                for stream in names_in(settings.streams):
                    actors.handle(stream)
                self._start_front(model)
                yield f"http://{self._shown}:{port}"
            finally:
                self._stop()

    def reload_tokens(self) -> None:
        """Read the token file again; one that cannot be used changes nothing, and the logs say why."""
        assert self._tokens is not None
        audit = RemoteAudit(self._settings)
        try:
            self._tokens.reload()
            write_tokens(self._settings.tokens, self._tokens)
        except InputError as error:
            logger.error("token file not reloaded", extra={"fields": {"reason": str(error)}})
            audit.write("reload_tokens", "SIGHUP", "invalid", reason=str(error))
            return
        names = [caller.name for caller in self._tokens.tokens.values()]
        audit.write("reload_tokens", "SIGHUP", "done", names=names)

    @property
    def _shown(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    @contextmanager
    def _started(self) -> Iterator[int]:
        """Start Ray Serve with its HTTP proxy; yields its port. It is shut down at the end if it was started here."""
        running = running_serve()
        if running is not None:
            at = ROUTE
            options = running["http_options"]
            other = [name for name, each in running["applications"].items() if each["route_prefix"] == at]
            if set(other) - {self.name}:
                raise InputError(
                    f"the application {other[0]!r} of Ray Serve answers at {at} of this cluster; delete it, or use "
                    "another cluster."
                )
            if (options["host"], options["port"]) != (self.host, self.port):
                raise InputError(
                    f"Ray Serve already runs on this cluster and listens on {options['host']}, port {options['port']}; "
                    "use that address, or shut it down with `serve shutdown`."
                )
            yield self.port
            return
        port = self.port
        # On this machine alone: a port that is taken is better refused now than by a proxy that never starts.
        if sum(node["Alive"] for node in ray.nodes()) == 1:
            with bind(self.host, port) as free:
                port = free.getsockname()[1]
        elif port == 0:
            raise InputError("the head node may be another machine, whose free ports nobody knows here; give a --port.")
        timeout = 2 * self.limits.timeout_s + 10  # the body, then the answer; the application itself is stricter
        ray_serve.start(
            proxy_location="EveryNode" if self.every_node else "HeadOnly",
            http_options={"host": self.host, "port": port, "request_timeout_s": timeout},
            logging_config=LOGGING,
        )
        try:
            yield port
        finally:
            with redirect_stdout(StringIO()):  # Ray prints that calls of its own have failed, as what they call ends
                ray_serve.shutdown()

    def _start_encoders(self) -> Model:
        """Start the encoder replicas; return their description of the model."""
        least, most = self.replicas
        made = ray_serve.deployment(Encoders).options(
            name="Encoders",
            max_ongoing_requests=MAX_ONGOING_REQUESTS,
            max_queued_requests=MAX_QUEUED_REQUESTS,
            autoscaling_config={
                "min_replicas": least,
                "max_replicas": most,
                "target_ongoing_requests": TARGET_REQUESTS,
            },
            ray_actor_options={"num_cpus": self.cpus, "num_gpus": self.gpus},
            logging_config=LOGGING,
        )
        load = {
            "name": absolute_model(self.model),
            "device": self.device,
            "precision": self.precision,
            "compile": self.compile,
        }
        try:
            handle = ray_serve.run(made.bind(self._settings, load), name=self._settings.encoders, route_prefix=None)
            model: Model = handle.model.remote().result()
        except RuntimeError as error:
            why = last_line(self._settings.encoders) or str(error)
            raise RunError(f"no encoder replica could be started: {why}; see `serve status` and Ray's logs.") from error
        except Exception as error:
            raise unwrapped(error) from error
        return model

    def _start_front(self, model: Model) -> None:
        names = (*LOOPBACK_NAMES, self._shown, *self.allow_hosts)
        hosts = frozenset(each.lower() for each in names) if self._local else None
        made = ray_serve.deployment(ray_serve.ingress(Application())(Front)).options(
            name="Front",
            num_replicas=self.fronts,
            max_ongoing_requests=MAX_FRONT_REQUESTS,
            ray_actor_options={"num_cpus": 0},
            logging_config=LOGGING,
        )
        bound = made.bind(self._settings, model, self._tokens is not None, hosts, self.defaults)
        try:
            ray_serve.run(bound, name=self.name, route_prefix=ROUTE)
        except RuntimeError as error:
            why = last_line(self.name) or str(error)
            raise RunError(f"no replica of the front could be started: {why}; see `serve status`.") from error

    def _stop(self) -> None:
        """Stop the front, then the streams, which may still need encoders, then those."""
        ray_serve.delete(self.name)
        if unsaved := end_actors(self._settings):
            logger.error("stopped; not all states could be saved", extra={"fields": {"reasons": unsaved}})
        ray_serve.delete(self._settings.encoders)
        with suppress(ValueError):  # it may not have been started
            ray.kill(find_reports(self._settings), no_restart=True)


def _folder(data: str | os.PathLike[str]) -> Path:
    text = os.fspath(data)
    if "://" in text:
        raise InputError(
            f"streams cannot be stored in {text}: their journals are appended to, which object stores cannot do; use a "
            "folder on a file system that all nodes see, such as NFS, EFS or CephFS."
        )
    return Path(text).absolute()


def running_serve() -> dict[str, Any] | None:
    """Return the status of Ray Serve; None if it does not run on this cluster."""
    from ray.serve.context import _get_global_client

    with suppress(RayServeException):
        client = _get_global_client()
        found: dict[str, Any] | None = None if client is None else client.get_serve_details()
        return found
    return None


def check_data(settings: Settings) -> None:
    """Refuse to take the place of a service of the same name over another folder.

    Raises:
        InputError: there is one.
    """
    try:
        reports = find_reports(settings)
    except ValueError:  # there is no such service
        return
    data = answer(reports.data.remote())
    if data != settings.data:
        raise InputError(
            f"a service named {settings.name!r} over {data} runs on this cluster; stop it, or if its process was "
            f"killed, start it again with --data {data} and stop it then."
        )


def last_line(application: str) -> str:
    """Return Ray Serve's last message about an application that could not be started: the error of its replica."""
    status = ray_serve.status().applications.get(application)
    messages = [] if status is None else [each.message for each in status.deployments.values()]
    lines = [line.strip() for line in "\n".join(messages).splitlines() if line.strip()]
    return lines[-1] if lines else ""


def remove_unfinished(folder: Path) -> None:
    """Remove what was half created or half deleted when a service was killed."""
    for path in folder.iterdir():
        if path.name.startswith((NEW, DELETED)):
            shutil.rmtree(path, ignore_errors=True)


def write_tokens(path: Path, tokens: TokenFile | None) -> None:
    """Tell all replicas of the front the tokens: their digests, in a file that they see."""
    if tokens is None:
        path.unlink(missing_ok=True)
        return
    lines = []
    for digest, caller in tokens.tokens.items():
        grants = [f"{pattern}={action}" for pattern, action in caller.grants]
        lines.append(" ".join([caller.name, f"sha256:{digest.hex()}", *grants]))
    try:
        write_atomically(path, "\n".join(lines).encode())
    except OSError as error:
        raise InputError(f"cannot write {path}: {reason(error)}.") from error


def end_actors(settings: Settings) -> dict[str, str]:
    """End the actors of all streams once they have written their snapshots; return failures by stream."""
    found = ray.util.list_named_actors(all_namespaces=True)
    names = [each["name"] for each in found if each["namespace"] == settings.name and each["name"].startswith(STREAM)]
    handles = {}
    for name in names:
        with suppress(ValueError):  # it has ended meanwhile
            handles[name] = ray.get_actor(name, namespace=settings.name)
    closing = {name: handle.close.remote() for name, handle in handles.items()}
    unsaved = {}
    for name, asked in closing.items():
        try:
            why = answer(asked, CLOSE_S, "the stream")
        except Exception as error:
            why = str(unwrapped(error)) or "no answer in time."
        if why:
            unsaved[name.removeprefix(STREAM)] = why
        ray.kill(handles[name], no_restart=True)
    return unsaved
