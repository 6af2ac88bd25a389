"""Classification of many images on many machines: encoders make the parts of a run, and one place answers them.

The run is a run like any other, and the answers are those of `acclimate classify`, row for row: the parts are answered
in order as they come, in this process. Whatever fails on the way, `--resume` replays the parts that are there, and
makes the others.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from time import monotonic
from typing import Any

from acclimate.classifier import Classifier
from acclimate.classify.classification import Classification
from acclimate.classify.table import Table, write_parquet
from acclimate.classify.task import Job
from acclimate.cluster.encoding import Encoder, Encoders, StopRequest
from acclimate.cluster.machines import Pool
from acclimate.cluster.run_folder import Block, RunFolder
from acclimate.cluster.storage import Storage, storage_of
from acclimate.errors import InputError, RunError
from acclimate.images.opening import URL
from acclimate.predict import Prediction
from acclimate.reading.walk import read_ahead
from acclimate.run import ABOUT, OWNER, PART_NAME, Batch, Part, Run, part_name
from acclimate.sources.source import Sample
from acclimate.sources.urls import is_local

FILE_ROWS = 2**16  # rows of a file of results


@dataclass
class EncodedRun(Run):
    """A run whose last parts are made while it is answered."""

    coming: Callable[[], Iterator[Part]] = field(default=lambda: iter(()))

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of the parts that are there, and then of those that come."""
        yield from super().batches()
        for part in self.coming():
            self.parts.append(part)
            yield from part.batches()


class ParquetFolder(Table):
    """A folder of parquet files, by path or by URL, that are written at the end."""

    grows = False

    def __init__(self, out: Storage) -> None:
        self.path = Path(out.url)
        self.out = out

    @property
    def files(self) -> list[str]:
        """Names of the files that are there."""
        return [name for name in self.out.names() if re.fullmatch(r"part-\d+\.parquet", name)]

    def write(self, blocks: Iterable[Sequence[Prediction]], *_: Any) -> tuple[int, None]:
        """Write all rows, and remove the files of an older table that has more of them."""
        rows = chain.from_iterable(blocks)
        written: list[str] = []
        while records := [row.to_record() for row in islice(rows, FILE_ROWS)]:
            written.append(f"part-{len(written):06d}.parquet")
            content = BytesIO()
            write_parquet(content, [records])
            self.out.write(written[-1], content.getvalue())
        for name in {*self.files} - {*written}:
            self.out.remove(name)
        return 0, None


