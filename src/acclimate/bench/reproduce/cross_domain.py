"""Table 3: ten datasets of other kinds."""

from acclimate.bench.datasets import SUITES
from acclimate.bench.reproduce.suite_table import SuiteTable

RECIPE = SuiteTable(
    name="cross-domain",
    title="Cross-domain generalisation (Table 3)",
    about="One view an image, each dataset's own prompts. Zero-shot here has the same prompts as TDA, which the "
    "paper's CLIP row has not.",
    datasets=SUITES["cross-domain"],
    averages={"Average": SUITES["cross-domain"]},
)
