"""The file of a stream: an SQLite database with everything that was acknowledged, in that order.

The state of a stream is its newest snapshot and the events after it, which replay to the same bits. A rollback, a
reset or an upload starts a branch; `branches` says where a branch left another, so that the samples that led to the
current state can be found. Each row has a checksum, as SQLite itself does not notice a changed byte in a value.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from time import time
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import InputError, StateError, reason
from acclimate.files import parse_snapshot, sync_folder
from acclimate.methods import Adapter, state_from_bytes, state_to_bytes
from acclimate.methods.persist import build_adapter
from acclimate.serve.http_errors import NotFoundError, StorageError, UnusableError
from acclimate.serve.memory import Event, Memory

SUFFIX = ".sqlite"
LOG_SUFFIXES = ("-wal", "-shm")  # files that SQLite keeps beside a database while it is open
TEMPORARY = ".temporary-"  # how names of files begin that are being created or deleted
FORMAT = 0x61636C6D  # the application id of the database: "aclm"
VERSION = 1
LOCK_WAIT_S = 5.0  # time to wait for another program that writes to the file
MIN_ROOM_BYTES = 2**20  # room on the disk without which nothing is learnt, once it was full
SCHEMA = f"""
PRAGMA journal_mode = WAL;
PRAGMA application_id = {FORMAT};
PRAGMA user_version = {VERSION};
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT, checksum INTEGER);
CREATE TABLE events (
    id INTEGER PRIMARY KEY, branch INTEGER, kind TEXT, time REAL, client TEXT, first_id INTEGER, samples INTEGER,
    record TEXT, answers TEXT, body BLOB, checksum INTEGER
);
CREATE TABLE snapshots (
    id INTEGER PRIMARY KEY, branch INTEGER, event INTEGER, time REAL, reason TEXT, samples_seen INTEGER,
    copy_of INTEGER, notes TEXT, state BLOB, checksum INTEGER
);
CREATE TABLE branches (id INTEGER PRIMARY KEY, parent INTEGER, fork INTEGER, checksum INTEGER);
"""
# The branches that lead to a branch, each with the last of its events that counts
LINEAGE = """
WITH RECURSIVE line(branch, last) AS (
    SELECT ?, 9223372036854775807
    UNION ALL SELECT parent, fork FROM branches JOIN line ON branches.id = line.branch
) SELECT branch, last FROM line
"""
# The newest event beyond the bytes that are kept
FORGOTTEN = """
SELECT max(id) FROM (SELECT id, sum(length(body) + length(answers)) OVER (ORDER BY id DESC) AS total FROM events)
WHERE total > ?
"""


class Snapshot(NamedTuple):
    """A stored state, which contains all events of its branch up to `event`."""

    id: int
    branch: int
    event: int
    time: float
    reason: str
    samples_seen: int
    copy_of: int | None  # the snapshot that a rollback went back to
    notes: str
    state: bytes

    def adapter(self, text: Any = None) -> Adapter:
        """Return the adapter in the snapshot; `text` is the encoder, for methods that need it."""
        return build_adapter(*parse_snapshot(self.state, "its state"), "its state", text=text)[0]


class StreamFile:
    """The open file of a stream, used by one thread at a time; changes are made within a `transaction`.

    UnusableError is raised for a file that is damaged or not that of a stream, and sqlite3.OperationalError for one that
    cannot be read at the moment.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.branch = self.last_event = self.state_bytes = self.snapshot_count = 0  # as of `load`
        self._database = _connect(path)
        try:
            (found,) = self._database.execute("PRAGMA application_id").fetchone()
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if found != FORMAT:
                raise UnusableError("its file is not that of a stream; restore a backup, or delete the stream.")
            if version != VERSION:
                raise UnusableError("it was written by another version of acclimate; use that version.")
        except BaseException as error:
            self.close()
            if type(error) is sqlite3.DatabaseError:  # its subclasses are problems of the moment
                raise _damaged(error) from error
            raise

    def about(self, key: str) -> dict[str, Any]:
        """Return what is stored under a key: "stream" or "summary"."""
        row = self._row("SELECT * FROM about WHERE key = ?", key)
        found: dict[str, Any] = json.loads(row[1])
        return found

    def set_about(self, key: str, values: Mapping[str, Any]) -> None:
        """Store JSON values under a key."""
        self._insert("about", (key, json.dumps(values)))

    def summary(self) -> tuple[dict[str, Any], int]:
        """Return what is known of the state without loading it, and the samples learnt after the newest snapshot."""
        query = "SELECT samples_seen, event, (SELECT count(*) FROM snapshots) FROM snapshots ORDER BY id DESC LIMIT 1"
        seen, event, count = self._database.execute(query).fetchone()
        (unsaved,) = self._database.execute("SELECT total(samples) FROM events WHERE id > ?", [event]).fetchone()
        counts = {"samples_seen": seen + int(unsaved), "snapshots": count}
        return self.about("summary") | counts, int(unsaved)

    def load(self, text: Any = None) -> tuple[Memory, int]:
        """Return the current state, and the number of samples and other changes after the newest snapshot."""
        try:
            (found,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise _damaged(found)
            newest = self.snapshot()
            memory = Memory(newest.adapter(text), json.loads(newest.notes))
            self.branch = newest.branch
            self.last_event = newest.event
            self.state_bytes = len(newest.state)
            self.snapshot_count = len(self.snapshots())
            changes = 0
            for row in self._database.execute("SELECT * FROM events WHERE id > ? ORDER BY id", [newest.event]):
                event = self._event(row)
                if row[:2] != (self.last_event + 1, self.branch):
                    raise _damaged("events are missing")
                memory.apply(event)
                self.last_event += 1
                changes += event.samples or int(event.kind != "frozen")
            return memory, changes
        except (OSError, MemoryError, UnusableError, sqlite3.OperationalError):
            raise
        except Exception as error:  # whatever a changed byte leads to
            raise _damaged(error) from error

    @contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """Do everything in the context or nothing; it is on the disk at the end. StorageError if that fails.

        After any error, `load` must be called before the next transaction.
        """
        try:
            if not self.path.exists():
                raise sqlite3.OperationalError("its file was removed")
            self._database.execute(f"BEGIN {kind}")
            yield
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise StorageError(
                f"the stream's file cannot be written ({error}); free some disk space, or restore the file."
            ) from error
        finally:
            if self._database.in_transaction:
                with suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")

    def add(self, event: Event) -> None:
        """Append an event."""
        self.last_event += 1
        texts = (json.dumps(event.record), json.dumps(event.answers))
        numbers = (event.kind, event.time, event.client, event.first_id, event.samples)
        self._insert("events", (self.last_event, self.branch, *numbers, *texts, event.body))

    def add_snapshot(
        self, memory: Memory, reason: str, *, branches: bool = False, copy_of: Snapshot | None = None
    ) -> int:
        """Append a snapshot of a state; returns its id.

        Args:
            memory: the state.
            reason: why it is taken.
            branches: True if the state does not continue the events before it: it starts a branch.
            copy_of: the snapshot that a rollback goes back to, whose events lead to the state.
        """
        number = 1 + (self._database.execute("SELECT max(id) FROM snapshots").fetchone()[0] or 0)
        if branches:
            self.branch = number
        if copy_of is not None:
            parent = copy_of.branch
            query = "SELECT parent FROM branches WHERE id = ? AND fork = ?"
            for (older,) in self._database.execute(query, [parent, copy_of.event]).fetchall():
                parent = older  # nothing was learnt in the branch itself
            self._insert("branches", (number, parent, copy_of.event))
        state = state_to_bytes(memory.adapter)
        about = (time(), reason, memory.adapter.samples_seen, None if copy_of is None else copy_of.id)
        self._insert("snapshots", (number, self.branch, self.last_event, *about, json.dumps(memory.notes()), state))
        self.set_about("summary", memory.summary())
        self.state_bytes = len(state)
        self.snapshot_count += 1
        return number

    def trim(self, snapshots: int, snapshot_bytes: int, event_bytes: int) -> None:
        """Remove what is too much of the history, all of which the newest snapshot contains.

        The newest and the oldest snapshot stay. Of the others the one goes whose neighbours are closest by the ratio of
        their ages, so that some are left of the last minutes, hours, days and weeks, however many are taken.
        """
        query = "SELECT id, time, length(state) + length(notes) FROM snapshots ORDER BY id"
        found = self._database.execute(query).fetchall()
        now = time()
        while len(found) > 2 and (len(found) > snapshots or sum(each[2] for each in found) > snapshot_bytes):
            ages = [1.0 + max(0.0, now - each[1]) for each in found]
            index = min(range(1, len(found) - 1), key=lambda i: ages[i - 1] / ages[i + 1])
            self._database.execute("DELETE FROM snapshots WHERE id = ?", found.pop(index)[:1])
        self._database.execute(f"DELETE FROM events WHERE id <= ({FORGOTTEN})", [event_bytes])
        used = "SELECT branch FROM snapshots UNION SELECT branch FROM events"
        self._database.execute(f"DELETE FROM branches WHERE id NOT IN ({used})")
        self.snapshot_count = len(found)

    def snapshots(self) -> list[dict[str, Any]]:
        """Return the snapshots, oldest first: id, time, reason, samples_seen."""
        rows = self._database.execute("SELECT id, time, reason, samples_seen FROM snapshots ORDER BY id")
        return [dict(zip(("id", "time", "reason", "samples_seen"), row, strict=True)) for row in rows]

    def snapshot(self, number: int | None = None) -> Snapshot:
        """Return a snapshot, by default the newest; NotFoundError if there is none with this id."""
        if number is None:
            return Snapshot(*self._row("SELECT * FROM snapshots ORDER BY id DESC LIMIT ?", 1)[:-1])
        if not self._database.execute("SELECT id FROM snapshots WHERE id = ?", [number]).fetchall():
            raise NotFoundError(f"there is no snapshot {number}; see the list of snapshots.")
        return Snapshot(*self._row("SELECT * FROM snapshots WHERE id = ?", number)[:-1])

    def snapshot_before(self) -> int:
        """Return the id of the last snapshot that differs from the newest; InputError if there is none."""
        rows = self._database.execute("SELECT id, copy_of FROM snapshots ORDER BY id").fetchall()
        current = rows[-1][1] or rows[-1][0]
        older = [number for number, _ in rows if number < current]
        if not older:
            raise InputError("there is no older snapshot to go back to.")
        return int(older[-1])

    def find(self, sample_id: int) -> tuple[HostArray, bytes]:
        """Return features (1, d) or (1, V, d), and thumbnail (empty if there is none), of a recent sample."""
        for event in self._samples("first_id <= ? AND first_id + samples > ?", (sample_id, sample_id)):
            row = np.flatnonzero(event.learnt)[sample_id - event.first_id]
            return event.features[row : row + 1], event.thumbnails[row]
        raise NotFoundError(
            f"the image {sample_id} was not learnt by this stream, or that was too long ago; send the image itself."
        )

    def last_features(self, count: int) -> list[HostArray]:
        """Return features (n, d) or (n, V, d) of at least the last `count` samples that were learnt, in their order."""
        found: list[HostArray] = []
        for event in self._samples():
            found.append(event.features[event.learnt])
            if sum(map(len, found)) >= count:
                break
        return found[::-1]

    def taught_since(self, start: float) -> list[tuple[str, int, float]]:
        """Return client, number and time of the samples learnt since then, whatever was undone later."""
        query = "SELECT client, samples, time FROM events WHERE kind = 'samples' AND time > ? ORDER BY id"
        return self._database.execute(query, [start]).fetchall()

    def answers(self, after: int, limit: int) -> list[dict[str, Any]]:
        """Return the answers to the samples that led to the current state, as far back as they are kept, by id."""
        found: list[dict[str, Any]] = []
        for event in self._samples("first_id + samples > ?", (after + 1,), "ASC"):
            for number, (label, score, own_label, own_score) in enumerate(event.answers, event.first_id):
                own = {"label": own_label, "score": own_score}
                answer = {"id": number, "time": event.time, "client": event.client, "label": label, "score": score}
                found.append(answer | {"zero_shot": own, "changed": label != own_label})
            if len(found) > limit + after:
                break
        return [answer for answer in found if answer["id"] > after][:limit]

    def probe(self) -> None:
        """Raise StorageError if there is no room for another snapshot."""
        for content in (bytes(max(self.state_bytes, MIN_ROOM_BYTES)), b""):
            with self.transaction():
                self._insert("about", ("probe", content))

    def checkpoint(self) -> int:
        """Move what was written into the database itself; returns its length in bytes.

        Until then it is in SQLite's log beside it, of which SQLite ignores a damaged end without a word.
        """
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return self.path.stat().st_size

    def close(self) -> None:
        """Close the file; a thread may do so that has not opened it."""
        self._database.close()

    def _samples(self, where: str = "1", values: Sequence[Any] = (), order: str = "DESC") -> Iterator[Event]:
        """Yield the events of the samples that led to the current state, the latest first."""
        last = dict(self._database.execute(LINEAGE, [self.branch]).fetchall())
        query = f"SELECT * FROM events WHERE kind = 'samples' AND {where} ORDER BY id {order}"
        for row in self._database.execute(query, values):
            if row[0] <= last.get(row[1], -1):
                yield self._event(row)

    def _event(self, row: tuple[Any, ...]) -> Event:
        _, _, kind, when, client, first_id, samples, record, answers, body, _ = _checked(row)
        return Event(kind, when, client, json.loads(record), body, first_id, samples, json.loads(answers))

    def _row(self, query: str, value: Any) -> tuple[Any, ...]:
        row = self._database.execute(query, [value]).fetchone()
        if row is None:
            raise _damaged("a row is missing")
        return _checked(row)

    def _insert(self, table: str, row: tuple[Any, ...]) -> None:
        marks = ", ".join("?" * (len(row) + 1))
        self._database.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", (*row, _checksum(row)))


@contextmanager
def new_file(path: Path, about: Mapping[str, Any], memory: Memory) -> Iterator[Path]:
    """Write the file of a new stream; within the context it can be given its name by `place_file`."""
    temporary = path.with_name(f"{TEMPORARY}{token_hex(8)}{SUFFIX}")
    try:
        with closing(_connect(temporary, "rwc")) as database:
            database.executescript(SCHEMA)
        with closing(StreamFile(temporary)) as file, file.transaction():
            file.set_about("stream", about)
            file.add_snapshot(memory, "created", branches=True)
        yield temporary
    except (OSError, sqlite3.Error) as error:
        why = reason(error) if isinstance(error, OSError) else error
        raise StorageError(f"the stream could not be written: {why}; free some disk space.") from error
    finally:
        _remove(temporary)


def place_file(written: Path, path: Path) -> None:
    """Give a new file its name."""
    _remove_logs(path)  # those of a stream of this name whose file somebody has removed
    os.replace(written, path)
    sync_folder(path.parent)


def delete_file(path: Path) -> None:
    """Delete the file of a stream, which is closed; StorageError if that fails, and it is there as before."""
    gone = path.with_name(f"{TEMPORARY}{token_hex(8)}{SUFFIX}")
    try:
        with suppress(FileNotFoundError):  # somebody else has removed it
            os.replace(path, gone)
    except OSError as error:
        raise StorageError(f"the stream could not be removed: {reason(error)}.") from error
    _remove_logs(path)
    sync_folder(path.parent)
    _remove(gone)


def list_files(folder: Path) -> list[Path]:
    """Return the files of all streams; what creating and deleting have left behind is removed.

    InputError is raised for a folder of a version of acclimate before 1.0.
    """
    if old := sorted(folder.glob("*/stream.json")):
        raise InputError(
            f"{old[0].parent} was written by acclimate 0.x, whose files this version does not read; download the "
            "states with that version, start this one with another folder, and upload them there."
        )
    for path in folder.iterdir():
        database = path.name.removesuffix("-wal").removesuffix("-shm")
        if path.name.startswith(TEMPORARY) or not (folder / database).exists():
            _remove(path)
    return sorted(folder.glob(f"*{SUFFIX}"))


def export_state(path: Path, snapshot: int | None = None) -> bytes:
    """Return the content of a state file from the file of a stream: its current state, or one of its snapshots.

    The service may be running.
    """
    with closing(_open(path)) as file, file.transaction("DEFERRED"):
        if snapshot is not None:
            return file.snapshot(snapshot).state
        return state_to_bytes(file.load()[0].adapter)


def import_state(path: Path, content: bytes) -> None:
    """Continue a stream from a state file, as an upload does; its service must be stopped."""
    with claim_folder(path.parent.parent), closing(_open(path)) as file:
        memory, changes = file.load()
        adapter = state_from_bytes(content, like=memory.adapter)
        adapter.origin = path.name.removesuffix(SUFFIX)
        adapter.frozen = memory.adapter.frozen
        with file.transaction():
            if changes:
                file.add_snapshot(memory, "before imported")
            file.add_snapshot(Memory(adapter), "imported", branches=True)


def claim_folder(folder: Path) -> Any:
    """Create the folder of a service and lock it for this process, where that is possible; returns a file to close."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is learnt from images is private
        (folder / "streams").mkdir(exist_ok=True)
        sync_folder(folder)
        sync_folder(folder.parent)
        file = open(folder / "lock", "a")  # noqa: SIM115 (held until the service ends)
    except OSError as error:
        raise InputError(f"cannot store streams in {folder}: {reason(error)}.") from error
    with suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise InputError(f"another service uses {folder}; stop it, or use another folder for this one.") from error
    return file


def _connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode={mode}"
    database = sqlite3.connect(address, LOCK_WAIT_S, isolation_level=None, check_same_thread=False, uri=True)
    database.execute("PRAGMA synchronous = FULL")
    return database


def _open(path: Path) -> StreamFile:
    """Open a file for a command."""
    try:
        return StreamFile(path)
    except (UnusableError, sqlite3.Error) as error:
        raise StateError(f"{path} cannot be used: {error}") from error


def _checksum(values: Sequence[Any]) -> int:
    total = 0
    for value in values:
        total = crc32(value if isinstance(value, bytes) else repr(value).encode(), total)
    return total


def _checked(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row that is as it was written; UnusableError for any other."""
    if row[-1] != _checksum(row[:-1]):
        raise _damaged("a checksum does not match")
    return row


def _damaged(what: object) -> UnusableError:
    return UnusableError(f"its file is damaged ({str(what)[:200]}); restore a backup, or delete the stream.")


def _remove_logs(path: Path) -> None:
    for suffix in LOG_SUFFIXES:
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _remove(path: Path) -> None:
    """Remove a database; what cannot be removed now is removed at the next start."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
        _remove_logs(path)
