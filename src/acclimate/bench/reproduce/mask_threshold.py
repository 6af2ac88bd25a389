"""The mask's threshold p_l: which classes a sample in the negative cache speaks against."""

from acclimate.bench.figures import draw_curves
from acclimate.bench.reported import reported
from acclimate.bench.reproduce.ablation import CLIP_ON_IMAGENET, TDA_ON_IMAGENET, Ablation, Sweep
from acclimate.bench.reproduce.recipe import Variant

THRESHOLDS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)

RECIPE = Ablation(
    name="mask-threshold",
    title="Mask threshold p_l",
    about="A sample in the negative cache speaks against every class it found likelier than p_l; the paper takes 0.03. "
    "At 0 it speaks against all classes alike, which changes no answer.",
    datasets=("imagenet",),
    reported_for="imagenet",
    sweeps=(
        Sweep(
            title="p_l, negative cache alone: top-1 accuracy, %",
            corner="p_l",
            rows={f"{p:g}": Variant({"positive": False, "mask_low": p}) for p in THRESHOLDS},
            reported={"zero-shot": CLIP_ON_IMAGENET, "0.03": reported()["entropy-range lowest"]["0.2-0.5"]},
        ),
        Sweep(
            title="p_l, both caches: top-1 accuracy, %",
            corner="p_l",
            rows={f"{p:g}": Variant({"mask_low": p}) for p in THRESHOLDS},
            reported={"zero-shot": CLIP_ON_IMAGENET, "0.03": TDA_ON_IMAGENET},
        ),
    ),
    picture=draw_curves,
)
