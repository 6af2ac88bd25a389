"""The whole, from files to answers: by decoder, method, batch size and views, and with too little memory."""

import warnings
from dataclasses import dataclass

import numpy as np
import torch

from acclimate import Classifier
from acclimate.bench.results import peak_memory_mb, reset_peak_memory
from acclimate.images import open_image
from acclimate.views.augment import ModelInput
from acclimate.views.plan import draw_plan
from gpu_parts.bench import METHODS, NVJPEG, PILLOW, Bench, Ran, classify, memory_limit
from gpu_parts.models import preprocess


@dataclass(frozen=True)
class Case:
    """Runs of one method with one decoder and batch size, which took turns with zero-shot."""

    decoder: str
    method: str
    batch: int
    runs: list[Ran]
    base: list[Ran]  # of zero-shot
    slower: float  # images/s of the slower of reading alone and the tower alone

    @property
    def name(self) -> str:
        """What was run."""
        return f"{self.decoder}, {self.method}, batch {self.batch:,}"

    @property
    def rate(self) -> float:
        """Images per second."""
        return float(np.median([run.rate for run in self.runs]))

    @property
    def over(self) -> np.ndarray:
        """Percent of time in addition to zero-shot: quartiles (3,)."""
        pairs = zip(self.runs, self.base, strict=True)
        return np.quantile([100 * (base.steady / run.steady - 1) for run, base in pairs], (0.25, 0.5, 0.75))

    def row(self) -> list[str]:
        """The line of the table."""
        steady, first = (float(np.median([getattr(run, name) for run in self.runs])) for name in ("steady", "first"))
        low, middle, high = self.over
        cost = f"{middle:+.1f} ({low:+.1f} to {high:+.1f})" if self.method != "zero-shot" else ""
        figures = [f"{self.rate:,.0f}", f"{self.rate / self.slower:.2f}", f"{steady:,.0f}", f"{1e3 * first:,.0f}"]
        return [self.name, *figures, cost, self.runs[0].shares]


def whole(bench: Bench) -> None:
    """The whole by decoder, method and batch; TDA against zero-shot."""
    cases, note = [], ""
    for decoder in bench.classifiers:
        reset_peak_memory(bench.device)
        for batch in bench.sizes.batches:
            cases += in_turns(bench, decoder, batch)
        note += f" Peak memory with {decoder}: {peak_memory_mb(bench.device) or 0.0:,.0f} MB."
    heading = ("", "images/s", "x slower stage", "after the first batch", "first batch, ms", "% over zero-shot")
    about = (
        f"Files to answers, {len(bench.labels):,} labels, {bench.sizes.rounds * len(bench.photos):,} images in a run "
        f"({bench.slow_rounds * len(bench.photos):,} with Pillow), starting and stopping the readers included. The "
        "slower stage is the slower of reading alone (nvJPEG, or Pillow in processes) and the tower alone at half "
        "precision. Methods take turns, and figures are medians. What TDA and halves add to the time of zero-shot is "
        "measured after the first batch, with quartiles."
    )
    bench.report.table("The whole", (*heading, "entered caches, %"), [case.row() for case in cases], about + note)
    tda = [case for case in cases if case.method == "tda"]
    for case in tda:
        bench.rates[case.name] = case.rate
        bench.report.bar("whole", case.name, case.rate)
    for decoder, least in ((NVJPEG, 6000), (PILLOW, 2000)):
        best = max((case for case in tda if case.decoder == decoder), key=lambda case: case.rate, default=None)
        if best is not None:
            bench.report.least(f"images/s from JPEG files: {best.name}", best.rate, least)
            bench.report.least("of the slower of reading and tower alone", best.rate / best.slower, 0.65, 2)
    for batch, most in ((256, 3.0), (1024, 1.0)):
        for case in tda:
            if (case.decoder, case.batch) == (NVJPEG, batch):
                bench.report.most(f"% that TDA adds to zero-shot, batch {batch:,}", float(case.over[1]), most, 1)


def in_turns(bench: Bench, decoder: str, batch: int) -> list[Case]:
    """Runs of every method, which take turns, after one that does not count."""
    fast, classifier = decoder == NVJPEG, bench.classifiers[decoder]
    paths = bench.photos * (bench.sizes.rounds if fast else bench.slow_rounds)
    read = bench.rates.get("nvJPEG" if fast else f"Pillow in {bench.cores} processes", np.nan)
    runs: dict[str, list[Ran]] = {method: [] for method in METHODS}
    classify(classifier, "tda", batch, bench.photos)
    for turn in range(bench.sizes.turns if fast else min(3, bench.sizes.turns)):
        for method in METHODS if turn % 2 == 0 else METHODS[::-1]:
            runs[method].append(classify(classifier, method, batch, paths))
            bench.progress(f"{decoder}, {method}, batch {batch:,}: {runs[method][-1].rate:,.0f} images/s")
    slower = min(read, _tower_rate(bench))
    return [Case(decoder, method, batch, made, runs["zero-shot"], slower) for method, made in runs.items()]


def _tower_rate(bench: Bench) -> float:
    """Images per second of the bare tower, eager, at half precision on a GPU."""
    kind = "float16" if bench.on_gpu else "float32"
    rates = [rate for name, rate in bench.rates.items() if name.startswith(f"tower, {kind}, batch")]
    return max(rates, default=np.nan)


def by_batch(bench: Bench) -> None:
    """The whole, and the device's memory, by the batch size."""
    decoder = next(iter(bench.classifiers))
    classifier, rows = bench.classifiers[decoder], []
    for batch in bench.sizes.all_batches:
        paths = (bench.photos * bench.sizes.rounds)[: max(64, min(128 * batch, 4 * max(batch, 1024)))]
        classify(classifier, "tda", batch, paths[: 2 * batch])
        reset_peak_memory(bench.device)
        rates = [classify(classifier, method, batch, paths).steady for method in METHODS]
        memory = peak_memory_mb(bench.device) or 0.0
        bench.progress(f"batch {batch:,}: {rates[1]:,.0f} images/s")
        rows.append([f"{batch:,}", *(f"{rate:,.0f}" for rate in rates), f"{memory:,.0f}"])
    note = f"With {decoder}; runs of up to {len(paths):,} images, from the second batch on."
    heading = ("batch", *(f"{method}, images/s" for method in METHODS), "peak memory, MB")
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
