"""Measure TDA from files to answers with the acclimate that is on the path: run as a script by `versions.py`.

It uses only what every version has: `Classifier(...).stream(paths)`, `create` and `Head`. The settings are read as JSON
from standard input, and the figures are printed as JSON in the last line.
"""

import json
import statistics
import sys
from time import perf_counter
from typing import Any

import numpy as np
import torch

import acclimate
from acclimate import Classifier, Head, create


def stream_rates(settings: dict[str, Any], decoder: str) -> dict[str, Any]:
    """Return images/s of each run over all files, from its start, and the labels of the last run."""
    labels = settings["labels"]
    options = {"device": settings["device"], "decoder": decoder, "batch_size": settings["batch"], "cache": False}
    classifier = Classifier(labels, settings["model"], method="tda", **options)
    list(classifier.stream(settings["paths"][: 2 * settings["batch"]]))
    rates = []
    firsts = []
    for _ in range(settings["runs"]):
        classifier.adapter = create("tda", classifier.head)
        first = 0.0
        found = []
        began = perf_counter()
        for prediction in classifier.stream(settings["paths"]):
            first = first or perf_counter() - began
            found.append(prediction.label)
        rates.append(len(found) / (perf_counter() - began))
        firsts.append(1e3 * first)
    return {"decoder": classifier.decoder, "rates": rates, "first_ms": statistics.median(firsts), "labels": found}


def step_us(settings: dict[str, Any]) -> float:
    """Return the microseconds per sample of TDA's step with full caches, the median of several turns."""
    generator = torch.Generator().manual_seed(0)
    classes = settings["step_classes"]
    batch = settings["step_batch"]
    vectors = torch.randn(classes, 512, generator=generator)
    features = vectors[torch.randint(classes, (8 * batch,), generator=generator)]
    features = features + 2.0 * torch.randn(len(features), 512, generator=generator)
    if settings["device"].startswith("cuda"):
        vectors = vectors.to(settings["device"])
        features = features.to(settings["device"])
    adapter = create("tda", Head(vectors, 100.0))
    parts = features.split(batch)
    times = []
    for turn in range(6):
        finish(settings["device"])
        began = perf_counter()
        for part in parts:
            adapter.step(part)
        finish(settings["device"])
        if turn > 1:
            times.append(perf_counter() - began)
    return 1e6 * statistics.median(times) / len(features)


def finish(device: str) -> None:
    """Wait for the device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def main() -> None:
    """Measure, and print the figures."""
    settings = json.load(sys.stdin)
    print(f"acclimate of {acclimate.__file__}, torch {torch.__version__}, numpy {np.__version__}", flush=True)
    found = {decoder: stream_rates(settings, decoder) for decoder in settings["decoders"]}
    print(json.dumps({"streams": found, "step_us": step_us(settings)}))


if __name__ == "__main__":
    main()
