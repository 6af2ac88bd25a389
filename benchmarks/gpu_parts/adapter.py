"""The adapter alone: the time of a step, the published way, and the same answers as on the CPU."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch

from acclimate import Classifier, Head, create, read_stream
from acclimate.arrays import to_host
from acclimate.reading.walk import Preparer, encode_ahead
from adapter_speed import PublishedWay, batches, fill_published, filled, time_in_turn
from gpu_parts.bench import METHODS, NVJPEG, PILLOW, Bench, classify


def steps(bench: Bench) -> None:
    """Time the adapter's step alone, by batch and number of classes, and the published way."""
    rows = []
    published_rows = []
    sizes = bench.sizes.all_batches

    def to_device(values: np.ndarray) -> Any:
        return torch.asarray(values, device=bench.device) if bench.on_gpu else values

    for K in bench.sizes.all_classes:
        adapter, fresh = filled(K, 512, to_device)
        fresh = to_device(np.tile(to_host(fresh), (-(-max(sizes) // len(fresh)), 1)))
        sides = {"tda": adapter.step}
        if bench.sizes.classes == K:
            accord = create("accord", adapter.head)
            for _ in range(4):  # later it settles less often
                accord.step(fresh)
            sides = {"zero-shot": adapter.head.observe, "tda": adapter.step, "accord": accord.step}
            rows.append([f"tda, {K:,} classes, empty at first", *_filling(bench, adapter.head, fresh)])
        times = {name: step_times(bench, step, fresh, K) for name, step in sides.items()}
        bench.progress(f"steps of {K:,} classes")
        for name, taken in times.items():
            rows.append([f"{name}, {K:,} classes", *(f"{1e6 * taken[batch] / batch:,.2f}" for batch in sizes)])
        if K in bench.sizes.published:
            published = PublishedWay(adapter.head.class_vectors)
            walk = batches(fresh, 1)
            fill_published(published, adapter)
            each = time_in_turn({"": partial(_next, published.step, walk)}, 3, bench.finish)[""]
            ratios = [each / (times["tda"][batch] / batch) for batch in sizes]
            published_rows.append([f"{K:,}", f"{1e6 * each:,.0f}", *(f"{ratio:,.0f}" for ratio in ratios)])
            if K == 1000 and bench.on_gpu:
                _summarise(bench, times["tda"], each)
    heading = [f"batch {batch:,}" for batch in sizes]
    note = "Features of 512 numbers; full caches that nothing enters any more, or empty ones that fill. Zero-shot: the "
    note += "evidence that every method starts from."
    bench.report.table("A step of the adapter, microseconds per sample", ("", *heading), rows, note)
    heading = ("classes", "published way, us per sample", *heading)
    note = (
        "How many times faster TDA's step is, per sample, than the published way: Python lists, one sample at a time."
    )
    bench.report.table("Against the published way", heading, published_rows, note)


def _filling(bench: Bench, head: Head, features: Any) -> list[str]:
    """Return the microseconds per sample of a stream that fills the caches, by the batch size."""
    found = []
    for batch in bench.sizes.all_batches:
        adapter = create("tda", head)
        count = min(len(features), max(64 * batch, 256))
        adapter.step(features[:batch])
        adapter.reset()
        began = perf_counter()
        for start in range(0, count - batch + 1, batch):
            adapter.step(features[start : start + batch])
        bench.finish()
        found.append(f"{1e6 * (perf_counter() - began) / (count // batch * batch):,.2f}")
    return found


def step_times(bench: Bench, step: Callable[[Any], Any], features: Any, K: int) -> dict[int, float]:
    """Return the seconds of a step by the batch size, when the features have been seen.

    They must have been seen in batches of this size: others are rounded otherwise, and some would enter once more.
    """
    found = {}
    for batch in bench.sizes.all_batches:
        few = features[: max(256, batch)]
        turns = 6 if K * batch < 2**23 else 2
        for start in range(0, len(few), batch):
            step(few[start : start + batch])
        found[batch] = time_in_turn({"": partial(_next, step, batches(few, batch))}, turns, bench.finish)[""]
    return found


def _next(step: Callable[[Any], Any], walk: Iterator[Any]) -> Any:
    return step(next(walk))


def _summarise(bench: Bench, times: dict[int, float], published: float) -> None:
    each = times[1024] / 1024
    bench.report.figure("microseconds per sample of TDA's step, batch 1,024", 1e6 * each, 2)
    bench.report.figure("times faster than the published way, batch 1,024", published / each)
    bench.report.figure("milliseconds of TDA's step, batch 1", 1e3 * times[1], 2)
    rates = {name: rate for name, rate in bench.rates.items() if name.startswith(NVJPEG) and "1,024" in name}
    for name, rate in rates.items():
        text = f"TDA's step for 1,024 samples is {100 * each * rate:.2f} % of the time of the whole ({name})."
        bench.report.say("Share of adaptation", text)


def agreement(bench: Bench) -> None:
    """Count how often two ways give the same label."""
    rows = []

    def add(name: str, ours: Sequence[Any], theirs: Sequence[Any]) -> None:
        same = 100 * float(np.mean(np.asarray(ours) == np.asarray(theirs)))
        rows.append([name, f"{len(ours):,}", f"{same:.2f}"])
        bench.report.figure(f"% of labels equal: {name}", same, 2)

    batch = bench.sizes.batches[0]
    answers = {}
    for decoder in bench.classifiers:
        answers[decoder] = classify(bench.classifiers[decoder], "zero-shot", batch, bench.photos).labels
    if len(answers) == 2:
        add("nvJPEG against Pillow", answers[NVJPEG], answers[PILLOW])
    if bench.on_gpu:
        full = Classifier(bench.labels, bench.load("float32"), method="zero-shot", decoder=PILLOW, cache=False)
        add(
            "half precision against float32",
            answers[PILLOW],
            classify(full, "zero-shot", batch, bench.photos).labels,
        )
    if bench.evaluation:
        from gpu_parts.evaluation import labels_by_precision

        precisions = ("float16" if bench.on_gpu else "bfloat16", "float32")
        both = labels_by_precision(*bench.evaluation, bench.device, precisions)
        add(f"{precisions[0]} against float32, evaluation images", *both)
    prepare = Preparer(bench.encoder, decoder=PILLOW)
    walk = encode_ahead(bench.photos, prepare, batch_size=batch)
    features = np.concatenate([to_host(found.features) for found in walk])
    sets = [("drawn photos", bench.classifiers[PILLOW].head, features)]
    sets += [(path.stem, stream.head, stream.features) for path in bench.streams for stream in [read_stream(path)]]
    for name, head, rows_of in sets:
        for method in METHODS[1:]:
            ours, theirs = (_labels(method, head, rows_of, where, batch) for where in (bench.device, None))
            add(f"{method} on the device against NumPy, {name}", ours, theirs)
    bench.report.table("Same answers", ("", "images", "% of labels equal"), rows)


def _labels(method: str, head: Head, features: np.ndarray, device: str | None, batch: int) -> np.ndarray:
    """Return the classes (n,) that a method answers on a device, or with NumPy."""
    features = np.asarray(features, np.float32)
    head = head.to(features[:1] if device is None else torch.zeros(1, device=device))
    adapter = create(method, head)
    found = []
    for start in range(0, len(features), batch):
        part = features[start : start + batch]
        found.append(to_host(adapter.step(part if device is None else torch.as_tensor(part, device=device))))
    return np.concatenate(found).argmax(axis=1)
