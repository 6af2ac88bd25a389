"""The photos and labels of `gpu.py`, and what its processes do with photos; imports no PyTorch."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from acclimate.images.opening import open_image

# pixels of a photo's sides
LONG = 500
SHORT = 375


def processes(count: int) -> ProcessPoolExecutor:
    """Start worker processes; they share nothing with this one, which may use a GPU."""
    return ProcessPoolExecutor(count, get_context("spawn"))


def prepare_files(prepare: Callable[[Any], Any], paths: Sequence[Path]) -> int:
    """Read and prepare image files; how many there were."""
    for path in paths:
        prepare(open_image(path))
    return len(paths)


def label_names(count: int) -> list[str]:
    """Return distinct labels: words of three syllables that mean nothing."""
    syllables = [first + second for first in "bdfklmnprst" for second in "aeiou"]
    places = np.random.default_rng(0).permutation(len(syllables) ** 3)[:count]
    parts = np.stack(np.unravel_index(places, (len(syllables),) * 3), axis=1)
    return ["".join(syllables[part] for part in row) for row in parts]


def draw_photos(folder: Path, count: int, workers: int, mixed: bool = False) -> list[Path]:
    """Draw JPEG files of 500 x 375 pixels with photo-like detail, or of sizes from 120 x 90 to 2000 x 1500."""
    folder.mkdir()
    paths = [folder / f"{number:05}.jpg" for number in range(count)]
    with processes(workers) as pool:
        list(pool.map(partial(_draw_photo, mixed), paths, chunksize=32))
    return paths


def _draw_photo(mixed: bool, path: Path) -> None:
    """Draw coloured patches of some size and contrast, and fine texture; about 55 kB."""
    rng = np.random.default_rng([int(mixed), int(path.stem)])
    size = (LONG, SHORT)
    if mixed:
        factor = np.exp(rng.uniform(np.log(0.24), np.log(4.0)))
        size = (round(factor * LONG), round(factor * SHORT))
        size = size[::-1] if rng.random() < 0.5 else size
    across = int(rng.integers(3, 24))
    colours = rng.uniform(40, 215, 3) + rng.uniform(20, 80) * rng.standard_normal((3 * across // 4 + 1, across, 3))
    smooth = Image.fromarray(np.clip(colours, 0, 255).astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)
    texture = rng.uniform(3, 12) * rng.standard_normal((size[1], size[0], 1), dtype=np.float32)
    pixels = np.clip(np.asarray(smooth, np.float32) + texture, 0, 255).astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=88)
    path.write_bytes(content.getvalue())
