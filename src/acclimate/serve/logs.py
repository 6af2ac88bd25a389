"""Request log: every request gets an id, a line of JSON in the log, and security headers.

Images, tokens, query strings, labels and predictions are never logged.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from time import perf_counter
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acclimate.serve.http_errors import failure

logger = logging.getLogger("acclimate.serve")
SAFE_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
PATH_CHARS = 200  # longer paths are cut in the log
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
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


class RequestLog:
    """Middleware: gives each request an id, logs and times it, and answers an unexpected error with a plain 500.

    Every response gets the security `HEADERS`, and those of the API are kept out of HTTP caches. HEAD is answered as
    GET; the HTTP server leaves out the body. `answering` is awaited with the request's scope and the status before a
    response is sent, and `finished` is called after each request with method, path template, status and seconds.
    """

    def __init__(
        self,
        app: ASGIApp,
        answering: Callable[[Scope, int], Awaitable[None]],
        finished: Callable[[str, str, int, float], None],
    ) -> None:
        self.app = app
        self.answering = answering
        self.finished = finished

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = given.decode() if SAFE_ID.fullmatch(given) else uuid4().hex
        method = scope["method"] if scope["method"] in METHODS else "other"
        if method == "HEAD":
            scope = {**scope, "method": "GET"}
        state = scope.setdefault("state", {})
        state |= {"request_id": request_id, "caller": None, "error": None, "details": {}}
        caching = "no-cache" if scope["path"] == "/" or scope["path"].startswith("/page/") else "no-store"
        added = HEADERS | {"x-request-id": request_id, "cache-control": caching}
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                await self.answering(scope, status)
                headers = [(name.encode(), value.encode()) for name, value in added.items()]
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        began = perf_counter()
        try:
            await self.app(scope, receive, send_with_headers)
        except Exception:
            logger.exception("request failed", extra={"fields": {"request_id": request_id}})
            if not status:
                answer = failure(scope, 500, "internal error; the service's log has details under this request id.")
                await answer(scope, receive, send_with_headers)
        seconds = perf_counter() - began
        # Metrics get the path template only, as the path itself is the client's text.
        self.finished(method, getattr(scope.get("route"), "path", "unmatched"), status, seconds)
        fields = {"request_id": request_id, "method": method, "path": scope["path"][:PATH_CHARS], "status": status}
        details = {"stream": stream_of(scope), "code": state["error"], **caller_fields(scope)}
        fields |= {name: value for name, value in details.items() if value is not None}
        logger.info("request", extra={"fields": {**fields, "duration_s": round(seconds, 6)}})


def stream_of(scope: Scope) -> str | None:
    """Return the stream that a request is about, cut to the length of a name; None if it is about none."""
    name = scope.get("path_params", {}).get("name", scope["state"]["details"].get("stream"))
    return None if name is None else str(name)[:64]


def caller_fields(scope: Scope) -> dict[str, str | None]:
    """Return the sender of a request: the client's address, and the name of its token if the service has tokens."""
    caller = scope["state"]["caller"]
    token = caller.name if caller is not None and caller.token else None
    return {"token": token, "client": scope["client"][0] if scope["client"] else None}
