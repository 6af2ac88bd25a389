"""Read a pack of small labelled images: an `index.csv` and tar files."""

import csv
import tarfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

# CLIP's
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
Rows = list[dict[str, str]]


def read_pack(folder: Path, size: int, every: int = 1) -> tuple[np.ndarray, Rows]:
    """Read the pixels (n, 3, size, size) of every n-th image as bytes, and its row of the index, in order.

    The images are square, so resizing them is all that `Preprocess` does.
    """
    with (folder / "index.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[::every]
    wanted = {row["member"] for row in rows}
    encoded = {}
    for archive in sorted(folder.glob("*.tar")):
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.name in wanted:
                    encoded[member.name] = tar.extractfile(member).read()

    def pixels(row: dict[str, str]) -> np.ndarray:
        image = Image.open(BytesIO(encoded[row["member"]])).convert("RGB")
        return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC)).transpose(2, 0, 1)

    with ThreadPoolExecutor() as pool:
        return np.stack(list(pool.map(pixels, rows))), rows


def normalise(pixels: np.ndarray) -> np.ndarray:
    """Normalise bytes (n, 3, h, w) for the model."""
    mean, std = (np.asarray(values, np.float32)[:, None, None] for values in (MEAN, STD))
    return (pixels.astype(np.float32) / 255 - mean) / std
