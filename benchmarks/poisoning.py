"""The harm of a hostile client to the answers that others get, with every method that learns, and with the guard.

    python training/corrupt.py ../shared/eval --to streams/ --only pacs_clean oxford_pets_clean
    python benchmarks/poisoning.py streams/pacs_clean.safetensors streams/oxford_pets_clean.safetensors

Features are shown to the real streams of the service, which write their files and skip near-duplicates as always.
One client sends the images of a stream, and its accuracy is what counts; another one sends features of its choice.
Writes poisoning.md, poisoning.csv and poisoning.png.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from acclimate import Head, list_methods, read_stream
from acclimate.bench.plots import BLUE, GREEN, GREY, RED, check_picture, pyplot
from acclimate.bench.results import markdown_table, points, write_csv, write_page
from acclimate.cli.comparing import as_patterns
from acclimate.serve.limits import Limits
from acclimate.serve.schemas import GuardRules
from acclimate.stream import FeatureStream
from portal import running
from table_encoder import TableEncoder, picture

REQUEST = 8  # images
HOSTILE_NAMES = 20  # names of the hostile client, where it has several
TARGETS = 3  # classes that squatting is tried with; the worst result counts
CAPACITY = 16
SURE = 1e-3  # entropy in nats of features that are to mislead; those that are to squat are surer than any image
GUARDS = {
    "off": (None, 1),
    "on": (GuardRules(window_s=3600.0), 1),
    f"on, {HOSTILE_NAMES} names": (GuardRules(window_s=3600.0), HOSTILE_NAMES),
}
COLOURS = dict(zip(GUARDS, (RED, GREEN, BLUE), strict=True))


class Attack(NamedTuple):
    """The requests of the hostile client."""

    name: str
    features: np.ndarray  # (m, d)
    before: bool  # all of it before the honest images, or between them


@dataclass(frozen=True)
class Run:
    """The accuracy of the honest client's images."""

    stream: str
    method: str
    attack: str
    guard: str
    zero_shot: float
    adapted: float
    refused: int  # hostile samples
    slots: float  # share of the cache entries that hostile clients hold at the end; nan for methods without caches


def unit(rows: np.ndarray) -> np.ndarray:
    """Return rows of unit length."""
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def sure(rows: np.ndarray, classes: np.ndarray, head: Head, entropy: np.ndarray | float = SURE) -> np.ndarray:
    """Return rows (m, d) moved towards the vectors of their classes (m,) until their entropies are this low."""
    low = np.zeros(len(rows))
    high = np.full(len(rows), 64.0)
    vectors = np.asarray(head.class_vectors)[classes]
    for _ in range(24):
        middle = (low + high) / 2
        seen = head.observe((rows + middle[:, None] * vectors).astype(np.float32))
        done = (seen.logits.argmax(axis=1) == classes) & (seen.entropy < entropy)
        low = np.where(done, low, middle)
        high = np.where(done, middle, high)
    return unit(rows + high[:, None] * vectors).astype(np.float32)


def attacks(stream: FeatureStream, seed: int = 0) -> Iterator[Attack]:
    """Yield every attack on a stream; features of one attack differ enough not to be skipped as near-duplicates."""
    rng = np.random.default_rng(seed)
    head = stream.head
    images = unit(np.asarray(stream.features, np.float32))
    count = len(images)
    classes = len(head)
    vectors = np.asarray(head.class_vectors)
    members = [stream.targets == label for label in range(classes)]
    means = np.stack([images[each].mean(axis=0) if each.any() else vectors[i] for i, each in enumerate(members)])
    seen = head.observe(images)
    answers = seen.logits.argmax(axis=1)

    def near(rows: np.ndarray) -> np.ndarray:
        return unit(rows) + 0.4 * unit(rng.standard_normal(rows.shape))

    target = np.bincount(answers, minlength=classes).argmax()
    surest = np.argsort(np.where(answers == target, seen.entropy, np.inf), kind="stable")[: (answers == target).sum()]
    yield Attack("flood of one class", images[np.resize(surest, count)], True)

    similar = vectors @ vectors.T - 2 * np.eye(classes)
    like = similar.argmax(axis=1)
    first, second = np.unravel_index(similar.argmax(), similar.shape)
    for name, predicted, shown in (
        ("all classes", np.arange(classes), like),
        ("one pair", np.array([first, second]), np.array([second, first])),
    ):
        rows = np.arange(4 * count) % len(predicted)
        hostile = sure(near(means[shown[rows]]), predicted[rows], head)
        yield Attack(f"{name}, before", hostile[:count], True)
        yield Attack(f"{name}, 1:1", hostile[:count], False)
        if name == "all classes":
            yield Attack(f"{name}, 4:1", hostile, False)

    middle = means.mean(axis=0)
    lowest = np.full(classes, SURE)
    np.minimum.at(lowest, answers, np.maximum(seen.entropy / 2, 1e-9))
    for target in np.linspace(0, classes, TARGETS, endpoint=False).astype(int):
        predicted = np.arange(count) % classes
        towards = np.where((predicted == target)[:, None], middle, -middle)
        yield Attack("squatting, worst class", sure(near(towards), predicted, head, lowest[predicted]), True)


