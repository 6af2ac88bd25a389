"""Pictures for the demo and the tests, which the project draws itself: six scenes as a camera sees them in any weather.

python training/pictures.py src/acclimate/cli/pictures.zip        # draw those of the demo again

How thick the haze is and how far away the subjects are was chosen to make a demo: in clear weather the bundled model
knows all of them, in haze and snow it is wrong about every second one, and adapting corrects many of those.
"""

import argparse
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

# Scenes by name. The colours of the background from top to bottom ("sky"), what it is ("texture"), the colours of
# ground and haze, and how white settled snow makes the ground; shares of the height of the picture: the horizon, where
# the subject stands ("base"), and its lowest and highest size; the share of the subject that is above its foot; its
# shapes, and the colours that stand for "main" in them. A shape is the name of a method of Pillow's ImageDraw and its
# arguments.
SCENES: dict[str, Any] = json.loads(Path(__file__).with_name("scenes.json").read_text(encoding="utf-8"))
WIDTH, HEIGHT = 208, 156
SIDE = 192  # of the square that the shapes of a subject are drawn in
ENLARGEMENT = 4  # subjects are drawn larger by this factor, which smooths their edges
FLAKES = ((0.8, 260), (1.4, 110), (2.8, 30))  # radius in pixels and number, from far to near
Rng = np.random.Generator
Pixels = np.ndarray  # (HEIGHT, WIDTH, 3) with values from 0 to 1


def draw(name: str, weather: str = "clear", seed: int = 0) -> Image.Image:
    """Draw a scene in clear weather, haze or snow; the seed decides everything else."""
    scene = SCENES[name]
    rng = np.random.default_rng([seed, list(SCENES).index(name)])
    pixels, ground = _background(scene, rng)
    side = int(rng.uniform(*scene["size"]) * HEIGHT)
    left = int((WIDTH - side) / 2 + rng.uniform(-22, 22))
    foot = scene["base"] * HEIGHT + rng.uniform(-5, 5)
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    far = np.hypot((rows - foot - 2) / (0.07 * side), (columns - left - 0.58 * side) / (0.34 * side))[..., None]
    image = _as_image(pixels * (1 - 0.45 * np.clip(1.3 - far, 0, 1) * ground))  # the subject's shadow
    image.paste(*_subject(scene, rng, side, (left, int(foot - scene["foot"] * side))))
    seen = _as_pixels(image)
    if weather == "haze":
        thick = rng.uniform(0.76, 0.94) + 0.16 * (_noise(rng, (2, 2), 3) - 0.5)
        seen = _blurred(seen, 1) * (1 - thick) + _colour(scene["haze"]) * thick
    elif weather == "snow":
        seen = _snow(seen, scene["settled"] * ground, rng)
    return _as_image(_blurred(seen, 0.5) + rng.normal(0, 0.012, (HEIGHT, WIDTH, 1)))


def draw_all(pictures: Mapping[str, int] | None = None) -> dict[str, Image.Image]:
    """Draw pictures of every scene, so many in each weather or as many as the demo has, by folder and file name."""
    return {
        f"{name}/{weather}-{seed}.webp": draw(name, weather, seed)
        for name, scene in SCENES.items()
        for weather, count in (pictures or scene["pictures"]).items()
        for seed in range(count)
    }


