"""The whole, from files to answers: by decoder, method, batch size and views, and with too little memory."""

import warnings
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter

import numpy as np
import torch

from acclimate import Classifier, create
from acclimate.bench.results import peak_memory_mb, reset_peak_memory
from acclimate.images import open_image
from acclimate.views.augment import ModelInput
from acclimate.views.plan import draw_plan
from gpu_parts.bench import METHODS, NVJPEG, PILLOW, Bench, classify, memory_limit, shares
from gpu_parts.models import preprocess


@dataclass(frozen=True)
class Case:
    """Segments of a long stream that one method answered, in turns with zero-shot."""

    decoder: str
    method: str
    batch: int
    seconds: list[float]  # of each segment
    base: list[float]  # of zero-shot
    images: int  # in a segment
    entered: Counter[str]  # how many images of all segments entered each cache
    slower: float  # images/s of the slower of reading alone and the tower alone

    @property
    def name(self) -> str:
        """What was run."""
        return f"{self.decoder}, {self.method}, batch {self.batch:,}"

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / float(np.median(self.seconds))

    @property
    def over(self) -> np.ndarray:
        """Percent of time in addition to zero-shot: quartiles (3,)."""
        ratios = np.array(self.seconds) / np.array(self.base)
        return np.quantile(100 * (ratios - 1), (0.25, 0.5, 0.75))

    def row(self) -> list[str]:
        """The line of the table."""
        low, middle, high = self.over
        cost = f"{middle:+.1f} ({low:+.1f} to {high:+.1f})" if self.method != "zero-shot" else ""
        kept = shares(self.entered, len(self.seconds) * self.images)
        return [self.name, f"{self.rate:,.0f}", f"{self.rate / self.slower:.2f}", cost, kept]


def whole(bench: Bench) -> None:
    """The whole by decoder, method and batch; TDA against zero-shot."""
    cases, starts, note = [], [], ""
    for decoder in bench.classifiers:
        reset_peak_memory(bench.device)
        for batch in bench.sizes.batches:
            cases += in_turns(bench, decoder, batch)
            starts.append(from_start(bench, decoder, batch))
        note += f" Peak memory with {decoder}: {peak_memory_mb(bench.device) or 0.0:,.0f} MB."
    heading = ("", "images/s", "x slower stage", "% over zero-shot", "entered caches, %")
    about = (
        f"Files to answers, {len(bench.labels):,} labels, one long stream. Methods take turns within it, a segment of "
        f"{bench.segment(NVJPEG):,} images each ({bench.segment(PILLOW):,} with Pillow), and begin every segment with "
        "empty caches; figures are medians, with quartiles for what is added to the time of zero-shot. The slower "
        "stage is the slower of reading alone (nvJPEG, or Pillow in processes) and the tower alone at half precision."
    )
    bench.report.table("The whole", heading, [case.row() for case in cases], about + note)
    rows = [
        [f"{decoder}, tda, batch {batch:,}", f"{images:,}", f"{rate:,.0f}", f"{1e3 * first:,.0f}"]
        for decoder, batch, images, rate, first in starts
    ]
    note = "The same, and nothing runs before: readers start and stop, and the first batch is waited for."
    bench.report.table("The whole from its start", ("", "images", "images/s", "first answer, ms"), rows, note)
    for decoder, least in ((NVJPEG, 6000), (PILLOW, 2000)):
        found = [start for start in starts if start[0] == decoder]
        for _, batch, images, rate, _ in sorted(found, key=lambda start: -start[3])[:1]:
            slower = slower_stage(bench, decoder)
            bench.report.least(f"images/s, {images:,} JPEG files, {decoder}, TDA, batch {batch:,}", rate, least)
            bench.report.least("of the slower of reading and tower alone", rate / slower, 0.65, 2)
    for case in [case for case in cases if case.method == "tda"]:
        bench.rates[case.name] = case.rate
        bench.report.bar("whole", case.name, case.rate)
        most = {256: 3.0, 1024: 1.0}.get(case.batch)
        if case.decoder == NVJPEG and most:
            bench.report.most(f"% that TDA adds to zero-shot, batch {case.batch:,}", float(case.over[1]), most, 1)


def in_turns(bench: Bench, decoder: str, batch: int) -> list[Case]:
    """Every method in turns within one stream, after a segment that does not count."""
    classifier, images = bench.classifiers[decoder], bench.segment(decoder)
    turns = bench.sizes.turns if decoder == NVJPEG else min(3, bench.sizes.turns)
    order = [method for turn in range(turns) for method in METHODS[:: 1 if turn % 2 == 0 else -1]]
    classifier.batch_size = batch
    classifier.adapter = create("zero-shot", classifier.head)
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    entered = {method: Counter[str]() for method in METHODS}
    files = islice(cycle(bench.photos), (1 + len(order)) * images)
    with closing(classifier.batches(files)) as stream:
        answered, methods, method = 0, iter(order), ""
        began = perf_counter()
        for batch_of in stream:
            answered += len(batch_of)
            if method:
                entered[method].update(cache for each in batch_of for cache in each.admitted)
            if answered % images == 0:
                if method:
                    seconds[method].append(perf_counter() - began)
                method, began = next(methods, ""), perf_counter()
                classifier.adapter = create(method or "zero-shot", classifier.head)
    slower = slower_stage(bench, decoder)
    for method, taken in seconds.items():
        bench.progress(f"{decoder}, {method}, batch {batch:,}: {images / np.median(taken):,.0f} images/s")
    return [
        Case(decoder, method, batch, taken, seconds["zero-shot"], images, entered[method], slower)
        for method, taken in seconds.items()
    ]


