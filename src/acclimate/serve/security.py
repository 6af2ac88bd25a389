"""What stands before the routes: security headers, and a gate that turns strangers and floods away unread."""

from collections.abc import Collection

import anyio
from fastapi import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acclimate.serve.auth import Caller, Tokens
from acclimate.serve.failures import failure
from acclimate.serve.limits import Limits

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# What says nothing of streams, images or labels. Everything else needs a token, routes yet to be written included.
OPEN = ("/", "/docs", "/openapi.json", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready")
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
    """Middleware: puts `HEADERS` on every answer, and keeps answers of the API out of caches."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                caching = b"no-cache" if scope["path"] == "/" or scope["path"].startswith(OPEN_FOLDER) else b"no-store"
                message["headers"] = [*message["headers"], *self.headers, (b"cache-control", caching)]
            await send(message)

        await self.app(scope, receive, sending)


class Gate:
    """Middleware: refuses before a body is read, and stops reading one that is too large or too slow.

    Args:
        app: what answers.
        tokens: who may come in; None lets everybody in.
        hosts: names a request may call this service by; None for any. A page elsewhere that points its own name at
            127.0.0.1 (DNS rebinding) is found out by this.
        limits: for bodies.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens | None, hosts: Collection[str] | None, limits: Limits) -> None:
        self.app, self.tokens, self.hosts, self.limits = app, tokens, hosts, limits
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = Body(self, receive, scope)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and not body.complete:
                # The rest of the body must not come, either.
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            app = self._refuse(scope) or self.app
            await app(scope, body.receive, sending)
        finally:
            self.held -= body.size

    def _refuse(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self.hosts is not None and _name(host) not in self.hosts:
            return failure(scope, 400, f"this service is not known as {_name(host)!r}; see --allow-host.")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and scope["method"] not in SAFE_METHODS and origin.partition("://")[2] != host:
            return failure(scope, 403, "pages of other sites may not send requests here.")
        address = scope["client"][0] if scope["client"] else ""
        caller = Caller(address) if self.tokens is None else self.tokens.find(headers.get(b"authorization", b""))
        if caller is None and scope["path"] not in OPEN and not scope["path"].startswith(OPEN_FOLDER):
            how = "send a token of this service in the header `Authorization: Bearer TOKEN`."
            return failure(scope, 401, how, {"WWW-Authenticate": "Bearer"})
        scope["state"]["caller"] = caller
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.limits.body_bytes:
            return failure(scope, 413, too_large(self.limits))
        return None


class Body:
    """The body of one request, counted as it comes in.

    Args:
        gate: keeps the count of all bodies.
        receive: where its parts come from.
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
        if self.complete:  # what comes now is the news that the client has gone, and that may take its time
            return await self._receive()
        try:
            with anyio.fail_after(self.deadline - anyio.current_time()):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "the body came too slowly; send smaller images, or fewer at once.") from None
        part = len(message.get("body", b""))
        self.size += part
        self.gate.held += part
        self.complete = not message.get("more_body", False)
        limits = self.gate.limits
        if self.size > limits.body_bytes:
            raise HTTPException(413, too_large(limits))
        if self.gate.held > BODIES_HELD * limits.body_bytes:
            raise HTTPException(429, "too many large requests at once; try again in a moment.")
        return message


def too_large(limits: Limits) -> str:
    """What to do about a body beyond the limit."""
    return f"a request may have {limits.body_bytes} bytes; send smaller images, or fewer at once."


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