def _background(scene: dict[str, Any], rng: Rng) -> tuple[Pixels, np.ndarray]:
    """Return a scene without its subject, and how much of each pixel (HEIGHT, WIDTH, 1) is ground."""
    height = np.linspace(0, 1, HEIGHT)[:, None, None]
    top, bottom = map(_colour, scene["sky"])
    back = top + (bottom - top) * height
    horizon = scene["horizon"] + rng.uniform(-0.04, 0.04)
    if scene["texture"] == "bricks":
        rows = np.arange(HEIGHT)[:, None]
        columns = np.arange(WIDTH)[None] + 13 * (rows // 12 % 2)
        tone = np.random.default_rng(3).random((HEIGHT, 40))[rows // 12, columns // 26]
        joints = (rows % 12 < 2) | (columns % 26 < 2)
        back = back * (0.85 + 0.3 * tone[..., None]) * np.where(joints[..., None], 1.15, 1)
    elif scene["texture"] == "water":
        back = back + 0.22 * (_noise(rng, (1, 9), 2) - 0.5) * (1 - height)
    elif scene["texture"] == "meadow":
        back = _blurred(back * (0.75 + 0.5 * _noise(rng, (3, 12), 3)), 2)
    else:
        clouds = (2.2 * (_noise(rng, (3, 3), 5) - 0.5)).clip(0, 1)
        back = back + (0.96 - back) * clouds * (1 - 0.5 * height)
        ridge = horizon - 0.05 - 0.12 * _noise(rng, (1, 3), 4)[:1]
        back = back + 0.55 * (_colour("#5a7a78") - back) * _beyond(height, ridge)
    depth = ((height - horizon) / (1.001 - horizon)).clip(0, 1)
    soil = _colour(scene["ground"]) * (0.72 + 0.5 * _noise(rng, (12, 4), 5)) + 0.16 * (1 - depth)
    ground = _beyond(height, horizon) * np.ones((HEIGHT, WIDTH, 1))
    return back + (soil - back) * ground, ground


def _subject(
    scene: dict[str, Any], rng: Rng, side: int, place: tuple[int, int]
) -> tuple[Image.Image, tuple[int, int], Image.Image]:
    """Return a subject that is lit from one side, its place, and its opacity."""
    main = rng.choice(scene["colours"])
    layer = Image.new("RGBA", (SIDE * ENLARGEMENT, SIDE * ENLARGEMENT))
    for shape in scene["shapes"]:
        arguments = {key: main if value == "main" else value for key, value in shape.items() if key != "kind"}
        points = [ENLARGEMENT * value for value in arguments.pop("points")]
        if "width" in arguments:
            arguments["width"] *= ENLARGEMENT
        getattr(ImageDraw.Draw(layer), shape["kind"])(points, **arguments)
    if rng.random() < 0.5:
        layer = layer.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    layer = layer.rotate(rng.uniform(-4, 4), Image.Resampling.BICUBIC).resize((side, side), Image.Resampling.LANCZOS)
    light = np.linspace(1.14, 0.72, side)[None, :, None] * np.linspace(1.06, 0.9, side)[:, None, None]
    return _as_image(_as_pixels(layer.convert("RGB")) * light), place, layer.getchannel("A")


def _snow(pixels: Pixels, settled: np.ndarray, rng: Rng) -> Pixels:
    """Return a scene while snow is falling, of which so much has settled on each pixel (HEIGHT, WIDTH, 1)."""
    pale = 0.45 * pixels + 0.55 * pixels.mean(axis=-1, keepdims=True)
    covered = pale + (np.array([0.92, 0.94, 0.97]) - pale) * (0.2 + settled)
    falling = np.zeros((HEIGHT, WIDTH))
    for radius, number in FLAKES:
        layer = np.zeros((HEIGHT, WIDTH), np.uint8)
        layer[rng.integers(0, HEIGHT, number), rng.integers(0, WIDTH, number)] = 255
        soft = np.asarray(Image.fromarray(layer).filter(ImageFilter.GaussianBlur(radius)))
        falling += soft / soft.max()
    return covered + (1 - covered) * 0.9 * falling.clip(0, 1)[..., None]


def _noise(rng: Rng, cells: tuple[int, int], octaves: int) -> np.ndarray:
    """Return smooth noise (HEIGHT, WIDTH, 1) from 0 to 1, with so many cells down and across at the coarsest."""
    total = np.zeros((HEIGHT, WIDTH))
    for octave in range(octaves):
        rows, columns = (min(2**octave * number, size) for number, size in zip(cells, total.shape, strict=True))
        field = Image.fromarray(rng.random((rows + 1, columns + 1)).astype(np.float32))
        total += np.asarray(field.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)) / 2**octave
    return ((total - total.min()) / np.ptp(total))[..., None]


def _beyond(height: np.ndarray, edge: Any) -> np.ndarray:
    """Return 0 above an edge and 1 below, with a soft step between."""
    return 1 / (1 + np.exp(-(height - edge) * 140))


def _colour(text: str) -> np.ndarray:
    return np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def _blurred(pixels: Pixels, radius: float) -> Pixels:
    return _as_pixels(_as_image(pixels).filter(ImageFilter.GaussianBlur(radius)))


def _as_image(pixels: Pixels) -> Image.Image:
    return Image.fromarray((255 * pixels.clip(0, 1)).round().astype(np.uint8))


def _as_pixels(image: Image.Image) -> Pixels:
    return np.asarray(image).astype(float) / 255


def main() -> None:
    """Write the pictures of the demo; the same pictures give the same bytes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    with ZipFile(parser.parse_args().file, "w") as archive:
        for name, picture in draw_all().items():
            buffer = io.BytesIO()
            picture.save(buffer, "WEBP", quality=60, method=6)
            archive.writestr(ZipInfo(name), buffer.getvalue())


if __name__ == "__main__":
    main()
