"""Ports of this machine."""

import socket
from random import SystemRandom


def free_port() -> int:
    """Return a port that nobody listens on, below those that the system gives to connections and to port 0."""
    while True:
        port = SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
