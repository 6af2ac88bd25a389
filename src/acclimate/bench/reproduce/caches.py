"""The two-caches figure: neither cache, the positive one, the negative one, both."""

from acclimate.bench.datasets import SUITES
from acclimate.bench.figures import draw_gains_by_dataset
from acclimate.bench.reported import reported
from acclimate.bench.reproduce.ablation import MODEL, Ablation, Sweep
from acclimate.bench.reproduce.recipe import Variant

RECIPE = Ablation(
    name="caches",
    title="Two caches",
    about="Each cache alone improves on zero-shot, and both together improve most. Look at the average: on a single "
    "dataset one of the caches may add nothing.",
    datasets=SUITES["cross-domain"],
    reported_for="average",
    sweeps=(
        Sweep(
            title="Caches: top-1 accuracy, %",
            corner="caches",
            rows={
                "positive": Variant({"negative": False}),
                "negative": Variant({"positive": False}),
                "both": Variant(),
            },
            reported={"zero-shot": reported()["cross-domain"]["average"][MODEL]["CLIP"], **reported()["caches"]},
        ),
    ),
    picture=draw_gains_by_dataset,
)
