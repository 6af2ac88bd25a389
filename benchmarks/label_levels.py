"""Labels at three levels, from species to kingdoms: accuracy, and images that are wrongly "none of these".

    python training/corrupt.py ../shared/eval --to streams/ --only caltech101_clean cifar10_clean eurosat_clean \
        flowers102_clean oxford_pets_clean pacs_clean ucf101_clean
    python benchmarks/label_levels.py streams/*_clean.safetensors --out docs/results

writes label_levels.md and label_levels.csv. The streams must be those of the bundled model.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from acclimate import Head, Rejector, build_head, create, load_encoder, read_stream
from acclimate.bench.results import markdown_table, write_csv, write_page
from acclimate.predict import adapt_batch, second_answers
from acclimate.prompts import negative_vectors
from acclimate.reading.walk import Batch
from acclimate.stream import FeatureStream

METHOD = "accord"
BATCH = 32
FEWEST = 20  # foreign images without which nothing is said of them
CATS = (
    "abyssinian, bengal, birman, bombay, british shorthair, egyptian mau, maine coon, persian, ragdoll, russian blue, "
)
CATS += "siamese, sphynx"
# For each set: class names, or "*" for all others, and the broader labels that their images show. "?": not used.
BROADER = {
    "pacs": {
        "dog, elephant, giraffe, horse": "mammal, animal",
        "guitar": "musical instrument, object",
        "house": "building",
        "person": "human",
    },
    "cifar10": {
        "cat, deer, dog, horse": "mammal, animal",
        "bird": "animal",
        "frog": "amphibian, animal",
        "airplane": "aircraft, vehicle, object",
        "ship": "watercraft, vehicle, object",
        "automobile, truck": "motor vehicle, vehicle, object",
    },
    "oxford_pets": {CATS: "cat, mammal, animal", "*": "dog, mammal, animal"},
    "flowers102": {"*": "flower, plant"},
    "eurosat": {
        "Annual Crop Land, Permanent Crop Land, Pasture Land": "farmland, satellite photo",
        "Forest, Herbaceous Vegetation Land": "natural vegetation, satellite photo",
        "Industrial Buildings, Residential Buildings, Highway or Road": "built-up area, satellite photo",
        "River, Sea or Lake": "water, satellite photo",
    },
    "caltech101": {
        "beaver, cougar body, cougar face, dalmatian, dolphin, elephant, gerenuk, hedgehog, kangaroo, leopard, llama, "
        "okapi, panda, platypus, rhino, wild cat": "mammal, animal",
        "emu, flamingo, flamingo head, ibis, pigeon, rooster": "bird, animal",
        "ant, butterfly, dragonfly, mayfly": "insect, animal",
        "crocodile, crocodile head, hawksbill": "reptile, animal",
        "crab, crayfish, lobster": "crustacean, animal",
        "bass, sea horse": "fish, animal",
        "nautilus, octopus, scorpion, starfish, tick": "invertebrate, animal",
        "airplane, helicopter": "aircraft, vehicle, object",
        "ferry, ketch, schooner": "watercraft, vehicle, object",
        "car side, motorbike": "motor vehicle, vehicle, object",
        "accordion, electric guitar, euphonium, grand piano, mandolin, saxophone": "musical instrument, object",
        "chair, windsor chair, lamp, chandelier, ceiling fan": "furniture, object",
        "camera, cellphone, headphone, laptop, gramophone": "electronic device, object",
        "scissors, stapler, wrench": "tool, object",
        "anchor, barrel, binocular, cannon, cup, dollar bill, ewer, inline skate, menorah, metronome, revolver, "
        "soccer ball, stop sign, umbrella, watch, wheelchair": "object",
        "bonsai, joshua tree": "tree, plant",
        "lotus, sunflower, water lilly": "flower, plant",
        "strawberry": "plant",
        "minaret, pagoda, pyramid": "building",
        "face": "human",
        "brontosaurus, buddha, garfield, snoopy, stegosaurus, trilobite": "?",
    },
    "ucf101": {"*": "?"},
}
# For labels: other sets whose images may show them unnamed, and are not foreign to them
SHOWN = {
    "plant": ("eurosat", "oxford_pets"),
    "tree": ("eurosat",),
    "natural vegetation": ("pacs", "flowers102", "oxford_pets"),
    "building": ("eurosat",),
    "house": ("eurosat",),
    "built-up area": ("pacs",),
    "water": ("cifar10", "caltech101"),
    "animal": ("pacs people", "caltech101 people"),
}
LEVELS = {
    "family": {
        "pacs": "mammal, musical instrument, building, human",
        "cifar10": "mammal, bird, amphibian, aircraft, watercraft, motor vehicle",
        "oxford_pets": "cat, dog, flower, vehicle, building",
        "flowers102": "flower, tree, animal, building",
        "caltech101": "mammal, bird, insect, reptile, crustacean, fish, invertebrate, aircraft, watercraft, "
        "motor vehicle, musical instrument, furniture, electronic device, tool, tree, flower, building",
        "eurosat": "farmland, natural vegetation, built-up area, water",
    },
    "kingdom": {
        "pacs": "animal, object, building, human",
        "cifar10": "animal, vehicle",
        "oxford_pets": "animal, plant, vehicle, building, satellite photo",
        "flowers102": "plant, animal, vehicle, building",
        "caltech101": "animal, plant, vehicle, object, building",
        "eurosat": "satellite photo, animal, plant, vehicle",
    },
}
MIXED = "68 cats, 132 dogs, 100 flowers, 40 satellite"  # a folder with some of everything
MIXED_LABELS = (
    "bird, mammal, insect, reptile, empty landscape",
    "animal, plant, satellite photo",
    "cat, dog, flower, satellite photo",
    "animal, plant",
    "flower, satellite photo",
)
PAGE = """# Labels at three levels

