"""Table 1: ImageNet and the four datasets that shift away from it."""

from acclimate.bench.datasets import SUITES
from acclimate.bench.reproduce.suite_table import SuiteTable

RECIPE = SuiteTable(
    name="ood",
    title="Natural distribution shifts (Table 1)",
    about="ImageNet with one view an image; -A, -V2, -R and -S with 64 AugMix views, of which the most confident tenth "
    "is kept. Zero-shot here has the same prompts and views as TDA, which the paper's CLIP row has not.",
    datasets=SUITES["ood"],
    averages={"Average": SUITES["ood"], "OOD average": SUITES["ood"][1:]},
)
