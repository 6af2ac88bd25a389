"""Each stage alone: reading files, decoding, preparing, the tower, the encoder."""

import copy
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
import transformers

from acclimate import Classifier
from acclimate.arrays import to_host
from acclimate.encoders import as_encoder
from acclimate.errors import AcclimateError
from acclimate.reading.walk import Preparer, encode_ahead
from gpu_parts.bench import METHODS, NVJPEG, Bench, classify, shares
from gpu_parts.models import resnet
from gpu_parts.photos import prepare_files, processes
from peak_memory import peak_memory_mb, reset_peak_memory


def without_tower(encoder: Any) -> Any:
    """Return the encoder with features that cost nothing: only reading and preparing remain."""

    def encode_images(images: Any) -> Any:
        ones = torch.ones((len(images), encoder.dim), device=encoder.device)  # a direction, which features must have
        return ones if str(encoder.device).startswith("cuda") else to_host(ones)

    stub = copy.copy(encoder)
    stub.encode_images = encode_images
    return stub


def stages(bench: Bench) -> None:
    """Measure each stage alone: reading files, decoding, preparing, the tower, the encoder."""
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

    photos = bench.photos
    many = len(bench.photos)
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
    for decoder in bench.classifiers:
        for name, paths in (("", photos), (", mixed sizes", bench.mixed)):
            size = bench.sizes.batches[0]
            settling = bench.sizes.settling
            walk = encode_ahead(cycle(paths), Preparer(without_tower(bench.encoder), decoder=decoder), batch_size=size)
            with closing(walk):  # files do not end, so that what is read ahead is the same at both ends
                deque(islice(walk, settling // size), 0)
                rest = partial(deque, islice(walk, settling // size), 0)
                add("read", f"files to pixels, {decoder}{name}", settling // size * size, rest, True, turns=0)
    for precision in ("float16", "float32") if bench.on_gpu else ("float32",):
        _towers(bench, precision, add)
    size = bench.encoder.preprocess.height
    for batch in bench.sizes.batches:
        pixels = torch.randn(batch, 3, size, size)
        encode = bench.encoder.encode_images
        host = list(pixels.numpy())
        add("encode", f"encode_images, floats on the host, batch {batch:,}", batch, partial(encode, host), True)
        if bench.on_gpu:
            here = pixels.to(bench.device)
            add("encode", f"encode_images, floats on the device, batch {batch:,}", batch, partial(encode, here), True)
    if bench.on_gpu:
        encoding = f"encode_images, floats on the device, batch {bench.sizes.batches[0]:,}"
        parts = [bench.rates[part] for part in ("nvJPEG", "resizing on the device", encoding) if part in bench.rates]
        together = 1 / sum(1 / rate for rate in parts)
        rows.append(["nvJPEG, resizing and encoding, one after another", f"{together:,.0f}", ""])
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
        from acclimate.reading.gpu import resize_and_crop

        decoded.extend([] if decoded else _decode(contents, bench.device))
        return resize_and_crop(decoded, bench.encoder.preprocess)

    return work


def _towers(bench: Bench, precision: str, add: Callable[..., None]) -> None:
    """Measure the bare model on pixels that lie on the device."""
    dtype = getattr(torch, precision)
    model = transformers.CLIPModel.from_pretrained(bench.model.removeprefix("local:"), dtype=dtype).to(bench.device)
    size = bench.encoder.preprocess.height
    times = 4 if precision == "float16" else 1
    ways = {"": model.get_image_features}
    if bench.sizes.compiled and precision == "float16":
        ways[", compiled"] = torch.compile(model.get_image_features)
    for way, features in ways.items():
        for batch in bench.sizes.batches if precision == "float16" else bench.sizes.batches[:1]:
            pixels = torch.randn(batch, 3, size, size, dtype=dtype, device=bench.device)

            def work(features: Any = features, pixels: torch.Tensor = pixels) -> None:
                with torch.inference_mode():
                    for _ in range(times):
                        features(pixel_values=pixels)

            add("encode", f"tower, {precision}{way}, batch {batch:,}", times * batch, work, True)


def resnets(bench: Bench) -> None:
    """Measure ResNet-50: the tower alone and the whole."""
    precision = "float16" if bench.on_gpu else "float32"
    encoder = as_encoder(resnet(bench.photos[:256], bench.device, bench.sizes.tiny), bench.device, precision)
    rows = []
    size = encoder.preprocess.height
    classifiers = {
        decoder: Classifier(bench.labels, encoder, method="zero-shot", decoder=decoder, cache=False)
        for decoder in bench.classifiers
    }
    for batch in bench.sizes.batches:
        pixels = torch.randn(batch, 3, size, size, device=bench.device)
        rate = bench.rate(f"resnet {batch}", batch, partial(encoder.encode_images, pixels), 5)
        rows.append([f"encode_images, on the device, batch {batch:,}", f"{rate:,.0f}", ""])
        for decoder, classifier in classifiers.items():
            classify(classifier, "tda", batch, bench.photos)
            paths = bench.photos * (bench.sizes.rounds if decoder == NVJPEG else 1)
            for method in METHODS[:2]:
                run = classify(classifier, method, batch, paths)
                rows.append(
                    [f"{decoder}, {method}, batch {batch:,}", f"{run.rate:,.0f}", shares(run.entered, run.images)]
                )
    bench.report.table("ResNet-50", ("", "images/s", "entered caches, %"), rows)
