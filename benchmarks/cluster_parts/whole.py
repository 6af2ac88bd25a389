"""Images per second of a job on Ray with one and two encoders, beside `classify` in one process on the same cores."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from acclimate import Classifier
from acclimate.classify.outputs import ResultFile
from acclimate.classify.run import Classification
from acclimate.cluster.cluster_options import ClusterOptions
from acclimate.cluster.cluster_run import ClusterRun
from acclimate.cluster.connection import IDLE, connect, usable_cores
from acclimate.encoders import load_encoder
from acclimate.sources.source import Sample, open_source
from classify_overhead import draw_photos
from cluster_parts.figures import Figures

PART = "whole"
LABELS = [f"thing {number}" for number in range(100)]
METHOD = "tda"
ONE = "classify, 1 core"
BOTH = "classify, 2 cores"
WIDE = "ordered, 1 encoder with 2 cores"
DEFAULT = f"{WIDE}, Ray's default"
CLUSTER: dict[str, dict[str, Any]] = {
    "ordered, 1 encoder with 1 core": {"workers": 1, "cpus": 1.0},
    WIDE: {"workers": 1, "cpus": 2.0},
    "ordered, 2 encoders with 1 core each": {"workers": 2, "cpus": 1.0},
    "merged, 2 encoders, 2 shards": {"workers": 2, "cpus": 1.0, "policy": "merged", "shards": 2, "ordered_first": 0},
}


def whole(figures: Figures, quick: bool) -> None:
    """Time each way for few and for many images: the difference is the rate, what is left is the start."""
    few, many, turns = (32, 96, 1) if quick else (128, 896, 2)
    every = 32 if quick else 128
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "photos").mkdir()
        draw_photos(work / "photos", min(many, 256))
        listed = open_source(str(work / "photos"))
        samples = [listed[place % len(listed)] for place in range(many)]
        with _one_core():
            _time(figures, ONE, partial(_classify, work, 1), samples, few, turns)
        _time(figures, BOTH, partial(_classify, work, 2), samples, few, turns)
        with connect(num_cpus=2, object_store_memory=2**29):
            for way, given in CLUSTER.items():
                _time(figures, way, partial(_cluster, work, given | {"every": every}), samples, few, turns)
                size = sum(part.stat().st_size for part in (work / "results").glob("part-*.parquet"))
                figures.add(PART, "bytes per row", size / len(samples), stream=way)
        with _idle_for("1000"), connect(num_cpus=2, object_store_memory=2**29):
            _time(figures, DEFAULT, partial(_cluster, work, CLUSTER[WIDE] | {"every": every}), samples, few, turns)
    tables(figures)


def _time(
    figures: Figures, way: str, run: Callable[[list[Sample]], None], samples: list[Sample], few: int, turns: int
) -> None:
    seconds = {few: [], len(samples): []}  # type: dict[int, list[float]]
    for _ in range(turns):
        for count, times in seconds.items():
            began = perf_counter()
            run(samples[:count])
            times.append(perf_counter() - began)
    short, long = (min(times) for times in seconds.values())
    rate = (len(samples) - few) / (long - short)
    figures.add(PART, "images/s", rate, stream=way)
    figures.add(PART, "s to start and end", short - few / rate, stream=way)


def _classify(work: Path, threads: int, samples: list[Sample]) -> None:
    classifier = Classifier(
        LABELS, load_encoder("bundled", "cpu", threads=threads), method=METHOD, cache=work / "cache"
    )
    output = ResultFile(work / "rows.csv", top_k=3)
    Classification(classifier=classifier, samples=samples, output=output, passes=1).run()


def _cluster(work: Path, given: dict[str, Any], samples: list[Sample]) -> None:
    classifier = Classifier(LABELS, method=METHOD, cache=work / "cache")
    workers = given["workers"]
    options = ClusterOptions(source=[], out=work / "results", passes=1, **{**given, "workers": None})
    ClusterRun(options, classifier, samples, (workers, workers)).run(overwrite=True)


@contextmanager
def _one_core() -> Iterator[None]:
    """Let this process and its threads use one core only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _idle_for(milliseconds: str) -> Iterator[None]:
    """Have a Ray that is started in this block end processes that had nothing to do for so long."""
    before = os.environ[IDLE]
    os.environ[IDLE] = milliseconds
    try:
        yield
    finally:
        os.environ[IDLE] = before


def tables(figures: Figures) -> None:
    """Print what was measured."""
    rate = partial(figures.value, PART, "images/s")
    one = rate(stream=ONE)
    both = rate(stream=BOTH)
    rows = []
    for way in (ONE, BOTH, *CLUSTER, DEFAULT):
        here = rate(stream=way)
        start = figures.value(PART, "s to start and end", stream=way)
        rows.append((way, f"{here:.1f}", f"{here / one:.2f}", f"{here / both:.2f}", f"{start:.1f}"))
    about = (
        f"The bundled model, {len(LABELS)} labels, {METHOD}, one pass, JPEG files of 500 x 375. This machine has "
        f"{usable_cores()} cores, which the encoders share with the tasks that adapt and write, and with Ray itself. "
        "The rate is that of the images after the first ones; what starting takes (actors, the model in each) has a "
        "column of its own. *Ray's default*: idle processes end after one second, and not after ten minutes."
    )
    columns = ("", "images/s", "x classify on 1 core", "x classify on 2 cores", "s to start and end")
    figures.table("A whole job", about, columns, rows)
