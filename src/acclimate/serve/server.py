"""The HTTP server of the service: uvicorn on a socket that was bound before, from the first log line to the last."""

import signal
import socket
from contextlib import suppress
from threading import Thread
from types import FrameType

import uvicorn
from fastapi import FastAPI

from acclimate import __version__
from acclimate.errors import InputError, reason
from acclimate.serve.logs import log_to_stderr, logger
from acclimate.serve.security import TokenFile
from acclimate.serve.streams import Streams


def bind(host: str, port: int) -> socket.socket:
    """Reserve a port of this machine, any free one for port 0; connections are refused until `serve` is called."""
    # asyncio sends small packets at once only if TCP is named here; else an answer waits 40 ms for an acknowledgement.
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, proto=socket.IPPROTO_TCP)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
    except OSError as error:
        reserved.close()
        raise InputError(f"cannot listen on {host}, port {port}: {reason(error)}; choose another.") from error
    return reserved


def raise_file_limit() -> None:
    """Raise the number of files and connections that this process may have open as far as it is allowed to."""
    with suppress(ImportError, OSError, ValueError):  # Windows has no such limit; macOS allows less than it says
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Server(uvicorn.Server):
    """A server that encodes no more labels once it stops: requests that wait for them are refused, not awaited."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop once the running requests are finished, however often it is told to."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the running requests."""
        self.config.loaded_app.state.streams.texts.pool.stop()
        await super().shutdown(sockets)


def make_server(app: FastAPI) -> uvicorn.Server:
    """Make a server that has not started yet."""
    return Server(
        uvicorn.Config(
            app,
            access_log=False,
            http="h11",  # refuses headers of more than 64 KiB, which the parser `httptools` keeps whatever their size
            log_config=None,
            proxy_headers=False,  # a client could claim another address
            server_header=False,
            timeout_graceful_shutdown=round(app.state.streams.limits.timeout_s) + 1,
            timeout_keep_alive=round(app.state.streams.limits.keep_alive_s),
            ws="none",
        )
    )


def log_start(streams: Streams, model: str) -> None:
    """Log what the service starts with, and what an operator should know about its streams."""
    described = streams.describe()
    logger.info("started", extra={"fields": {"version": __version__, "model": model, "streams": len(described)}})
    for each in described:
        if each["broken"]:
            logger.error("stream cannot be used", extra={"fields": {"stream": each["name"], "reason": each["broken"]}})
    labels = list(streams.defaults["labels"]) if streams.defaults else []
    other = [each["name"] for each in described if labels and list(each.get("labels", labels)) != labels]
    if other:
        logger.warning(
            "streams keep labels that differ from --labels",
            extra={"fields": {"streams": len(other), "names": other[:20]}},
        )


def reload_tokens(streams: Streams, tokens: TokenFile) -> None:
    """Read the token file again; one that cannot be used changes nothing, and the log says why."""
    try:
        tokens.reload()
    except InputError as error:
        logger.error("token file not reloaded", extra={"fields": {"reason": str(error)}})
        streams.audit.write("reload_tokens", "SIGHUP", "invalid", reason=str(error))
        return
    logger.info("token file reloaded", extra={"fields": {"tokens": len(tokens.tokens)}})
    streams.audit.write("reload_tokens", "SIGHUP", "done", names=[caller.name for caller in tokens.tokens.values()])


def serve(app: FastAPI, listening: socket.socket, model: str) -> None:
    """Serve until SIGINT or SIGTERM; then finish the running requests and write the state of every stream.

    SIGHUP reads the token file again. `model` is the name of the model, for the log.
    """
    streams = app.state.streams
    tokens = app.state.tokens
    server = make_server(app)

    for number in (signal.SIGINT, signal.SIGTERM):  # needed until uvicorn sets handlers of its own
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    raise_file_limit()
    with log_to_stderr():
        log_start(streams, model)
        streams.batcher.warm_up()
        if tokens is not None and hasattr(signal, "SIGHUP"):
            # In a thread: a handler must not wait for a lock that the interrupted code holds.
            signal.signal(signal.SIGHUP, lambda *_: Thread(target=reload_tokens, args=(streams, tokens)).start())
        server.run([listening])
        if not streams.unsaved:
            logger.info("stopped; all states are saved")
        for name, why in streams.unsaved.items():
            logger.error("stopped; a state could not be saved", extra={"fields": {"stream": name, "reason": why}})
