"""Logs as lines of JSON: requests and events on stderr, and administrative calls in the files of the audit log.

Images, tokens, query strings and predictions are never logged, nor are labels, except in the audit log.
"""

import asyncio
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from io import FileIO, TextIOWrapper
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from queue import Queue
from time import perf_counter
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acclimate.errors import reason
from acclimate.serve.http_errors import cut, failure, path_below_mount

logger = logging.getLogger("acclimate.serve")
SAFE_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
PATH_CHARS = 200  # longer paths are cut in the log
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
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
MAX_WAITING_LINES = 1000  # lines kept while nobody reads them
CLOSE_S = 5.0  # time limit to write the last lines
FIELD_CHARS = 1000  # longer messages and fields are cut
TRACEBACK_CHARS = 8000
AUDIT_CHARS = 100  # longer fields are cut in the audit log
AUDIT_BYTES = 2 * 2**20  # a larger file of the audit log becomes FILE.1, that one FILE.2, and so on
OLD_FILES = 4  # files of the audit log that are kept besides each current one


class JsonLines(logging.Formatter):
    """A formatter of records as lines of JSON; text from clients is escaped, so it cannot start a new line."""

    def __init__(self, most: int = FIELD_CHARS) -> None:
        super().__init__()
        self._most = most

    def format(self, record: logging.LogRecord) -> str:
        """Format time, level, message, the record's `fields`, and the traceback if there is one; long text is cut."""
        at = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line = {"time": at, "level": record.levelname.lower(), "message": cut(record.getMessage(), self._most)}
        fields = getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = cut(self.formatException(record.exc_info), TRACEBACK_CHARS)
        short = {
            name: value if len(text := json.dumps(value, default=str)) <= self._most else cut(text, self._most)
            for name, value in fields.items()
        }
        return json.dumps(line | short, default=str)


