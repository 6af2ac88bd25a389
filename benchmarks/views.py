"""What views cost, against reading an image once.

The same JPEG files, several ways that take turns, all per image and on one thread but the last:

- read once: decoding and one plain preparation (the floor that every classifier pays);
- 63 views with Pillow; the floor's arithmetic for 64 prepared images would be 64 preparations;
- 63 views as tensor operations, on `--device`;
- 64 views of every image through the driver with `--workers` threads and an encoder that costs nothing.

    python benchmarks/views.py [--device cuda]
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from acclimate.bench.encode import iter_view_batches
from acclimate.encoders.images import Preprocess, open_image
from acclimate.views import augment, tensor
from acclimate.views.plan import draw_plan
from classify_overhead import draw_photos
from tiny_models import MEANS, STDS

VIEWS = 63


class NoModel:
    """Takes prepared images and gives a feature that costs next to nothing."""

    dim, logit_scale, logit_bias, fingerprint = 3, 100.0, 0.0, ""

    def __init__(self, prepare: Callable) -> None:
        self.prepare = prepare

    def encode_images(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """The first pixel (n, 3)."""
        return np.stack([image[:, 0, 0] for image in images])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=12)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--size", type=int, default=224, help="of the model's input")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="for the tensor operations")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = options.size
    prepare = Preprocess(size, size, size, "bicubic", tuple(MEANS["clip"]), tuple(STDS["clip"]))
    target = augment.ModelInput.of(prepare)
    with tempfile.TemporaryDirectory() as name:
        draw_photos(Path(name), options.images)
        paths = sorted(Path(name).iterdir())
        images = [open_image(path) for path in paths]
        plans = [draw_plan(0, i, VIEWS, image.size, (size, size)) for i, image in enumerate(images)]
        pixels = [torch.as_tensor(np.array(image).transpose(2, 0, 1), device=options.device) for image in images]

        def read_once() -> None:
            for path in paths:
                prepare(open_image(path))

        def pillow() -> None:
            for image, plan in zip(images, plans, strict=True):
                augment.make_views(image, plan, target)

        def tensors() -> None:
            for image, plan in zip(pixels, plans, strict=True):
                tensor.make_views(image, plan, target)
            if options.device != "cpu":
                torch.cuda.synchronize()

        def driver() -> None:
            for _ in iter_view_batches(paths, NoModel(prepare), VIEWS + 1, workers=options.workers):
                pass

        sides = {
            "read once": read_once,
            f"{VIEWS} views, Pillow": pillow,
            f"{VIEWS} views, tensors on {options.device}": tensors,
            f"driver, {options.workers} workers": driver,
        }
        times: dict[str, list[float]] = {side: [] for side in sides}
        for turn in range(options.turns + 1):
            for side, run in sides.items():
                began = perf_counter()
                run()
                if turn:
                    times[side].append((perf_counter() - began) / options.images)
    floor = float(np.median(times["read once"]))
    print(f"{options.images} images of 500 x 375, views of {size} x {size}, medians of {options.turns} turns")
    print(f"{'':28}{'ms/image':>10}{'x read once':>13}{'ms/view':>10}")
    for side, values in times.items():
        seconds, views = float(np.median(values)), 1 if side == "read once" else VIEWS
        print(f"{side:28}{1e3 * seconds:10.1f}{seconds / floor:13.1f}{1e3 * seconds / views:10.2f}")


if __name__ == "__main__":
    main()
