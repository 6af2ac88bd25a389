"""Methods on streams as one table: every run, every class, and every pair of methods.

Intervals come from a paired bootstrap that draws samples and orders with replacement, independently of each other, and
gives the same draw to every method. So they say how a difference would vary with other samples and other orders of the
kind.
"""

import html
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from acclimate.arrays import HostArray
from acclimate.bench import Progress, silent
from acclimate.bench.orders import order_names, stream_order
from acclimate.bench.prequential import Outcome, Run, Variant, compare
from acclimate.bench.results import DIGITS, Score, latex_table, markdown_table, points, summarise, write_csv
from acclimate.errors import InputError, MissingExtraError, nearest
from acclimate.methods import Adapter, FewShot, find_method, register
from acclimate.stream import FeatureStream, read_stream

INTERVAL = "95 % interval"
MAX_VARIANTS = 256  # adapters that share a pass, all of them in memory
ROW_COLUMNS = (
    *("stream", "method", "order", "samples", "accuracy", "gain", "mean_per_class_recall", "ece", "brier"),
    *("changed", "helpful", "harmful", "seconds"),
)
StreamOrFile: TypeAlias = FeatureStream | str | os.PathLike[str]
Method: TypeAlias = str | type[Adapter] | Adapter | tuple[str | type[Adapter], Mapping[str, Any]]
Key = TypeVar("Key")


class ClassRow(NamedTuple):
    """The scores of a method on one class of a stream, in all orders together."""

    stream: str
    method: str
    class_name: str
    samples: int  # samples of the class in at least one order
    recall: float  # right answers among those to its samples; nan without samples
    precision: float  # right answers among those that name it; nan without any
    gain: float  # recall above zero-shot


