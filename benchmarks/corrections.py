"""The effect of corrections: accuracy of the rest after the least sure images were corrected, or as many random ones.

Streams are shown in shuffled orders. Two questions are asked, each of images that were not corrected, and against the
same images without corrections, so that it does not count that the hardest ones are gone:

- online: the first half of the stream is shown, images of it are corrected, and the second half is answered as it
  comes;
- second pass: the whole stream is shown, images of it are corrected, and it is answered once more.

    python benchmarks/corrections.py STREAM... --orders 3 --limit 2000 --out docs/results

writes corrections.md, corrections.csv with every run, and corrections.png.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from acclimate import create, read_stream
from acclimate.arrays import softmax_and_entropy
from acclimate.bench.orders import stream_order
from acclimate.bench.plots import BLUE, GREEN, GREY, check_picture, pyplot
from acclimate.bench.results import markdown_table, points, write_csv, write_page
from acclimate.cli.comparing import as_patterns
from acclimate.methods import Adapter, duplicate

METHODS = {"zero-shot": GREY, "tda": BLUE, "accord": GREEN}
COUNTS = (5, 15, 50)
CHOICES = {"least sure": "-", "random": "--"}
QUESTIONS = ("online", "second pass")
SHARE = 4  # a run corrects at most one in so many of the images that it may choose from


@dataclass(frozen=True)
class Run:
    """Accuracy of the images that were not corrected, before and after corrections."""

    stream: str
    method: str
    order: int
    question: str
    choice: str
    corrections: int
    before: float
    after: float
    told_wrong: int  # corrections of answers that were wrong; the others confirm


def choose(logits: np.ndarray, choice: str, seed: int) -> np.ndarray:
    """Return positions of images (n,) in the order in which they are to be corrected."""
    if choice == "random":
        return np.random.default_rng([seed, 13]).permutation(len(logits))
    return np.argsort(softmax_and_entropy(logits)[0].max(axis=1), kind="stable")


def ask(
    adapter: Adapter, online: np.ndarray, features: np.ndarray, labels: np.ndarray, question: str, seed: int
) -> Iterator[tuple[str, int, float, float, int]]:
    """Yield the choice, number of corrections, accuracies before and after, and how many answers were wrong.

    The adapter was shown the first m samples, and gave the online answers (m, K).
    """
    shown = len(online)

    def answers(taught: Adapter) -> np.ndarray:
        if question == "online":
            return duplicate(taught).step(features[shown:]).argmax(axis=1) == labels[shown:]
        return taught.second_pass(features).argmax(axis=1) == labels

    before = answers(adapter)
    for choice in CHOICES:
        order = choose(online, choice, seed)
        for count in COUNTS:
            if count * SHARE > shown:
                continue
            corrected = order[:count]
            adapter.corrections.correct(features[corrected], labels[corrected], corrected)
            rest = np.full(len(before), True)
            if question == "second pass":
                rest[corrected] = False
            wrong = int((online[corrected].argmax(axis=1) != labels[corrected]).sum())
            yield choice, count, float(before[rest].mean()), float(answers(adapter)[rest].mean()), wrong
            adapter.corrections.undo([each.id for each in adapter.corrections])


def measure(path: Path, name: str, orders: int, limit: int) -> Iterator[Run]:
    """Return all runs on a stream."""
    stream = read_stream(path)
    for seed in range(orders):
        order = stream_order(stream, f"shuffled:{seed}")[:limit]
        features = stream.features[order]
        labels = stream.targets[order]
        for method in METHODS:
            for question, shown in zip(QUESTIONS, (len(order) // 2, len(order)), strict=True):
                adapter = create(method, stream.head)
                online = adapter.step(features[:shown])
                for found in ask(adapter, online, features, labels, question, seed):
                    yield Run(name, method, seed, question, *found)


def gains(runs: Sequence[Run], **fixed: object) -> np.ndarray:
    """Return the gains of the runs with these values, one per stream, each the mean over orders."""
    chosen = [run for run in runs if all(getattr(run, name) == value for name, value in fixed.items())]
    streams = dict.fromkeys(run.stream for run in chosen)
    return np.array([np.mean([run.after - run.before for run in chosen if run.stream == name]) for name in streams])


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw the mean gain over streams by the number of corrections, a panel per question."""
    plt = pyplot()
    figure, panels = plt.subplots(1, len(QUESTIONS), figsize=(11, 4.4), sharey=True, layout="constrained")
    for axes, question in zip(panels, QUESTIONS, strict=True):
        axes.axhline(0, color="black", linewidth=0.6)
        for method, colour in METHODS.items():
            for choice, line in CHOICES.items():
                fixed = {"question": question, "method": method, "choice": choice}
                mean = [100 * gains(runs, corrections=count, **fixed).mean() for count in COUNTS]
                axes.plot(
                    (0, *COUNTS), (0, *mean), line, color=colour, marker="o", markersize=4, label=f"{method}, {choice}"
                )
        axes.set_title(question, loc="left", fontsize=11)
        axes.set_xlabel("corrections")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    panels[0].set_ylabel("gain of the rest, points")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120, metadata={"Software": None})