def variants() -> Iterator[tuple[str, str, dict[str, int]]]:
    """Return title, method and settings of all methods that learn, and of those with caches also with larger ones."""
    for name, method in list_methods().items():
        if method.kind == "online" and not method.needs:
            yield name, name, {}
            for setting in method.default_settings():
                if setting in ("positive_capacity", "memory_capacity", "cache_capacity"):
                    yield f"{name}, {CAPACITY} entries", name, {setting: CAPACITY}


def requests(honest: int, attack: Attack | None, names: int, two: bool) -> Iterator[tuple[str, Sequence[int]]]:
    """Return client and rows of every request; the attack's rows follow the honest ones."""
    own = [range(honest)[start : start + REQUEST] for start in range(0, honest, REQUEST)]
    size = 0 if attack is None else len(attack.features)
    foreign = [range(honest, honest + size)[start : start + REQUEST] for start in range(0, size, REQUEST)]
    hostile = ((f"hostile {turn % names}", rows) for turn, rows in enumerate(foreign))
    if attack is not None and attack.before:
        yield from hostile
    per_turn = -(-len(foreign) // len(own))
    for turn, rows in enumerate(own):
        for _ in range(per_turn if attack is not None and not attack.before else 0):
            yield from (each for each in [next(hostile, None)] if each is not None)
        yield f"honest {turn % 2 if two else 0}", rows


def measure(
    stream: FeatureStream,
    attack: Attack | None,
    method: str,
    settings: dict[str, int],
    guard: GuardRules | None,
    names: int = 1,
    two: bool = False,
) -> tuple[float, int, float]:
    """Return the accuracy of the honest images, the number of refused hostile samples, and the slots they hold."""
    images = np.asarray(stream.features, np.float32)
    table = images if attack is None else np.concatenate([images, attack.features])
    right = 0
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        limits = Limits(snapshot_samples=10**6)
        with running(Path(folder), TableEncoder(table, stream.head), limits, periodic=False) as streams:
            shown = streams.create(
                "shared", stream.head.class_names, templates="{}", method=method, settings=settings, guard=guard
            )
            waiting = []
            for client, rows in requests(len(images), attack, names, two):
                pictures = [picture(row) for row in rows]
                waiting.append((client, rows, shown.soon("classify", pictures, top_k=1, client=client)))
                if len(waiting) == 32:  # fewer images than the queue takes
                    right, refused = _count(stream, waiting, right, refused)
            right, refused = _count(stream, waiting, right, refused)
            owners = [entry["client"] for entry in shown.caches()]
    slots = np.mean([owner.startswith("hostile") for owner in owners]) if owners else np.nan
    return right / len(images), refused, float(slots)


def _count(stream: FeatureStream, waiting: list, right: int, refused: int) -> tuple[int, int]:
    for client, rows, future in waiting:
        answers = future.result(60)
        if client.startswith("honest"):
            names = [stream.head.class_names[stream.targets[row]] for row in rows]
            right += sum(answer.label == name for answer, name in zip(answers, names, strict=True))
        else:
            refused += sum("guard" in (answer.refused or "") for answer in answers)
    waiting.clear()
    return right, refused


def shuffled(path: Path, limit: int | None) -> FeatureStream:
    """Return a stream in a random order, the same every time; at most so many samples."""
    stream = read_stream(path)
    order = np.random.default_rng(0).permutation(len(stream.targets))[:limit]
    return FeatureStream(stream.features[order], stream.head, stream.targets[order])


def run_all(path: Path, limit: int | None, chosen: Sequence[str]) -> Iterator[Run]:
    """Return all runs on a stream; of the targets of an attack, the worst for each method and guard."""
    stream = shuffled(path, limit)
    name = path.stem.removesuffix("_clean")
    zero_shot = float(np.mean(stream.head.observe(stream.features).logits.argmax(axis=1) == stream.targets))
    prepared = list(attacks(stream))
    for title, method, settings in variants():
        if chosen and method not in chosen:
            continue
        clean = measure(stream, None, method, settings, None)
        yield Run(name, title, "none", "off", zero_shot, *clean)
        shared = measure(stream, None, method, settings, GUARDS["on"][0], two=True)
        yield Run(name, title, "none, two honest clients", "on", zero_shot, *shared)
        for guard, (rules, names) in GUARDS.items():
            found: dict[str, Run] = {}
            for attack in prepared:
                run = Run(
                    name, title, attack.name, guard, zero_shot, *measure(stream, attack, method, settings, rules, names)
                )
                if attack.name not in found or run.adapted < found[attack.name].adapted:
                    found[attack.name] = run
            yield from found.values()


def losses(runs: Sequence[Run], stream: str, method: str, guard: str) -> dict[str, float]:
    """Return by attack what it costs the honest client, as a fraction, against the same method without an attack."""
    own = [run for run in runs if (run.stream, run.method) == (stream, method)]
    (clean,) = (run.adapted for run in own if run.attack == "none")
    return {run.attack: clean - run.adapted for run in own if run.guard == guard and not run.attack.startswith("none")}


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw the worst loss of each method by guard, a panel per stream."""
    plt = pyplot()
    streams, methods = (list(dict.fromkeys(getattr(run, name) for run in runs)) for name in ("stream", "method"))
    figure, panels = plt.subplots(
        1,
        len(streams),
        figsize=(5.5 * len(streams), 1 + 0.38 * len(methods)),
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    for axes, stream in zip(panels[0], streams, strict=True):
        axes.axvline(0, color="black", linewidth=0.6)
        for index, method in enumerate(methods):
            for shift, guard in zip((-0.25, 0.0, 0.25), GUARDS, strict=True):
                worst = 100 * max(losses(runs, stream, method, guard).values())
                label = f"guard {guard}" if not index else None
                axes.barh(index + shift, worst, 0.22, color=COLOURS[guard], label=label)
            gain = next(run.adapted - run.zero_shot for run in runs if (run.stream, run.method) == (stream, method))
            axes.plot(
                [100 * gain], [index], "|", color=GREY, markersize=14, label=None if index else "gain without attack"
            )
        axes.set_title(stream, loc="left", fontsize=11)
        axes.set_xlabel("points that the worst attack costs")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", alpha=0.25)
    panels[0][0].set_yticks(range(len(methods)), methods)
    panels[0][0].invert_yaxis()
    panels[0][0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120, metadata={"Software": None})


def page(runs: Sequence[Run], command: str) -> Iterator[str]:
    """Yield the parts of the page."""
    streams, methods = (list(dict.fromkeys(getattr(run, name) for run in runs)) for name in ("stream", "method"))
    yield "# Poisoning"
    yield (
        "What a hostile client can do to the answers that another client of the same stream gets, with every method "
        "that learns, and what [the guard](../streams.md#the-guard) saves. Bundled model; features are shown to the "
        "streams of the service with their defaults, in requests of "
        f"{REQUEST} images. `poisoning.csv` has every run. The files are generated by"
    )
    yield f"```\n{command}\n```"
    yield (
        "The hostile client knows the model, the labels and what the images look like, and sends features as it likes, "
        "which is more than images allow. Its features are not optimal for each method: a determined attacker does "
        "worse damage.\n\n"
        "- **Flood of one class**: the surest real images of the most frequent class, as many as there are images.\n"
        "- **All classes**, **one pair**: features that zero-shot surely takes for one class and that lie near the "
        "images of the most similar one; for every class, or for the most similar pair. Before the images, or between "
        "them: as many (1:1), or four times as many (4:1).\n"
        "- **Squatting**: features that are surer than any image take all slots of the caches before the images come. "
        f"Those of one class lie near all images, the others far from them. The worst of {TARGETS} classes counts.\n"
        f"- **Guard**: off; on, as new streams have it (a share of 0.5; the window covers the whole run); on, and the "
        f"hostile client has {HOSTILE_NAMES} names.\n"
        "- **Loss**: the accuracy without an attack less that with it, in points; negative where an attack helped."
    )
    yield "![What the worst attack costs](poisoning.png)"
    attack_names = [name for name in dict.fromkeys(run.attack for run in runs) if not name.startswith("none")]
    for stream in streams:
        own = {(run.method, run.attack, run.guard): run for run in runs if run.stream == stream}
        yield f"## {stream}: accuracy, %, and the loss by the worst attack"
        rows = []
        for method in methods:
            clean = own[method, "none", "off"]
            shared = own[method, "none, two honest clients", "on"]
            cells = [f"{100 * clean.zero_shot:.1f}", f"{100 * clean.adapted:.1f}", f"{100 * shared.adapted:.1f}"]
            for guard in GUARDS:
                worst = max(losses(runs, stream, method, guard).values())
                cells += [f"{100 * (clean.adapted - worst):.1f}", points(worst)]
            rows.append((method, *cells))
        heads = [each for guard in GUARDS for each in (f"attacked, guard {guard}", "loss")]
        yield markdown_table(["", "zero-shot", "adapted", "two honest clients, guard on", *heads], rows)
        yield f"## {stream}: loss by attack, points (guard {' / '.join(GUARDS)})"
        rows = []
        for method in methods:
            found = [losses(runs, stream, method, guard) for guard in GUARDS]
            rows.append(
                (method, *(" / ".join(f"{100 * each[name] + 0.0:+.1f}" for each in found) for name in attack_names))
            )
        yield markdown_table(["", *attack_names], rows)
        yield f"## {stream}: share of cache entries of hostile clients at the end, % (guard {' / '.join(GUARDS)})"
        rows = [
            (
                method,
                *(
                    " / ".join(f"{100 * own[method, name, guard].slots:.0f}" for guard in GUARDS)
                    for name in attack_names
                ),
            )
            for method in methods
            if not np.isnan(own[method, "none", "off"].slots)
        ]
        yield markdown_table(["", *attack_names], rows)
    yield "## What the guard does, and what it does not"
    yield from verdicts(runs, streams, methods)


def verdicts(runs: Sequence[Run], streams: Sequence[str], methods: Sequence[str]) -> Iterator[str]:
    """Return in figures where the guard helps, and where it does not."""

    def mean(attack: str, guard: str) -> str:
        return points(
            float(np.mean([losses(runs, each, method, guard)[attack] for each in streams for method in methods]))
        )

    off, on, _ = GUARDS
    rows = [
        (attack, *(mean(attack, guard) for guard in GUARDS)) for attack in losses(runs, streams[0], methods[0], off)
    ]
    yield markdown_table(["mean loss over methods and streams, points", *(f"guard {guard}" for guard in GUARDS)], rows)
    named = [(stream, method) for stream in streams for method in methods]
    pairs = [(losses(runs, *each, off), losses(runs, *each, on)) for each in named]
    better = sum(max(after.values()) < max(before.values()) - 1e-9 for before, after in pairs)
    worse = sum(max(after.values()) > max(before.values()) + 1e-9 for before, after in pairs)
    flood = "flood of one class"
    most, where = max(((b[flood] - a[flood]), each) for (a, b), each in zip(pairs, named, strict=True))
    clean = {(run.stream, run.method): run.adapted for run in runs if run.attack == "none"}
    shared = [run.adapted - clean[run.stream, run.method] for run in runs if run.attack.startswith("none,")]
    yield (
        f"Of {len(pairs)} pairs of a method and a stream, the worst attack costs less with the guard in {better}, and "
        f"more in {worse}.\n\n"
        "- **Caches recover.** Squatters give way to the first images of others and do not come back; where others "
        "have images enough, hostile clients keep about half of the slots. Larger caches gain most.\n"
        "- **A flood is cut to size.** A client that sends four times as much (4:1) teaches methods that keep sums no "
        "more than the others together.\n"
        "- **At 1:1 it refuses nobody**: half is the share that it allows.\n"
        "- **What was taught before others came stays** in sums, as a client alone is not limited; `reset` or "
        "`rollback` removes it.\n"
        f"- **Against {HOSTILE_NAMES} names it does little**, or harm: names are what it counts. Give tokens to "
        "clients that you trust, and one to each.\n"
        "- **It holds back whoever teaches most, and that may be the honest client.** A flood of few images, most of "
        "them skipped as near-duplicates, makes the honest client the busiest, so less is learnt from it: at worst "
        f"this costs {points(most)} points more than without the guard ({where[1]}, {where[0]}).\n"
        "- Two honest clients that share a stream are answered as well as one, to within "
        f"{points(min(shared))} and {points(max(shared))} points."
    )


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("streams", type=Path, nargs="+", help="feature files with labels, of the bundled model")
    parser.add_argument("--methods", nargs="*", default=[], help="only these methods")
    parser.add_argument("--limit", type=int, help="samples of a stream that are used")
    parser.add_argument("--quick", action="store_true", help="40 samples of each stream, for a test")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    check_picture(options.out / "poisoning.png")
    runs: list[Run] = []
    for path in options.streams:
        for run in run_all(path, 40 if options.quick else options.limit, options.methods):
            runs.append(run)
            about = f"{run.stream:12} {run.method:16} {run.attack:26} guard {run.guard:12}"
            print(f"{about} zero-shot {100 * run.zero_shot:5.1f} adapted {100 * run.adapted:5.1f}", flush=True)
    given = f" --methods {' '.join(options.methods)}" if options.methods else ""
    write(
        runs, options.out, f"python benchmarks/poisoning.py {as_patterns(options.streams)}{given} --out {options.out}"
    )


def write(runs: Sequence[Run], folder: Path, command: str) -> None:
    """Write the three files."""
    write_csv([asdict(run) for run in runs], folder / "poisoning.csv")
    draw(runs, folder / "poisoning.png")
    write_page(page(runs, command), folder / "poisoning.md")


if __name__ == "__main__":
    main()
