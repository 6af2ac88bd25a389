"""Evaluate the bundled model on a pack of labelled test images: zero-shot and TDA, for each dataset and PACS domain.

python training/evaluate.py ../shared/eval                        # print the tables
python training/evaluate.py ../shared/eval --card CARD.md         # and write them into the model card
python training/evaluate.py ../shared/eval --record demo.safetensors    # and save the PACS features as a stream
"""

import argparse
import csv
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from acclimate import FeatureStream, build_head, create, load_encoder, write_stream
from acclimate.reading.walk import Preparer, encode_ahead

ORDERS = 10
NEW_NAMES = ("kitten", "lorry", "violin player")  # none of them is a class name of the training pack
DOMAINS = ("photo", "art_painting", "cartoon", "sketch")


def read_members(archive: Path, members: Sequence[str]) -> Iterator[bytes]:
    """Read members of a tar file, one after another."""
    with tarfile.open(archive) as tar:
        for member in members:
            yield tar.extractfile(member).read()


class Pack:
    """The images of a pack and their features.

    Args:
        folder: contains `index.csv` and `images.tar`.
        every: use every n-th image.

    Attributes:
        datasets: (n,) the dataset of each image.
        domains: (n,) its domain, or "" for datasets without domains.
        names: (n,) its class name.
        features: (n, d) its feature.
    """

    def __init__(self, folder: Path, every: int = 1) -> None:
        with (folder / "index.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))[::every]
        columns = ("dataset", "domain", "class_name")
        self.datasets, self.domains, self.names = (np.array([row[key] for row in rows]) for key in columns)
        self.encoder = load_encoder()
        images = read_members(folder / "images.tar", [row["member"] for row in rows])
        batches = list(encode_ahead(images, Preparer(self.encoder)))
        assert not any(error for batch in batches for error in batch.errors)
        self.features = np.concatenate([batch.features for batch in batches])

    def stream(self, dataset: str, domain: str = "") -> FeatureStream:
        """Return the images of a dataset, or of one of its domains, with all classes of the dataset."""
        classes = sorted(set(self.names[self.datasets == dataset].tolist()))
        rows = (self.datasets == dataset) & (self.domains == domain if domain else True)
        return FeatureStream(
            self.features[rows], build_head(self.encoder, classes), targets=np.searchsorted(classes, self.names[rows])
        )


def accuracies(stream: FeatureStream) -> tuple[float, float]:
    """Return the accuracy of zero-shot and of TDA in percent, averaged over ten orders."""
    correct = {"zero-shot": [], "tda": []}
    for seed in range(ORDERS):
        order = np.random.default_rng(seed).permutation(len(stream))
        for method, shares in correct.items():
            logits = create(method, stream.head).step(stream.features[order])
            shares.append(np.mean(logits.argmax(axis=1) == stream.targets[order]))
    return 100 * float(np.mean(correct["zero-shot"])), 100 * float(np.mean(correct["tda"]))


def accuracy_table(pack: Pack) -> str:
    """Return the accuracies as a Markdown table."""
    lines = ["| stream | images | classes | zero-shot | TDA | gain |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    rows = []
    for dataset in np.unique(pack.datasets):
        stream = pack.stream(dataset)
        rows.append((len(stream), *accuracies(stream)))
        lines.append(_line(dataset, len(stream), len(stream.head), *rows[-1][1:]))
        for domain in DOMAINS if dataset == "pacs" else ():
            part = pack.stream(dataset, domain)
            lines.append(_line(f"{dataset}, {domain.replace('_', ' ')} alone", len(part), 7, *accuracies(part)))
    lines.append(
        _line("mean of the datasets", sum(row[0] for row in rows), "", *np.mean([r[1:] for r in rows], axis=0))
    )
    return "\n".join(lines)


def name_table(pack: Pack, names: Sequence[str] = NEW_NAMES) -> str:
    """Return the nearest images to names the model was not trained on, as a Markdown table."""
    lines = ["| label | the five nearest of all test images are labelled |", "| --- | --- |"]
    for name, vector in zip(names, build_head(pack.encoder, names).class_vectors, strict=True):
        nearest = np.argsort(-pack.features @ vector)[:5]
        lines.append(f"| {name} | {', '.join(f'{pack.names[i]} ({pack.datasets[i]})' for i in nearest)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables, and write the files that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pack", type=Path, help="folder that contains index.csv and images.tar")
    parser.add_argument("--card", type=Path, help="model card to write the tables into")
    parser.add_argument("--record", type=Path, help=".safetensors file for the features of PACS")
    options = parser.parse_args()
    pack = Pack(options.pack)
    tables = {"accuracy": accuracy_table(pack), "names": name_table(pack)}
    print(*tables.values(), sep="\n\n")
    if options.card:
        text = options.card.read_text(encoding="utf-8")
        for name, table in tables.items():
            between = f"<!-- {name} -->\n.*?<!-- /{name} -->"
            assert re.search(between, text, re.DOTALL), f"{options.card} has no place for the table {name}"
            text = re.sub(
                between, lambda _, n=name, t=table: f"<!-- {n} -->\n{t}\n<!-- /{n} -->", text, flags=re.DOTALL
            )
        options.card.write_text(text, encoding="utf-8")
    if options.record:
        write_stream(_demo_stream(pack), options.record)


def _demo_stream(pack: Pack) -> FeatureStream:
    """Return PACS, domain by domain, each in random order; half precision is enough for features."""
    stream = pack.stream("pacs")
    domains = pack.domains[pack.datasets == "pacs"]
    shuffled = np.random.default_rng(0).permutation(len(stream))
    order = shuffled[np.argsort([DOMAINS.index(domain) for domain in domains[shuffled]], kind="stable")]
    return replace(
        stream,
        features=stream.features[order].astype(np.float16),
        targets=stream.targets[order],
        domains=tuple(domains[order].tolist()),
        encoder="bundled",
    )


def _line(name: str, images: int, classes: int | str, zero_shot: float, tda: float) -> str:
    return f"| {name} | {images} | {classes} | {zero_shot:.2f} | {tda:.2f} | {tda - zero_shot:+.2f} |"


if __name__ == "__main__":
    main()
