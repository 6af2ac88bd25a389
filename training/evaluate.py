"""Measure the bundled model on a pack of labelled test images: zero-shot and TDA, for each dataset and PACS domain.

python training/evaluate.py ../shared/eval                        # print the tables
python training/evaluate.py ../shared/eval --card CARD.md         # and put them into the model card
python training/evaluate.py ../shared/eval --record demo.safetensors    # and keep the PACS features as a stream
"""

import argparse
import csv
import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from acclimate.bench.prequential import Variant, compare
from acclimate.classifier import Classifier
from acclimate.stream import FeatureStream, write_stream

ORDERS = [f"seed:{seed}" for seed in range(10)]
NEW_NAMES = ("kitten", "lorry", "violin player")  # none of them is a class name of the training pack
DOMAINS = ("photo", "art_painting", "cartoon", "sketch")


class Pack:
    """The images of a pack, and what the bundled model says of them.

    Args:
        folder: with `index.csv` and `images.tar`.
        every: take one image in so many.

    Attributes:
        datasets: (n,) the dataset of each image.
        domains: (n,) its domain, where the dataset has some.
        names: (n,) its class name.
        features: (n, d) what the bundled model says of it.
    """

    def __init__(self, folder: Path, every: int = 1) -> None:
        with (folder / "index.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))[::every]
        columns = ("dataset", "domain", "class_name")
        self.datasets, self.domains, self.names = (np.array([row[key] for row in rows]) for key in columns)
        self.classifier = Classifier(["one", "another"])
        parts = []
        for features, errors in self.classifier.features(_read(folder / "images.tar", [row["member"] for row in rows])):
            assert not any(errors), errors
            parts.append(features)
        self.features = np.concatenate(parts)

    def stream(self, dataset: str, domain: str = "") -> FeatureStream:
        """The images of a dataset, or of one domain of it, with the dataset's classes."""
        classes = sorted(set(self.names[self.datasets == dataset]))
        adapter = Classifier([name.replace("_", " ") for name in classes], self.classifier.encoder).adapter
        rows = (self.datasets == dataset) & (self.domains == domain if domain else True)
        return FeatureStream(
            self.features[rows],
            adapter.class_vectors,
            adapter.logit_scale,
            tuple(classes),
            labels=np.searchsorted(classes, self.names[rows]),
        )


def accuracies(stream: FeatureStream) -> tuple[float, float]:
    """Zero-shot accuracy, and TDA's in the mean over ten orders, in percent."""
    zero_shot, tda = (
        100 * float(np.mean([run.correct.mean() for run in outcome.runs.values()]))
        for outcome in compare(stream, [Variant("tda")], ORDERS)
    )
    return zero_shot, tda


def accuracy_table(pack: Pack) -> str:
    """A markdown table of accuracies."""
    lines = ["| stream | images | classes | zero-shot | TDA | gain |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    rows = []
    for dataset in np.unique(pack.datasets):
        stream = pack.stream(dataset)
        rows.append((len(stream), *accuracies(stream)))
        lines.append(_line(dataset, len(stream), len(stream.class_names), *rows[-1][1:]))
        for domain in DOMAINS if dataset == "pacs" else ():
            part = pack.stream(dataset, domain)
            lines.append(_line(f"{dataset}, {domain.replace('_', ' ')} alone", len(part), 7, *accuracies(part)))
    lines.append(
        _line("mean of the datasets", sum(row[0] for row in rows), "", *np.mean([r[1:] for r in rows], axis=0))
    )
    return "\n".join(lines)


def name_table(pack: Pack, names: Sequence[str] = NEW_NAMES) -> str:
    """A markdown table of the images that are nearest to names the model was never trained on."""
    lines = ["| label | the five nearest of all test images are labelled |", "| --- | --- |"]
    vectors = Classifier([*names, "another"], pack.classifier.encoder).adapter.class_vectors
    for name, vector in zip(names, vectors, strict=False):
        nearest = np.argsort(-pack.features @ vector)[:5]
        lines.append(f"| {name} | {', '.join(f'{pack.names[i]} ({pack.datasets[i]})' for i in nearest)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables; write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pack", type=Path, help="folder with index.csv and images.tar")
    parser.add_argument("--card", type=Path, help="model card to put the tables into")
    parser.add_argument("--record", type=Path, help="where to keep the features of PACS, .safetensors")
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
    """PACS, domain after domain, each in random order; half precision, as features need no more."""
    stream = pack.stream("pacs")
    domains = pack.domains[pack.datasets == "pacs"]
    shuffled = np.random.default_rng(0).permutation(len(stream))
    order = shuffled[np.argsort([DOMAINS.index(domain) for domain in domains[shuffled]], kind="stable")]
    return replace(
        stream,
        features=stream.features[order].astype(np.float16),
        labels=stream.labels[order],
        metadata={"encoder": "bundled", "domains": json.dumps(domains[order].tolist())},
    )


def _read(archive: Path, members: Sequence[str]) -> Iterator[bytes]:
    with tarfile.open(archive) as tar:
        for member in members:
            yield tar.extractfile(member).read()


def _line(name: str, images: int, classes: int | str, zero_shot: float, tda: float) -> str:
    return f"| {name} | {images} | {classes} | {zero_shot:.2f} | {tda:.2f} | {tda - zero_shot:+.2f} |"


if __name__ == "__main__":
    main()
