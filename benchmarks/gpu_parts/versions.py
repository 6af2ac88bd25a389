"""This version from files to answers, its pixels against Pillow's, and an older version beside it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from acclimate.images.opening import open_image
from gpu_parts.bench import NVJPEG, PILLOW, Bench

SCRIPT = Path(__file__).with_name("from_files.py")
SOURCE = Path(__file__).parents[2] / "src"


def versions(bench: Bench) -> None:
    """Measure TDA from files, the start included, and its step; each version in a process of its own."""
    decoders = [NVJPEG, PILLOW] if NVJPEG in bench.classifiers else [PILLOW]
    settings = {
        "model": bench.model,
        "labels": bench.labels,
        "paths": [str(path) for path in bench.photos * bench.sizes.rounds],
        "batch": bench.sizes.batches[0],
        "runs": bench.sizes.turns,
        "device": bench.device,
        "decoders": decoders,
        "step_classes": bench.sizes.classes,
        "step_batch": bench.sizes.batches[-1],
    }
    found = {"this version": measure(SOURCE, settings)}
    if bench.before is not None:
        found["before"] = measure(bench.before, settings)
        found["this version, again"] = measure(SOURCE, settings)
    rows = []
    for version, figures in found.items():
        for decoder, stream in figures["streams"].items():
            rates = sorted(stream["rates"])
            spread = f"{rates[0]:,.0f} to {rates[-1]:,.0f}"
            row = [f"{version}, {decoder}", f"{np.median(rates):,.0f}", spread, f"{stream['first_ms']:,.0f}"]
            rows.append([*row, f"{figures['step_us']:.2f}"])
    heading = ("", "images/s", "slowest to fastest run", "first answer, ms", "TDA's step, us per sample")
    count = len(settings["paths"])
    note = (
        f"{count:,} JPEG files, TDA, batch {settings['batch']:,}; readers start and stop in every run. The step alone "
    )
    note += f"has {settings['step_classes']:,} classes and batches of {settings['step_batch']:,}."
    bench.report.table("From files to answers", heading, rows, note)
    _equal_labels(bench, found)


def measure(source: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Run `from_files.py` with the acclimate in a source folder; return its figures."""
    environment = os.environ | {"PYTHONPATH": str(source)}
    command = [sys.executable, str(SCRIPT)]
    ran = subprocess.run(command, input=json.dumps(settings), env=environment, capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"{source}: exit status {ran.returncode}\n{ran.stdout}\n{ran.stderr}")
    *said, figures = ran.stdout.splitlines()
    print("\n".join(said), flush=True)
    result: dict[str, Any] = json.loads(figures)
    return result


def _equal_labels(bench: Bench, found: dict[str, dict[str, Any]]) -> None:
    """Compare the labels of every two streams with the first."""
    streams = {
        f"{version}, {decoder}": stream["labels"]
        for version, figures in found.items()
        for decoder, stream in figures["streams"].items()
    }
    first, *others = streams
    expected = np.array(streams[first])
    rows = [[f"{first} and {name}", f"{100 * np.mean(expected == np.array(streams[name])):.2f}"] for name in others]
    bench.report.table("Equal labels", ("", "%"), rows)


def pixels(bench: Bench) -> None:
    """Compare pixels decoded and resized on the device with Pillow's, in grey levels."""
    from acclimate.reading.gpu import decode_jpegs, resize_and_crop

    preprocess = bench.encoder.preprocess
    rows = []
    for name, paths in (("one size", bench.photos[:256]), ("mixed sizes", bench.mixed[:256])):
        images = [open_image(path) for path in paths]
        expected = np.stack([preprocess.pixels(image) for image in images]).transpose(0, 3, 1, 2).astype(int)
        wholes = [torch.tensor(np.asarray(image).transpose(2, 0, 1), device=bench.device) for image in images]
        ways = {"decoded by Pillow": wholes}
        if NVJPEG in bench.classifiers:
            contents = [torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) for path in paths]
            ways["decoded by nvJPEG"] = decode_jpegs(contents, bench.device)
        for way, decoded in ways.items():
            gap = np.abs(resize_and_crop(decoded, preprocess).cpu().numpy() - expected)
            row = [f"{name}, {way}", f"{gap.mean():.3f}", f"{np.quantile(gap, 0.999):.0f}", f"{gap.max():.0f}"]
            rows.append(row)
    heading = ("", "mean difference", "99.9 % at most", "largest")
    bench.report.table("Pixels resized on the device against Pillow's, grey levels", heading, rows)