class Difference(NamedTuple):
    """The difference of the accuracies of two methods on a stream, the mean over the orders."""

    stream: str
    method: str
    other: str
    difference: float
    low: float  # the 95 % interval begins here
    high: float


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The tables of `evaluate`. Printed, they are a Markdown table with a line per stream and method.

    Attributes:
        rows: one `Score` per stream, method and order.
        per_class: one per stream, method and class.
        differences: one per stream and pair of methods, each method against those before it. The 95 % interval comes
            from a paired bootstrap: 2000 draws of samples and, if there are several, of orders, the same for all
            methods.

    Examples:
        >>> from acclimate import evaluate
        >>> from acclimate.checks.synthetic import shifted_stream
        >>> evaluation = evaluate(shifted_stream(samples=300), ["tda", "prior"], orders=3)
        >>> len(evaluation.rows), evaluation.rows[0].method
        (9, 'zero-shot')
        >>> pair = evaluation.difference("stream", "tda", "prior")
        >>> pair.low <= pair.difference <= pair.high
        True
        >>> list(evaluation.to_pandas("differences").columns)
        ['stream', 'method', 'other', 'difference', 'low', 'high']
    """

    rows: tuple[Score, ...] = ()
    per_class: tuple[ClassRow, ...] = ()
    differences: tuple[Difference, ...] = ()

    def difference(self, stream: str, method: str, other: str) -> Difference:
        """Return how much more accurate a method is than another, in either order."""
        for each in self.differences:
            if (each.stream, each.method, each.other) == (stream, method, other):
                return each
            if (each.stream, each.method, each.other) == (stream, other, method):
                return Difference(stream, method, other, -each.difference, -each.high, -each.low)
        known = dict.fromkeys(f"{row.stream}: {row.method}" for row in self.rows)
        raise InputError(f"no such pair on {stream!r}: {method!r}, {other!r}; {nearest(f'{stream}: {method}', known)}")

    def to_pandas(self, part: Literal["rows", "per_class", "differences"] = "rows") -> Any:
        """Return one of the three tables as a pandas.DataFrame; needs pandas."""
        columns = {"rows": ROW_COLUMNS, "per_class": ClassRow._fields, "differences": Difference._fields}
        if part not in columns:
            raise InputError(f"no table {part!r}; {nearest(part, columns)}")
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("a DataFrame needs pandas: pip install pandas; or use .rows.") from None
        return pandas.DataFrame(
            [[getattr(row, column) for column in columns[part]] for row in getattr(self, part)], columns=columns[part]
        )

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the rows to a CSV file, one line per stream, method and order; scores are fractions."""
        write_csv([{column: getattr(row, column) for column in ROW_COLUMNS} for row in self.rows], Path(path))

    def to_latex(self) -> str:
        """Return accuracies in percent as LaTeX for the booktabs package: methods by streams, the best in bold."""
        streams = list(dict.fromkeys(row.stream for row in self.rows))
        found: dict[str, dict[str, HostArray]] = {}
        for row in self.rows:
            known = found.setdefault(row.method, {})
            known[row.stream] = np.append(known.get(row.stream, ()), 100 * row.accuracy)
        best = {name: max(accuracies[name].mean() for accuracies in found.values()) for name in streams}
        lines = []
        for method, accuracies in found.items():
            cells = []
            for name in streams:
                spread = f" ± {accuracies[name].std(ddof=1):.2f}" if len(accuracies[name]) > 1 else ""
                cell = f"{accuracies[name].mean():.2f}"
                cells.append((f"<b>{cell}</b>" if accuracies[name].mean() == best[name] else cell) + spread)
            lines.append((method, *cells))
        return latex_table(("method", *streams), lines)

    def lines(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return headings, and a line per stream and method: accuracy in percent, the gain in points."""
        lines: list[tuple[str, ...]] = []
        for stream, method in dict.fromkeys((row.stream, row.method) for row in self.rows):
            runs = [row for row in self.rows if (row.stream, row.method) == (stream, method)]
            accuracies = 100 * np.array([row.accuracy for row in runs])
            gain = ("", "")
            if method != "zero-shot":
                found = self.difference(stream, method, "zero-shot")
                gain = (points(found.difference), interval_text(found.low, found.high))
            lines.append(
                (
                    *(stream, method),
                    f"{np.mean([row.samples for row in runs]):.0f}",
                    f"{accuracies.mean():.2f}",
                    f"{accuracies.std(ddof=1):.2f}" if len(runs) > 1 else "",
                    *gain,
                )
            )
        return ("stream", "method", "samples", "accuracy", "sd", "gain", INTERVAL), lines

    def __repr__(self) -> str:
        return markdown_table(*self.lines())

    def _repr_html_(self) -> str:
        headings, lines = self.lines()
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in headings)
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def evaluate(
    streams: StreamOrFile | Sequence[StreamOrFile] | Mapping[str, StreamOrFile],
    methods: Method | Sequence[Method],
    orders: int | str | Sequence[str] = "stored",
    *,
    passes: int = 1,
    batch_size: int = 256,
    device: str = "numpy",
    progress: Progress = silent,
) -> Evaluation:
    """Run methods on labelled streams, with zero-shot beside them, and compare them.

    All methods answer the same samples in the same orders, each from scratch in every order; each sample is answered
    once, in order, and may then be learnt from.

    Args:
        streams: a stream or a feature file, several of them, or a dict of them by name. Files are named after their
            stems.
        methods: one or several: a name; a class, which need not be registered yet; either with settings, such as
            `("tda", {"positive_alpha": 3})`, where a list of values is a sweep: one line per value, and all
            combinations of several lists; or an adapter: one that was fitted to labelled samples as it is, of any
            other its method and settings.
        orders: the name of an order ("stored", "shuffled:1", "correlated:3", ...), several names, or a number of
            shuffled orders.
        passes: 2 to answer once more at the end, from everything seen, with methods that learn online, and to take
            methods that answer a stream as a whole.
        batch_size: samples per step; the answers do not depend on it.
        device: "numpy", or a PyTorch device.
        progress: shows a progress bar; nothing when not given.

    Raises:
        InputError: a stream without labels, an unknown method or setting, or an order that a stream cannot take.

    Examples:
        >>> from acclimate import evaluate
        >>> from acclimate.checks.synthetic import shifted_stream
        >>> stream = shifted_stream(samples=300)
        >>> print(evaluate({"photos": stream}, ("tda", {"positive_alpha": [1.0, 3.0]})))
        | stream | method | samples | accuracy | sd | gain | 95 % interval |
        | --- | ---: | ---: | ---: | ---: | ---: | ---: |
        | photos | zero-shot | 300 | ... |  |  |  |
        | photos | tda positive_alpha=1.0 | 300 | ... |  | ... | ... to ... |
        | photos | tda positive_alpha=3.0 | 300 | ... |  | ... | ... to ... |
    """
    named = _named(streams)
    for name, stream in named.items():
        if stream.targets is None:
            raise InputError(f"{name} has no labels, so there is nothing to score; add labels to the stream.")
    if isinstance(orders, int):
        if orders < 1:
            raise InputError(f"orders must be at least 1, got {orders}.")
        orders = order_names("stored", orders)
    names = [orders] if isinstance(orders, str) else list(dict.fromkeys(orders))
    outcomes = run_streams(named, as_variants(methods), names, passes, batch_size, device, progress)
    return join([tabulate(name, stream, outcomes[name]) for name, stream in named.items()])


def join(parts: Sequence[Evaluation]) -> Evaluation:
    """Return the tables of several streams as one."""
    return Evaluation(
        tuple(row for part in parts for row in part.rows),
        tuple(row for part in parts for row in part.per_class),
        tuple(each for part in parts for each in part.differences),
    )


def as_variants(methods: Method | Sequence[Method]) -> list[Variant]:
    """Return what `evaluate` takes as methods as variants; zero-shot, which always runs, is left out."""
    single = isinstance(methods, (str, type, Adapter)) or (len(methods) == 2 and isinstance(methods[1], Mapping))
    every: list[Any] = [methods] if single else list(methods)  # type: ignore[arg-type]
    variants: dict[str, Variant] = {}
    for each in every:
        method, settings = each if isinstance(each, tuple) else (each, {})
        if isinstance(method, FewShot):
            found = [Variant(register(type(method)).name, method.settings, fitted=method)]
        elif isinstance(method, Adapter):
            usual = method.default_settings()
            changed = {key: value for key, value in method.settings.items() if value != usual[key]}
            found = sweep(register(type(method)).name, changed)
        elif isinstance(method, str):
            found = sweep(method, settings)
        elif isinstance(method, type) and issubclass(method, Adapter):
            found = sweep(register(method).name, settings)
        else:
            raise InputError(f"a method is a name, a class, an adapter or (method, settings), not {method!r}.")
        for variant in found:
            if variants.setdefault(variant.title, variant) != variant:
                raise InputError(f"two methods would be called {variant.title!r}; evaluate them one after the other.")
    return [variant for variant in variants.values() if variant.method != "zero-shot"]


def sweep(method: str, settings: Mapping[str, Any]) -> list[Variant]:
    """Return a method with settings, named after them; one variant per combination where values are lists."""
    lists = [list(value) if isinstance(value, list | range | np.ndarray) else [value] for value in settings.values()]
    count = prod(map(len, lists))
    if not 0 < count <= MAX_VARIANTS:
        raise InputError(
            f"the sweep of {method!r} has {count:,} combinations; take at most {MAX_VARIANTS} and at least 1."
        )
    variants = []
    for values in product(*lists):
        chosen = dict(zip(settings, values, strict=True))
        label = " ".join([method, *(f"{key}={value}" for key, value in chosen.items())])
        variants.append(Variant(method, chosen, label=label if chosen else ""))
    return variants


def run_streams(
    streams: Mapping[Key, FeatureStream],
    variants: Sequence[Variant],
    orders: Sequence[str],
    passes: int = 1,
    batch_size: int = 256,
    device: str = "numpy",
    progress: Progress = silent,
    origin: str = "",
    encoder: Any = None,
) -> dict[Key, list[Outcome]]:
    """Run zero-shot and variants on streams; orders are checked before anything is run; see `compare`."""
    if len(variants) > MAX_VARIANTS:
        raise InputError(f"{len(variants)} methods and settings are too many for one run; take at most {MAX_VARIANTS}.")
    second = sum(find_method(each.method).kind == "online" for each in variants) if passes == 2 else 0
    samples = sum(len(stream_order(stream, name)) for stream in streams.values() for name in orders)
    with progress(samples * (1 + len(variants) + second), "adapting", "samples") as advance:
        return {
            key: compare(stream, variants, orders, batch_size, device, advance, origin, passes, encoder)
            for key, stream in streams.items()
        }


def tabulate(name: str, stream: FeatureStream, outcomes: Sequence[Outcome]) -> Evaluation:
    """Return the tables of one stream, empty if it has no labels; the first outcome is that of zero-shot."""
    if stream.targets is None:
        return Evaluation()
    rows: dict[str, list[Score]] = {}
    runs = []
    for outcome in outcomes:
        for passes, (title, by_order) in enumerate(outcome.by_title.items(), 1):
            runs.append(list(by_order.values()))
            score = partial(summarise, name, stream, outcome, outcomes[0], passes=passes)
            rows[title] = [replace(score(orders=[each]), method=title, label="", passes=1) for each in by_order]
    titles = list(rows)
    predictions = gather(len(stream), runs)
    taken = predictions[0] >= 0
    resampled = resample((predictions == stream.targets[:, None]) & taken, taken)
    means = [float(np.mean([row.accuracy for row in each])) for each in rows.values()]
    differences = tuple(
        Difference(name, titles[i], titles[j], means[i] - means[j], *interval(resampled[i] - resampled[j]))
        for i in range(len(titles))
        for j in range(i)
    )
    classes = _class_rows(name, stream.head.class_names, stream.targets, dict(zip(titles, predictions, strict=True)))
    return Evaluation(tuple(row for each in rows.values() for row in each), tuple(classes), differences)


def add_comparison(scores: Sequence[Score], evaluation: Evaluation, per_class: bool = False) -> list[Score]:
    """Return the scores of one stream with the intervals of their gains and, if asked for, those of each class."""
    intervals = {
        each.method: [round(each.low, DIGITS), round(each.high, DIGITS)]
        for each in evaluation.differences
        if each.other == "zero-shot"
    }
    classes: dict[str, dict[str, dict[str, float | int | None]]] = {}
    for row in evaluation.per_class if per_class else ():
        classes.setdefault(row.method, {})[row.class_name] = {
            name: None if (value := getattr(row, name)) != value else value
            for name in ("samples", "recall", "precision", "gain")
        }
    return [
        replace(each, gain_interval=intervals.get(each.title), per_class=classes.get(each.title)) for each in scores
    ]


def interval_text(low: float, high: float) -> str:
    """Return an interval of differences of accuracies, in points."""
    return f"{points(low)} to {points(high)}"


def _class_rows(
    name: str, class_names: Sequence[str], targets: HostArray, answers: Mapping[str, HostArray]
) -> Iterator[ClassRow]:
    """Yield the scores by class of methods, the first of which is zero-shot; answers (n, O) are -1 if not taken."""
    count = len(class_names)

    def ratio(part: HostArray, whole: HostArray) -> HostArray:
        return np.asarray(np.divide(part, whole, out=np.full(count, np.nan), where=whole > 0))

    taken = next(iter(answers.values())) >= 0
    true_class = np.broadcast_to(targets[:, None], taken.shape)
    samples = np.bincount(targets[taken.any(axis=1)], minlength=count)
    asked = np.bincount(true_class[taken], minlength=count)
    hits = {
        method: np.bincount(true_class[taken & (each == true_class)], minlength=count)
        for method, each in answers.items()
    }
    for method, predictions in answers.items():
        columns = (
            samples,
            ratio(hits[method], asked),
            ratio(hits[method], np.bincount(predictions[taken], minlength=count)),
            ratio(hits[method] - hits["zero-shot"], asked),
        )
        for class_name, *row in zip(class_names, *(each.tolist() for each in columns), strict=True):
            yield ClassRow(name, method, class_name, *row)


def gather(samples: int, runs: Sequence[Sequence[Run]]) -> HostArray:
    """Return the answers (M, n, O) of M methods to n samples in O orders; -1 where an order leaves a sample out."""
    predictions = np.full((len(runs), samples, len(runs[0])), -1, np.int32)
    for method, by_order in enumerate(runs):
        for order, run in enumerate(by_order):
            predictions[method, run.order, order] = run.predictions
    return predictions


def resample(right: HostArray, taken: HostArray, resamples: int = 2000, seed: int = 0) -> HostArray:
    """Return accuracies (M, resamples), the mean over the orders, of samples and orders drawn with replacement.

    `right` (M, n, O) says which answers are right, and `taken` (n, O) which samples each order takes. One order is
    always drawn: there is nothing to say of others.
    """
    methods, samples, orders = right.shape
    table = np.concatenate([right.transpose(1, 0, 2).reshape(samples, -1), taken], axis=1)  # (n, (M + 1) O)
    # Samples with the same answers are interchangeable: how often one of them is drawn is all that counts.
    _, first, counts = np.unique(np.packbits(table, axis=1), axis=0, return_index=True, return_counts=True)
    table = table[first].astype(np.float32)  # exact for counts below 2^24
    rng = np.random.default_rng(seed)
    blocks = []
    for start in range(0, resamples, 100):  # 100 at once bound the memory
        size = min(100, resamples - start)
        drawn = rng.multinomial(samples, counts / samples, size).astype(np.float32)
        answered = (drawn @ table).reshape(size, methods + 1, orders)
        accuracies = answered[:, :-1] / np.maximum(answered[:, -1:], 1)  # (size, M, O)
        shares = rng.multinomial(orders, np.full(orders, 1 / orders), size) / orders
        blocks.append((accuracies * shares[:, None]).sum(axis=2).T)
    return np.concatenate(blocks, axis=1)


def interval(resampled: HostArray) -> tuple[float, float]:
    """Return the middle part, 95 %, of resampled differences."""
    low, high = np.quantile(resampled, [0.025, 0.975])
    return float(low), float(high)


def _named(streams: Any) -> dict[str, FeatureStream]:
    if isinstance(streams, FeatureStream | str | os.PathLike):
        streams = [streams]
    if not streams:
        raise InputError("there are no streams to evaluate; give at least one.")
    if not isinstance(streams, Mapping):
        number = "" if len(streams) == 1 else " {}"
        names = [
            "stream" + number.format(i) if isinstance(each, FeatureStream) else Path(each).stem
            for i, each in enumerate(streams, 1)
        ]
        if len(set(names)) < len(names):
            raise InputError("two feature files have the same name; pass a dict with a name for each.")
        streams = dict(zip(names, streams, strict=True))
    return {name: each if isinstance(each, FeatureStream) else read_stream(each) for name, each in streams.items()}
