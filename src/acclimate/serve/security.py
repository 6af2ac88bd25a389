"""Middleware in front of the routes: security headers, and a gate that refuses requests before their body is read."""

from collections.abc import Collection

import anyio
from fastapi import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acclimate.serve.auth import Caller, Tokens
from acclimate.serve.errors import failure
from acclimate.serve.limits import Limits

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# Paths that reveal nothing about streams, images or labels. Every other path needs a token, whether it exists or not.
OPEN = ("/", "/docs", "/openapi.json", "/health/live", "/health/ready")
OPEN_FOLDER = "/page/"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
BODIES_HELD = 8  # full-sized bodies that all requests together may hold in memory

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class SecurityHeaders:
    """Middleware: adds `HEADERS` to every response, and keeps responses of the API out of HTTP caches."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                caching = b"no-cache" if scope["path"] == "/" or scope["path"].startswith(OPEN_FOLDER) else b"no-store"
                message["headers"] = [*message["headers"], *self.headers, (b"cache-control", caching)]
            await send(message)

        await self.app(scope, receive, send_with_headers)


class Gate:
    """Middleware: refuses requests before their body is read, and stops reading bodies that are too large or too slow.

    Args:
        app: the application that handles the request.
        tokens: the tokens of the service; None to accept everybody.
        hosts: host names that requests may be sent to; None for any. This detects DNS rebinding: a page of another site
            that resolves its own host name to 127.0.0.1.
        limits: limits on bodies.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens | None, hosts: Collection[str] | None, limits: Limits) -> None:
        self.app, self.tokens, self.hosts, self.limits = app, tokens, hosts, limits
        self.held = 0  # bytes of all bodies in memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = Body(self, receive, scope)

        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start" and not body.complete:
                message["headers"] = [*message["headers"], (b"connection", b"close")]  # the rest must not be sent
            await send(message)

        try:
            app = self._refuse(scope) or self.app
            await app(scope, body.receive, send_and_close)
        finally:
            self.held -= body.size

    def _refuse(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self.hosts is not None and _host_name(host) not in self.hosts:
            return failure(scope, 400, f"{_host_name(host)!r} is not an allowed host name of this service.")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and scope["method"] not in SAFE_METHODS and origin.partition("://")[2] != host:
            return failure(scope, 403, "requests from pages of other sites are not allowed.")
        address = scope["client"][0] if scope["client"] else ""
        caller = Caller(address) if self.tokens is None else self.tokens.find(headers.get(b"authorization", b""))
        if caller is None and scope["path"] not in OPEN and not scope["path"].startswith(OPEN_FOLDER):
            message = "send a token of this service in the header `Authorization: Bearer TOKEN`."
            return failure(scope, 401, message, {"WWW-Authenticate": "Bearer"})
        scope["state"]["caller"] = caller
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.limits.body_bytes:
            return failure(scope, 413, _too_large(self.limits))
        return None


class Body:
    """The body of one request, counted while it is received.

    Args:
        gate: counts the bytes of all bodies.
        receive: gives the parts of the body.
        scope: of the request.
    """

    def __init__(self, gate: Gate, receive: Receive, scope: Scope) -> None:
        self.gate, self._receive = gate, receive
        headers = dict(scope["headers"])
        self.complete = b"transfer-encoding" not in headers and headers.get(b"content-length", b"0") == b"0"
        self.size = 0
        self.deadline = anyio.current_time() + gate.limits.timeout_s

    async def receive(self) -> Message:
        """The next part."""
        if self.complete:  # the next message says that the client has disconnected, and may take any time
            return await self._receive()
        try:
            with anyio.fail_after(self.deadline - anyio.current_time()):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "the body was sent too slowly; send smaller or fewer images.") from None
        part = len(message.get("body", b""))
        self.size += part
        self.gate.held += part
        self.complete = not message.get("more_body", False)
        limits = self.gate.limits
        if self.size > limits.body_bytes:
            raise HTTPException(413, _too_large(limits))
        if self.gate.held > BODIES_HELD * limits.body_bytes:
            raise HTTPException(429, "too many large requests at once; try again in a moment.")
        return message


def _too_large(limits: Limits) -> str:
    return f"a request body may have at most {limits.body_bytes} bytes; send smaller or fewer images."


def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
