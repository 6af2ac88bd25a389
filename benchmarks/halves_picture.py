"""What Halves sees along a stream without labels, beside what labels say: one column of the picture per stream.

Everything is measured between one change of the parameters and the next, on samples that were not learnt from yet, and
averaged over shuffled orders.

    python benchmarks/halves_picture.py STREAM... --orders 10 --out docs/results/halves.png
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acclimate import TDA, Halves, read_stream
from acclimate.bench.orders import stream_order
from acclimate.bench.plots import BLUE, GREEN, GREY, RED, check_picture, pyplot
from acclimate.methods import refine
from acclimate.stream import FeatureStream

FIRST = 64  # position from which curves are drawn; before, the halves were not compared


def curves(stream: FeatureStream, order: np.ndarray) -> dict[str, np.ndarray]:
    """Named values (b,) for each of b blocks of a stream, from one change of the parameters to the next."""
    head, features, labels = stream.head, stream.features[order], stream.labels[order]
    halves, tda = Halves(head), TDA(head)
    found: dict[str, list[float]] = {}
    start = 0
    while start < len(order):
        end = min(halves.settles_at(start), len(order))
        evidence, true = head.observe(features[start:end]), labels[start:end]
        own = evidence.logits.argmax(axis=1)
        values = {"end": end, "samples": end - start, "weight": halves.weight, "zero-shot": np.mean(own == true)}
        if halves.scorers:
            seen = halves._center(evidence)
            even, odd = (scorer(*seen).argmax(axis=1) for scorer in halves.scorers[1:])
            values["with each other"] = np.mean(even == odd)
            values["with zero-shot"] = np.mean([even == own, odd == own])
            values["a half"] = np.mean([even == true, odd == true])
        values["tda"] = np.mean(tda.adapt(evidence).logits.argmax(axis=1) == true)
        values["halves"] = np.mean(halves.adapt(evidence).logits.argmax(axis=1) == true)
        if end > FIRST:
            for name, value in values.items():
                found.setdefault(name, []).append(float(value))
        start = end
    whole = {"second pass": refine(halves, features), "all of zero-shot": head.observe(features).logits}
    for name, logits in whole.items():
        found[name] = [float(np.mean(logits.argmax(axis=1) == labels))] * len(found["end"])
    return {name: np.array(each) for name, each in found.items()}


def draw_column(panels: Sequence[Any], name: str, mean: dict[str, np.ndarray]) -> None:
    """Draw what was found on one stream."""
    agreement, error, weight, gain = panels
    x = mean["end"] - mean["samples"] / 2
    together, apart = 100 * mean["with each other"], 100 * mean["with zero-shot"]
    agreement.fill_between(x, together, apart, where=together >= apart, color=GREEN, alpha=0.12, linewidth=0)
    agreement.plot(x, together, color=GREEN, label="halves with each other")
    agreement.plot(x, apart, color=GREY, label="halves with zero-shot")
    agreement.set_title(name, loc="left", fontsize=12, weight="bold")
    error.axhline(0, color="black", linewidth=0.6)
    error.axhline(100 * Halves.SHARED, color=RED, linestyle="--", linewidth=1, label="allowed for errors in common")
    error.plot(x, together - apart, color=GREEN, label="excess of agreement (no labels)")
    truth = 100 * (mean["a half"] - mean["zero-shot"])
    error.plot(x, truth, color="black", linestyle=":", label="accuracy of a half above zero-shot (labels)")
    weight.fill_between(x, mean["weight"], color=BLUE, alpha=0.25, linewidth=0)
    weight.plot(x, mean["weight"], color=BLUE, label="weight of the head")
    weight.set_ylim(0, Halves.WEIGHT)
    gain.axhline(0, color=GREY, label="zero-shot")
    for method, colour in (("tda", RED), ("halves", GREEN)):
        gain.plot(x, 100 * (mean[method] - mean["zero-shot"]), color=colour, label=method)
    again = 100 * (mean["second pass"] - mean["all of zero-shot"])
    gain.plot(x, again, color=GREEN, linestyle="--", linewidth=1, label="halves, second pass, all samples")
    low, high = gain.get_ylim()
    gain.set_ylim(min(low, -3), max(high, 3))
    gain.set_xlabel("samples seen")


def main() -> None:
    """Measure and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("streams", type=Path, nargs="+", help="feature files with labels")
    parser.add_argument("--orders", type=int, default=10, help="shuffled orders to average over")
    parser.add_argument("--out", type=Path, default=Path("docs/results/halves.png"))
    options = parser.parse_args()
    check_picture(options.out)
    plt = pyplot()
    size, heights = (1 + 4.2 * len(options.streams), 10.5), (2, 2, 1.1, 2.4)
    figure, grid = plt.subplots(
        4, len(options.streams), figsize=size, sharex="col", layout="constrained", squeeze=False, height_ratios=heights
    )
    for path, panels in zip(options.streams, grid.T, strict=True):
        stream = read_stream(path)
        runs = [curves(stream, stream_order(stream, f"seed:{number}")) for number in range(options.orders)]
        draw_column(panels, path.stem, {name: np.mean([run[name] for run in runs], axis=0) for name in runs[0]})
        print(f"{path.stem}: {options.orders} orders", flush=True)
    for axes in grid.flat:
        axes.set_xscale("log")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    titles = ("agreement, %", "points", "weight", "gain over zero-shot, points")
    for axes, title in zip(grid[:, 0], titles, strict=True):
        axes.set_ylabel(title)
        axes.legend(frameon=False, fontsize=8, loc="best")
    figure.savefig(options.out, dpi=100, metadata={"Software": None} if options.out.suffix == ".png" else None)


if __name__ == "__main__":
    main()
