"""Pixels, features, tokens and class vectors; and AugMix's views, whose random choices both sides are given."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image

from acclimate import build_head
from acclimate.arrays import HostArray
from acclimate.views.augment import OPERATIONS, ModelInput, ViewPlan, draw_plan, make_views
from fidelity_parts.authors import Clones, single_precision
from fidelity_parts.models import CLASSES, SIZES, TEMPLATES, Pair, images
from fidelity_parts.rows import Row, exact_row, values_row

IMAGE_SIZES = ((224, 224), (500, 375), (375, 500), (227, 301), (640, 223), (100, 80), (33, 180), (1200, 240))
TEXTS = ("a photo of a dog.", "Café au lait, 2 cups!!", "naïve façade", "x", "it's   spaced", "737-800 vs. A320")
TEXTS += ("UPPER lower MiXeD", "hen_of_the_woods", "1,234.5 %", "(brackets) [too]", "emoji-free", "Straße", "don't", "")
VIEWS = 128
SIZE = SIZES["ViT"]  # of a view; it is fixed in AugMix's code
DRAWS = 20_000
SAME = 1.63  # Kolmogorov and Smirnov's bound at 1 % for two samples of n draws each: 1.63 times the root of 2 / n


def rows(clones: Clones, pair: Pair) -> Iterator[Row]:
    """Compare what both sides make of images and texts."""
    with clones.importing("tda") as module:
        clip = module("clip.clip")
        classifier = module("utils").clip_classifier
    model = pair.load(clip)
    encoder = pair.encoder
    if "torchvision" not in clones.stood_in:
        drawn = images(IMAGE_SIZES * 6, seed=0)
        theirs = [clip._transform(pair.size)(image).numpy() for image in drawn]
        what = f"`clip._transform`, {len(drawn)} images in {len(IMAGE_SIZES)} sizes"
        yield values_row(f"Pixels, {pair.name}", what, theirs, [np.asarray(encoder.prepare(image)) for image in drawn])
    shown = pair.pixels(64, seed=13)
    with single_precision(), torch.no_grad():
        features = model.encode_image(shown).numpy()
        vectors = classifier(CLASSES, TEMPLATES, model).numpy().T
        ids = clip.tokenize(list(TEXTS))
        text_features = model.encode_text(ids).numpy()
    what = f"`encode_image`, {len(shown)} images"
    yield values_row(f"Image features, {pair.name}", what, features, encoder.encode_images(shown))
    ends = ids.argmax(dim=1).tolist()
    theirs, ours = (
        [row[: end + 1] for row, end in zip(each.tolist(), ends, strict=True)] for each in (ids, _ids(pair))
    )
    yield exact_row(f"Tokens, {pair.name}", "`clip.tokenize`, texts up to their end", theirs, ours)
    yield values_row(f"Text features, {pair.name}", "`encode_text`", text_features, encoder.encode_text(list(TEXTS)))
    head = build_head(encoder, CLASSES, TEMPLATES, cache=False)
    what = f"`clip_classifier`, {len(TEMPLATES)} templates"
    yield values_row(f"Class vectors, {pair.name}", what, vectors, head.class_vectors)


def view_rows(clones: Clones, pair: Pair) -> Iterator[Row]:
    """Compare AugMix's views for the same random choices, and how crops are drawn."""
    if "torchvision" in clones.stood_in:
        return
    from torchvision.transforms import RandomResizedCrop

    (image,) = images([(320, 260)], seed=14)
    plan = draw_plan(0, 0, VIEWS, image.size, (SIZE, SIZE))
    ours = make_views(image, plan, ModelInput.of(pair.encoder.prepare))
    authors = AugMix(clones)
    theirs = [authors.view(image, Choices(plan, number)) for number in range(VIEWS)]
    what = f"`augmix` and torchvision's crops, {VIEWS} views by the same random choices"
    yield values_row("AugMix views", what, theirs, ours)
    for size in ((224, 224), (640, 360), (150, 600)):
        empty = Image.new("RGB", size)
        theirs = [RandomResizedCrop.get_params(empty, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(DRAWS)]
        top, left, height, width = np.array(theirs).T
        boxes = draw_plan(1, 0, DRAWS, size, (SIZE, SIZE)).boxes.T
        mine = (boxes[1], boxes[0], boxes[3] - boxes[1], boxes[2] - boxes[0])
        far = max(_distance(one, other) for one, other in zip((top, left, height, width), mine, strict=True))
        what = f"`RandomResizedCrop.get_params`, {DRAWS:,} draws for {size[0]} x {size[1]} pixels: distance of"
        what += " Kolmogorov and Smirnov, of what is significant at 1 %"
        bound = SAME * (2 / DRAWS) ** 0.5
        yield Row("Crops", what, far, bound, int(far <= bound), 1, limit=1.0)


def _ids(pair: Pair) -> Any:
    return pair.encoder.token_ids(list(TEXTS))


class Choices:
    """What stands for `numpy.random` in the authors' code: it returns the choices of a view of a plan in order."""

    def __init__(self, plan: ViewPlan, number: int) -> None:
        self.box = plan.boxes[number]
        self.flip = plan.flips[number]
        weights = plan.weights[number]
        self.mixture = weights[1:] / (1 - weights[0])
        self.share = weights[0]
        self.depths = iter(plan.depths[number].tolist())
        self.steps = iter(
            (OPERATIONS[operation], amount)
            for chain, depth in enumerate(plan.depths[number])
            for operation, amount in zip(
                plan.operations[number, chain, :depth], plan.amounts[number, chain, :depth], strict=True
            )
        )

    def crop(self, image: Image.Image) -> Image.Image:
        """Return the crop by torchvision."""
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.functional import hflip, resized_crop

        left, top, right, bottom = self.box.tolist()
        found = resized_crop(image, top, left, bottom - top, right - left, [SIZE, SIZE], InterpolationMode.BILINEAR)
        return hflip(found) if self.flip else found

    def dirichlet(self, _: Any) -> HostArray:
        """Return the weights of the chains."""
        return self.mixture

    def beta(self, *_: Any) -> float:
        """Return the weight of the crop."""
        return float(self.share)

    def randint(self, *_: Any) -> int:
        """Return the number of operations of the next chain."""
        return next(self.depths)

    def choice(self, operations: Any) -> Any:
        """Return the next operation, and keep its strength."""
        self.name, self.amount = next(self.steps)
        return next(each for each in operations if each.__name__ == self.name)

    def uniform(self, low: float | None = None, high: float | None = None) -> float:
        """Return the level that gives the strength, or a number that gives its sign."""
        if low is None:
            return self.random()
        size = abs(self.amount)
        levels = {"rotate": (size + 0.5) / 3, "solarize": (256 - size + 0.5) / 25.6}
        levels |= dict.fromkeys(("shear_x", "shear_y"), size / 0.03)
        levels |= dict.fromkeys(("translate_x", "translate_y"), (size + 0.5) / (SIZE / 30))
        return float(levels.get(self.name, 0.5))

    def random(self) -> float:
        """Return a number that gives the sign of the strength."""
        return 1.0 if self.amount < 0 else 0.0


class AugMix:
    """The authors' AugMix with given choices in place of random ones."""

    def __init__(self, clones: Clones) -> None:
        with clones.importing("tda") as module:
            self.data = module("datasets.utils")
            self.operations = module("datasets.augmix_ops")
            self.preprocess = module("utils").get_ood_preprocess().preprocess

    def view(self, image: Image.Image, choices: Choices) -> HostArray:
        """Return a view (3, SIZE, SIZE)."""
        numbers = SimpleNamespace(random=choices, float32=np.float32)
        with (
            mock.patch.object(self.data, "np", numbers),
            mock.patch.object(self.operations, "np", numbers),
            mock.patch.object(self.data, "get_preaugment", return_value=choices.crop),
        ):
            return self.data.augmix(image, self.preprocess, self.operations.augmentations).numpy()


def _distance(one: HostArray, other: HostArray) -> float:
    """Return the largest difference between the distribution functions of two samples."""
    values = np.union1d(one, other)
    shares = (np.searchsorted(np.sort(each), values, side="right") / len(each) for each in (one, other))
    return float(np.abs(np.subtract(*shares)).max())
