"""Recognition of images that belong to no label: the labels of one set, the images of the others.

    python training/corrupt.py ../shared/eval --to streams/ --only caltech101_clean cifar10_clean eurosat_clean \
        flowers102_clean oxford_pets_clean pacs_clean ucf101_clean
    python benchmarks/none_of_these.py streams/*_clean.safetensors --out docs/results

writes none_of_these.md, none_of_these.csv and none_of_these.png. The streams must be those of the bundled model.
"""

import argparse
import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from acclimate import Classifier, Head, Rejector, build_head, create, load_encoder, read_stream
from acclimate.bench.plots import BLUE, GREEN, GREY, RED, pyplot
from acclimate.bench.results import write_page
from acclimate.files import write_atomically
from acclimate.methods.gates import GAP, LABELS, OFFSET
from acclimate.predict import NONE
from acclimate.prompts import negative_vectors
from acclimate.stream import FeatureStream

METHOD = "tda"  # its logits are those of the model and votes; other methods answer on scales of their own
SCORES = {"maximum probability": GREY, "maximum logit": BLUE, "none of these": GREEN, f"with {METHOD}": RED}
SIZES = (2, 3, 5, 10, 20, 50, 100)  # numbers of labels drawn from each set
DRAWS = 3
WEIGHT = 2.0  # losing an image with a label is twice as bad as accepting a foreign one
ODD = ("cat", "dog", "bird")  # labels for images of guitars and flowers
CATS = ("abyssinian", "bengal", "birman", "bombay", "british shorthair", "egyptian mau", "maine coon", "persian")
CATS += ("ragdoll", "russian blue", "siamese", "sphynx")
BIRDS = ("emu", "flamingo", "flamingo head", "ibis", "pigeon", "rooster")
SHIPS = ("ferry", "ketch", "schooner")
# For the labels of each set: which images of the other sets show one of them. None: all; a leading "-": all but these.
SHOWN: dict[str, dict[str, Sequence[str] | None]] = {
    "caltech101": {
        "pacs": ("elephant", "guitar", "person"),
        "cifar10": ("airplane", "automobile", "bird", "ship"),
        "flowers102": ("lotus", "sunflower", "water lily"),
        "ucf101": ("Playing Guitar", "Soccer Juggling", "Soccer Penalty", "Biking"),
    },
    "cifar10": {
        "pacs": ("dog", "horse"),
        "oxford_pets": None,
        "caltech101": ("airplane", "car side", "dalmatian", "snoopy", "garfield", "wild cat", *BIRDS, *SHIPS),
        "ucf101": ("Horse Race", "Horse Riding", "Walking With Dog"),
    },
    "eurosat": {"pacs": ("house",)},
    "flowers102": {"caltech101": ("lotus", "sunflower", "water lilly")},
    "oxford_pets": {
        "pacs": ("dog",),
        "cifar10": ("cat", "dog"),
        "caltech101": ("snoopy",),
        "ucf101": ("Walking With Dog",),
    },
    "pacs": {
        "oxford_pets": ("-", *CATS),
        "caltech101": ("dalmatian", "snoopy", "elephant", "electric guitar", "face"),
        "cifar10": ("dog", "horse"),
        "ucf101": None,
        "eurosat": ("Residential Buildings",),
    },
    "ucf101": {},
}

PAGE = """# None of these

The labels of one set, its own images, and the images of the other sets as foreign ones, without those that show one of
the labels; bundled model. AUROC: how often an own image has a higher score than a foreign one. FPR95: the share of
foreign images that are accepted where 95 % of the own are, in percent. `python benchmarks/none_of_these.py` writes this
page.

| labels of | labels | {head} | lost | accepted | most often lost |
| --- | ---: |{rule}
{rows}
| **mean** | | {mean} | |
| mean, every foreign image | | {every} | | | |

*none of these* is the score that the library uses, for adapted answers, too: it comes from the zero-shot logits,
whatever the method has learnt. *With {method}* is the alternative, which the library does not use: the logits of the
labels are those of `{method}`, which learns from own and foreign images in random order through the gate. *Lost* are
own images that are answered "none of these" at the threshold of 0.5, *accepted* are foreign images that are not, in
percent. For these two columns, the three constants of the score are fitted to the other six sets. *Most often lost* is
the label that loses the largest share of its images, with the constants of the library. In the last row, images that
show one of the labels count as foreign, too.

The sets were also used to choose the form of the score (its prompts, the share of nouns left out, its temperature, the
division by the standard deviation, and that losing an own image counts twice), and the nouns were written by somebody
who knew the names of their classes: on other images, expect somewhat less. Only the bundled model was measured.

![Scores of own and foreign images, and ROC curves](none_of_these.png)

## By the number of labels

Random labels of each set, with constants fitted to the other six sets; means over the sets that have more labels than
that, in percent.

| labels | lost | accepted |
| ---: | ---: | ---: |
{sizes}

Fitted to all seven sets, the score is `{fitted}`; the library has {shipped}.

## Guitars, flowers and pictures of nothing

The labels are {labels}.

| images of | images | answers above 0.9 without it | answers above 0.9 with it | answered "none of these", % |
| --- | ---: | ---: | ---: | ---: |
{odd}
"""


