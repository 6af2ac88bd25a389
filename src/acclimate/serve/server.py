"""The HTTP server: where it listens, and how it starts and stops."""

import signal
import socket
from collections.abc import Collection
from ipaddress import ip_address

import uvicorn

from acclimate.errors import InputError, reason
from acclimate.serve.app import create_app
from acclimate.serve.auth import Tokens
from acclimate.serve.logs import log_to_stderr, logger
from acclimate.serve.streams import Streams

CONNECTIONS = 512  # at the same time; leaves file handles for writing states


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """Reserve an address; connections are refused until `serve` is called.

    Args:
        host: a name or an address of this machine.
        port: 0 for any free port.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        reserved = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"{host} is not an address of this machine: {reason(error)}.") from error
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(address)
    except OSError as error:
        reserved.close()
        raise InputError(f"cannot listen on {host}, port {port}: {reason(error)}; choose another.") from error
    return reserved


def make_server(streams: Streams, tokens: Tokens | None = None, hosts: Collection[str] | None = None) -> uvicorn.Server:
    """A server that has not started yet; arguments as for `create_app`."""
    config = uvicorn.Config(
        create_app(streams, tokens, hosts),
        access_log=False,
        limit_concurrency=CONNECTIONS,
        log_config=None,
        proxy_headers=False,  # a client could claim another address and evade a guard
        server_header=False,
        timeout_graceful_shutdown=round(streams.limits.timeout_s) + 1,
        ws="none",
    )
    return uvicorn.Server(config)


def serve(
    listening: socket.socket, streams: Streams, tokens: Tokens | None = None, hosts: Collection[str] | None = None
) -> None:
    """Serve until SIGINT or SIGTERM; then finish the running requests and write the state of every stream."""
    log_to_stderr()
    for each in streams.describe():
        if each["broken"]:
            logger.error("stream damaged", extra={"fields": {"stream": each["name"], "reason": each["broken"]}})
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises a signal again after it has handled it
        signal.signal(number, lambda *_: None)
    make_server(streams, tokens, hosts).run([listening])
    logger.info("stopped; all states are saved")
