"""Jobs on a cluster beside the same jobs on one machine, over a stream of features that are read as images."""

import os
import time
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
from acclimate.classify.outputs import ResultFile, read_results
from acclimate.classify.run import Classification

from acclimate import Classifier
from acclimate.checks.synthetic import shifted_stream
from acclimate.classify.summary import ranked
from acclimate.sources.source import Sample
from table_encoder import TableEncoder, picture


def broken():
    """Return the content of a file that is not an image."""
    return b"not an image"


class Bench:
    """A stream of features that are read as images, some of which are broken, and jobs over it."""

    def __init__(self, folder, images=300, classes=6, dim=16):
        stream = shifted_stream(samples=images, classes=classes, dim=dim, seed=3)
        self.folder = Path(folder)
        self.stream = stream
        self.encoder = TableEncoder(np.asarray(stream.features, np.float32), stream.head)
        names = stream.head.class_names
        self.samples = [
            Sample(f"image {i}", broken if i % 37 == 5 else partial(picture, i), names[int(stream.targets[i])])
            for i in range(images)
        ]

    def classifier(self, method=None, **options):
        labels = self.stream.head.class_names
        table = {"templates": "{}", "cache": False}
        return Classifier(labels, self.encoder, method=method, batch_size=8, **table | options)

    def alone(self, method=None, passes=2, name="alone.parquet", **options):
        """Return the job on one machine: its rows, its summary and its adapter."""
        classifier = self.classifier(method, **options)
        output = ResultFile(self.folder / name, 3)
        run = Classification(classifier=classifier, samples=self.samples, output=output, passes=passes)
        assert run.run()
        return read_results(output.path), run.summary, classifier.adapter

    def job(self, name="out", method=None, passes=None, classifier=None, **options):
        """Return the job on the cluster, to be run; options are those of the command, the run and the classifier."""
        from acclimate.cluster.cluster_options import ClusterOptions
        from acclimate.cluster.cluster_run import ClusterRun

        known = {each.name for each in fields(ClusterOptions)} - {"unsure", "templates", "skip_duplicates", "workers"}
        settings = {key: options.pop(key) for key in list(options) if key in known}
        running = {key: options.pop(key) for key in ("workers", "progress", "stop") if key in options}
        defaults = {"every": 40, "ordered_first": 0, "checkpoint_every": 0.0}
        task = ClusterOptions(source=["images"], out=self.folder / name, passes=passes, **defaults | settings)
        task.check()
        return ClusterRun(task, classifier or self.classifier(method, **options), self.samples, **running)

    def rows(self, name="out"):
        """Return the rows that a job has written, in order."""
        import pyarrow.parquet as pq

        parts = sorted((self.folder / name).glob("part-*.parquet"))
        return [row for part in parts for row in pq.read_table(part).to_pylist()]


def same_summary(one, other):
    assert {**one.to_json(), **_heaps(one)} == {**other.to_json(), **_heaps(other)}


def _heaps(summary):
    heaps = {name: ranked(getattr(summary, name)) for name in ("most_changed", "least_sure", "wrong")}
    return heaps | {"examples": {label: ranked(heap) for label, heap in summary.examples.items()}}


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


class WaitingGate:
    """A gate that lets every image through, but waits at a place after some images."""

    reason = "none"

    def __init__(self, place, after):
        self.place = place
        self.after = after

    def __call__(self, evidence, offered):
        self.after -= len(offered)
        if self.after < 0:
            self.place.wait()
        return offered

    def relabel(self, head):
        pass

    def dump(self):
        return str(self.after)

    def restore(self, remembered):
        self.after = int(remembered)
