"""HTTP of the standard library whose timeout is that of a whole request, not of each wait for the network."""

import io
import socket
import time
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.request import HTTPHandler, HTTPSHandler, Request

SEND_BLOCK_BYTES = 2**18


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class _Until(io.RawIOBase):
    """The data that a socket receives until a deadline, however slowly it comes."""

    def __init__(self, raw: Any, sock: Any, deadline: float) -> None:
        self._raw = raw
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_left(self._deadline))
        received: int | None = self._raw.readinto(buffer)
        return received

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, sock: Any, *args: Any, deadline: float, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Until(self.fp.detach(), sock, deadline))


class _Connection(HTTPConnection):
    """A connection with a deadline, which reads the answer even if the service refuses the rest of the request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self.timeout is not None
        self._deadline = time.monotonic() + self.timeout
        self._create_connection = self._connect  # called by the base class
        self.response_class = partial(_Response, deadline=self._deadline)  # type: ignore[assignment]

    def _connect(self, address: tuple[str, int], *_: Any) -> socket.socket:
        """Connect to one of the addresses of a host; each that is tried has its share of the time."""
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
        for untried in range(len(found), 0, -1):
            family, kind, protocol, _name, target = found[-untried]
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(_left(self._deadline) / untried)
                sock.connect(target)
                sock.settimeout(_left(self._deadline))  # covers the TLS handshake
                return sock
            except OSError:
                sock.close()
                if untried == 1:
                    raise
        raise OSError(f"{address[0]} has no address")

    def send(self, data: Any) -> None:
        try:
            if self.sock is None:
                self.connect()
            for begin in range(0, len(data), SEND_BLOCK_BYTES):
                self.sock.settimeout(_left(self._deadline))
                super().send(data[begin : begin + SEND_BLOCK_BYTES])
        except (BrokenPipeError, ConnectionResetError):
            if self.sock is None:
                raise


class _SecureConnection(_Connection, HTTPSConnection):
    pass


class TimedHTTPHandler(HTTPHandler):
    """A handler that opens URLs within a timeout, from connecting to the last byte of the response.

    Looking up the name of a host takes as long as the system lets it.
    """

    def http_open(self, req: Request) -> HTTPResponse:
        """Send a request."""
        return self.do_open(_Connection, req)


class TimedHTTPSHandler(HTTPSHandler):
    """The same as `TimedHTTPHandler`, with HTTPS."""

    def https_open(self, req: Request) -> HTTPResponse:
        """Send a request."""
        return self.do_open(_SecureConnection, req)
