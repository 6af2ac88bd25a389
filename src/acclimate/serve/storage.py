"""The file of a stream: an SQLite database with everything that was acknowledged, in that order.

The state of a stream is its newest snapshot and the events after it, which replay to the same bits. A rollback, a
reset or an upload starts a branch; `branches` says where a branch left another, so that the samples that led to the
current state can be found. What the state depends on is in values with a checksum, those of `snapshot_bytes`, as SQLite
itself does not notice a changed byte; the columns beside them are for queries.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from math import inf
from pathlib import Path
from time import time
from typing import Any, NamedTuple

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import InputError, reason
from acclimate.files import parse_snapshot, snapshot_bytes, sync_folder
from acclimate.methods import Adapter, state_to_bytes
from acclimate.methods.cache import Cache
from acclimate.methods.persist import build_adapter
from acclimate.serve.http_errors import NotFoundError, StorageError, UnusableError
from acclimate.serve.limits import Limits

SPARE_FILES = 8  # files that must be free for a stream and a request
DAY_S = 86_400  # seconds
REQUESTED = "requested"  # how the reason of a snapshot begins that a client has asked for
QUERY_ERROR = 1  # code of SQLite for a query that does not fit the tables
SUFFIX = ".sqlite"
TEMPORARY = ".new-"  # how names of files begin that are being written
FORMAT = 0x61636C6D  # the application id of the database: "aclm"
VERSION = 1
SCHEMA = f"""
PRAGMA journal_mode = WAL;
PRAGMA application_id = {FORMAT};
PRAGMA user_version = {VERSION};
CREATE TABLE about (key TEXT PRIMARY KEY, value BLOB);
CREATE TABLE events (
    id INTEGER PRIMARY KEY, branch INTEGER, kind TEXT, time REAL, client TEXT, first_id INTEGER, samples INTEGER,
    body BLOB
);
CREATE TABLE snapshots (
    id INTEGER PRIMARY KEY, branch INTEGER, event INTEGER, time REAL, reason TEXT, samples_seen INTEGER,
    copy_of INTEGER, state BLOB
);
CREATE TABLE branches (id INTEGER PRIMARY KEY, parent INTEGER, fork INTEGER);
-- Batches that nothing was learnt from; the id is the bytes of all bodies up to it, `event` the last event before it
CREATE TABLE unlearnt (id INTEGER PRIMARY KEY, branch INTEGER, event INTEGER, first_id INTEGER, body BLOB);
"""
LEARNT = "SELECT body, id AS event, branch FROM events WHERE kind = 'samples' ORDER BY id DESC"
# The batch with a sample
BATCH = LEARNT.replace("ORDER", "AND first_id <= :id AND first_id + samples > :id ORDER")
# The batches with samples after one, learnt or not
ANSWERED = """
SELECT body, id AS event, branch, 0 AS part FROM events WHERE kind = 'samples' AND first_id + samples - 1 > :id
UNION ALL SELECT body, event, branch, id AS part FROM unlearnt WHERE first_id > :id ORDER BY event, part
"""
# The same, latest first
NEWEST = ANSWERED.replace("event, part", "event DESC, part DESC")
# The branches that lead to a branch, each with the last of its events that counts
LINEAGE = """
WITH RECURSIVE line(branch, last) AS (
    SELECT ?, 9223372036854775807
    UNION ALL SELECT parent, fork FROM branches JOIN line ON branches.id = line.branch
) SELECT branch, last FROM line
"""
# The newest event beyond the bytes that are kept
FORGOTTEN = (
    "SELECT max(id) FROM (SELECT id, sum(length(body)) OVER (ORDER BY id DESC) AS total FROM events) WHERE total > ?"
)
COUNTS = """
SELECT (SELECT count(*) FROM snapshots) AS snapshots, length(state) AS state_bytes,
    coalesce((SELECT value FROM about WHERE key = 'answered'), 0) AS answered,
    coalesce((SELECT value FROM about WHERE key = 'changed'), 0) AS changed
