"""The HTTP server: where it listens, and how it starts and stops."""

import signal
import socket
from ipaddress import ip_address

import uvicorn

from acclimate.errors import InputError
from acclimate.serve.app import create_app
from acclimate.serve.logs import log_to_stderr, logger
from acclimate.serve.service import Service

CONNECTIONS = 512  # at once; so that there are always file handles left to write states with


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """Take an address; nothing is answered there before `run`.

    Args:
        host: a name or an address of this machine.
        port: 0 for any that is free.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"{host} is no address of this machine: {error.strerror or error}.") from error
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        taken.close()
        why = error.strerror or error
        raise InputError(
            f"cannot listen on {host}, port {port}: {why}; choose another with --host or --port."
        ) from error
    return taken


def make_server(service: Service) -> uvicorn.Server:
    """A server that has not started yet; what it serves ends with it."""
    config = uvicorn.Config(
        create_app(service),
        access_log=False,
        limit_concurrency=CONNECTIONS,
        log_config=None,
        proxy_headers=False,  # anybody could claim to come from elsewhere, and slip past a guard
        server_header=False,
        timeout_graceful_shutdown=round(service.limits.timeout_s) + 1,
        ws="none",
    )
    return uvicorn.Server(config)


def run(service: Service, listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; then finish the requests under way and keep the state of every stream.

    Args:
        service: what to serve.
        listening: from `bind`.
    """
    log_to_stderr()
    for broken in (each for each in service.streams.describe() if each["broken"]):
        logger.error("a stream is damaged", extra={"fields": {"stream": broken["name"], "reason": broken["broken"]}})
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn handles both, then raises them once more: enough is enough
        signal.signal(number, lambda *_: None)
    make_server(service).run([listening])
    logger.info("stopped; all states are kept")
