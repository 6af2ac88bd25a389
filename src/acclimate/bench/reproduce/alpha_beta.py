"""The positive cache's alpha (weight of its votes) and beta (sharpness of the affinity)."""

from acclimate.bench.figures import draw_curves
from acclimate.bench.reported import reported
from acclimate.bench.reproduce.ablation import CLIP_ON_IMAGENET, Ablation, Sweep
from acclimate.bench.reproduce.recipe import Variant


def _sweep(setting: str, meaning: str) -> Sweep:
    told = reported()[setting]
    rows = {label: Variant({f"positive_{setting}": float(label)}) for label in told}
    return Sweep(f"{meaning}, {setting}: top-1 accuracy, %", setting, rows, {"zero-shot": CLIP_ON_IMAGENET, **told})


RECIPE = Ablation(
    name="alpha-beta",
    title="Alpha and beta of the positive cache",
    about="Both were chosen on ImageNet (2 and 5) and kept for all other datasets; here the other one keeps its "
    "default. A flat curve means that the choice matters little.",
    datasets=("imagenet",),
    reported_for="imagenet",
    sweeps=(_sweep("alpha", "Weight of the votes"), _sweep("beta", "Sharpness of the affinity")),
    picture=draw_curves,
)