class Results:
    """The results, the run and the state of a command, by path or by URL, and where this process works on them.

    Args:
        out: the folder of the results.
        copies: a local folder for copies of what is elsewhere.

    Attributes:
        table: the results.
        folder: the folder of the run.
        local: where a table beside the local run, or its local copy, would be.
        state: local path of the state; None for none.
        state_url: where it belongs.
    """

    def __init__(self, out: str, copies: Path) -> None:
        self.table = ParquetFolder(Storage(out))
        self.folder = RunFolder.of(self.table.out.url)
        self._copies = copies
        self._run = Path(self.folder.url) if is_local(self.folder.url) else copies / self.folder.url.rpartition("/")[2]
        self.local = self._run.with_suffix(".parquet")
        self.state: Path | None = None
        self.state_url = ""

    def open(self, resume: bool, overwrite: bool) -> None:
        """Copy a run that is continued; refuse to replace results without being asked.

        Raises:
            InputError: says what can be done.
        """
        there = self.folder.exists(ABOUT)
        if resume and self.table.files and not there:
            raise InputError(
                f"{self.table.out.url} has results, and there is no run at {self.folder.url} to resume; pass "
                "--overwrite, or choose another --out."
            )
        if not (resume or overwrite) and (there or self.table.files):
            what = f"{self.folder.url} is a run" if there else f"{self.table.out.url} has results"
            raise InputError(f"{what}; pass --resume to go on with it, or --overwrite to encode and answer anew.")
        self.table.out.check_writable()
        self.folder.check_writable()
        if is_local(self.folder.url):
            return
        if overwrite:
            self.folder.empty()
        self._run.mkdir()
        names = [name for name in self.folder.names() if name != OWNER]
        for _ in read_ahead(partial(self.folder.copy, folder=self._run), names, 8, 16):  # threads, files ahead
            pass

    def open_state(self, url: str) -> None:
        """Copy the state to start from, if there is one.

        Raises:
            InputError: it cannot be written.
        """
        self.state_url = url
        self._state_storage, name = storage_of(url)
        self._state_storage.check_writable()
        self.state = self._copies / name
        if is_local(self._state_storage.url) or self._state_storage.exists(name):
            self.state = self._state_storage.copy(name, self._copies)
        self._state_before = self.state.read_bytes() if self.state.exists() else b""

    def push_state(self) -> None:
        """Copy the state to where it belongs, unless another run has learnt into it since."""
        if self.state is None or is_local(self._state_storage.url):
            return
        storage = self._state_storage
        now = storage.read(self.state.name) if storage.exists(self.state.name) else b""
        if now != self._state_before:
            raise RunError(
                f"another run has learnt into {self.state_url} since this one began, so it is left as it is; merge it "
                f"with the state in {self.folder.url} by `acclimate state merge`."
            )
        storage.write(self.state.name, self.state.read_bytes())

    def push(self, folder: RunFolder) -> None:
        """Copy everything but the parts to where the run is."""
        if not is_local(folder.url):
            for path in self._run.iterdir():
                if not PART_NAME.fullmatch(path.name):
                    folder.save(path.name, path.read_bytes())


def classify_on_cluster(
    job: Job, results: Results, pool: Pool, classifier: Classifier, samples: Sequence[Sample], **options: Any
) -> tuple[Classification, bool]:
    """Classify images on a cluster that Ray is connected to.

    Args:
        job: the values that answers are computed with, and the run that is continued.
        results: where they are written.
        pool: the encoders.
        classifier: answers, in this process. Encoders load the model by its name.
        samples: the images, in order; every machine must be able to read them.
        options: others of `Classification`: stop, emit.

    Returns:
        The classification, and False if it was stopped.

    Raises:
        RunError: it cannot go on; what was encoded is kept.
    """
    answers = job.begin(classifier, samples, **options)
    begun = answers.run
    assert begun is not None
    run = EncodedRun(begun.path, begun.id, begun.features, begun.answer, begun.parts)
    folder = RunFolder(run.path) if is_local(results.folder.url) else results.folder
    run.answer["state"] = results.state_url or None
    run.save()
    folder.claim()
    results.push(folder)
    blocks = plan_blocks(run, answers.samples, pool.block_images(classifier.batch_size, classifier.views))
    remote = any(URL.match(each.name) for each in samples[:1])
    how = Encoder.options(classifier, job.encoding, pool, remote)
    encoders = Encoders(blocks, pool, answers.stop, folder=folder, run_id=run.id, **how)
    began = monotonic()

    def coming() -> Iterator[Part]:
        for block in blocks:
            encoders.wait_for(block.number)
            folder.check_owner()
            folder.wait_for(part_name(block.number))
            yield folder.read_part(block.number, run.id, run.path)
        folder.check_owner()
        seconds = run.features["seconds"] + monotonic() - began
        run.features |= {"complete": True, "seconds": round(seconds, 3), **encoders.features}

    run.coming = coming
    answers.run = run
    answers.encode = None
    answers.table = results.table
    finished = False
    try:
        with suppress(StopRequest):
            finished = answers.answer()
    finally:
        encoders.close()
    if finished:
        results.push(folder)
        results.push_state()
        results.folder.remove(OWNER)
    return answers, finished


def plan_blocks(run: Run, samples: Sequence[Sample], images: int) -> list[Block]:
    """Return the samples after those of a run, in blocks of so many images."""
    starts = range(run.images, len(samples), images)
    return [
        Block(number, start, samples[start : start + images]) for number, start in enumerate(starts, len(run.parts))
    ]
