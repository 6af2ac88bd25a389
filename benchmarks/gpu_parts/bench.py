"""Shared parts of the measurements of `gpu.py`: sizes, models, photos, timing."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from acclimate import Classifier, create, load_encoder
from acclimate.errors import AcclimateError
from gpu_parts.report import Report

METHODS = ("zero-shot", "tda", "accord")
NVJPEG = "nvjpeg"
PILLOW = "pillow"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurements."""

    images: int = 2048  # files
    rounds: int = 8  # times that all files are shown in one run
    mixed: int = 1024  # files of different sizes
    classes: int = 1000
    batches: tuple[int, ...] = (256, 1024)
    all_batches: tuple[int, ...] = (1, 8, 32, 256, 1024, 4096)
    all_classes: tuple[int, ...] = (10, 100, 1000, 5000, 20000)
    published: tuple[int, ...] = (10, 100, 1000)  # numbers of classes for the published way
    turns: int = 5
    views: int = 64
    with_views: int = 256  # files
    compiled: bool = True
    settling: int = 4096  # images at the start of a stream that do not count, more than are read ahead
    steady: int = 98304  # images after these
    tiny: bool = False


QUICK = Sizes(
    images=1024,
    mixed=256,
    all_batches=(1, 32, 256, 1024, 4096),
    published=(1000,),
    turns=4,
    with_views=64,
    compiled=False,
    steady=36864,
)
TINY = Sizes(
    24,
    2,
    8,
    20,
    (4, 8),
    (1, 8),
    (10, 20),
    (10,),
    turns=2,
    views=4,
    with_views=4,
    compiled=False,
    settling=8,
    steady=48,
    tiny=True,
)


@dataclass
class Bench:
    """Everything that the measurements share."""

    sizes: Sizes
    report: Report
    device: str
    cores: int
    labels: list[str]
    photos: list[Path]
    mixed: list[Path]
    model: str  # name of the encoder
    streams: list[Path]  # feature files
    evaluation: list[Path]  # a pack of labelled images and a packed tower; or nothing
    before: Path | None = None  # source folder of an older version

    def __post_init__(self) -> None:
        self.began = perf_counter()
        self.encoder = self.load()
        self.rates: dict[str, float] = {}  # images/s by the name of the stage, for ratios

    @property
    def on_gpu(self) -> bool:
        """True if the device is a GPU."""
        return self.device.startswith("cuda")

    @property
    def slow_rounds(self) -> int:
        """Number of times that all files are shown to a slower decoder."""
        return -(-self.sizes.rounds // 3)

    def progress(self, text: str) -> None:
        """Say on stderr what has been measured."""
        print(f"[{perf_counter() - self.began:6.1f} s] {text}", file=sys.stderr, flush=True)

    def load(self, precision: str = "auto") -> Any:
        """Load the encoder."""
        return load_encoder(self.model, self.device, precision=precision)

    def finish(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize()

    @cached_property
    def classifiers(self) -> dict[str, Classifier]:
        """A classifier for each decoder that is there, the fastest first."""
        found = {}
        for decoder in (NVJPEG, PILLOW):
            try:
                found[decoder] = Classifier(self.labels, self.encoder, method="zero-shot", decoder=decoder, cache=False)
            except AcclimateError as error:
                print(f"{decoder}: {error}\n", flush=True)
        return found

    def rate(self, name: str, images: int, work: Callable[[], object], turns: int = 3) -> float:
        """Return images per second: the median after one call that does not count; one call if `turns` is 0."""
        times = []
        for _ in range(1 + turns):
            began = perf_counter()
            work()
            self.finish()
            times.append(perf_counter() - began)
        self.rates[name] = images / float(np.median(times[1:] or times))
        self.progress(f"{name}: {self.rates[name]:,.0f} images/s")
        return self.rates[name]


class Ran(NamedTuple):
    """A run over a stream."""

    images: int
    seconds: float
    first: float  # seconds to the first batch of answers
    labels: list[str]
    entered: Counter[str]  # samples that entered each cache

    @property
    def rate(self) -> float:
        """Images per second, the start included."""
        return self.images / self.seconds


def shares(entered: Counter[str], images: int) -> str:
    """Return the percentages of the images that entered the positive and the negative cache."""
    return " / ".join(f"{100 * entered[name] / images:.0f}" for name in ("positive", "negative")) if entered else ""


def classify(classifier: Classifier, method: str, batch: int, paths: Sequence[Path]) -> Ran:
    """Stream the images through a method that has learnt nothing yet."""
    classifier.adapter = create(method, classifier.head)
    classifier.batch_size = batch
    began = perf_counter()
    first = 0.0
    labels = []
    entered = Counter[str]()
    for prediction in classifier.stream(paths):
        first = first or perf_counter() - began
        labels.append(prediction.label)
        entered.update(prediction.admitted)
    return Ran(len(labels), perf_counter() - began, first, labels, entered)


@contextmanager
def memory_limit(limit: float, device: str) -> Iterator[None]:
    """Let PyTorch use no more than so many bytes of the GPU."""
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
