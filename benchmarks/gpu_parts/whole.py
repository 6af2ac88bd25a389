"""The whole, from files to answers: by decoder, method, batch size and views, and with too little memory."""

import warnings
from contextlib import closing
from itertools import cycle, islice
from time import perf_counter

import numpy as np
import torch

from acclimate import Classifier, create
from acclimate.images.opening import open_image
from acclimate.predict import adapt_batch
from acclimate.reading.walk import Preparer, encode_ahead
from acclimate.views.augment import ModelInput, draw_plan
from gpu_parts.bench import METHODS, NVJPEG, PILLOW, Bench, Ran, classify, memory_limit, shares
from gpu_parts.models import preprocess
from peak_memory import peak_memory_mb, reset_peak_memory


def whole(bench: Bench) -> None:
    """Measure the whole from its start, by decoder, method and batch."""
    rows = []
    note = ""
    for decoder, classifier in bench.classifiers.items():
        reset_peak_memory(bench.device)
        slower = slower_stage(bench, decoder)
        best = (0.0, 0)
        files = bench.photos * (bench.sizes.rounds if decoder == NVJPEG else bench.slow_rounds)
        for batch in bench.sizes.batches:
            runs: dict[str, list[Ran]] = {method: [] for method in METHODS}
            for method in METHODS * min(3, bench.sizes.turns):
                runs[method].append(classify(classifier, method, batch, files))
            for method, made in runs.items():
                rate, first = (float(np.median([getattr(run, name) for run in made])) for name in ("rate", "first"))
                name = f"{decoder}, {method}, batch {batch:,}"
                figures = (rate / slower, 1e3 * first)
                bench.progress(f"{name}: {rate:,.0f} images/s")
                bench.rates[name] = rate
                kept = shares(made[0].entered, len(files))
                rows.append([name, f"{len(files):,}", f"{rate:,.0f}", f"{figures[0]:.2f}", f"{figures[1]:,.0f}", kept])
            tda = bench.rates[f"{decoder}, tda, batch {batch:,}"]
            bench.report.bar("whole", f"{decoder}, tda, batch {batch:,}", tda)
            best = max(best, (tda, batch))
        bench.report.figure(f"images/s, {len(files):,} JPEG files, {decoder}, TDA, batch {best[1]:,}", best[0])
        bench.report.figure("of the slower of reading and tower alone", best[0] / slower, 2)
        note += f" Peak memory with {decoder}: {peak_memory_mb(bench.device) or 0.0:,.0f} MB."
    about = (
        f"Files to answers, {len(bench.labels):,} labels: readers start and stop, and the first batch is waited for. "
        "Medians of runs in turns. The slower stage is the slower of reading alone (nvJPEG, or Pillow in processes) "
        "and the tower alone at half precision."
    )
    heading = ("", "images", "images/s", "x slower stage", "first answer, ms", "entered caches, %")
    bench.report.table("The whole", heading, rows, about + note)


def adapting(bench: Bench) -> None:
    """Measure the time that adapting adds to zero-shot: methods take turns batch by batch in one stream."""
    rows = []
    for batch in bench.sizes.batches:
        decoder = next(iter(bench.classifiers))
        each, spent = by_turns(bench, decoder, batch)
        zero = float(np.median(spent["zero-shot"]))
        row = [f"{decoder}, batch {batch:,}", f"{1e3 * each:.2f}", f"{1e3 * zero:.2f}"]
        for method in METHODS[1:]:
            low, middle, high = 100 * (np.quantile(spent[method], (0.25, 0.5, 0.75)) - zero) / each
            row += [f"{1e3 * np.median(spent[method]):.2f}", f"{middle:+.2f} ({low:+.2f} to {high:+.2f})"]
            if method == "tda":
                bench.report.figure(f"% that TDA adds to zero-shot, batch {batch:,}", middle, 2)
        rows.append(row)
    heading = ("", "whole", "zero-shot", "TDA", "% added", "accord", "% added")
    note = (
        "Milliseconds per batch: of the whole while it runs, and from the features of a batch to its answers, for "
        "which the methods take turns, batch by batch, when all photos have been seen. *Added* is what a method takes "
        "longer than zero-shot, as a share of the time of the whole; medians and quartiles. Some of it is hidden, "
        "since the next batches are read and encoded meanwhile."
    )
    bench.report.table("What adapting adds", heading, rows, note)