class Case(NamedTuple):
    """Labels, images of these and foreign images."""

    name: str  # the set that the labels are from
    labels: int
    own: np.ndarray  # gaps of the images that belong to one of the labels
    foreign: np.ndarray


@dataclass
class Row:
    """The findings for the labels of one set; scores are higher for images that belong to a label."""

    name: str
    labels: int
    own: dict[str, np.ndarray]
    foreign: dict[str, np.ndarray]
    lost: float = 0.0  # share of the set's own images that were answered "none of these"
    accepted: float = 0.0  # share of foreign images that were not
    worst: str = ""  # the label whose images are lost most often, and how often

    def auroc(self, score: str) -> float:
        """Return how often an image of the set has a higher score than a foreign one."""
        foreign = np.sort(self.foreign[score])
        below, up_to = (np.searchsorted(foreign, self.own[score], side).mean() for side in ("left", "right"))
        return float(below + up_to) / 2 / len(foreign)

    def fpr95(self, score: str) -> float:
        """Return the share of foreign images that are accepted where 95 % of the set's own are."""
        return float(np.mean(self.foreign[score] >= np.quantile(self.own[score], 0.05)))


def names_of(stream: FeatureStream) -> np.ndarray:
    """Return the class names (n,) of a stream's images."""
    return np.array(stream.head.class_names)[stream.targets]


def foreign_features(streams: dict[str, FeatureStream], name: str, every: bool = False) -> np.ndarray:
    """Return features of the images of all other sets that show none of the labels of one, or of all images."""
    parts = []
    for other, stream in streams.items():
        shown = () if every else SHOWN[name].get(other, ())
        if other == name or shown is None:
            continue
        names = names_of(stream)
        hit = ~np.isin(names, shown[1:]) if "-" in shown else np.isin(names, shown)
        parts.append(stream.features[~hit])
    return np.concatenate(parts).astype(np.float32)


def fit(cases: Sequence[Case]) -> np.ndarray:
    """Return the logistic regression (gap, ln K, 1) over cases in which every set counts the same."""
    inputs = []
    targets = []
    weights = []
    for case in cases:
        share = 1 / sum(other.name == case.name for other in cases)
        for values, target, weight in ((case.own, 1.0, WEIGHT), (case.foreign, 0.0, 1.0)):
            inputs.append(_inputs(values, case.labels))
            targets.append(np.full(len(values), target))
            weights.append(np.full(len(values), share * weight / len(values)))
    x = np.concatenate(inputs)
    y = np.concatenate(targets)
    w = np.concatenate(weights)
    found = np.zeros(x.shape[1])
    for _ in range(30):  # Newton's method
        p = 1 / (1 + np.exp(-x @ found))
        found += np.linalg.solve((x * (w * p * (1 - p))[:, None]).T @ x, x.T @ (w * (y - p)))
    return found


def _inputs(values: np.ndarray, labels: int) -> np.ndarray:
    return np.stack([values, np.full_like(values, np.log(labels)), np.ones_like(values)], axis=1)


def errors(found: np.ndarray, case: Case) -> tuple[float, float]:
    """Return the shares of a case's own images that are lost, and of foreign images that are accepted."""
    own, foreign = (_inputs(values, case.labels) @ found for values in (case.own, case.foreign))
    return float(np.mean(own < 0)), float(np.mean(foreign >= 0))


