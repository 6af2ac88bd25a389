"""Pictures that the project draws itself, for the demo and the tests: simple scenes, plain or in another look."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageOps

SIZE = 192
Pen = ImageDraw.ImageDraw
Rng = np.random.Generator


def _sky(pen: Pen, rng: Rng, colour: tuple[int, int, int] = (150, 200, 240)) -> None:
    for y in range(SIZE):
        shade = 1.0 - 0.35 * y / SIZE
        pen.line((0, y, SIZE, y), fill=tuple(int(c * shade) for c in colour))


def _sailing_boat(pen: Pen, rng: Rng) -> None:
    _sky(pen, rng)
    sea, x = int(rng.integers(115, 140)), int(rng.integers(60, 130))
    pen.rectangle((0, sea, SIZE, SIZE), fill=(30, 90, 160))
    for _ in range(18):
        left, top = int(rng.integers(0, SIZE)), int(rng.integers(sea + 4, SIZE))
        pen.line((left, top, left + 16, top), fill=(120, 170, 220))
    pen.polygon([(x - 42, sea - 8), (x + 42, sea - 8), (x + 28, sea + 14), (x - 28, sea + 14)], fill=(120, 60, 30))
    pen.line((x, sea - 8, x, sea - 90), fill=(70, 40, 20), width=4)
    pen.polygon([(x + 5, sea - 88), (x + 5, sea - 16), (x + 48, sea - 16)], fill=(245, 245, 240))
    pen.polygon([(x - 5, sea - 78), (x - 5, sea - 16), (x - 38, sea - 16)], fill=(230, 70, 60))


def _house(pen: Pen, rng: Rng) -> None:
    _sky(pen, rng)
    pen.rectangle((0, 145, SIZE, SIZE), fill=(90, 150, 70))
    x, wide = int(rng.integers(35, 65)), int(rng.integers(80, 100))
    wall = [(225, 200, 160), (235, 225, 210), (200, 150, 120)][int(rng.integers(3))]
    pen.rectangle((x, 80, x + wide, 155), fill=wall, outline=(90, 70, 50), width=2)
    pen.polygon([(x - 12, 80), (x + wide + 12, 80), (x + wide // 2, 30)], fill=(160, 60, 50), outline=(90, 40, 30))
    pen.rectangle((x + wide // 2 - 10, 115, x + wide // 2 + 10, 155), fill=(110, 70, 40))
    for left in (x + 10, x + wide - 32):
        pen.rectangle((left, 92, left + 22, 112), fill=(170, 215, 240), outline=(60, 60, 60), width=2)
        pen.line((left + 11, 92, left + 11, 112), fill=(60, 60, 60), width=2)


def _tree(pen: Pen, rng: Rng) -> None:
    _sky(pen, rng)
    pen.rectangle((0, 155, SIZE, SIZE), fill=(110, 160, 80))
    x = int(rng.integers(75, 115))
    pen.polygon([(x - 9, 165), (x + 9, 165), (x + 5, 85), (x - 5, 85)], fill=(105, 70, 40))
    for _ in range(45):
        cx, cy, r = x + int(rng.normal(0, 24)), 70 + int(rng.normal(0, 20)), int(rng.integers(10, 19))
        pen.ellipse((cx - r, cy - r, cx + r, cy + r), fill=(int(rng.integers(25, 70)), int(rng.integers(100, 150)), 45))


def _flower(pen: Pen, rng: Rng) -> None:
    pen.rectangle((0, 0, SIZE, SIZE), fill=(120, 170, 100))
    x, y = int(rng.integers(80, 112)), int(rng.integers(70, 90))
    pen.line((x, y, x - 6, SIZE), fill=(40, 110, 40), width=7)
    pen.ellipse((x + 2, 140, x + 42, 158), fill=(50, 130, 50))
    petal = [(230, 60, 90), (245, 200, 60), (250, 250, 250), (170, 80, 200)][int(rng.integers(4))]
    turn, petals = rng.random(), int(rng.integers(7, 11))
    for i in range(petals):
        angle = 2 * np.pi * (i + turn) / petals
        cx, cy = x + 32 * np.cos(angle), y + 32 * np.sin(angle)
        pen.ellipse((cx - 17, cy - 17, cx + 17, cy + 17), fill=petal, outline=tuple(c // 2 for c in petal))
    pen.ellipse((x - 17, y - 17, x + 17, y + 17), fill=(200, 140, 30), outline=(120, 80, 20), width=2)


def _fish(pen: Pen, rng: Rng) -> None:
    _sky(pen, rng, (60, 140, 190))
    x, y = int(rng.integers(75, 105)), int(rng.integers(75, 115))
    body = [(245, 140, 40), (240, 210, 70), (220, 80, 90)][int(rng.integers(3))]
    pen.polygon([(x + 40, y), (x + 78, y - 28), (x + 70, y), (x + 78, y + 28)], fill=body)
    pen.polygon([(x - 10, y - 24), (x + 22, y - 22), (x + 16, y - 44)], fill=tuple(int(0.8 * c) for c in body))
    pen.ellipse((x - 52, y - 30, x + 52, y + 30), fill=body, outline=tuple(c // 2 for c in body), width=2)
    for stripe in (-12, 14):
        pen.arc((x + stripe - 14, y - 27, x + stripe + 14, y + 27), 280, 80, fill=(250, 250, 250), width=6)
    pen.ellipse((x - 38, y - 14, x - 26, y - 2), fill=(255, 255, 255), outline=(0, 0, 0))
    pen.ellipse((x - 35, y - 11, x - 30, y - 6), fill=(0, 0, 0))
    for _ in range(7):
        bx, by, r = int(rng.integers(5, 60)), int(rng.integers(5, 150)), int(rng.integers(2, 6))
        pen.ellipse((bx - r, by - r, bx + r, by + r), outline=(210, 235, 250))


def _clock(pen: Pen, rng: Rng) -> None:
    pen.rectangle((0, 0, SIZE, SIZE), fill=(205, 195, 180))
    pen.ellipse((26, 26, 166, 166), fill=(250, 250, 245), outline=(50, 45, 40), width=8)
    for hour in range(12):
        angle = 2 * np.pi * hour / 12
        dx, dy = np.sin(angle), -np.cos(angle)
        pen.line((96 + 50 * dx, 96 + 50 * dy, 96 + 60 * dx, 96 + 60 * dy), fill=(30, 30, 30), width=4)
    for length, width in ((34, 6), (50, 4)):
        angle = 2 * np.pi * rng.random()
        pen.line((96, 96, 96 + length * np.sin(angle), 96 - length * np.cos(angle)), fill=(20, 20, 20), width=width)
    pen.ellipse((91, 91, 101, 101), fill=(170, 40, 30))


SCENES: dict[str, Callable[[Pen, Rng], None]] = {
    "sailing boat": _sailing_boat,
    "house": _house,
    "tree": _tree,
    "flower": _flower,
    "fish": _fish,
    "clock": _clock,
}


def _pencil(image: Image.Image, rng: Rng) -> Image.Image:
    edges = ImageOps.invert(image.convert("L").filter(ImageFilter.FIND_EDGES))
    return ImageOps.autocontrast(edges.filter(ImageFilter.SMOOTH)).convert("RGB")


def _night(image: Image.Image, rng: Rng) -> Image.Image:
    dark = np.asarray(image, np.float32) * (0.15, 0.16, 0.22) + rng.normal(0, 25, (SIZE, SIZE, 3))
    return Image.fromarray(np.clip(dark, 0, 255).astype(np.uint8))


def _static(image: Image.Image, rng: Rng) -> Image.Image:
    pixels = np.array(image)
    lost = rng.random((SIZE, SIZE)) < 0.5
    pixels[lost] = rng.integers(0, 256, (np.count_nonzero(lost), 3))
    return Image.fromarray(pixels)


LOOKS: dict[str, Callable[[Image.Image, Rng], Image.Image]] = {
    "plain": lambda image, rng: image,
    "pencil": _pencil,
    "night": _night,
    "static": _static,
}


def draw(scene: str, look: str = "plain", seed: int = 0) -> Image.Image:
    """Draw one picture, 192 x 192; the same for the same seed.

    Args:
        scene: a key of `SCENES`.
        look: a key of `LOOKS`.
        seed: decides places and colours.
    """
    rng = np.random.default_rng([seed, list(SCENES).index(scene)])
    image = Image.new("RGB", (SIZE, SIZE))
    SCENES[scene](ImageDraw.Draw(image), rng)
    return LOOKS[look](image, rng)


def draw_folder(folder: Path, each: int) -> Path:
    """Draw `each` pictures of every scene in every look, in sub-folders named after what they show."""
    for scene in SCENES:
        (folder / scene).mkdir(parents=True, exist_ok=True)
        for look in LOOKS:
            for seed in range(each):
                draw(scene, look, seed).save(folder / scene / f"{look}-{seed}.png")
    return folder
