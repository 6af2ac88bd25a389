"""How `eurosat.safetensors` was made of the features of EuroSAT's test images.

    python tests/data/draw_eurosat.py FEATURES --tda DIR

FEATURES has the features of CoOp's 8,100 test images by CLIP ViT-B/16, class vectors, labels and an order; DIR is a
clone of kdiAAA/TDA, whose own code answers the 500 rows that are drawn.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from fidelity_parts import tda
from fidelity_parts.authors import Clones

TO = Path(__file__).with_name("eurosat.safetensors")
ROWS = 500
SEED = 0
TAIL = 32


def main() -> None:
    """Draw the rows, have TDA's authors' code answer them in order, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("features", type=Path)
    parser.add_argument("--tda", type=Path, required=True)
    given = parser.parse_args()
    whole = load_file(given.features)
    with safe_open(given.features, "numpy") as file:
        about = file.metadata()
    drawn = np.sort(np.random.default_rng(SEED).choice(len(whole["labels"]), ROWS, replace=False))
    place = np.argsort(whole["order"])  # of each sample in the order
    tensors = {
        "features": whole["features"][drawn],
        "labels": whole["labels"][drawn],
        "class_vectors": whole["class_vectors"],
        "order": np.argsort(place[drawn]),
    }
    logits = published_answers(Clones({"tda": given.tda}), tensors)
    tensors |= {"reference_predictions": logits.argmax(axis=1), "reference_logits_tail": logits[-TAIL:]}
    save_file(tensors, TO, about)


def published_answers(clones: Clones, tensors: dict[str, np.ndarray]) -> np.ndarray:
    """Return the logits (n, K) that the authors' code gives with the paper's settings, in order."""
    with clones.importing("tda") as module:
        runner = module("tda_runner")
    features, vectors = (
        torch.nn.functional.normalize(torch.from_numpy(rows).float(), dim=-1)
        for rows in (tensors["features"][tensors["order"]], tensors["class_vectors"])
    )
    return tda.run(runner, tda.config_of(clones, "imagenet"), features[:, None], vectors.T, (True, True))


if __name__ == "__main__":
    main()