class LogQueue(QueueHandler):
    """Log lines that wait for the thread that writes them, so that a stalled reader stalls nothing else.

    Lines beyond what can wait are left out; once the others are written, a line says how many were.
    """

    def __init__(self) -> None:
        self.waiting: Queue[Any] = Queue(MAX_WAITING_LINES)
        super().__init__(self.waiting)
        self.setFormatter(JsonLines())
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on to the thread, or count it."""
        if self.waiting.empty():
            self.report()
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Count a record that does not fit into the queue, or whose message does not fit its arguments."""
        self._left_out += 1

    def report(self) -> None:
        """Log how many lines were left out, if any, and begin to count again."""
        if self._left_out and not self.waiting.full():
            about = {"msg": "log lines left out", "levelname": "WARNING", "fields": {"lines": self._left_out}}
            self._left_out = 0
            super().emit(logging.makeLogRecord(about))


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Send whatever the process logs within this block to stderr: warnings and uncaught errors as well."""
    handler = LogQueue()
    raw: Any = FileIO(sys.stderr.fileno(), "w", closefd=False)
    writer = logging.StreamHandler(TextIOWrapper(raw, "utf-8", write_through=True))
    writer.lock = None  # Python could not exit while the thread holds a lock and waits for a reader
    QueueListener(handler.waiting, writer).start()
    logging.getLogger().handlers = [handler]
    logging.getLogger("acclimate").setLevel(logging.INFO)
    logging.captureWarnings(True)
    threading.excepthook = _uncaught
    sys.unraisablehook = _uncaught
    try:
        yield
    finally:
        handler.report()
        written = handler.waiting.all_tasks_done
        with written:
            written.wait_for(lambda: not handler.waiting.unfinished_tasks, CLOSE_S)


def _uncaught(error: Any) -> None:
    """Log an error that Python would print: one that ended a thread, or was raised while an object was removed."""
    logging.getLogger("acclimate").error(
        "uncaught error", exc_info=(error.exc_type, error.exc_value, error.exc_traceback)
    )


class AuditLog:
    """The audit log: who changed what, when, and whether it worked; one line of JSON per call, of at most 1 kB.

    Calls that change a stream or the service are administrative; classifying images is not. Each token has files of its
    own in the folder `audit`, so that nobody can push out what others did: `NAME.jsonl` has what it did, on disk before
    the answer, and `NAME.refused.jsonl` the calls that were refused. Characters other than letters, digits, `_`, `-`
    and `~` are encoded as in addresses. Callers who may manage no stream are in the request log only. An object may be
    used from any thread.

    Attributes:
        shared: True if all callers share `service.jsonl` and `service.refused.jsonl`, as the service has no tokens.
    """

    def __init__(self, folder: Path, largest: int = AUDIT_BYTES) -> None:
        self.folder = folder / "audit"
        self.shared = True
        self._largest = largest
        self._lock = threading.Lock()

    def write(self, action: str, caller: str, outcome: str, refused: bool = False, **details: Any) -> None:
        """Append a line to the files of a caller; if that fails, the request log says so, and the service goes on."""
        fields = {"action": action, "caller": caller, "outcome": outcome, **details}
        record = logging.makeLogRecord({"msg": "audit", "levelname": "INFO", "fields": fields})
        line = JsonLines(AUDIT_CHARS).format(record).encode() + b"\n"
        name = "service" if self.shared else quote(caller, safe="").replace(".", "%2E")[:100]
        name += ".refused" if refused else ""
        try:
            with self._lock:
                self._append(self.folder / f"{name}.jsonl", line, sync=not refused)
        except OSError as error:
            logger.error("audit log cannot be written", extra={"fields": {**fields, "reason": reason(error)}})

    def _append(self, path: Path, line: bytes, sync: bool) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size + len(line) > self._largest:
            RotatingFileHandler(path, backupCount=OLD_FILES, delay=True).doRollover()
        with open(path, "a+b", opener=partial(os.open, mode=0o600)) as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                line = line if file.read() == b"\n" else b"\n" + line  # a full disk has left half a line
            file.write(line)
            file.flush()
            if sync:
                os.fsync(file.fileno())


class RequestLog:
    """Middleware: gives each request an id, logs and times it, and answers an unexpected error with a plain 500.

    Every response gets the security `HEADERS`, and those of the API are kept out of HTTP caches. HEAD is answered as
    GET; the HTTP server leaves out the body. Administrative calls are in the audit log before they are answered.
    `finished` is called after each request with method, path template, status and seconds.
    """

    def __init__(self, app: ASGIApp, audit: AuditLog, finished: Callable[[str, str, int, float], None]) -> None:
        self.app = app
        self.audit = audit
        self.finished = finished

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = given.decode() if SAFE_ID.fullmatch(given) else uuid4().hex
        method = scope["method"] if scope["method"] in METHODS else "other"
        state: dict[str, Any] = {"request_id": request_id, "caller": None, "error": None, "details": {}}
        scope = {**scope, "method": "GET" if method == "HEAD" else scope["method"], "state": state}
        path = path_below_mount(scope)
        caching = "no-cache" if path == "/" or path.startswith("/page/") else "no-store"
        added = HEADERS | {"x-request-id": request_id, "cache-control": caching}
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                await _audit_request(self.audit, scope, status)
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
        _log_request(scope, method, status, seconds)


def _log_request(scope: Scope, method: str, status: int, seconds: float) -> None:
    state = scope["state"]
    caller = state["caller"]
    fields = {"request_id": state["request_id"], "method": method, "path": scope["path"][:PATH_CHARS], "status": status}
    token = caller.name if caller is not None and caller.token else None
    details = {"code": state["error"], "token": token, **_subject(scope)}
    fields |= {name: value for name, value in details.items() if value is not None}
    logger.info("request", extra={"fields": {**fields, "duration_s": round(seconds, 6)}})


async def _audit_request(audit: AuditLog, scope: Scope, status: int) -> None:
    """Write a request to the audit log if it may change something, and its sender may manage any stream.

    A request that was cancelled, or failed in the service, counts as done: it may be carried out.
    """
    state = scope["state"]
    caller = state["caller"]
    route: Any = scope.get("route")
    manages = caller is not None and any(action == "manage" for _, action in caller.grants)
    changes = scope["method"] in getattr(route, "methods", ()) and scope["method"] not in SAFE_METHODS
    if not changes or route.path.endswith("/classify") or status == 403 or not manages:
        return
    if not state["details"].pop("changed", True):
        return
    outcome = "done" if status < 400 else state["error"]
    fields = {**_subject(scope), **state["details"], "status": status, "request_id": state["request_id"]}
    refused = 400 <= status < 499
    await asyncio.to_thread(partial(audit.write, route.name, caller.name, outcome, refused, **fields))


def _subject(scope: Scope) -> dict[str, Any]:
    """Return the stream that a request is about, cut to the length of a name, and the address of the client."""
    stream = scope.get("path_params", {}).get("name", scope["state"]["details"].get("stream"))
    client = scope["client"][0] if scope["client"] else None
    return {"stream": None if stream is None else str(stream)[:64], "client": client}
