"""What `gpu.py` measures, one function for each table."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from acclimate import Classifier, Head, create, read_stream
from acclimate.arrays import to_host
from acclimate.bench.results import peak_memory_mb, reset_peak_memory
from acclimate.encoders import as_encoder
from acclimate.errors import AcclimateError
from acclimate.images import open_image
from acclimate.reading import Preparer, encode_ahead
from acclimate.views.augment import ModelInput
from acclimate.views.plan import draw_plan
from adapter_speed import PublishedWay, batches, fill_published, filled, time_in_turn
from gpu_bench import METHODS, NVJPEG, PILLOW, Bench, Ran, classify, memory_limit
from gpu_models import preprocess, resnet
from gpu_photos import prepare_files, processes


def without_tower(encoder: Any) -> Any:
    """The encoder with features that cost nothing: what remains is reading and preparing."""

    def encode_images(images: Any) -> Any:
        zeros = torch.zeros((len(images), encoder.dim), device=encoder.device)
        return zeros if str(encoder.device).startswith("cuda") else to_host(zeros)

    stub = copy.copy(encoder)
    stub.encode_images = encode_images
    return stub


def stages(bench: Bench) -> None:
    """Each stage alone: reading files, decoding, preparing, the tower, the encoder."""
    rows: list[list[str]] = []

    def add(
        kind: str, name: str, images: int, work: Callable[[], object], memory: bool = False, turns: int = 3
    ) -> None:
        if bench.on_gpu:
            reset_peak_memory(bench.device)
        try:
            rate = bench.rate(name, images, work, turns)
        except (RuntimeError, ImportError, AttributeError, AcclimateError) as error:
            rows.append([name, "-", f"{type(error).__name__}: {error}".splitlines()[0][:60]])
            return
        peak = peak_memory_mb(bench.device) if memory else None
        rows.append([name, f"{rate:,.0f}", "" if peak is None else f"{peak:,.0f}"])
        if kind:
            bench.report.bar(kind, name, rate)

    photos, many = bench.photos, len(bench.photos)
    with ThreadPoolExecutor(bench.cores) as threads:
        add("", "bytes of files, threads", many, lambda: list(threads.map(Path.read_bytes, photos)))
    prepare = partial(prepare_files, bench.encoder.prepare)
    with processes(bench.cores) as pool:
        chunks = [photos[start : start + 32] for start in range(0, many, 32)]
        add("read", f"Pillow in {bench.cores} processes", many, lambda: list(pool.map(prepare, chunks)))
    if bench.on_gpu:
        contents = [torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) for path in photos]
        add("read", "nvJPEG", many, lambda: _decode(contents, bench.device), memory=True)
        add("read", "resizing on the device", 256, _resizing(bench, contents[:256]), memory=True)
    for decoder in bench.decoders():
        for name, paths in (("", photos), (", mixed sizes", bench.mixed)):
            prepare_all = Preparer(without_tower(bench.encoder), decoder=decoder)
            walk = partial(_walk, prepare_all, paths, bench.sizes.batches[0])
            add("read", f"files to pixels, {decoder}{name}", len(paths), walk, memory=True)
    for precision in ("float16", "float32") if bench.on_gpu else ("float32",):
        _towers(bench, precision, add)
    size = bench.encoder.preprocess.height
    for batch in bench.sizes.batches:
        pixels = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8)
        rows_of = list(pixels.numpy()) if bench.on_gpu else [row.astype(np.float32) for row in pixels.numpy()]
        encode = bench.encoder.encode_images
        add("encode", f"encode_images, bytes on the host, batch {batch:,}", batch, partial(encode, rows_of), True)
        if bench.on_gpu:
            there = pixels.to(bench.device)
            add("encode", f"encode_images, on the device, batch {batch:,}", batch, partial(encode, there), True)
    memory = "peak GPU memory, MB" if bench.on_gpu else "peak memory, MB"
    bench.report.table("Each stage alone", ("", "images/s", memory), rows)


def _decode(contents: Sequence[torch.Tensor], device: str) -> list[torch.Tensor]:
    from torchvision.io import ImageReadMode, decode_jpeg

    for start in range(0, len(contents), 256):
        decoded = decode_jpeg(contents[start : start + 256], ImageReadMode.RGB, device)
    return decoded


def _resizing(bench: Bench, contents: Sequence[torch.Tensor]) -> Callable[[], object]:
    decoded: list[torch.Tensor] = []

    def work() -> object:
        from acclimate.resize import prepare_batch

        decoded.extend([] if decoded else _decode(contents, bench.device))
        return prepare_batch(decoded, bench.encoder.preprocess)

    return work


def _walk(prepare: Preparer, paths: Sequence[Path], batch: int) -> None:
    for _ in encode_ahead(paths, prepare, batch_size=batch):
        pass


def _towers(bench: Bench, precision: str, add: Callable[..., None]) -> None:
    """The bare model on pixels that lie on the device."""
    dtype = getattr(torch, precision)
    model = transformers.CLIPModel.from_pretrained(bench.model.removeprefix("local:"), dtype=dtype).to(bench.device)
    size = bench.encoder.preprocess.height
    ways = {"": model.get_image_features}
    if bench.sizes.compiled and precision == "float16":
        ways[", compiled"] = torch.compile(model.get_image_features)
    for way, features in ways.items():
        for batch in bench.sizes.batches if precision == "float16" else bench.sizes.batches[:1]:
            pixels = torch.randn(batch, 3, size, size, dtype=dtype, device=bench.device)

            def work(features: Any = features, pixels: torch.Tensor = pixels) -> None:
                with torch.inference_mode():
                    for _ in range(4):
                        features(pixel_values=pixels)

            add("encode", f"tower, {precision}{way}, batch {batch:,}", 4 * batch, work, True, 5)


def whole(bench: Bench) -> None:
    """The whole, from files to answers, by decoder, method and batch; TDA against zero-shot."""
    rows, extra, note = [], [], ""
    tower = _tower_rate(bench)
    for decoder in bench.decoders():
        classifier = bench.classifier(decoder)
        rounds = bench.sizes.rounds if decoder == NVJPEG else -(-bench.sizes.rounds // 3)
        turns = bench.sizes.turns if decoder == NVJPEG or not bench.on_gpu else min(3, bench.sizes.turns)
        paths = bench.photos * rounds
        read = bench.rates.get("nvJPEG" if decoder == NVJPEG else f"Pillow in {bench.cores} processes", np.nan)
        for batch in bench.sizes.batches:
            runs: dict[str, list[Ran]] = {method: [] for method in METHODS}
            classify(classifier, "tda", batch, bench.photos)
            for turn in range(turns):
                for method in METHODS if turn % 2 == 0 else METHODS[::-1]:
                    if bench.on_gpu:
                        reset_peak_memory(bench.device)
                    runs[method].append(classify(classifier, method, batch, paths))
            base = np.array([run.seconds for run in runs["zero-shot"]])
            for method, made in runs.items():
                rate = float(np.median([run.rate for run in made]))
                over = 100 * (np.array([run.seconds for run in made]) / base - 1)
                low, middle, high = np.quantile(over, (0.25, 0.5, 0.75))
                first = np.median([run.first for run in made])
                cost = "" if method == "zero-shot" else f"{middle:+.1f} ({low:+.1f} to {high:+.1f})"
                figures = [f"{rate:,.0f}", f"{rate / min(read, tower):.2f}", cost, f"{1e3 * first:,.0f}"]
                rows.append([f"{decoder}, {method}, batch {batch:,}", *figures, _entered(made[0])])
                bench.rates[f"{decoder} {method} {batch}"] = rate
                if method == "tda":
                    bench.report.bar("whole", rows[-1][0], rate)
                    extra.append((decoder, batch, rate, rate / min(read, tower), middle))
        peak = peak_memory_mb(bench.device) or 0.0
        note += f" Peak memory with {decoder}: {peak:,.0f} MB."
    heading = ("", "images/s", "x slower stage", "% over zero-shot", "first answer, ms", "entered caches, %")
    about = (
        f"Files to answers, {len(bench.labels):,} labels, {bench.sizes.rounds * len(bench.photos):,} images in a run, "
        "starting and stopping the readers included. The slower stage is the slower of reading alone (nvJPEG, or "
        "Pillow in processes) and the tower alone at half precision. Methods take turns; medians and quartiles of the "
        "runs' ratios."
    )
    bench.report.table("The whole", heading, rows, about + note)
    for decoder, least in ((NVJPEG, 6000), (PILLOW, 2000)):
        found = [each for each in extra if each[0] == decoder]
        if found:
            _, batch, rate, share, _ = max(found, key=lambda each: each[2])
            bench.report.least(f"images/s from JPEG files, {decoder}, TDA, batch {batch:,}", rate, least)
            bench.report.least("of the slower of reading alone and tower alone", share, 0.65, 2)
    for batch, most in ((256, 3.0), (1024, 1.0)):
        for _, size, _, _, over in [each for each in extra if each[:2] == (NVJPEG, batch)]:
            bench.report.most(f"% of time that TDA adds to zero-shot, batch {size:,}", over, most, 1)


def _tower_rate(bench: Bench) -> float:
    """Images per second of the bare tower, eager, at half precision on a GPU."""
    kind = "float16" if bench.on_gpu else "float32"
    rates = [rate for name, rate in bench.rates.items() if name.startswith(f"tower, {kind}, batch")]
    return max(rates, default=np.nan)


def _entered(run: Ran) -> str:
    shares = [100 * count / run.images for count in run.entered.values()]
    return " / ".join(f"{share:.0f}" for share in shares) if any(shares) else ""


def by_batch(bench: Bench) -> None:
    """The whole, and the device's memory, by the batch size."""
    decoder = bench.decoders()[0]
    classifier, rows = bench.classifier(decoder), []
    for batch in bench.sizes.all_batches:
        paths = (bench.photos * bench.sizes.rounds)[: max(64, min(128 * batch, 4 * max(batch, 1024)))]
        classify(classifier, "tda", batch, paths[: 2 * batch])
        reset_peak_memory(bench.device)
        rates = [classify(classifier, method, batch, paths).rate for method in METHODS]
        memory = peak_memory_mb(bench.device) or 0.0
        rows.append([f"{batch:,}", *(f"{rate:,.0f}" for rate in rates), f"{memory:,.0f}"])
    note = f"With {decoder}; runs of up to {len(paths):,} images, the start of the readers included."
    heading = ("batch", *(f"{method}, images/s" for method in METHODS), "peak memory, MB")
    bench.report.table("The whole by batch size", heading, rows, note)


