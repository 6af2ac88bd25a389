"""Shot capacity: how many samples of a class each cache keeps, and how many of their labels are right."""

from acclimate.bench.figures import draw_curves
from acclimate.bench.reported import reported
from acclimate.bench.reproduce.ablation import CLIP_ON_IMAGENET, TDA_ON_IMAGENET, Ablation, Sweep
from acclimate.bench.reproduce.cells import cache_label_accuracy
from acclimate.bench.reproduce.recipe import Variant

POSITIVE = (1, 2, 3, 4, 5, 6, 8, 16)
NEGATIVE = (1, 2, 3, 4, 6, 8)
of_positive = {str(shots): Variant({"positive_capacity": shots}) for shots in POSITIVE}

RECIPE = Ablation(
    name="capacity",
    title="Shot capacity",
    about="More shots bring more support and more wrong labels: the paper settles on 3 for the positive cache and 2 "
    "for the negative one, and counts the right labels in the positive cache. The other cache keeps its own default.",
    datasets=("imagenet",),
    reported_for="imagenet",
    sweeps=(
        Sweep(
            title="Shot capacity of the positive cache: top-1 accuracy, %",
            corner="shots",
            rows=of_positive,
            reported={"zero-shot": CLIP_ON_IMAGENET, "3": TDA_ON_IMAGENET},
        ),
        Sweep(
            title="Shot capacity of the negative cache: top-1 accuracy, %",
            corner="shots",
            rows={str(shots): Variant({"negative_capacity": shots}) for shots in NEGATIVE},
            reported={"zero-shot": CLIP_ON_IMAGENET, "2": TDA_ON_IMAGENET},
        ),
        Sweep(
            title="Right labels in the positive cache: share, %",
            corner="shots",
            rows=of_positive,
            reported=reported()["cache label accuracy"],
            score=cache_label_accuracy,
        ),
    ),
    picture=draw_curves,
)
