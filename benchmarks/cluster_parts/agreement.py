"""How far the answers of `merged` are from those of `ordered`, on streams of real features, and how accurate both are.

No images and no Ray: the same functions as in the cluster, shard after shard in one process.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from acclimate import create, merge_states, read_stream
from acclimate.bench.plots import BLUE, COLOURS, GREEN, GREY, RED, pyplot
from acclimate.methods import Adapter, duplicate
from acclimate.stream import FeatureStream
from cluster_parts.figures import Figures

METHODS = ("tda", "accord", "dota")
SHARDS = (2, 4, 8, 16)
EVERY = (32, 128, 512, 1024, 4096)
PART = "agreement"
LONG = 8000  # samples of a stream in which several large rounds fit after that
NOTHING = "from nothing"
ORDERED = "ordered first"
STARTS = {NOTHING: 0, ORDERED: 2048}  # images that are taken in order before the first round; the second is the default
LINES = dict(zip(SHARDS, (BLUE, GREEN, RED, COLOURS[5]), strict=True))


@dataclass(frozen=True)
class Answers:
    """The classes that a run answers (n,), one sample after another, and with what it knows at the end."""

    online: np.ndarray
    again: np.ndarray


def ordered(adapter: Adapter, features: np.ndarray) -> Answers:
    """One adapter takes the whole stream."""
    online = adapter.step(features, ids=np.arange(len(features))).argmax(axis=1)
    return Answers(online, _again(adapter, features))


def merged(adapter: Adapter, features: np.ndarray, shards: int, every: int, warm: int = 0) -> Answers:
    """Rounds of `shards` blocks of `every` samples; each block begins with what was known at the start of its round.

    The first `warm` samples are taken in order.
    """
    online = np.empty(len(features), int)
    online[:warm] = adapter.step(features[:warm], ids=np.arange(warm)).argmax(axis=1) if warm else 0
    for begin in range(warm, len(features), shards * every):
        after = []
        for first in range(begin, min(begin + shards * every, len(features)), every):
            block = slice(first, min(first + every, len(features)))
            after.append(duplicate(adapter))
            online[block] = after[-1].step(features[block], ids=np.arange(block.start, block.stop)).argmax(axis=1)
        adapter = merge_states(after, start=adapter)
    return Answers(online, _again(adapter, features))


def _again(adapter: Adapter, features: np.ndarray) -> np.ndarray:
    return np.concatenate([np.asarray(logits).argmax(axis=1) for logits in adapter.refined(features)])


Row = tuple[str, float, dict[str, str | int]]


def _measure(path: Path, method: str, shards: Sequence[int], every: Sequence[int]) -> list[Row]:
    """The figures of one stream and method: what, value and settings."""
    stream: FeatureStream = read_stream(path)
    order = stream.order if stream.order is not None else np.arange(len(stream.features))
    features = stream.features[order]
    labels = stream.targets[order]
    given = {"stream": path.stem, "method": method, "classes": len(stream.head)}
    single = ordered(create(method, stream.head), features)
    zero_shot = stream.head.observe(features).probs.argmax(axis=1)
    found: list[Row] = [
        ("zero-shot accuracy", 100 * np.mean(zero_shot == labels), given),
        ("ordered accuracy", 100 * np.mean(single.online == labels), given),
        ("ordered accuracy, second pass", 100 * np.mean(single.again == labels), given),
        ("samples", len(labels), given),
        ("zero-shot differs", 100 * np.mean(zero_shot != single.online), given),
    ]
    for count, size, (start, first) in product(shards, every, STARTS.items()):
        if count * size > 1.1 * (len(labels) - first) or (first and len(labels) < LONG):
            continue  # not one round
        several = merged(create(method, stream.head), features, count, size, first)
        here = given | {"shards": count, "every": size}
        differs = several.online != single.online
        found += [
            (f"differs, {start}", 100 * np.mean(differs), here),
            (f"differs in the second half, {start}", 100 * np.mean(differs[len(labels) // 2 :]), here),
            (f"accuracy, {start}", 100 * np.mean(several.online == labels), here),
            (f"differs after a second pass, {start}", 100 * np.mean(several.again != single.again), here),
        ]
    return found


def _measured(shards: Sequence[int], every: Sequence[int], task: tuple[Path, str]) -> list[Row]:
    return _measure(*task, shards, every)


def agreement(figures: Figures, streams: Iterable[Path], quick: bool) -> None:
    """Measure all streams and methods, and print the tables."""
    paths = sorted(streams)[:2] if quick else sorted(streams)
    shards, every = ((2, 8), (128,)) if quick else (SHARDS, EVERY)
    tasks = [(path, method) for method in METHODS for path in paths]
    with get_context("spawn").Pool(2) as pool:
        for rows in pool.imap(partial(_measured, shards, every), tasks):
            for what, value, given in rows:
                figures.add(PART, what, value, **given)
    tables(figures)


def tables(figures: Figures) -> None:
    """Print the tables of what was measured: means over the streams."""
    all_streams = sorted({each.stream for each in figures.of(PART, "samples")})
    if long := _long(figures):
        _tables(figures, long, ORDERED, f"the first {STARTS[ORDERED]:,} images ordered")
        _tables(figures, long, NOTHING, "from the first image on")
    _tables(figures, all_streams, NOTHING, "from the first image on, all streams")


def _long(figures: Figures) -> list[str]:
    return sorted({each.stream for each in figures.of(PART, "samples") if each.value >= LONG})


def _mean(figures: Figures, names: Sequence[str], what: str, **given: str | int) -> float | None:
    """The mean over streams; None if it was not measured with one of them."""
    values = [each.value for each in figures.of(PART, what, **given) if each.stream in names]
    return float(np.mean(values)) if len(values) == len(names) else None


def _tables(figures: Figures, names: Sequence[str], start: str, title: str) -> None:
    mean = partial(_mean, figures, names)
    cells = {(each.shards, each.every) for each in figures.of(PART, f"differs, {start}")}
    measured = [
        (count, size) for count, size in cells if mean(f"differs, {start}", method=METHODS[0], shards=count, every=size)
    ]
    sizes = sorted({size for _, size in measured})
    columns = ("method, shards", *(f"N = {size:,}" for size in sizes))

    def grid(what: str, above: str = "") -> list[tuple[str, ...]]:
        rows = []
        for method, shards in product(METHODS, SHARDS):
            base = mean(above, method=method) if above else None
            values = [mean(f"{what}, {start}", method=method, shards=shards, every=size) for size in sizes]
            if any(value is not None for value in values):
                rows.append((f"{method}, {shards}", *(_cell(value, base) for value in values)))
        return rows

    def each_method(what: str, unit: str = "") -> str:
        return ", ".join(f"{mean(what, method=method):.2f}{unit} ({method})" for method in METHODS)

    lengths = [(name, figures.value(PART, "samples", stream=name, method=METHODS[0])) for name in names]
    about = (
        "Per cent of the answers that are not those of `ordered`, mean over streams "
        f"({', '.join(f'{name} {length:,.0f}' for name, length in lengths)} images). N: images that a shard adapts to "
        "between two exchanges; a dash where a round is longer than a stream. For comparison, adapting changes "
        f"{each_method('zero-shot differs', ' %')} of the zero-shot answers."
    )
    figures.table(f"Merged beside ordered: {title}", about, columns, grid("differs"))
    about = (
        f"Points of accuracy above that of `ordered`, which is {each_method('ordered accuracy')}; zero-shot "
        f"{mean('zero-shot accuracy', method=METHODS[0]):.2f}. Means over streams."
    )
    figures.table(f"Accuracy of merged: {title}", about, columns, grid("accuracy", "ordered accuracy"))
    if len(names) > len(_long(figures)):
        return
    about = "Per cent of the answers that are not those of `ordered`, in the second half of each stream."
    figures.table(f"Merged beside ordered later on: {title}", about, columns, grid("differs in the second half"))
    about = (
        "Per cent of the answers after a second pass that are not those of `ordered` after a second pass. Caches that "
        "merge by union end as those of the whole stream, to the bit, and so do these answers. "
        f"Accuracy of `ordered` after the second pass: {each_method('ordered accuracy, second pass')}."
    )
    figures.table(f"After a second pass: {title}", about, columns, grid("differs after a second pass"))


def _cell(value: float | None, base: float | None = None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if base is None else f"{value - base:+.2f}"


def draw(figures: Figures, path: Path) -> None:
    """Draw how many answers differ on the long streams: a row per start, a column per method, a line per shards."""
    plt = pyplot()
    methods = figures.methods(PART)
    figure, panels = plt.subplots(
        len(STARTS), len(methods), figsize=(3.7 * len(methods), 7.0), sharex=True, sharey=True, layout="constrained"
    )
    names = _long(figures)
    sizes = sorted({each.every for each in figures.of(PART, f"differs, {NOTHING}") if each.stream in names})
    for row, start in zip(panels, reversed(STARTS), strict=True):
        for axes, method in zip(row, methods, strict=True):
            for shards in SHARDS:
                given = {"method": method, "shards": shards}
                values = [_mean(figures, names, f"differs, {start}", every=size, **given) for size in sizes]
                there = [(size, value) for size, value in zip(sizes, values, strict=True) if value is not None]
                if there:
                    axes.plot(*zip(*there, strict=True), marker="o", color=LINES[shards], label=f"{shards} shards")
            changed = _mean(figures, names, "zero-shot differs", method=method)
            axes.axhline(changed, color=GREY, linestyle="--", linewidth=1.2)
            axes.text(sizes[0], changed, "zero-shot", color=GREY, fontsize=9, va="bottom")
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axes.minorticks_off()
            axes.set_title(f"{method}, {start}")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
    for axes in panels[-1]:
        axes.set_xlabel("N, images between two exchanges")
    for axes in panels[:, 0]:
        axes.set_ylabel("answers unlike ordered, %")
    panels[0, 0].set_ylim(bottom=0)
    panels[0, 0].legend(frameon=False, loc="center right")
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