The images of a set, with the labels of the set (species), with broader ones (family), and with the broadest (kingdom);
some of them are labels that no image has. Bundled model, `{method}`, means of {orders} orders. Accuracies in percent,
and for adapted answers the difference to the model alone. `python benchmarks/label_levels.py` writes this page.

- *Expanded*: broad labels are answered through the nouns below them, as by default; no is `--no-expand`.
- *Lost*: images of a label that `--none-of-these` answers "none of these", in percent. *Caught*: foreign images, those
  of the other sets that show none of the labels, that it answers so.

{table}

As by default, with broad labels expanded, adapting changes the accuracy by {online} points online and by {second} with
a second pass, in the mean over the rows; the lowest differences are {worst_online} and {worst_second}. Without
expansion, the means are {plain_online} and {plain_second}, and the lowest differences {worst_plain_online} and
{worst_plain_second}. A method learns from the model's own answers, which
say little where the labels fit the images badly: `acclimate labels check LABELS IMAGES` says how many images are nearer
to other words.
"""


@dataclass(frozen=True)
class Trial:
    """Images and labels.

    Attributes:
        images: the set, or what the folder holds.
        level: how broad the labels are.
        labels: K labels.
        features: (n, d) images that show one of the labels or none.
        truth: (n,) indices of the labels; -1 for images that show none.
        foreign: (m, d) images of other sets that show none.
    """

    images: str
    level: str
    labels: tuple[str, ...]
    features: np.ndarray
    truth: np.ndarray
    foreign: np.ndarray


@dataclass(frozen=True)
class Row:
    """The findings of a trial, in percent."""

    images: str
    level: str
    labels: int
    expanded: bool
    alone: float
    online: float
    second: float
    lost: float
    caught: float | None


def shown_by(name: str, class_name: str) -> list[str]:
    """Return the labels that the images of a class show, the narrowest first."""
    groups = BROADER[name]
    broader = next((groups[names] for names in groups if class_name in names.split(", ")), groups.get("*", ""))
    return [class_name.replace("_", " ").lower(), *filter(None, broader.split(", "))]


def truths(name: str, stream: FeatureStream, labels: Sequence[str]) -> np.ndarray:
    """Return the labels (n,) that the images of a set show, as indices; -1 for none of them."""
    found = {}
    for class_name in stream.head.class_names:
        shown = shown_by(name, class_name)
        found[class_name] = next((i for i, label in enumerate(labels) if label.lower() in shown), -1)
    return np.array([found[stream.head.class_names[label]] for label in stream.targets])


def foreign_images(streams: dict[str, FeatureStream], names: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """Return features (m, d) of the images of other sets that show none of the labels."""
    unclear = {other for label in labels for other in SHOWN.get(label, ())}
    parts = []
    for name, stream in streams.items():
        shown = [shown_by(name, stream.head.class_names[label]) for label in stream.targets]
        people = f"{name} people" in unclear
        clear = np.array(["?" not in each and not (people and "human" in each) for each in shown])
        if name not in names and name not in unclear:
            parts.append(stream.features[clear & (truths(name, stream, labels) < 0)])
    return np.concatenate([np.empty((0, streams["pacs"].head.dim)), *parts]).astype(np.float32)


def trials(streams: dict[str, FeatureStream]) -> Iterator[Trial]:
    """Yield every trial."""
    for name, stream in streams.items():
        levels = {"species": stream.head.class_names}
        levels |= {level: tuple(LEVELS[level][name].split(", ")) for level in LEVELS if name in LEVELS[level]}
        for level, labels in levels.items():
            truth = truths(name, stream, labels)
            own = truth >= 0
            features = stream.features[own].astype(np.float32)
            yield Trial(name, level, tuple(labels), features, truth[own], foreign_images(streams, [name], labels))
    rng = np.random.default_rng(0)
    pets = truths("oxford_pets", streams["oxford_pets"], ["cat", "dog"])
    animals = [rng.permutation(np.flatnonzero(pets == kind))[:count] for kind, count in ((0, 68), (1, 132))]
    others = {"flowers102": 100, "eurosat": 40}
    picked = {name: rng.permutation(len(streams[name].features))[:count] for name, count in others.items()}
    picked["oxford_pets"] = np.concatenate(animals)
    features = np.concatenate([streams[name].features[rows] for name, rows in picked.items()]).astype(np.float32)
    for number, text in enumerate(MIXED_LABELS, 1):
        labels = tuple(text.split(", "))
        truth = np.concatenate([truths(name, streams[name], labels)[rows] for name, rows in picked.items()])
        yield Trial("mixed", str(number), labels, features, truth, features[truth < 0])


def answers(head: Head, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Answer images in order; returns the classes (n,) online and of the second pass."""
    adapter = create(METHOD, head)
    found = []
    for start in range(0, len(features), BATCH):
        part = features[start : start + BATCH]
        batch = Batch(start, [""] * len(part), [None] * len(part), part, [None] * len(part))
        found.append(adapt_batch(adapter, batch, 1)[0])
    online = np.concatenate([each.classes[:, 0] for each in found])
    second = np.array([classes[0] for classes, _ in second_answers(adapter, features, 1)])
    return online, second


