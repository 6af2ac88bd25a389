"""A picture of what Accord sees along a stream without labels, and what comes of it: a column per stream.

Everything is measured between one change of the parameters and the next, on samples that were not learnt from yet, and
averaged over shuffled orders.

    python benchmarks/accord_picture.py STREAM... --orders 10 --out docs/results/accord.png
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acclimate import Accord, read_stream
from acclimate.bench.orders import stream_order
from acclimate.bench.plots import BLUE, GREEN, GREY, RED, check_picture, pyplot
from acclimate.stream import FeatureStream

BELIEFS = {"even": BLUE, "seen": RED}  # the order is that of the method
EXPERTS = {"zero-shot": GREY, **BELIEFS}


def curves(stream: FeatureStream, order: np.ndarray) -> dict[str, np.ndarray]:
    """Return named values (b,) for each of b blocks of a stream, from one change of the parameters to the next."""
    head = stream.head
    features = stream.features[order]
    labels = stream.targets[order]
    zero_shot = head.observe(features).logits.argmax(axis=1) == labels
    accord = Accord(head)
    right = np.zeros(len(order), dtype=bool)
    found: dict[str, list[float]] = {}
    start = 0
    while start < len(order):
        end = min(accord.next_flush(start), len(order))
        evidence = head.observe(features[start:end])
        values = {"at": (start + end) / 2}
        if accord.parameters is not None:
            values |= compare(accord, evidence)
        right[start:end] = accord.adapt(evidence).logits.argmax(axis=1) == labels[start:end]
        values["gain so far"] = right[:end].mean() - zero_shot[:end].mean()
        if len(values) > 2:
            for name, value in values.items():
                found.setdefault(name, []).append(float(value))
        start = end
    again = accord.second_pass(features).argmax(axis=1) == labels
    found["second pass"] = [float(again.mean() - zero_shot.mean())] * len(found["at"])
    return {name: np.array(each) for name, each in found.items()}


def compare(accord: Accord, evidence: Any) -> dict[str, float]:
    """Return what the method would count of samples that it has not seen, per sample, and its weights."""
    known = accord.parameters
    assert known is not None
    scores = known.model(evidence.features)
    rows = np.arange(len(evidence))
    own = evidence.probs.argmax(axis=1)
    values = {f"weight of {expert}": weight for expert, weight in zip(EXPERTS, known.weights, strict=True)}
    for number, belief in enumerate(BELIEFS):
        views = [scores.scored(number, view, known.taus[number], 0.5).argmax(axis=1) for view in scores.views[number]]
        losses = [evidence.probs[rows, own] - evidence.probs[rows, view] for view in views]
        values[f"{belief} with itself"] = np.mean(views[0] == views[1])
        values[f"{belief} with zero-shot"] = np.mean([view == own for view in views])
        values[f"stake of {belief}"] = np.mean(losses)
    return values


def draw_column(panels: Sequence[Any], name: str, mean: dict[str, np.ndarray]) -> None:
    """Draw what was found on one stream."""
    agreement, score, weight, gain = panels
    x = mean["at"]
    agreement.set_title(name, loc="left", fontsize=12, weight="bold")
    score.axhline(0, color="black", linewidth=0.6)
    for belief, colour in BELIEFS.items():
        together = 100 * mean[f"{belief} with itself"]
        apart = 100 * mean[f"{belief} with zero-shot"]
        stake = 100 * Accord.BAR * mean[f"stake of {belief}"]
        agreement.plot(x, together, color=colour, label=f"{belief}: its views with each other")
        agreement.plot(x, apart, color=colour, linestyle=":", label=f"{belief}: its views with zero-shot")
        score.plot(x, together - apart, color=colour, label=f"{belief}: gain")
        score.plot(x, stake, color=colour, linestyle="--", linewidth=1, label=f"{belief}: {Accord.BAR:g} x stake")
    layers = [mean[f"weight of {expert}"] for expert in EXPERTS]
    weight.stackplot(x, layers, labels=list(EXPERTS), colors=list(EXPERTS.values()), alpha=0.55, linewidth=0)
    weight.set_ylim(0, 1)
    gain.axhline(0, color=GREY, label="zero-shot")
    gain.plot(x, 100 * mean["gain so far"], color=GREEN, label="accord, all samples so far")
    again = 100 * mean["second pass"]
    gain.plot(x, again, color=GREEN, linestyle="--", linewidth=1, label="second pass, the whole stream")
    low, high = gain.get_ylim()
    gain.set_ylim(min(low, -3), max(high, 3))
    gain.set_xlabel("samples seen")


def main() -> None:
    """Measure and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("streams", type=Path, nargs="+", help="feature files with labels")
    parser.add_argument("--orders", type=int, default=10, help="shuffled orders to average over")
    parser.add_argument("--out", type=Path, default=Path("docs/results/accord.png"))
    options = parser.parse_args()
    check_picture(options.out)
    plt = pyplot()
    size = (1 + 4.2 * len(options.streams), 11.0)
    heights = (2.2, 2.2, 1.2, 2.0)
    figure, grid = plt.subplots(
        4, len(options.streams), figsize=size, sharex="col", layout="constrained", squeeze=False, height_ratios=heights
    )
    for path, panels in zip(options.streams, grid.T, strict=True):
        stream = read_stream(path)
        runs = [curves(stream, stream_order(stream, f"shuffled:{number}")) for number in range(options.orders)]
        draw_column(panels, path.stem, {name: np.mean([run[name] for run in runs], axis=0) for name in runs[0]})
        print(f"{path.stem}: {options.orders} orders", flush=True)
    for axes in grid.flat:
        axes.set_xscale("log")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    titles = ("agreement, %", "gain and stake, points", "weight of the experts", "gain over zero-shot, points")
    for axes, title in zip(grid[:, 0], titles, strict=True):
        axes.set_ylabel(title)
        axes.legend(frameon=False, fontsize=8, loc="best")
    figure.savefig(options.out, dpi=100, metadata={"Software": None} if options.out.suffix == ".png" else None)


if __name__ == "__main__":
    main()
