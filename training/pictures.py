"""Pictures for the demo and the tests, which the project draws itself: simple scenes in five styles.

python training/pictures.py src/acclimate/cli/pictures.zip        # draw those of the demo again
"""

import argparse
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageOps

# By name: the colours of the sky from top to bottom, the shapes, and the colours that stand for "main" in them. A shape
# is the name of a method of Pillow's ImageDraw and its arguments.
SCENES: dict[str, Any] = json.loads(Path(__file__).with_name("scenes.json").read_text(encoding="utf-8"))
TABLE = "#c8c8c8"  # the colour around a picture that is turned or far away


def _far(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    side = int(rng.integers(28, 61))
    whole = Image.new("RGB", image.size, TABLE)
    whole.paste(image.resize((side, side)), tuple(rng.integers(0, image.width - side, 2).tolist()))
    return whole


STYLES: dict[str, Callable[[Image.Image, np.random.Generator], Image.Image]] = {
    "plain": lambda image, rng: image,
    "pencil": lambda image, rng: ImageOps.invert(image.convert("L").filter(ImageFilter.FIND_EDGES)).convert("RGB"),
    "blurred": lambda image, rng: image.filter(ImageFilter.GaussianBlur(9)),
    "pixels": lambda image, rng: image.resize((16, 16)).resize(image.size, Image.Resampling.NEAREST),
    "far": _far,
}


def draw(scene: str, style: str = "plain", seed: int = 0, tilt: float = 0.0) -> Image.Image:
    """Draw one picture, 168 x 168, turned by up to `tilt` degrees.

    The seed decides the place, the direction and the main colour of the subject.
    """
    rng = np.random.default_rng([seed, list(SCENES).index(scene)])
    main = rng.choice(SCENES[scene]["colours"])
    image = ImageOps.colorize(Image.linear_gradient("L").resize((192, 192)), *SCENES[scene]["sky"])
    for shape in SCENES[scene]["shapes"]:
        arguments = {key: main if value == "main" else value for key, value in shape.items() if key != "kind"}
        getattr(ImageDraw.Draw(image), shape["kind"])(arguments.pop("points"), **arguments)
    x, y = rng.integers(0, 25, 2).tolist()
    image = image.crop((x, y, x + 168, y + 168))
    image = ImageOps.mirror(image) if rng.random() < 0.5 else image
    rng = np.random.default_rng([seed, list(SCENES).index(scene), list(STYLES).index(style)])
    return STYLES[style](image.rotate(rng.uniform(-tilt, tilt), Image.Resampling.BICUBIC, fillcolor=TABLE), rng)


def draw_all(each: int, styles: Iterable[str] = STYLES, tilt: float = 0.0) -> dict[str, Image.Image]:
    """Draw `each` pictures of every scene in every style, by file name; folders are named after the scenes."""
    return {
        f"{scene}/{style}-{seed}.webp": draw(scene, style, seed, tilt)
        for scene in SCENES
        for style in styles
        for seed in range(each)
    }


def main() -> None:
    """Write the pictures of the demo; the same pictures give the same bytes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    with ZipFile(parser.parse_args().file, "w") as archive:
        for name, picture in draw_all(each=40, styles=["far"], tilt=60.0).items():
            buffer = io.BytesIO()
            picture.save(buffer, "WEBP", quality=85)
            archive.writestr(ZipInfo(name), buffer.getvalue())


if __name__ == "__main__":
    main()