def draw_cases(streams: dict[str, FeatureStream], negatives: np.ndarray) -> Iterator[Case]:
    """Yield all labels of each set, and random ones of them."""
    rng = np.random.default_rng(0)
    for name, stream in streams.items():
        head = stream.head
        foreign = foreign_features(streams, name)
        for size in [*(size for size in SIZES if size < len(head)), len(head)]:
            for _ in range(DRAWS if size < len(head) else 1):
                chosen = np.sort(rng.permutation(len(head))[:size])
                part = head.remove([label for index, label in enumerate(head.class_names) if index not in chosen])
                part = part.to(foreign)
                own = stream.features[np.isin(stream.targets, chosen)].astype(np.float32)
                rejector = Rejector(part, negatives)
                yield Case(name, size, *(rejector.gaps(part.observe(each)) for each in (own, foreign)))


def measure(streams: dict[str, FeatureStream], name: str, negatives: np.ndarray, every: bool = False) -> Row:
    """Return all scores for the labels of a set; own and foreign images come in random order, through the gate."""
    own = streams[name].features.astype(np.float32)
    foreign = foreign_features(streams, name, every)
    head = streams[name].head.to(own)
    rejector = Rejector(head, negatives)
    order = np.random.default_rng(0).permutation(len(own) + len(foreign))
    evidence = head.observe(np.concatenate([own, foreign])[order])
    learn = rejector(evidence, np.full(len(order), True))
    adapted = create(METHOD, head).adapt(evidence, learn=learn).logits
    found = (
        evidence.probs.max(axis=1),
        evidence.logits.max(axis=1),
        1 - rejector.none_scores(evidence),
        1 - rejector.none_scores(evidence, adapted),
    )
    mine = order < len(own)
    split = [{score: each[part] for score, each in zip(SCORES, found, strict=True)} for part in (mine, ~mine)]
    lost = split[0]["none of these"] <= 0.5
    names = names_of(streams[name])[order[mine]]
    shares = {str(label): float(lost[names == label].mean()) for label in np.unique(names)}
    worst = max(shares, key=shares.__getitem__)
    return Row(name, len(head), *split, worst=f"{worst} ({100 * shares[worst]:.0f} %)")


def odd_pictures() -> dict[str, Image.Image]:
    """Return pictures of nothing."""
    noise = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    page = Image.new("RGB", (256, 256), "white")
    for line in range(14):
        ImageDraw.Draw(page).text((12, 10 + 17 * line), "Lorem ipsum dolor sit amet, consectetur elit", fill="black")
    usual = {colour: Image.new("RGB", (128, 128), colour) for colour in ("black", "white", "grey")}
    return {**usual, "noise": Image.fromarray(noise), "page of text": page}


def odd_lines(streams: dict[str, FeatureStream], negatives: np.ndarray) -> list[str]:
    """Return what becomes of guitars, flowers and pictures of nothing with the labels cat, dog and bird."""
    head: Head = build_head(load_encoder(), ODD)
    rejector = Rejector(head, negatives)
    lines = []
    guitars = streams["pacs"].features[names_of(streams["pacs"]) == "guitar"]
    for what, features in {"guitars (pacs)": guitars, "flowers (flowers102)": streams["flowers102"].features}.items():
        evidence = head.observe(features.astype(np.float32))
        none = rejector.none_scores(evidence)
        sure = evidence.probs.max(axis=1) > 0.9
        best = evidence.probs.max(axis=1)
        left = ((none < 0.5) & (best * (1 - none) / (1 - none * (1 - best)) > 0.9)).sum()
        lines.append(f"| {what} | {len(none)} | {sure.sum()} | {left} | {100 * np.mean(none >= 0.5):.1f} |")
    usual = Classifier(ODD)
    rejecting = Classifier(ODD, reject=True)
    for what, image in odd_pictures().items():
        before, after = (each(image, adapt=False)[0] for each in (usual, rejecting))
        left = int(after["score"] > 0.9 and after["label"] != NONE)
        share = 100.0 * (after["label"] == NONE)
        lines.append(f"| {what} | 1 | {int(before['score'] > 0.9)} | {left} | {share:.1f} |")
    return lines