FROM snapshots ORDER BY id DESC LIMIT 1
"""
# Adds to one of these counts
ADD_COUNT = "INSERT INTO about VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = value + excluded.value"
# Samples learnt: those in the newest snapshot, and those after it
SEEN = """
SELECT samples_seen + (SELECT coalesce(sum(samples), 0) FROM events WHERE events.id > event) AS samples_seen
FROM snapshots ORDER BY id DESC LIMIT 1
"""
# The last snapshot before the newest, or before the one that the newest went back to
EARLIER = """
SELECT max(id) FROM snapshots
WHERE id < (SELECT coalesce(copy_of, id) FROM snapshots ORDER BY id DESC LIMIT 1)
"""


class Event(NamedTuple):
    """A change of a stream: a batch of samples, a correction, the undoing of one, or a freeze.

    Samples that were not learnt from are part of their batch, as the same batch gives the same rounding.

    Attributes:
        about: JSON values: `kind` ("samples", "correction", "undo" or "frozen"), `time`, `client`, and others.
        features: (n, d) or (n, V, d), float32; empty if it has none.
    """

    about: dict[str, Any]
    features: HostArray


@contextmanager
def noticing_damage() -> Iterator[None]:
    """Turn whatever a damaged file leads to into an UnusableError, and problems of the moment into a StorageError."""
    try:
        yield
    except (UnusableError, StorageError, NotFoundError):
        raise
    except (OSError, MemoryError, sqlite3.OperationalError) as error:
        if getattr(error, "sqlite_errorcode", None) == QUERY_ERROR:  # known since Python 3.11
            raise damaged(error) from error
        why = reason(error) if isinstance(error, OSError) else str(error) or "not enough memory"
        raise StorageError(f"its file cannot be read at the moment ({why}); try again later.") from error
    except Exception as error:
        raise damaged(error) from error


def damaged(what: object) -> UnusableError:
    """Return the error for a damaged file."""
    return UnusableError(f"its file is damaged ({str(what)[:200]}); restore a backup, or delete the stream.")


class StreamFile:
    """The open file of a stream, used by one thread at a time; changes are made within a `transaction`.

    Args:
        path: the file.
        limits: limits on the history that is kept.
        check: True to look for damage of the database in itself.
        room: returns the bytes that the file may have at most at the moment.

    Attributes:
        branch: the current branch.
        last_event: the id of the newest event.
        stale: True if a state that was read before may differ from the file, after an error or a new branch.
    """

    @noticing_damage()
    def __init__(
        self, path: Path, limits: Limits, check: bool = False, room: Callable[[], float] = lambda: inf
    ) -> None:
        self.path = path
        self._limits = limits
        self._room = room
        self.branch = self.last_event = 0
        self.stale = False
        self._database = _connect(path)
        self._inode = path.stat().st_ino
        numbers = [
            self._database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        ]
        if numbers != [FORMAT, VERSION]:
            self.close()
            raise UnusableError(
                "its file is not that of a stream of this version of acclimate; restore a backup, or delete the stream."
            )
        if check and (found := self._database.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise damaged(found)

    def about(self, key: str) -> dict[str, Any]:
        """Return what is stored under a key: "stream" or "summary"."""
        return _unpack(self._database.execute("SELECT value FROM about WHERE key = ?", [key]).fetchone()).about

    def set_about(self, key: str, values: Mapping[str, Any]) -> None:
        """Store JSON values under a key."""
        self._insert("about", key, snapshot_bytes({}, values), replacing=True)

    def summary(self) -> dict[str, Any]:
        """Return what `summary_of` gives and `counts`, without loading the state."""
        return self.about("summary") | self.counts() | dict(self._database.execute(SEEN).fetchone())

    def counts(self) -> dict[str, int]:
        """Return the number of snapshots, the size of the newest, and the numbers of answers: all, and changed ones."""
        return dict(self._database.execute(COUNTS).fetchone())

    @noticing_damage()
    def load(self, number: int | None = None, encoder: Any = None) -> tuple[Adapter, dict[str, Any]]:
        """Return the adapter and the notes of a snapshot, by default the newest; NotFoundError if it does not exist.

        The notes also say its `snapshot` (id), `branch`, `event` (the last that it contains) and `time`.
        """
        query = "SELECT id, branch, event, state FROM snapshots WHERE ? IS NULL OR id = ? ORDER BY id DESC LIMIT 1"
        row = self._database.execute(query, [number, number]).fetchone()
        if row is None:
            raise NotFoundError(f"there is no snapshot {number}; see the list of snapshots.")
        adapter, notes = build_adapter(*parse_snapshot(row["state"]), "its state", encoder=encoder)
        if tuple(row)[:3] != (notes["snapshot"], notes["branch"], notes["event"]):
            raise damaged("a snapshot has the number of another")
        return adapter, notes

    def replay(self, notes: Mapping[str, Any]) -> Iterator[Event]:
        """Yield the events after the newest snapshot, which has these notes."""
        self.branch = notes["branch"]
        self.last_event = notes["event"]
        for row in self._database.execute("SELECT body FROM events WHERE id > ? ORDER BY id", [self.last_event]):
            event = _unpack(row)
            self.last_event += 1
            if (event.about["event"], event.about["branch"]) != (self.last_event, self.branch):
                raise damaged("events are missing")
            yield event
        self.stale = False

    @contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """Do everything in the context or nothing; it is on the disk at the end. StorageError if that fails."""
        try:
            if not self.path.exists():
                raise sqlite3.OperationalError("it was removed")
            if self.path.stat().st_ino != self._inode:
                self.checkpoint()  # SQLite would take a log that lies beside the new file for that of the new file
                raise sqlite3.OperationalError("it was replaced")
            self._database.execute(f"BEGIN {kind}")
            yield
            self._database.execute("COMMIT")
        except BaseException as error:
            self.stale = True
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise StorageError(
                    f"the stream's file cannot be written ({error}); {lacking_files() or 'free some disk space'}, or "
                    "restore the file."
                ) from error
            raise

    def add(self, event: Event) -> None:
        """Append an event, and count its answers; samples of which none was learnt are kept beside the events."""
        if answers := event.about.get("answers"):
            counts = {"answered": len(answers), "changed": sum(each["changed"] for each in answers)}
            self._database.executemany(ADD_COUNT, counts.items())
        if event.about.get("samples") == 0:
            body = snapshot_bytes({"features": event.features}, event.about)
            (size,) = self._database.execute("SELECT coalesce(max(id), 0) + ? FROM unlearnt", [len(body)]).fetchone()
            self._insert("unlearnt", size, self.branch, self.last_event, event.about["first_id"], body)
            self._database.execute("DELETE FROM unlearnt WHERE id <= ?", [size - self._limits.history_bytes])
            return
        self.last_event += 1
        about = event.about | {"event": self.last_event, "branch": self.branch}
        columns = [about.get(name, 0) for name in ("event", "branch", "kind", "time", "client", "first_id", "samples")]
        self._insert("events", *columns, snapshot_bytes({"features": event.features}, about))

    def add_snapshot(
        self,
        adapter: Adapter,
        notes: Mapping[str, Any],
        reason: str,
        copy_of: Mapping[str, Any] | None = None,
        branches: bool = False,
    ) -> int:
        """Append a snapshot of a state; returns its id.

        Args:
            adapter: the state.
            notes: JSON values to be kept with it.
            reason: why it is taken.
            copy_of: the notes of the snapshot that a rollback goes back to, whose events lead to the state.
            branches: True if the state does not continue the events before it: it starts a branch.
        """
        found = self._database.execute("SELECT id, time, reason, length(state) AS size FROM snapshots ORDER BY id")
        snapshots = found.fetchall()
        number = 1 + (snapshots[-1]["id"] if snapshots else 0)
        now = max(time(), *(each["time"] for each in snapshots), 0.0)  # the clock may have gone back
        if branches:
            self.branch = number
        if copy_of is not None:
            self._insert("branches", number, copy_of["branch"], copy_of["event"])
        place = {"snapshot": number, "branch": self.branch, "event": self.last_event, "time": now}
        state = state_to_bytes(adapter, {**notes, **place})
        self._trim(snapshots, now, len(state))
        self._insert("snapshots", *place.values(), reason, adapter.samples_seen, copy_of and copy_of["snapshot"], state)
        self.set_about("summary", summary_of(adapter))
        self._database.execute(f"DELETE FROM events WHERE id <= ({FORGOTTEN})", [self._limits.history_bytes])
        self._database.execute("DELETE FROM branches WHERE fork < (SELECT min(id) FROM events)")
        return number

    def _trim(self, snapshots: list[Any], now: float, added: int) -> None:
        """Remove the snapshots for which there is no place beside another one of this size, which contains them all.

        The one goes whose neighbours are closest by the ratio of their ages, so that some are left of the last minutes,
        hours, days and weeks, however many are taken. The oldest stays, the newest that is a day old, and the newest
        that each client has asked for, unless the file has no room for them.
        """
        asked = {each["reason"]: each["id"] for each in snapshots if each["reason"].startswith(REQUESTED)}
        old = [each["id"] for each in snapshots if each["time"] <= now - DAY_S]
        stay = {*asked.values(), *old[:1], *old[-1:], *(each["id"] for each in snapshots[:1])}
        others = self.file_bytes - sum(each["size"] for each in snapshots)
        while snapshots:
            size = sum(each["size"] for each in snapshots) + added
            many = len(snapshots) >= self._limits.history or size > self._limits.snapshot_bytes
            loose = [i for i, each in enumerate(snapshots) if each["id"] not in stay]
            if not (many and loose) and others + size <= self._room():
                return
            ages = [inf, *(1.0 + now - each["time"] for each in snapshots), 1.0]
            gone = min(loose or range(len(snapshots)), key=lambda i: ages[i] / ages[i + 2])
            self._database.execute("DELETE FROM snapshots WHERE id = ?", [snapshots.pop(gone)["id"]])

    @property
    def file_bytes(self) -> int:
        """The size of the database in bytes, less what is free in it."""
        names = ("page_count", "freelist_count", "page_size")
        count, free, size = (self._database.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
        return int((count - free) * size)

    def snapshots(self) -> list[dict[str, Any]]:
        """Return the snapshots, oldest first: id, time, reason, samples_seen."""
        return [*map(dict, self._database.execute("SELECT id, time, reason, samples_seen FROM snapshots ORDER BY id"))]

    def earlier_snapshot(self) -> int:
        """Return the id of the last snapshot that differs from the newest; InputError if there is none."""
        (number,) = self._database.execute(EARLIER).fetchone()
        if number is None:
            raise InputError("there is no older snapshot to go back to.")
        return int(number)

    def samples(self, query: str = LEARNT, sample_id: int = -1) -> Iterator[Event]:
        """Yield the batches of samples that led to the current state, as far back as they are kept, latest first.

        `ANSWERED` and `NEWEST` as the query yield all after a sample, also those that nothing was learnt from, in their
        order or latest first.
        """
        last = dict(map(tuple, self._database.execute(LINEAGE, [self.branch])))
        rows = self._database.execute(query, {"id": sample_id})
        return (_unpack(row) for row in rows if row["event"] <= last.get(row["branch"], -1))

    def probe(self) -> None:
        """Raise StorageError if there is no room for another snapshot, or a megabyte."""
        for size in (max(2**20, self.counts()["state_bytes"]), 0):
            with self.transaction():
                self._insert("about", "probe", bytes(size), replacing=True)

    def checkpoint(self) -> None:
        """Move what was written into the database itself.

        Until then it is in SQLite's log beside it, of which SQLite ignores a damaged end without a word.
        """
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close the file; a thread may do so that has not opened it."""
        self._database.close()

    def _insert(self, table: str, *row: Any, replacing: bool = False) -> None:
        """Insert a row; unless it is for `replacing`, one that another process has written with this id is an error."""
        how = "INSERT OR REPLACE" if replacing else "INSERT"
        self._database.execute(f"{how} INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def lacking_files() -> str:
    """Return what to do if this process may hardly open another file; "" if it may."""
    try:
        with ExitStack() as opened:
            for _ in range(SPARE_FILES):
                opened.enter_context(open(os.devnull))
    except OSError as error:
        return f"{reason(error)}: raise the limit on open files (`ulimit -n`, `LimitNOFILE`), or delete streams"
    return ""


def write_file(path: Path, about: Mapping[str, Any], adapter: Adapter, limits: Limits) -> None:
    """Write the file of a new stream; StorageError if that fails, which may leave a part of it."""
    try:
        with closing(_connect(path, "rwc")) as database:
            database.executescript(SCHEMA)
        with closing(StreamFile(path, limits)) as file, file.transaction():
            file.set_about("stream", about)
            file.add_snapshot(adapter, {}, "created", branches=True)
    except (StorageError, sqlite3.Error) as error:
        raise StorageError(
            f"the stream could not be written ({error}); {lacking_files() or 'free some disk space'}."
        ) from error


def remove_file(path: Path) -> None:
    """Remove the file of a stream, and then what SQLite may have left beside it."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    sync_folder(path.parent)


def list_files(folder: Path) -> list[Path]:
    """Return the files of all streams; what was being written or removed when the service ended is removed."""
    for path in (*folder.glob(f"{TEMPORARY}*"), *folder.glob(f"*{SUFFIX}-wal"), *folder.glob(f"*{SUFFIX}-shm")):
        if path.name.startswith(TEMPORARY) or not path.with_name(path.name[:-4]).exists():
            path.unlink(missing_ok=True)
    return sorted(folder.glob(f"*{SUFFIX}"))


def claim_folder(folder: Path) -> Any:
    """Create the folder of a service and lock it for this process, where that is possible; returns what to close.

    InputError is raised if another service uses it, or for a folder of a version of acclimate before 1.0.
    """
    if old := sorted(folder.glob("streams/*/stream.json")):
        raise InputError(
            f"{old[0].parent} was written by acclimate 0.x, whose files this version does not read; download the "
            "states with that version, start this one with another folder, and upload them there."
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is learnt from images is private
        (folder / "streams").mkdir(exist_ok=True)
        sync_folder(folder)
    except OSError as error:
        raise InputError(f"cannot store streams in {folder}: {reason(error)}.") from error
    held = ExitStack()
    with suppress(ImportError):
        import fcntl

        folder_handle = os.open(folder, os.O_RDONLY)  # not a file in it, which somebody could remove
        held.callback(os.close, folder_handle)
        try:
            fcntl.flock(folder_handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            held.close()
            raise InputError(f"another service uses {folder}; stop it, or use another folder for this one.") from error
    return held


def summary_of(adapter: Adapter) -> dict[str, Any]:
    """Return the fields of a stream's description that its state decides."""
    return {
        "labels": list(adapter.head.class_names),
        "settings": adapter.settings,
        "capacity": {name: part.capacity for name, part in adapter.parts.items() if part.capacity},
        "samples_seen": adapter.samples_seen,
        "frozen": adapter.frozen,
        "advice": adapter.advice(),
        "entries": {name: part.size for name, part in adapter.parts.items() if isinstance(part, Cache)},
        "corrections": len(adapter.corrections),
    }


def _connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode={mode}"
    database = sqlite3.connect(address, isolation_level=None, check_same_thread=False, uri=True)
    database.row_factory = sqlite3.Row
    database.execute("PRAGMA synchronous = FULL")
    return database


@noticing_damage()
def _unpack(row: Any) -> Event:
    """Return the event in the first column of a row; UnusableError if it is not as it was written."""
    tensors, about = parse_snapshot(row[0])
    return Event(about, tensors.get("features", np.empty(0)))