def from_start(bench: Bench, decoder: str, batch: int) -> tuple[str, int, int, float, float]:
    """Decoder, batch, images, images per second and seconds to the first answer of a stream by itself."""
    files = bench.photos * (bench.sizes.rounds if decoder == NVJPEG else bench.slow_rounds)
    runs = [classify(bench.classifiers[decoder], "tda", batch, files) for _ in range(min(3, bench.sizes.turns))]
    rate, first = (float(np.median([getattr(run, name) for run in runs])) for name in ("rate", "first"))
    bench.progress(f"{decoder}, tda, batch {batch:,}, from its start: {rate:,.0f} images/s")
    return decoder, batch, len(files), rate, first


def slower_stage(bench: Bench, decoder: str) -> float:
    """Images per second of the slower of reading alone and the bare tower, eager, at half precision on a GPU."""
    kind = "float16" if bench.on_gpu else "float32"
    towers = [rate for name, rate in bench.rates.items() if name.startswith(f"tower, {kind}, batch")]
    read = bench.rates.get("nvJPEG" if decoder == NVJPEG else f"Pillow in {bench.cores} processes", np.nan)
    return min(read, max(towers, default=np.nan))


def by_batch(bench: Bench) -> None:
    """The whole, and the device's memory, by the batch size."""
    decoder = next(iter(bench.classifiers))
    classifier, rows = bench.classifiers[decoder], []
    for batch in bench.sizes.all_batches:
        paths = (bench.photos * bench.sizes.rounds)[: max(256, min(4096, 128 * batch), 2 * batch)]
        reset_peak_memory(bench.device)
        classify(classifier, "tda", batch, paths[: 2 * batch])
        rates = [classify(classifier, method, batch, paths).rate for method in METHODS[:2]]
        memory = peak_memory_mb(bench.device) or 0.0
        bench.progress(f"batch {batch:,}: {rates[1]:,.0f} images/s")
        rows.append([f"{batch:,}", f"{len(paths):,}", *(f"{rate:,.0f}" for rate in rates), f"{memory:,.0f}"])
    heading = ("batch", "images", "zero-shot, images/s", "TDA, images/s", "peak memory, MB")
    note = f"Each from its start, with {decoder}."
    bench.report.table("The whole by batch size", heading, rows, note)


def views(bench: Bench) -> None:
    """Many views per image: the whole, and making the views alone."""
    from acclimate.views.tensor import make_views

    count, size = bench.sizes.views, bench.encoder.preprocess.height
    paths = bench.photos[: bench.sizes.with_views]
    decoder, batch = next(iter(bench.classifiers)), 16 * count
    classifier = Classifier(
        bench.labels, bench.encoder, method="tda", views=count, batch_size=batch, decoder=decoder, cache=False
    )
    classify(classifier, "tda", batch, paths[:16])
    reset_peak_memory(bench.device)
    runs = [classify(classifier, "tda", batch, paths) for _ in range(min(3, bench.sizes.turns))]
    rate, memory = float(np.median([run.rate for run in runs])), peak_memory_mb(bench.device) or 0.0
    images = [open_image(path) for path in paths[:16]]
    plans = [draw_plan(0, i, count - 1, image.size, (size, size), True) for i, image in enumerate(images)]
    pixels = [torch.as_tensor(np.array(image).transpose(2, 0, 1), device=bench.device) for image in images]
    target, dtype = ModelInput.of(preprocess(size)), torch.float16 if bench.on_gpu else torch.float32
    making = bench.rate("views", len(images), lambda: make_views(pixels, plans, target, dtype), 5)
    there = torch.cat(list(make_views(pixels, plans, target, dtype)))
    encoding = bench.rate("encoding views", len(images), lambda: bench.encoder.encode_images(there))
    rows = [
        ["the whole", f"{rate:,.1f}", "100"],
        ["making the views alone", f"{making:,.1f}", f"{100 * rate / making:.0f}"],
        ["encoding them alone", f"{encoding:,.1f}", f"{100 * rate / encoding:.0f}"],
    ]
    note = f"The image and {count - 1} crops with AugMix; {decoder}; 16 images at once; peak memory {memory:,.0f} MB."
    bench.report.table(f"{count} views", ("", "images/s", "% of the whole's time"), rows, note)
    bench.report.least(f"images/s with {count} views, end to end", rate, 100)
    bench.report.most("% of that time for making the views", 100 * rate / making, 25, 1)


def out_of_memory(bench: Bench) -> None:
    """A batch that does not fit is halved, and the answers stay."""
    if not bench.on_gpu:
        bench.report.say("Out of memory", "Measured on a GPU only.")
        return
    batch, paths = 4096, bench.photos[:2048]
    encoder = bench.load()
    size = encoder.preprocess.height
    limited = Classifier(bench.labels, encoder, method="zero-shot", decoder=PILLOW, cache=False)
    before = classify(limited, "zero-shot", 256, paths).labels
    reset_peak_memory(bench.device)
    encoder.encode_images(torch.zeros(512, 3, size, size, dtype=torch.uint8, device=bench.device))
    bench.finish()
    room = 1.2 * torch.cuda.max_memory_allocated()
    with memory_limit(room, bench.device), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        after = classify(limited, "zero-shot", batch, paths)
    lines = [str(each.message) for each in said]
    same = 100 * float(np.mean(np.array(before) == np.array(after.labels)))
    text = f"With {room / 1e9:.1f} GB of memory and batches of {batch:,}, {after.images:,} images were answered, "
    text += f"{same:.2f} % of them as before. It said:\n\n" + "\n".join(f"> {line}" for line in lines)
    bench.report.say("Out of memory", text)
    bench.report.least("images answered with too little memory", after.images, len(paths))
    bench.report.most("lines that say so", len(lines), 1)
