"""Images the tests draw: noisy coloured shapes, the same for the same seed."""

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

COLOURS = {"red": (200, 30, 40), "green": (40, 160, 60), "blue": (40, 70, 190)}


def draw(colour: str, seed: int, size: tuple[int, int] = (60, 48)) -> Image.Image:
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 90, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    pen = ImageDraw.Draw(image)
    left, top = rng.integers(2, 20, 2).tolist()
    box = (left, top, left + int(rng.integers(15, 38)), top + int(rng.integers(12, 26)))
    (pen.rectangle if seed % 2 else pen.ellipse)(box, fill=COLOURS[colour])
    return image


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """Return an image as the content of a file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def draw_folder(folder: Path, count: int) -> Path:
    names = list(COLOURS)
    for i in range(count):
        colour = names[i % len(names)]
        (folder / colour).mkdir(exist_ok=True)
        draw(colour, i).save(folder / colour / f"img{i}.png")
    return folder


def draw_shapes(folder: Path, seeds: range) -> Path:
    """Draw ellipses and rectangles of all colours, each in the folder of its shape."""
    names = list(COLOURS)
    for seed in seeds:
        shape = folder / ("rectangle" if seed % 2 else "ellipse")
        shape.mkdir(parents=True, exist_ok=True)
        draw(names[seed // 2 % len(names)], seed).save(shape / f"img{seed}.png")
    return folder
