"""A stream's files: numbered snapshots, and beside each the journal of what was learnt after it.

The state is the newest snapshot and its journal. A snapshot that was taken in passing (and not because of a reset, say)
equals the one before it and that one's journal; so if it is damaged, nothing is lost: the older ones lead to the same
state. Nothing is ever written over: every snapshot has a new number, and the oldest are removed when there are many.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, time
from typing import Any

from acclimate.errors import StateError, StorageError
from acclimate.methods import load, save
from acclimate.methods.persist import read_notes
from acclimate.serve.journal import Journal, read_journal
from acclimate.serve.memory import Memory


class History:
    """The snapshots and journals in a stream's folder; used by one thread at a time, except `sync`.

    Args:
        folder: of the stream.
        keep: snapshots to keep.

    Attributes:
        samples: learnt since the last snapshot.
        problem: what was damaged when the files were last read, and what was done about it; None if nothing.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self._keep = folder, keep
        self.samples = 0
        self.problem: str | None = None
        self._journal: Journal | None = None
        self._taken = monotonic()
        self._about: dict[int, dict[str, Any]] = {}  # of each readable snapshot: reason, time, samples_seen

    @property
    def age(self) -> float:
        """Seconds since the last snapshot."""
        return monotonic() - self._taken

    @property
    def writable(self) -> bool:
        """Whether the journal can be appended to, as far as is known; the next snapshot begins another."""
        return self._journal is not None and not self._journal.failed

    def recover(self) -> Memory:
        """Read the newest state there is.

        Raises:
            StateError: no snapshot can be read.
        """
        numbers = sorted(self._numbers(".safetensors"))
        memory, start, problems = None, 0, []
        for number in reversed(numbers):
            try:
                memory, start = self.load(number), number
                break
            except StateError as error:
                problems.append(self._without_folder(error))
        if memory is None:
            raise StateError(" ".join(problems) or "its folder holds no snapshot.")
        whole, last = self._replay(memory, start, problems)
        for number in numbers[: numbers.index(start) + 1]:
            with suppress(StateError):  # a damaged one is none to go back to
                self._about[number] = dict(read_notes(self._path(number, ".safetensors")).get("about", {}))
        if whole is not None and last == start:
            self._journal = Journal(self._path(start, ".journal"), whole)
        else:  # go on under a new number; the damaged files stay as they are
            try:
                self.write(memory, "recovered", continues=False)
            except StorageError as error:
                problems.append(str(error))
        self.problem = f"{'; '.join(problems)}. Serving what could be read." if problems else None
        return memory

    def _replay(self, memory: Memory, start: int, problems: list[str]) -> tuple[int | None, int]:
        """Learn again what came after a snapshot; the size of the last journal if it is whole, and its number."""
        snapshots, journals = self._numbers(".safetensors"), self._numbers(".journal")
        number = start
        for number in range(start, max([*snapshots, *journals]) + 1):
            contents = read_journal(self._path(number, ".journal"))
            if number not in snapshots and not contents.records:
                continue  # a snapshot was about to be taken
            if number > start and not contents.about.get("continues"):
                problems.append(f"snapshot {number} began anew, and what came after it cannot be used without it")
                return None, number
            for head, body in contents.records:
                memory.replay(head, body)
                self.samples += head.get("samples", 0)
            if contents.damage is not None:
                problems.append(f"{contents.damage}; what was learnt after that is lost")
                return None, number
        return contents.size, number

    def load(self, number: int) -> Memory:
        """The memory of a snapshot."""
        path = self._path(number, ".safetensors")
        return Memory(load(path), read_notes(path))

    def append(self, head: Mapping[str, Any], body: bytes = b"") -> int:
        """Note what is about to be learnt; returns a mark for `take_back`. StorageError if it cannot be written."""
        if self._journal is None:
            raise StorageError("the stream's state could not be written; make room on the disk.")
        mark = self._journal.append(head, body)
        self.samples += head.get("samples", 0)
        return mark

    def take_back(self, mark: int, samples: int) -> None:
        """Undo the last `append`: it was not learnt after all."""
        assert self._journal is not None
        self._journal.cut(mark)
        self.samples -= samples

    def write(self, memory: Memory, reason: str, continues: bool, **about: Any) -> int:
        """Write a snapshot and begin its journal; returns its number.

        Args:
            memory: what to write.
            reason: why it was taken, for `snapshots`.
            continues: whether it equals the snapshot before and that one's journal.
            **about: more to say of it.

        Raises:
            StorageError: it could not be written; the state on disk is as before.
        """
        number = max([0, *self._numbers(".safetensors"), *self._numbers(".journal")]) + 1
        about = {"reason": reason, "time": time(), "samples_seen": memory.adapter.samples_seen, **about}
        try:  # the journal first: a snapshot that has none would hide what was appended to an older one
            about_journal = {"continues": continues and self._journal is not None}
            journal = Journal.create(self._path(number, ".journal"), about_journal)
        except OSError as error:
            raise StorageError(f"cannot write {number:08}.journal: {error.strerror or error}.") from error
        try:
            save(memory.adapter, self._path(number, ".safetensors"), {**memory.notes(), "about": about})
        except StateError as error:
            with suppress(OSError):
                journal.path.unlink()
            raise StorageError(self._without_folder(error)) from error
        with suppress(OSError):  # the new snapshot holds what the old journal held
            self.sync()
        self._journal, self.samples, self._taken = journal, 0, monotonic()
        self._about[number] = about
        self._prune()
        return number

    def snapshots(self) -> list[dict[str, Any]]:
        """The readable snapshots, oldest first: id, time, reason, samples_seen."""
        return [{"id": number, **about} for number, about in sorted(self._about.items())]

    def sync(self) -> None:
        """Bring the journal to the disk; may be called from any thread."""
        journal = self._journal
        if journal is not None:
            journal.sync()

    def _prune(self) -> None:
        good = sorted(self._about)[-self._keep :]
        for ending in (".safetensors", ".journal"):
            for number in self._numbers(ending):
                if number < good[0]:
                    self._about.pop(number, None)
                    with suppress(OSError):
                        self._path(number, ending).unlink()

    def _without_folder(self, error: StateError) -> str:
        """What went wrong, for people who need not know where the service keeps its files."""
        return str(error).replace(f"{self.folder}{os.sep}", "")

    def _numbers(self, ending: str) -> list[int]:
        return [int(path.stem) for path in self.folder.glob(f"*{ending}") if path.stem.isdecimal()]

    def _path(self, number: int, ending: str) -> Path:
        return self.folder / f"{number:08}{ending}"