def page(
    rows: Sequence[Row], every: Sequence[Row], by_size: dict[int, np.ndarray], found: np.ndarray, odd: Sequence[str]
) -> str:
    """Return the page of the results."""
    lines = []
    values = []
    for row in rows:
        values.append([x for score in SCORES for x in (row.auroc(score), 100 * row.fpr95(score))])
        values[-1] += [100 * row.lost, 100 * row.accepted]
        lines.append(f"| {row.name} | {row.labels} | {_cells(values[-1])} | {row.worst} |")
    whole = [[x for score in SCORES for x in (row.auroc(score), 100 * row.fpr95(score))] for row in every]
    sizes = [f"| {size} | {100 * lost:.1f} | {100 * taken:.1f} |" for size, (lost, taken) in sorted(by_size.items())]
    return PAGE.format(
        head=" | ".join(f"{score}: AUROC | FPR95" for score in SCORES),
        rule=" ---: |" * (2 * len(SCORES) + 2) + " --- |",
        rows="\n".join(lines),
        mean=_cells(np.mean(values, axis=0)),
        every=_cells(np.mean(whole, axis=0)),
        method=METHOD,
        sizes="\n".join(sizes),
        fitted=f"sigmoid({-found[1]:.3f} ln K - {found[2]:.3f} - {found[0]:.3f} gap)",
        shipped=f"{LABELS}, {OFFSET} and {GAP}",
        labels=", ".join(ODD),
        odd="\n".join(odd),
    )


def _cells(values: Sequence[float]) -> str:
    shares = values[: 2 * len(SCORES)]
    rest = values[2 * len(SCORES) :]
    cells = [f"{x:.3f}" if index % 2 == 0 else f"{x:.1f}" for index, x in enumerate(shares)]
    return " | ".join([*cells, *(f"{x:.1f}" for x in rest)])


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw one panel of scores per set, and the ROC curves of all sets together."""
    figure, panels = pyplot().subplots(2, 4, figsize=(14, 6.5), layout="constrained")
    bins = np.linspace(0, 1, 31)
    for panel, row in zip(panels.flat, rows, strict=False):
        for values, colour, title in ((row.own, GREEN, "images of the set"), (row.foreign, RED, "foreign images")):
            none = 1 - values["none of these"]
            panel.hist(none, bins, weights=np.full(len(none), 100 / len(none)), color=colour, alpha=0.6, label=title)
        panel.axvline(0.5, color="black", linewidth=1, linestyle=":")
        panel.set(title=f"{row.name}, {row.labels} labels", xlabel='score of "none of these"', ylabel="% of images")
    panels.flat[0].legend(frameon=False)
    last = panels.flat[-1]
    grid = np.linspace(0, 1, 201)
    for score, colour in SCORES.items():
        recall = [np.mean(row.own[score][:, None] >= np.quantile(row.foreign[score], 1 - grid), axis=0) for row in rows]
        last.plot(100 * grid, 100 * np.mean(recall, axis=0), color=colour, label=score)
    last.set(title="mean of the sets", xlabel="% of foreign images accepted", ylabel="% of own images accepted")
    last.set(xlim=(0, 50), ylim=(50, 100))
    last.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("streams", type=Path, nargs="+", help="SET_clean.safetensors for each of the seven sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of the page, the table and the picture")
    options = parser.parse_args()
    streams = {path.stem.removesuffix("_clean"): read_stream(path) for path in sorted(options.streams)}
    if streams.keys() != SHOWN.keys():
        parser.error(f"give the streams of {', '.join(SHOWN)}")
    negatives = negative_vectors(load_encoder())
    rows, every = ([measure(streams, name, negatives, each) for name in streams] for each in (False, True))
    cases = list(draw_cases(streams, negatives))
    by_size = {}
    for row in rows:
        found = fit([case for case in cases if case.name != row.name])
        each = {}
        for case in (case for case in cases if case.name == row.name):
            each.setdefault(case.labels, []).append(errors(found, case))
        for size, shares in each.items():
            by_size.setdefault(size, []).append(np.mean(shares, axis=0))
        row.lost, row.accepted = np.mean(each[row.labels], axis=0)
    by_size = {size: np.mean(by_size[size], axis=0) for size in SIZES if size in by_size}
    text = page(rows, every, by_size, fit(cases), odd_lines(streams, negatives))
    print(text)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["labels_of", "labels", "score", "auroc", "fpr95", "lost", "accepted"])
    for row in rows:
        for score in SCORES:
            figures = [f"{row.auroc(score):.4f}", f"{row.fpr95(score):.4f}"]
            figures += [f"{row.lost:.4f}", f"{row.accepted:.4f}"] if score == "none of these" else ["", ""]
            writer.writerow([row.name, row.labels, score, *figures])
    options.out.mkdir(parents=True, exist_ok=True)
    write_page([text.rstrip()], options.out / "none_of_these.md")
    write_atomically(options.out / "none_of_these.csv", table.getvalue().encode())
    draw(rows, options.out / "none_of_these.png")


if __name__ == "__main__":
    main()
