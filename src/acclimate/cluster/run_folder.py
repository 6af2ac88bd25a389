"""The folder of the run of a cluster, on a disk that all machines share or in a bucket."""

import secrets
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from acclimate.cluster.storage import Storage, storage_of
from acclimate.errors import RunError
from acclimate.files import remove_leftovers
from acclimate.run import ABOUT, OWNER, SUFFIX, Part, part_name
from acclimate.sources.source import Sample
from acclimate.sources.urls import is_local


class Block(NamedTuple):
    """Images that become one part of a run."""

    number: int  # of the part
    start: int  # position of the first image in the stream
    samples: Sequence[Sample]


class RunFolder(Storage):
    """The folder of a run, to which several processes write parts, and one process everything else.

    Attributes:
        owner: names the command that alone may write here, in all of its processes; "" before `claim`.
    """

    owner = ""

    @classmethod
    def of(cls, results: str) -> "RunFolder":
        """Return the folder of the run that belongs to a folder of results.

        Examples:
            >>> RunFolder.of("s3://bucket/answers").url
            's3://bucket/answers.run'
        """
        storage, name = storage_of(results)
        return cls(storage.where(f"{name}{SUFFIX}"))

    def claim(self) -> None:
        """Become the command that writes here; another one that still does finds out, and stops."""
        self.owner = secrets.token_hex(16)
        self.write(OWNER, self.owner.encode())
        if is_local(self.url):
            remove_leftovers(Path(self.url))

    def check_owner(self) -> None:
        """Stop a command that another one has replaced as the owner: parts of two must not mix.

        Raises:
            RunError: there is another one.
        """
        try:
            found = self.read(OWNER).decode(errors="replace")
        except FileNotFoundError:  # the other one is complete already, or the folder was emptied
            found = ""
        if found != self.owner:
            raise RunError(
                f"another command writes, or has written, to {self.url}, or it was removed; this one stops. Wait for "
                "the other one, or choose another --out."
            )

    def save(self, name: str, content: bytes) -> None:
        """Write a file as the owner."""
        self.check_owner()
        self.write(name, content)

    def read_part(self, number: int, run_id: str, folder: Path) -> Part:
        """Read what a part says of its images; a part elsewhere is copied into a folder.

        Raises:
            RunError: it is damaged, or a part of another run.
        """
        return Part.read(self.copy(part_name(number), folder), run_id)

    def has_block(self, block: Block, run_id: str) -> bool:
        """Return True if there is the part of exactly these images."""
        if not self.exists(part_name(block.number)):
            return False
        with TemporaryDirectory(prefix="acclimate-") as folder:
            try:
                part = self.read_part(block.number, run_id, Path(folder))
            except RunError:
                return False
        return part.start == block.start and part.names == [sample.name for sample in block.samples]

    def empty(self) -> None:
        """Remove the run; its description first, so that parts which are left belong to no run."""
        self.remove(ABOUT)
        for name in self.names():
            if name != OWNER:
                self.remove(name)
