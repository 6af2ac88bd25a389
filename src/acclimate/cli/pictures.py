"""Pictures for the demo and the tests, which the project draws itself: simple scenes in four styles."""

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageOps

SIZE = 192

# By name: the colours of the sky from top to bottom, fixed shapes behind the subject, the shapes of the subject, and
# the colours that stand for "main" in them. A shape is the name of a method of Pillow's ImageDraw and its arguments.
SCENES: dict[str, Any] = json.loads((files("acclimate.cli") / "scenes.json").read_text(encoding="utf-8"))


def _pencil(image: Image.Image) -> Image.Image:
    edges = ImageOps.invert(image.convert("L").filter(ImageFilter.FIND_EDGES))
    return ImageOps.autocontrast(edges.filter(ImageFilter.SMOOTH)).convert("RGB")


STYLES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "plain": lambda image: image,
    "pencil": _pencil,
    "blurred": lambda image: image.filter(ImageFilter.GaussianBlur(9)),
    "pixels": lambda image: image.resize((16, 16)).resize(image.size, Image.Resampling.NEAREST),
}


def draw(scene: str, style: str = "plain", seed: int = 0) -> Image.Image:
    """Draw one picture, 192 x 192; the same for the same seed.

    Args:
        scene: a key of `SCENES`.
        style: a key of `STYLES`.
        seed: decides the place, the direction and the main colour of the subject.
    """
    parts = SCENES[scene]
    rng = np.random.default_rng([seed, list(SCENES).index(scene)])
    colour = parts["colours"][rng.integers(len(parts["colours"]))]
    shift = rng.integers(-14, 15, 2)
    sky = ImageOps.colorize(Image.linear_gradient("L").resize((SIZE, SIZE)), *parts["sky"])
    pen = ImageDraw.Draw(sky)
    for shape in parts["behind"]:
        _draw_shape(pen, shape, colour, (0, 0))
    for shape in parts["shapes"]:
        _draw_shape(pen, shape, colour, shift)
    return STYLES[style](ImageOps.mirror(sky) if rng.random() < 0.5 else sky)


def _draw_shape(pen: ImageDraw.ImageDraw, shape: dict[str, Any], main: str, shift: Any) -> None:
    arguments = {key: main if value == "main" else value for key, value in shape.items()}
    points = (np.reshape(arguments.pop("points"), (-1, 2)) + shift).ravel().tolist()
    getattr(pen, arguments.pop("kind"))(points, **arguments)


def draw_folder(folder: Path, each: int) -> Path:
    """Draw `each` pictures of every scene in every style, in sub-folders named after what they show."""
    for scene in SCENES:
        (folder / scene).mkdir(parents=True, exist_ok=True)
        for style in STYLES:
            for seed in range(each):
                draw(scene, style, seed).save(folder / scene / f"{style}-{seed}.png")
    return folder
