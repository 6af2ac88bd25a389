"""Jobs on a cluster beside the same jobs on one machine, over a stream of features that are read as images."""

import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from acclimate.checks.synthetic import shifted_stream
from acclimate.classify.table import read_results
from acclimate.classify.task import Encoding, Job, Task, find_run, open_classifier
from acclimate.cluster.run_folder import RunFolder
from acclimate.sources.source import Sample
from acclimate.sources.urls import FileSystemError
from table_encoder import TableEncoder, picture


def broken():
    """Return the content of a file that is not an image."""
    return b"not an image"


def slow_picture(row, read):
    """Read an image, which takes a while."""
    time.sleep(0.02)
    return read()


def quiet(stage, done, total):
    """Show no progress."""


def state_of(run):
    """Return the content of the state at the end of a run."""
    return (run / "state.safetensors").read_bytes()


class Bench:
    """A stream of features that are read as images, some of which are broken, and jobs over it."""

    def __init__(self, folder, images=300, classes=6, dim=16):
        stream = shifted_stream(samples=images, classes=classes, dim=dim, seed=3)
        self.folder = Path(folder)
        self.stream = stream
        self.encoder = TableEncoder(np.asarray(stream.features, np.float32), stream.head)
        self.encoding = Encoding(model=self.encoder, given=frozenset({"model"}))
        names = stream.head.class_names
        self.samples = [
            Sample(f"image {i}", broken if i % 37 == 5 else partial(picture, i), names[int(stream.targets[i])])
            for i in range(images)
        ]

    def slow_down(self):
        """Make every image take a while to read."""
        self.samples = [
            Sample(each.name, partial(slow_picture, row, each.read), each.label)
            for row, each in enumerate(self.samples)
        ]

    def task(self, **options):
        """Return the task; options are those of `Task`."""
        labels = self.stream.head.class_names
        return Task(source=("images",), labels=labels, templates="{}", batch_size=8, origin="bench", **options)

    def alone(self, name="alone", state=None, **options):
        """Do the job on one machine; returns its rows, its summary and its state."""
        job = Job(task=self.task(**options), encoding=self.encoding, out=self.folder / f"{name}.parquet", state=state)
        run = job.begin(open_classifier(job.task, job.encoding, None, state, quiet), self.samples)
        assert run.answer()
        return read_results(job.out), run.summary, state_of(self.folder / f"{name}.run")

    def job(self, name="out", resume=False, overwrite=False, state=None, pool=(), **options):
        """Do the job on the cluster; returns the classification, and False if it was stopped.

        Options are those of `Task` and `Classification`, and `pool` those of `Pool`.
        """
        from acclimate.cluster.cluster_run import Results, classify_on_cluster  # imports Ray
        from acclimate.cluster.machines import Pool

        running = {key: options.pop(key) for key in ("emit", "stop") if key in options}
        with TemporaryDirectory() as copies:
            results = Results(str(self.folder / name), Path(copies))
            results.open(resume, overwrite)
            if state is not None:
                results.open_state(str(state))
            task = self.task(**options)
            task = replace(task, given=frozenset(options))
            task, encoding, found = find_run(task, replace(self.encoding, given=frozenset()), results.local, resume)
            encoding = replace(encoding, model=self.encoder)
            start = results.state if found is None else found.path / "start.safetensors"
            job = Job(
                task=task,
                encoding=encoding,
                run=found,
                out=results.local,
                resume=resume,
                overwrite=overwrite,
                state=results.state,
            )
            classifier = open_classifier(task, encoding, found, start, quiet)
            pool = Pool(**{"encoders": 1, "gpus": 0, "images": 40, **dict(pool)})
            return classify_on_cluster(job, results, pool, classifier, self.samples, **running)

    def state(self, name="out"):
        """Return the state at the end of a job."""
        return state_of(self.folder / f"{name}.run")

    def rows(self, name="out"):
        """Return the rows that a job has written, in order."""
        import pyarrow.parquet as pq

        parts = sorted((self.folder / name).glob("part-0*.parquet"))
        return [row for part in parts for row in pq.read_table(part).to_pylist()]


class Place:
    """A place in a job where whoever comes waits until the test lets all go on."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)

    def wait(self):
        """Leave the number of the process and the name of its node, and wait."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        waiting = self.folder / f"{os.getpid()} {node}"
        waiting.touch()
        while not self.open.exists():
            time.sleep(0.01)

    @property
    def open(self):
        return self.folder / "open"

    @property
    def waiting(self):
        """[process, node] of those who wait."""
        found = [path.name.split() for path in self.folder.iterdir() if path.name != "open"]
        return [(int(process), node) for process, node in found]


def read_at(place, row):
    """Read an image that can be had when the place is open."""
    place.wait()
    return picture(row)


class RefusingFolder(RunFolder):
    """A folder whose file system refuses to write a part, once for each character of the file `refusals` beside it."""

    def write(self, name, content):
        refusals = Path(self.url).parent / "refusals"
        if name.startswith("000002") and (left := refusals.read_text()):
            refusals.write_text(left[1:])
            raise FileSystemError(f"cannot write {name}: no space left.")
        super().write(name, content)