def page(runs: Sequence[Run], command: str) -> Iterator[str]:
    """Yield the parts of the page."""
    names = list(dict.fromkeys(run.stream for run in runs))
    orders = len({run.order for run in runs})
    yield "# What corrections teach"
    yield (
        f"Accuracy of the images that were **not** corrected, after some were, on {len(names)} streams in {orders} "
        "shuffled orders: gains in points against the same images without corrections. "
        "[Corrections](../corrections.md) explains how they work; `corrections.csv` has every run. The files are "
        "generated by"
    )
    yield f"```\n{command}\n```"
    yield (
        "- **Online**: half of the stream is shown, images of it are corrected, and the other half is answered.\n"
        "- **Second pass**: all of the stream is shown, images of it are corrected, and it is answered once more.\n"
        "- **Least sure**: the images with the lowest scores. **Random**: any images, most of them answered rightly.\n"
        f"- At most one in {SHARE} images is corrected, so means over many corrections are those of the longer "
        "streams.\n"
        "- The numbers of the method were chosen on the streams of this page: expect somewhat less on other images."
    )
    yield "![Gain of the rest by the number of corrections](corrections.png)"
    heads = [f"{count}, {choice}" for count in COUNTS for choice in CHOICES]
    for question in QUESTIONS:
        yield f"## {question.capitalize()}: mean over the streams"
        rows = []
        for method in METHODS:
            fixed = {"question": question, "method": method}
            cells = [gains(runs, corrections=n, choice=c, **fixed) for n in COUNTS for c in CHOICES]
            rows.append((method, *(points(each.mean()) for each in cells)))
        yield markdown_table(["", *heads], rows)
        yield f"## {question.capitalize()}: every stream, accord"
        rows = []
        for name in names:
            fixed = {"question": question, "method": "accord", "stream": name}
            cells = [gains(runs, corrections=n, choice=c, **fixed) for n in COUNTS for c in CHOICES]
            before = np.mean([run.before for run in runs if fixed.items() <= vars(run).items()])
            rows.append((name, f"{100 * before:.2f}", *(points(each[0]) if len(each) else "" for each in cells)))
        yield markdown_table(["", "before", *heads], rows)
    yield "## Where corrections harm"
    cells = {}
    for run in runs:
        key = (run.stream, run.method, run.question, run.choice, run.corrections)
        cells.setdefault(key, []).append(run.after - run.before)
    worst = sorted(cells.items(), key=lambda item: float(np.mean(item[1])))[:8]
    below = sum(np.mean(values) < 0 for values in cells.values())
    yield f"The lowest means over the orders; {below} of {len(cells)} are below 0."
    rows = [(*map(str, key), points(float(np.mean(values)))) for key, values in worst]
    yield markdown_table(["stream", "method", "question", "choice", "corrections", "gain"], rows)


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("streams", type=Path, nargs="+", help="feature files with labels")
    parser.add_argument("--orders", type=int, default=3, help="shuffled orders to average over")
    parser.add_argument("--limit", type=int, default=2000, help="samples of a stream that are used")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    check_picture(options.out / "corrections.png")
    runs: list[Run] = []
    stems = [path.stem for path in options.streams]
    for path in options.streams:
        name = path.stem if stems.count(path.stem) == 1 else f"{path.stem} ({path.parent.name})"
        runs += measure(path, name, options.orders, options.limit)
        print(f"{name}: {options.orders} orders", flush=True)
    write_csv([asdict(run) for run in runs], options.out / "corrections.csv")
    draw(runs, options.out / "corrections.png")
    given = f"{as_patterns(options.streams)} --orders {options.orders} --limit {options.limit} --out {options.out}"
    write_page(page(runs, f"python benchmarks/corrections.py {given}"), options.out / "corrections.md")


if __name__ == "__main__":
    main()
