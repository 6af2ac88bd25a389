"""Twenty streams of the bundled model: the seven test sets as they are, and thirteen of them corrupted.

python training/corrupt.py ../shared/eval --to streams/                    # 13 minutes on two cores
python training/corrupt.py ../shared/eval --to streams/ --only pacs_noise  # one of them

Each stream is a feature file for `acclimate run` and `acclimate leaderboard`. The corruptions are those of cameras:
noise, blur, darkness, low resolution.
"""

import argparse
import csv
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from acclimate import FeatureStream, build_head, load_encoder, write_stream
from acclimate.encoders import Encoder
from acclimate.reading.walk import Preparer, encode_ahead
from evaluate import read_members

NOISE = 45.0  # standard deviation, of values from 0 to 255
BLUR = 0.02  # standard deviation as a share of the image's width
LIGHT = 0.25  # what is left of the brightness
SENSOR = 4.0  # standard deviation of the noise in the dark
SIDE = 10  # pixels of a low resolution
CORRUPTED = {
    "caltech101": ("lowres", "noise"),
    "cifar10": ("blur", "noise"),
    "eurosat": ("dark", "noise"),
    "flowers102": ("blur",),
    "oxford_pets": ("dark", "lowres"),
    "pacs": ("lowres", "noise"),
    "ucf101": ("blur", "dark"),
}
STREAMS = [(name, "clean") for name in CORRUPTED] + [(name, how) for name, each in CORRUPTED.items() for how in each]


def add_noise(image: Image.Image, rng: np.random.Generator, spread: float = NOISE, light: float = 1.0) -> Image.Image:
    """Add Gaussian noise to every value of an RGB image, of which `light` is left."""
    pixels = light * np.asarray(image, np.float64) + rng.normal(0.0, spread, (image.height, image.width, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def lower_resolution(image: Image.Image) -> Image.Image:
    """Shrink an image to few pixels and enlarge it again."""
    return image.resize((SIDE, SIDE), Image.Resampling.BOX).resize(image.size, Image.Resampling.BICUBIC)


CORRUPTIONS: dict[str, Callable[[Image.Image, np.random.Generator], Image.Image]] = {
    "clean": lambda image, rng: image,
    "noise": add_noise,
    "blur": lambda image, rng: image.filter(ImageFilter.GaussianBlur(BLUR * image.width)),
    "dark": lambda image, rng: add_noise(image, rng, SENSOR, LIGHT),
    "lowres": lambda image, rng: lower_resolution(image),
}


def corrupt(image: Image.Image, corruption: str, name: str) -> Image.Image:
    """Corrupt an RGB image; the same name always gives the same noise."""
    return CORRUPTIONS[corruption](image, np.random.default_rng([len(corruption), *name.encode()]))


def make_stream(pack: Path, dataset: str, corruption: str, encoder: Encoder, limit: int | None = None) -> FeatureStream:
    """Encode the images of a dataset, or `limit` of them at random, as one stream with all classes of the dataset."""
    with (pack / "index.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["dataset"] == dataset]
    classes = sorted({row["class_name"] for row in rows})
    if limit is not None:
        rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:limit]]
    batches = list(encode_ahead(_images(pack, [row["member"] for row in rows], corruption), Preparer(encoder)))
    assert not any(error for batch in batches for error in batch.errors)
    return FeatureStream(
        np.concatenate([batch.features for batch in batches]).astype(np.float16),  # half precision is enough
        build_head(encoder, [name.replace("_", " ") for name in classes]),
        targets=np.array([classes.index(row["class_name"]) for row in rows]),
        domains=tuple(row["domain"] for row in rows),
        encoder=f"bundled, {corruption}",
        prompts="single",
    )


def main() -> None:
    """Write the streams."""
    names = [f"{dataset}_{corruption}" for dataset, corruption in STREAMS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pack", type=Path, help="folder that contains index.csv and images.tar")
    parser.add_argument("--to", type=Path, required=True, help="folder for the feature files")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="STREAM", help="such as pacs_noise")
    parser.add_argument("--limit", type=int, help="encode only this many images of each stream, drawn at random")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    encoder = load_encoder()
    for name in options.only:
        stream = make_stream(options.pack, *STREAMS[names.index(name)], encoder, options.limit)
        write_stream(stream, options.to / f"{name}.safetensors")
        right = np.mean(stream.head.observe(stream.features).logits.argmax(axis=1) == stream.targets)
        print(f"{name}: {len(stream)} images, zero-shot {100 * right:.1f} %", flush=True)


def _images(pack: Path, members: Sequence[str], corruption: str) -> Iterator[Image.Image]:
    for member, content in zip(members, read_members(pack / "images.tar", members), strict=True):
        yield corrupt(Image.open(BytesIO(content)).convert("RGB"), corruption, member)


if __name__ == "__main__":
    main()