def by_turns(bench: Bench, decoder: str, batch: int) -> tuple[float, dict[str, list[float]]]:
    """Return the seconds that a batch takes in all, and from its features to its answers, by method."""
    head = bench.classifiers[decoder].head
    adapters = {method: create(method, head) for method in METHODS}
    spent: dict[str, list[float]] = {method: [] for method in METHODS}
    # The number of batches of all photos is no multiple of three: in three rounds every method sees all photos.
    warm = 3 * -(-max(len(bench.photos), bench.sizes.settling) // batch)
    count = 3 * -(-bench.sizes.steady // (3 * batch))
    walk = encode_ahead(cycle(bench.photos), Preparer(bench.encoder, decoder=decoder), batch_size=batch)
    with closing(walk):
        for number, found in enumerate(islice(walk, warm + count)):
            if number == warm:
                start = perf_counter()
            if bench.on_gpu:
                torch.cuda.current_stream().synchronize()  # waits for the features
            method = METHODS[number % len(METHODS)]
            began = perf_counter()
            list(adapt_batch(adapters[method], found, top_k=5)[0])
            if number >= warm:
                spent[method].append(perf_counter() - began)
        each = (perf_counter() - start) / count
    bench.progress(f"{decoder}, batch {batch:,}, methods in turns: {batch / each:,.0f} images/s")
    return each, spent


def slower_stage(bench: Bench, decoder: str) -> float:
    """Return images per second of the slower of reading alone and the bare tower at half precision."""
    kind = "float16" if bench.on_gpu else "float32"
    towers = [rate for name, rate in bench.rates.items() if name.startswith(f"tower, {kind}, batch")]
    read = bench.rates.get("nvJPEG" if decoder == NVJPEG else f"Pillow in {bench.cores} processes", np.nan)
    return min(read, max(towers, default=np.nan))


def by_batch(bench: Bench) -> None:
    """Measure the whole, and the device's memory, by the batch size."""
    decoder = next(iter(bench.classifiers))
    classifier = bench.classifiers[decoder]
    rows = []
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
    """Measure many views per image: the whole, and making the views alone."""
    from acclimate.views.tensor import make_views

    count = bench.sizes.views
    size = bench.encoder.preprocess.height
    paths = bench.photos[: bench.sizes.with_views]
    decoder = next(iter(bench.classifiers))
    batch = 16 * count
    classifier = Classifier(
        bench.labels, bench.encoder, method="tda", views=count, batch_size=batch, decoder=decoder, cache=False
    )
    classify(classifier, "tda", batch, paths[:16])
    reset_peak_memory(bench.device)
    runs = [classify(classifier, "tda", batch, paths) for _ in range(min(3, bench.sizes.turns))]
    rate = float(np.median([run.rate for run in runs]))
    memory = peak_memory_mb(bench.device) or 0.0
    images = [open_image(path) for path in paths[:16]]
    plans = [draw_plan(0, i, count - 1, image.size, (size, size), True) for i, image in enumerate(images)]
    pixels = [torch.as_tensor(np.array(image).transpose(2, 0, 1), device=bench.device) for image in images]
    target = ModelInput.of(preprocess(size))
    dtype = torch.float16 if bench.on_gpu else torch.float32
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
    bench.report.figure(f"images/s with {count} views, end to end", rate)
    bench.report.figure("% of that time for making the views", 100 * rate / making, 1)


def out_of_memory(bench: Bench) -> None:
    """Show that a batch which does not fit is halved, and the answers stay."""
    if not bench.on_gpu:
        bench.report.say("Out of memory", "Measured on a GPU only.")
        return
    batch = 4096
    paths = bench.photos[:2048]
    encoder = bench.load()
    size = encoder.preprocess.height
    limited = Classifier(bench.labels, encoder, method="zero-shot", decoder=PILLOW, cache=False)
    before = classify(limited, "zero-shot", 256, paths).labels
    reset_peak_memory(bench.device)
    encoder.encode_images(torch.zeros(512, 3, size, size, device=bench.device))
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
    bench.report.figure("images answered with too little memory", after.images)
