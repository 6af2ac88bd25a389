"""The cost of views, relative to reading an image once.

The same JPEG files are processed in turns:

- read once: decoding and one preparation without views on one thread, which every classifier needs (the baseline);
- 63 views with Pillow, one thread; and their crops alone, without AugMix;
- 63 views as tensor operations on `--device`, of one image at a time and of all at once; on the CPU, one thread;
- encode_ahead: reading, preparing and 63 views, with one worker and with two, for an encoder that costs almost nothing.

    python benchmarks/views.py [--device cuda]
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from acclimate.encoders.preprocess import Preprocess
from acclimate.images.opening import open_image
from acclimate.reading.walk import Preparer, encode_ahead
from acclimate.views import augment, tensor
from acclimate.views.augment import ViewPlan, draw_plan
from classify_overhead import draw_photos
from tiny_models import MEANS, STDS

VIEWS = 63


class NoModel:
    """An encoder whose features cost almost nothing."""

    dim = 3
    logit_scale = 100.0
    logit_bias = 0.0
    fingerprint = ""

    def __init__(self, prepare: Callable) -> None:
        self.prepare = prepare

    def encode_images(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Return the first pixel (n, 3)."""
        return np.stack([image[:, 0, 0] for image in images])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--size", type=int, default=224, help="of the model's input")
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
        plans, crops = (
            [draw_plan(0, i, VIEWS, image.size, (size, size), augmix) for i, image in enumerate(images)]
            for augmix in (True, False)
        )
        pixels = [torch.as_tensor(np.array(image).transpose(2, 0, 1), device=options.device) for image in images]

        def read_once() -> None:
            for path in paths:
                prepare(open_image(path))

        def pillow(plans: Sequence[ViewPlan]) -> None:
            for image, plan in zip(images, plans, strict=True):
                augment.make_views(image, plan, target)

        def tensors(at_once: int) -> None:
            for begin in range(0, len(pixels), at_once):
                some = slice(begin, begin + at_once)
                tensor.make_views(pixels[some], plans[some], target)
            if options.device != "cpu":
                torch.cuda.synchronize()

        def walk(workers: int) -> None:
            views = VIEWS + 1
            for _ in encode_ahead(paths, Preparer(NoModel(prepare), views), batch_size=4 * views, workers=workers):
                pass

        sides = {
            "read once": read_once,
            f"{VIEWS} views, Pillow": partial(pillow, plans),
            f"{VIEWS} crops, Pillow": partial(pillow, crops),
            f"{VIEWS} views, {options.device}, 1 image": partial(tensors, 1),
            f"{VIEWS} views, {options.device}, {options.images} images": partial(tensors, options.images),
            "encode_ahead, 1 worker": partial(walk, 1),
            "encode_ahead, 2 workers": partial(walk, 2),
        }
        best = dict.fromkeys(sides, (np.inf, np.inf))
        for _ in range(options.turns):
            for side, run in sides.items():
                began = perf_counter()
                cpu_began = process_time()
                run()
                spent = perf_counter() - began, process_time() - cpu_began
                best[side] = tuple(min(pair) for pair in zip(best[side], spent, strict=True))
    print(
        f"{options.images} images of 500 x 375, views of {size} x {size}; ms per image, best of {options.turns} turns"
    )
    print(f"{'':28}{'elapsed':>10}{'CPU':>10}{'CPU x read once':>17}")
    for side, (elapsed, cpu) in best.items():
        ratio = cpu / best["read once"][1]
        print(f"{side:28}{1e3 * elapsed / options.images:10.2f}{1e3 * cpu / options.images:10.2f}{ratio:17.1f}")
    _, by_pillow, _, alone, together, *_ = (elapsed for elapsed, _ in best.values())
    print(f"All at once: {by_pillow / together:.1f} times as fast as Pillow, {alone / together:.2f} as one at a time")


if __name__ == "__main__":
    main()
