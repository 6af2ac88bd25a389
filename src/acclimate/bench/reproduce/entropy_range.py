"""Both halves of the thresholds table: which samples the negative cache is offered, and which of them it keeps."""

from acclimate.bench.figures import draw_ranges
from acclimate.bench.reported import reported
from acclimate.bench.reproduce.ablation import CLIP_ON_IMAGENET, Ablation, Sweep
from acclimate.bench.reproduce.recipe import Variant


def _sweep(keep: str) -> Sweep:
    told = reported()[f"entropy-range {keep}"]
    rows = {}
    for label in told:
        low, high = map(float, label.split("-"))
        settings = {"positive": False, "negative_keep": keep, "entropy_low": low, "entropy_high": high}
        rows[label] = Variant(settings)
    title = f"Negative cache alone, {keep} entropies kept: top-1 accuracy, %"
    return Sweep(title, "range", rows, {"zero-shot": CLIP_ON_IMAGENET, **told})


RECIPE = Ablation(
    name="entropy-range",
    title="Range of entropies for the negative cache",
    about="The negative cache alone. In the paper moderate entropies (0.2 to 0.5) do best, and keeping the lowest "
    "entropies of a range does better than keeping the highest. Ranges are of H / log2(K), H in nats.",
    datasets=("imagenet",),
    reported_for="imagenet",
    sweeps=(_sweep("lowest"), _sweep("highest")),
    picture=draw_ranges,
)
