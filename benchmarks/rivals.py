"""The rivals as their authors run them: the setting, where it is published, and how many answers are the authors'.

Every method answers feature files in a shuffled order. Its answers are counted against a straightforward version of the
authors' procedure in float64 (`tests/support/rivals_reference.py`), which computes everything anew for each batch.

    python benchmarks/rivals.py FILE... --limit 2000

prints a table, and a second one of what half precision does for BCA: the share of right answers with and without it.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from acclimate import create, read_stream
from acclimate.bench.results import markdown_table
from acclimate.stream import FeatureStream

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import rivals_reference as reference


class Rival(NamedTuple):
    """A method's setting, where its authors publish it, and the float64 version.

    Attributes:
        setting: the default setting in words.
        published: where the authors publish it.
        naive: the float64 version.
        settings: function that takes a stream and returns the settings of the float64 version.
        most: largest number of samples of a file that the float64 version can answer in minutes.
    """

    setting: str
    published: str
    naive: type
    settings: Callable[[FeatureStream], dict[str, int]] = lambda stream: {}
    most: int = 2000


RIVALS = {
    "oga": Rival(
        "8 samples per class, weight 0.05, batches of 32",
        "paper; defaults of main.py, cfuchs2023/OGA",
        reference.NaiveOGA,
    ),
    "sca": Rival(
        "ridge 10,000, share 0.5, entropy weight 0.5, one sample at a time",
        "paper (entropy weight, order); a public port of Yuqin-G/SCA (the rest)",
        reference.NaiveSCA,
    ),
    "bca": Rival(
        "thresholds 0.05 and 0.65, counts 20,000 and 1, half precision",
        "configs/algorithms.py, walawalagoose/TTABC",
        reference.NaiveBCA,
    ),
    "dota": Rival(
        "variance 0.002, limit 3, rate 0.05, inverse every 1 to 32 samples",
        "configs/vit/eurosat.yaml, skylineeeeen/DOTA",
        reference.PublishedDOTA,
        most=100,
    ),
    "free-tta": Rival(
        "weight 0.1, decay 4.5 / log K, every 16 samples",
        "paper: weight 0.2, decay 4.5, every sample; no code was found",
        reference.NaiveFreeTTA,
        lambda stream: {"refresh": 1},
        most=100,
    ),
    "onzeta": Rival(
        "alpha 0, beta 0.4, cw 0.5, temperatures 0.01 and 0.04",
        "main_online.py, idstcv/OnZeta (alpha 1); paper (beta 0.4), with the length of the stream",
        reference.PublishedOnZeta,
        lambda stream: {"samples": len(stream)},
    ),
    "dmn": Rival(
        "50 samples per class, sharpness 5.5, weight 1",
        "dmn_main.py, YBZh/DMN, which searches the weight with the labels of the test data",
        reference.NaiveDMN,
        most=300,
    ),
}


def shuffled(stream: FeatureStream, limit: int) -> np.ndarray:
    """Return the positions of up to `limit` samples in a shuffled order."""
    return np.random.default_rng(0).permutation(len(stream))[:limit]


def equal_answers(method: str, stream: FeatureStream, limit: int) -> np.ndarray:
    """Return for each sample whether the method answers as its float64 version, (n,)."""
    head = stream.head
    rival = RIVALS[method]
    features = stream.features[shuffled(stream, min(limit, rival.most))]
    naive = rival.naive(head.class_vectors, head.logit_scale, head.logit_bias, **rival.settings(stream))
    answers = create(method, head).step(features).argmax(axis=1)
    return np.asarray(answers == naive.step(features).argmax(axis=1))


def bca_precision(stream: FeatureStream, limit: int) -> list[str]:
    """Return the right answers, in percent: zero-shot, BCA in half precision, and BCA in exact arithmetic."""
    head = stream.head
    order = shuffled(stream, limit)
    features = stream.features[order]
    classifiers = [
        create("zero-shot", head),
        create("bca", head),
        reference.NaiveBCA(head.class_vectors, head.logit_scale, head.logit_bias, rounded=np.asarray),
    ]
    return [
        f"{100 * np.mean(classifier.step(features).argmax(axis=1) == stream.targets[order]):.1f}"
        for classifier in classifiers
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="feature files")
    parser.add_argument("--limit", type=int, default=2000, help="samples of each file")
    parser.add_argument("--method", action="append", choices=RIVALS, help="one of the rivals; all when not given")
    options = parser.parse_args(arguments)
    streams = [read_stream(path) for path in options.files]
    rows = []
    for method in options.method or RIVALS:
        equal = [equal_answers(method, stream, options.limit) for stream in streams]
        count = sum(int(each.sum()) for each in equal)
        total = sum(len(each) for each in equal)
        rows.append([f"`{method}`", RIVALS[method].setting, RIVALS[method].published, f"{count} of {total}"])
    print(markdown_table(["method", "setting", "where published", "answers equal to a float64 version"], rows))
    if "bca" in (options.method or RIVALS):
        columns = ["right answers, %", "zero-shot", "`bca`, half precision", "`bca`, exact"]
        lines = [
            ["/".join(path.with_suffix("").parts[-2:]), *bca_precision(stream, options.limit)]
            for path, stream in zip(options.files, streams, strict=True)
        ]
        print(f"\n{markdown_table(columns, lines)}")


if __name__ == "__main__":
    main()
