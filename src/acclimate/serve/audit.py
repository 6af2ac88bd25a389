"""The audit log: who changed what, when, and whether it worked; one line of JSON per call, on disk before the answer.

Calls that change a stream or the service are administrative; classifying images is not. Calls without a valid token are
in the request log only, so that callers without a token cannot push entries out of the audit log.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from threading import Lock
from typing import Any

from acclimate.errors import reason
from acclimate.serve.logs import logger

FILE = "audit.jsonl"
MAX_FILE_BYTES = 8 * 2**20  # a larger file becomes FILE.1, that one FILE.2, and so on
OLD_FILES = 4  # files that are kept besides the current one
MAX_ITEMS = 50  # longer lists are cut
MAX_CHARS = 200  # longer texts are cut


class AuditLog:
    """The audit log in a folder; may be used from any thread."""

    def __init__(self, folder: Path, largest: int = MAX_FILE_BYTES) -> None:
        self.path = folder / FILE
        self._largest = largest
        self._lock = Lock()
        self._failed = False

    def write(self, action: str, caller: str, outcome: str, **details: Any) -> None:
        """Append a line and force it to the disk; if that fails, the request log says so, and the service goes on."""
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        entry = {"time": time, "action": action, "caller": caller, "outcome": outcome, **_bounded(details)}
        line = json.dumps(entry).encode() + b"\n"
        try:
            with self._lock:
                self._append(line)
                if self._failed:
                    logger.info("audit log can be written again")
                self._failed = False
        except OSError as error:
            self._failed = True
            logger.error("audit log cannot be written", extra={"fields": {**entry, "reason": reason(error)}})

    def _append(self, line: bytes) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        if size and size + len(line) > self._largest:
            self._rotate()
            size = 0
        with open(self.path, "ab", opener=_private) as file:
            if size and not _ends_a_line(self.path):
                line = b"\n" + line  # a power cut has left half a line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def _rotate(self) -> None:
        for number in range(OLD_FILES - 1, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(f"{self.path}.{number}", f"{self.path}.{number + 1}")
        os.replace(self.path, f"{self.path}.1")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _ends_a_line(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _bounded(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return details whose texts and lists are cut to a bounded length."""

    def cut(value: Any) -> Any:
        if isinstance(value, str):
            return value[:MAX_CHARS]
        if isinstance(value, list):
            more = [f"... and {len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else []
            return [cut(each) for each in value[:MAX_ITEMS]] + more
        return value

    return {key: cut(value) for key, value in details.items()}