def measure(trial: Trial, head: Head, negatives: np.ndarray, orders: int) -> Row:
    """Return the means of a trial over orders."""
    evidence = head.observe(trial.features)
    own = trial.truth >= 0
    rejector = Rejector(head, negatives)
    figures = []
    for seed in range(orders):
        order = np.random.default_rng(seed).permutation(len(trial.truth))
        truth = trial.truth[order]
        classes = answers(head, trial.features[order])
        figures.append([100 * float((each == truth)[truth >= 0].mean()) for each in classes])
    right = np.mean(figures, axis=0).tolist()
    alone = 100 * float((evidence.predicted == trial.truth)[own].mean())
    none = rejector.none_scores(evidence) >= 0.5
    foreign = trial.foreign if len(trial.foreign) >= FEWEST else None
    return Row(
        trial.images,
        trial.level,
        len(trial.labels),
        head.kinds is not None,
        alone,
        *(each - alone for each in right),
        100 * float(none[own].mean()),
        None if foreign is None else 100 * float((rejector.none_scores(head.observe(foreign)) >= 0.5).mean()),
    )


def page(rows: Sequence[Row], orders: int) -> str:
    """Return the page of the results."""
    header = ["images", "level", "labels", "expanded", "alone", "online", "second pass", "lost", "caught"]
    lines = []
    for row in rows:
        caught = "" if row.caught is None else f"{row.caught:.0f}"
        begin = [row.images, row.level, str(row.labels), "yes" if row.expanded else "no", f"{row.alone:.1f}"]
        lines.append([*begin, f"{row.online:+.1f}", f"{row.second:+.1f}", f"{row.lost:.1f}", caught])
    folder = f"*Mixed* is one folder: {MIXED} photos. Its labels: "
    folder += "; ".join(f"{i} {labels}" for i, labels in enumerate(MIXED_LABELS, 1)) + "."
    plain = [row for row in rows if not row.expanded]
    # By default, labels of a trial that has no broad ones are as they are.
    broad = {(row.images, row.level) for row in rows if row.expanded}
    default = [row for row in rows if row.expanded or (row.images, row.level) not in broad]
    return PAGE.format(
        method=METHOD,
        orders=orders,
        table=markdown_table(header, lines) + f"\n\n{folder}",
        **summary("online", "second", default),
        **summary("plain_online", "plain_second", plain),
    )


def summary(online: str, second: str, rows: Sequence[Row]) -> dict[str, str]:
    """Return the mean and, as `worst_NAME`, the lowest difference of rows, by the names of online and second pass."""
    columns = {online: [row.online for row in rows], second: [row.second for row in rows]}
    means = {name: f"{np.mean(values):+.1f}" for name, values in columns.items()}
    return means | {f"worst_{name}": f"{min(values):+.1f}" for name, values in columns.items()}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("streams", type=Path, nargs="+", help="SET_clean.safetensors for each of the seven sets")
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="folder of the page and the table")
    options = parser.parse_args()
    streams = {path.stem.removesuffix("_clean"): read_stream(path) for path in sorted(options.streams)}
    if streams.keys() != BROADER.keys():
        parser.error(f"give the streams of {', '.join(BROADER)}")
    encoder = load_encoder()
    negatives = negative_vectors(encoder)
    rows = []
    for trial in trials(streams):
        plain = build_head(encoder, trial.labels, expand=False)
        expanded = build_head(encoder, trial.labels)
        for head in [plain] if expanded.kinds is None else [plain, expanded]:
            rows.append(measure(trial, head, negatives, options.orders))
            print(rows[-1], flush=True)
    text = page(rows, options.orders)
    print(text)
    write_page([text.rstrip()], options.out / "label_levels.md")
    write_csv([vars(row) for row in rows], options.out / "label_levels.csv")


if __name__ == "__main__":
    main()