def steps(bench: Bench) -> None:
    """The adapter's step alone, by batch and number of classes, and the published way."""
    rows, answers, published_rows = [], bench.sizes.all_batches, []

    def to_device(values: np.ndarray) -> Any:
        return torch.asarray(values, device=bench.device) if bench.on_gpu else values

    whole_rate = max((rate for name, rate in bench.rates.items() if name.startswith(NVJPEG)), default=np.nan)
    for K in bench.sizes.all_classes:
        adapter, fresh = filled(K, 512, to_device)
        fresh = to_device(np.tile(to_host(fresh), (-(-max(answers) // len(fresh)), 1)))
        times = {}
        for batch in answers:
            walk = batches(fresh, batch)
            turns = 4 if K * batch < 2**23 else 2
            times[batch] = time_in_turn({"": partial(_step, adapter, walk)}, turns, bench.finish)[""]
        rows.append([f"{K:,}", *(f"{1e6 * times[batch] / batch:,.2f}" for batch in answers)])
        if K in bench.sizes.published:
            published, singles = PublishedWay(adapter.head.class_vectors), batches(fresh, 1)
            fill_published(published, adapter)
            each = time_in_turn({"": lambda p=published, s=singles: p.step(next(s))}, 3, bench.finish)[""]
            ratios = [each / (times[batch] / batch) for batch in answers]
            published_rows.append([f"{K:,}", f"{1e6 * each:,.0f}", *(f"{ratio:,.0f}" for ratio in ratios)])
            if K == 1000 and bench.on_gpu:
                bench.report.most("microseconds per sample of a TDA step, batch 1,024", 1e6 * times[1024] / 1024, 1, 2)
                bench.report.least(
                    "times faster than the published way, batch 1,024", ratios[answers.index(1024)], 2000
                )
                bench.report.most("milliseconds of a TDA step, batch 1", 1e3 * times[1], 0.5, 2)
                share = 100 * times[1024] / 1024 * whole_rate
                bench.report.say(
                    "Share of adaptation", f"A step of 1,024 samples is {share:.2f} % of the whole's time."
                )
    heading = [f"batch {batch:,}" for batch in answers]
    bench.report.table("TDA's step, microseconds per sample", ("classes", *heading), rows, "Full caches, 512 channels.")
    heading = ("classes", "published way, us per sample", *heading)
    note = "How many times faster a step is, per sample, than the published way: Python lists, one sample at a time."
    bench.report.table("Against the published way", heading, published_rows, note)


def _step(adapter: Any, walk: Iterator[Any]) -> Any:
    return adapter.step(next(walk))


def views(bench: Bench) -> None:
    """Many views per image: the whole, and making the views alone."""
    from acclimate.views.tensor import make_views

    count, size = bench.sizes.views, bench.encoder.preprocess.height
    paths = bench.photos[: bench.sizes.with_views]
    decoder, batch = bench.decoders()[0], 16 * count
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


def agreement(bench: Bench) -> None:
    """How often two ways give the same label."""
    rows = []

    def add(name: str, ours: Sequence[Any], theirs: Sequence[Any], least: float) -> None:
        same = 100 * float(np.mean(np.asarray(ours) == np.asarray(theirs)))
        rows.append([name, f"{len(ours):,}", f"{same:.2f}"])
        if least:
            bench.report.least(f"% of labels equal: {name}", same, least, 2)

    batch, answers = bench.sizes.batches[0], {}
    for decoder in bench.decoders():
        answers[decoder] = classify(bench.classifier(decoder), "zero-shot", batch, bench.photos).labels
    if len(answers) == 2:
        add("nvJPEG against Pillow", answers[NVJPEG], answers[PILLOW], 0)
    if bench.on_gpu:
        full = Classifier(bench.labels, bench.load("float32"), method="zero-shot", decoder=PILLOW, cache=False)
        add(
            "half precision against float32",
            answers[PILLOW],
            classify(full, "zero-shot", batch, bench.photos).labels,
            99,
        )
    if bench.evaluation:
        from gpu_evaluation import labels_by_precision

        precisions = ("float16" if bench.on_gpu else "bfloat16", "float32")
        both = labels_by_precision(*bench.evaluation, bench.device, precisions)
        add(f"{precisions[0]} against float32, evaluation images", *both, 99)
    prepare = Preparer(bench.encoder, decoder=PILLOW)
    walk = encode_ahead(bench.photos, prepare, batch_size=batch)
    features = np.concatenate([to_host(found.features) for found in walk])
    sets = [("drawn photos", bench.classifier(PILLOW).head, features)]
    sets += [(path.stem, stream.head, stream.features) for path in bench.streams for stream in [read_stream(path)]]
    for name, head, rows_of in sets:
        for method in METHODS[1:]:
            ours, theirs = (_labels(method, head, rows_of, where, batch) for where in (bench.device, None))
            add(f"{method} on the device against NumPy, {name}", ours, theirs, 99.9)
    bench.report.table("Same answers", ("", "images", "% of labels equal"), rows)


def _labels(method: str, head: Head, features: np.ndarray, device: str | None, batch: int) -> np.ndarray:
    """The classes (n,) that a method answers on a device, or with NumPy."""
    features = np.asarray(features, np.float32)
    head = head.to(features[:1] if device is None else torch.zeros(1, device=device))
    adapter, found = create(method, head), []
    for start in range(0, len(features), batch):
        part = features[start : start + batch]
        found.append(to_host(adapter.step(part if device is None else torch.as_tensor(part, device=device))))
    return np.concatenate(found).argmax(axis=1)


def resnets(bench: Bench) -> None:
    """ResNet-50: the tower alone and the whole."""
    precision = "float16" if bench.on_gpu else "float32"
    encoder = as_encoder(resnet(bench.photos[:256], bench.device, bench.sizes.tiny), bench.device, precision)
    rows, size = [], encoder.preprocess.height
    classifiers = {
        decoder: Classifier(bench.labels, encoder, method="zero-shot", decoder=decoder, cache=False)
        for decoder in bench.decoders()
    }
    for batch in bench.sizes.batches:
        pixels = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, device=bench.device)
        pixels = pixels if bench.on_gpu else pixels.float()
        rate = bench.rate(f"resnet {batch}", batch, partial(encoder.encode_images, pixels), 5)
        rows.append([f"encode_images, on the device, batch {batch:,}", f"{rate:,.0f}", ""])
        for decoder, classifier in classifiers.items():
            classify(classifier, "tda", batch, bench.photos)
            paths = bench.photos * (bench.sizes.rounds if decoder == NVJPEG else 1)
            for method in METHODS[:2]:
                run = classify(classifier, method, batch, paths)
                rows.append([f"{decoder}, {method}, batch {batch:,}", f"{run.rate:,.0f}", _entered(run)])
    bench.report.table("ResNet-50", ("", "images/s", "entered caches, %"), rows)


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


BLOCKS = (stages, whole, by_batch, steps, views, agreement, resnets, out_of_memory)
