"""The log on stderr: lines of JSON, written by a thread, with bounds on their length and on their number per second."""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from queue import Empty, SimpleQueue
from typing import Any

BURST_S = 5  # lines of this many seconds may come at once
MAX_WAITING_LINES = 1000  # lines kept while nobody reads them
CLOSE_S = 5.0  # time limit to write the last lines
TEXT_CHARS = 1000  # longer messages and fields are cut
TRACEBACK_CHARS = 8000


class JsonLines(logging.Formatter):
    """A formatter of records as lines of JSON; text from clients is escaped, so it cannot start a new line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format time, level, message, the record's `fields`, and the traceback if there is one; long text is cut."""
        at = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line = {"time": at, "level": record.levelname.lower(), "message": cut(record.getMessage())}
        fields = getattr(record, "fields", {})
        line |= {name: cut(value) if isinstance(value, str) else value for name, value in fields.items()}
        if record.exc_info:
            line["traceback"] = cut(self.formatException(record.exc_info), TRACEBACK_CHARS)
        return json.dumps(line)


def cut(text: str, most: int = TEXT_CHARS) -> str:
    """Return the text, without its middle if it is longer than this.

    Examples:
        >>> cut("a" * 6 + "b" * 94, 10)
        'aaaaa (90 characters left out) bbbbb'
    """
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} ({len(text) - 2 * half} characters left out) {text[-half:]}"


class BoundedLog(logging.Handler):
    """A log handler that writes to a file descriptor in a thread, so that a stalled reader stalls nothing else.

    Each place in the code that logs may write `per_second` lines, and `BURST_S` times as many at once. Lines beyond
    that, or beyond what can wait for a slow reader, are left out; one line per second says how many were.
    """

    def __init__(self, descriptor: int, per_second: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._per_second = per_second
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._places: dict[tuple[str, int], tuple[float, float]] = {}  # lines that each may write, and at what time
        self._left_out = 0
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on to the thread, or count it."""
        if self._lines.qsize() < MAX_WAITING_LINES and self._may_write((record.pathname, record.lineno)):
            try:
                self._lines.put(self.format(record))
                return
            except Exception:  # a message that does not fit its arguments, or a field that JSON does not have
                pass
        self._left_out += 1

    def _may_write(self, place: tuple[str, int]) -> bool:
        most = float(self._per_second * BURST_S)
        now = time.monotonic()
        allowed, at = self._places.get(place, (most, now))
        allowed = min(most, allowed + (now - at) * self._per_second)
        self._places[place] = (max(allowed - 1, 0.0) if allowed >= 1 else allowed, now)
        return allowed >= 1

    def _write(self) -> None:
        line: str | None = ""
        reported = time.monotonic()
        while line is not None:
            try:
                line = self._lines.get(timeout=1)
            except Empty:
                line = ""
            if line:
                self._put(line)
            if self._left_out and (line is None or time.monotonic() - reported >= 1):
                reported = time.monotonic()
                with self.lock or threading.Lock():
                    fields = {"lines": self._left_out}
                    self._left_out = 0
                about = {"msg": "log lines left out", "levelno": logging.WARNING, "levelname": "WARNING"}
                self._put(self.format(logging.makeLogRecord({**about, "fields": fields})))

    def _put(self, line: str) -> None:
        content = memoryview(f"{line}\n".encode())
        while content:
            try:
                # Not through sys.stderr: Python cannot exit while a thread holds its lock and waits for a reader.
                content = content[os.write(self._descriptor, content) :]
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # stderr is closed
                return

    def close(self) -> None:
        """Write what is waiting, for at most `CLOSE_S`."""
        self._lines.put(None)
        self._writer.join(CLOSE_S)
        super().close()


@contextmanager
def log_to_stderr(per_second: int) -> Iterator[None]:
    """Send whatever the process logs within this block to stderr: warnings and uncaught errors as well."""
    handler = BoundedLog(sys.stderr.fileno(), per_second)
    root = logging.getLogger()
    handler.setFormatter(JsonLines())
    levels = {name: logging.getLogger(name).level for name in ("acclimate", "uvicorn")}
    before = root.handlers, threading.excepthook, sys.unraisablehook
    root.handlers = [handler]
    threading.excepthook = _uncaught
    sys.unraisablehook = _uncaught
    logging.captureWarnings(True)
    for name in levels:
        logging.getLogger(name).setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers, threading.excepthook, sys.unraisablehook = before
        logging.captureWarnings(False)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        handler.close()


def _uncaught(error: Any) -> None:
    """Log what Python would print: an error that ended a thread, or was raised while an object was removed."""
    if error.exc_type is not SystemExit:
        logging.getLogger("acclimate").error(
            "uncaught error", exc_info=(error.exc_type, error.exc_value, error.exc_traceback)
        )
