"""Twenty streams of the bundled model: the seven test sets as they are, and thirteen of them corrupted.

    python training/corrupt.py ../shared/eval --out streams/

Each stream is a feature file that `acclimate run` and `acclimate leaderboard` read. The corruptions are those a camera
meets: noise, blur, darkness, low resolution.
"""

import argparse
import csv
import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from acclimate import FeatureStream, build_head, load_encoder, write_stream
from acclimate.predict import encode_ahead

NOISE = 45.0  # standard deviation on the scale of 0 to 255
BLUR = 0.02  # standard deviation as a share of the image's width
LIGHT = 0.25  # what is left of the brightness
SIDE = 10  # pixels of a low resolution
PAIRS = (
    *(("caltech101", "lowres"), ("caltech101", "noise"), ("cifar10", "blur"), ("cifar10", "noise")),
    *(("eurosat", "dark"), ("eurosat", "noise"), ("flowers102", "blur"), ("oxford_pets", "dark")),
    *(("oxford_pets", "lowres"), ("pacs", "lowres"), ("pacs", "noise"), ("ucf101", "blur"), ("ucf101", "dark")),
)


def noise(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Add Gaussian noise to every pixel."""
    pixels = np.asarray(image, np.float64) + rng.normal(0.0, NOISE, (image.height, image.width, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def blur(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Put the image out of focus."""
    return image.filter(ImageFilter.GaussianBlur(BLUR * image.width))


def dark(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Leave little light, and a little noise as sensors have it."""
    pixels = LIGHT * np.asarray(image, np.float64) + rng.normal(0.0, 4.0, (image.height, image.width, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def lowres(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Shrink the image to few pixels and enlarge it again."""
    small = image.resize((SIDE, SIDE), Image.Resampling.BOX)
    return small.resize(image.size, Image.Resampling.BICUBIC)


CORRUPTIONS: dict[str, Callable[[Image.Image, np.random.Generator], Image.Image]] = {
    "clean": lambda image, rng: image,
    "noise": noise,
    "blur": blur,
    "dark": dark,
    "lowres": lowres,
}


def images(folder: Path, members: list[str], corruption: str) -> Iterator[np.ndarray]:
    """The images of a pack as arrays; the same image always gets the same noise."""
    with tarfile.open(folder / "images.tar") as tar:
        for member in members:
            content = tar.extractfile(member)
            assert content is not None
            image = Image.open(BytesIO(content.read())).convert("RGB")
            rng = np.random.default_rng([len(corruption), *member.encode()])
            yield np.asarray(CORRUPTIONS[corruption](image, rng))


def main() -> None:
    """Write the streams."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pack", type=Path, help="folder with index.csv and images.tar")
    parser.add_argument("--out", type=Path, default=Path("streams"), help="folder for the feature files")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.pack / "index.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    encoder = load_encoder("bundled")
    datasets = sorted({row["dataset"] for row in rows})
    for dataset, corruption in [*((dataset, "clean") for dataset in datasets), *PAIRS]:
        own = [row for row in rows if row["dataset"] == dataset]
        classes = sorted({row["class_name"] for row in own})
        pixels = images(options.pack, [row["member"] for row in own], corruption)
        features = np.concatenate([batch.features for batch in encode_ahead(pixels, encoder)])
        stream = FeatureStream(
            features.astype(np.float16),
            build_head(encoder, [name.replace("_", " ") for name in classes]),
            labels=np.array([classes.index(row["class_name"]) for row in own]),
            domains=tuple(row["domain"] for row in own),
            encoder=f"bundled, {corruption}",
            prompts="single",
        )
        write_stream(stream, options.out / f"{dataset}_{corruption}.safetensors")
        evidence = stream.head.observe(stream.features)
        right = np.mean(evidence.logits.argmax(axis=1) == stream.labels)
        print(f"{dataset}_{corruption}: {len(stream)} images, zero-shot {100 * right:.1f} %", flush=True)


if __name__ == "__main__":
    main()
