"""Structured logs: JSON lines, one for each request; never images, tokens or what was answered."""

import json
import logging
import re
from collections.abc import Callable
from datetime import datetime, timezone
from time import perf_counter
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acclimate.serve.failures import failure

logger = logging.getLogger("acclimate.serve")
SAFE_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")


class JsonLines(logging.Formatter):
    """A record as one line of JSON; what comes from outside is escaped, so a line stays a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, message, the record's `fields`, and the traceback where there is one."""
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to_stderr() -> None:
    """Send the logs of the service and of its HTTP server to stderr as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name in ("acclimate", "uvicorn"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO)


class RequestLog:
    """Middleware: gives each request an id, logs and times it, and turns an unforeseen error into a plain 500.

    Args:
        app: what answers.
        finished: told of each request: method, path template, status, seconds.
    """

    def __init__(self, app: ASGIApp, finished: Callable[[str, str, int, float], None]) -> None:
        self.app, self.finished = app, finished

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = given.decode() if SAFE_ID.fullmatch(given) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        began = perf_counter()
        try:
            await self.app(scope, receive, sending)
        except Exception:
            logger.exception("a request failed", extra={"fields": {"request_id": request_id}})
            if not status:
                await failure(scope, 500, "something went wrong here; the log has more under this request id.")(
                    scope, receive, sending
                )
        route = getattr(scope.get("route"), "path", "unmatched")  # never the path itself: it may hold anything
        method = scope["method"] if scope["method"] in METHODS else "other"  # so may this
        seconds = perf_counter() - began
        self.finished(method, route, status, seconds)
        fields = {"request_id": request_id, "method": method, "path": route, "status": status}
        logger.info("request", extra={"fields": {**fields, "duration_s": round(seconds, 6)}})
