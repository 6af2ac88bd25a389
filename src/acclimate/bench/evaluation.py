"""Methods on streams as one table: every run, every class, and every pair of methods."""

import html
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from acclimate.arrays import HostArray
from acclimate.bench import Progress, silent
from acclimate.bench.board_page import markdown_table, points
from acclimate.bench.metrics import changes
from acclimate.bench.orders import order_names, stream_order
from acclimate.bench.paired import Answers, gather, interval, resample
from acclimate.bench.prequential import Outcome, Variant, compare
from acclimate.bench.results import DIGITS, Result, pass_title
from acclimate.bench.sweeps import Method, as_variants
from acclimate.errors import InputError, MissingExtraError, nearest
from acclimate.methods import find_method
from acclimate.stream import FeatureStream, read_stream

INTERVAL = "95 % interval"
StreamOrFile: TypeAlias = FeatureStream | str | os.PathLike[str]
Key = TypeVar("Key")


class Row(NamedTuple):
    """What a method scored on a stream in one order. Scores are fractions."""

    stream: str
    method: str
    order: str
    samples: int
    accuracy: float
    gain: float  # accuracy above zero-shot
    mean_per_class_recall: float
    ece: float
    brier: float
    changed: float  # fractions of the answers that are not those of zero-shot, that were corrected, that were broken
    helpful: float
    harmful: float
    seconds: float


class ClassRow(NamedTuple):
    """What a method scored on one class of a stream, in all orders together."""

    stream: str
    method: str
    class_name: str
    samples: int  # of the class that were taken
    recall: float  # right answers of those to its samples; nan if it has none
    precision: float  # right answers of those that name it; nan if none does
    gain: float  # recall above zero-shot


class Difference(NamedTuple):
    """How much more accurate a method is than another on a stream, the mean over the orders."""

    stream: str
    method: str
    other: str
    difference: float
    low: float  # 95 % interval
    high: float


@dataclass(frozen=True, repr=False)
class Evaluation:
    """What `evaluate` measured. Printed, it is a Markdown table with a line per stream and method.

    Attributes:
        rows: one per stream, method and order.
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

    rows: tuple[Row, ...] = ()
    per_class: tuple[ClassRow, ...] = ()
    differences: tuple[Difference, ...] = ()

    def difference(self, stream: str, method: str, other: str) -> Difference:
        """How much more accurate a method is than another, in either order."""
        for each in self.differences:
            if (each.stream, each.method, each.other) == (stream, method, other):
                return each
            if (each.stream, each.method, each.other) == (stream, other, method):
                return Difference(stream, method, other, -each.difference, -each.high, -each.low)
        known = dict.fromkeys(f"{row.stream}: {row.method}" for row in self.rows)
        raise InputError(f"no such pair on {stream!r}: {method!r}, {other!r}; {nearest(f'{stream}: {method}', known)}")

    def to_pandas(self, part: Literal["rows", "per_class", "differences"] = "rows") -> Any:
        """One of the three tables as a pandas.DataFrame; needs pandas."""
        kinds: dict[str, type[Any]] = {"rows": Row, "per_class": ClassRow, "differences": Difference}
        if part not in kinds:
            raise InputError(f"no table {part!r}; {nearest(part, kinds)}")
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("a DataFrame needs pandas: pip install pandas; or use .rows.") from None
        return pandas.DataFrame(getattr(self, part), columns=kinds[part]._fields)

    def lines(self) -> list[tuple[str, ...]]:
        """A line per stream and method, below the headings: accuracy in percent, the gain in points."""
        lines: list[tuple[str, ...]] = [("stream", "method", "samples", "accuracy", "sd", "gain", INTERVAL)]
        for stream, method in dict.fromkeys((row.stream, row.method) for row in self.rows):
            runs = [row for row in self.rows if (row.stream, row.method) == (stream, method)]
            accuracies = 100 * np.array([row.accuracy for row in runs])
            sd = f"{accuracies.std(ddof=1):.2f}" if len(runs) > 1 else ""
            gain = ("", "")
            if method != "zero-shot":
                found = self.difference(stream, method, "zero-shot")
                gain = points(found.difference), interval_text(found.low, found.high)
            samples = round(np.mean([row.samples for row in runs]))
            lines.append((stream, method, str(samples), f"{accuracies.mean():.2f}", sd, *gain))
        return lines

    def __repr__(self) -> str:
        headings, *lines = self.lines()
        return markdown_table(headings, lines)

    def _repr_html_(self) -> str:
        (headings, *lines) = ([html.escape(cell) for cell in line] for line in self.lines())
        head = "".join(f"<th>{cell}</th>" for cell in headings)
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
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
        orders: the name of an order ("stored", "seed:1", "correlated:3", ...), several names, or a number of shuffled
            orders.
        passes: 2 to answer once more at the end, from everything seen, with methods that learn online.
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
    variants = as_variants(methods)
    for name, stream in named.items():
        if stream.labels is None:
            raise InputError(f"{name} has no labels, so there is nothing to score; add labels to the stream.")
    if isinstance(orders, int):
        if orders < 1:
            raise InputError(f"orders must be at least 1, got {orders}.")
        orders = order_names("stored", orders)
    names = [orders] if isinstance(orders, str) else list(dict.fromkeys(orders))
    outcomes = run_streams(named, variants, names, passes, batch_size, device, progress)
    parts = [tabulate(name, stream, outcomes[name]) for name, stream in named.items()]
    return Evaluation(
        tuple(row for part in parts for row in part.rows),
        tuple(row for part in parts for row in part.per_class),
        tuple(each for part in parts for each in part.differences),
    )


def run_streams(
    streams: Mapping[Key, FeatureStream],
    variants: Sequence[Variant],
    orders: Sequence[str],
    passes: int = 1,
    batch_size: int = 256,
    device: str = "numpy",
    progress: Progress = silent,
    origin: str = "",
) -> dict[Key, list[Outcome]]:
    """The outcomes of zero-shot and of variants on streams; orders are checked before anything is run."""
    again = sum(find_method(each.method).kind == "online" for each in variants) if passes == 2 else 0
    samples = sum(len(stream_order(stream, name)) for stream in streams.values() for name in orders)
    with progress(samples * (1 + len(variants) + again), "adapting", "samples") as advance:
        return {
            key: compare(stream, variants, orders, batch_size, device, advance, origin, passes)
            for key, stream in streams.items()
        }


def tabulate(name: str, stream: FeatureStream, outcomes: Sequence[Outcome]) -> Evaluation:
    """The tables of one stream with labels; the first outcome is that of zero-shot."""
    assert stream.labels is not None
    runs = {
        pass_title(outcome.variant.title, number): each
        for outcome in outcomes
        for number, each in enumerate((outcome.runs, outcome.refined), 1)
        if each
    }
    zero_shot = outcomes[0].runs
    rows = []
    for method, by_order in runs.items():
        for order, run in by_order.items():
            scores = run.scores()
            base = zero_shot[order]
            gain = scores["acc1"] - float(base.correct.mean())
            found: dict[str, Any] = changes(run.predictions, base.predictions, run.labels)
            found |= {each: scores[each] for each in ("mean_per_class_recall", "ece", "brier")}
            found |= {"accuracy": scores["acc1"], "gain": gain, "seconds": run.wall_s}
            rows.append(Row(stream=name, method=method, order=order, samples=len(run.order), **found))
    answers = gather(stream.labels, [list(by_order.values()) for by_order in runs.values()])
    resampled = resample(answers.right, answers.taken)
    means = [float(np.mean([row.accuracy for row in rows if row.method == method])) for method in runs]
    titles = list(runs)
    differences = tuple(
        Difference(name, titles[i], titles[j], means[i] - means[j], *interval(resampled[i] - resampled[j]))
        for i in range(len(runs))
        for j in range(i)
    )
    return Evaluation(tuple(rows), tuple(_class_rows(name, stream.head.class_names, titles, answers)), differences)


def add_comparison(results: Sequence[Result], evaluation: Evaluation, per_class: bool = False) -> list[Result]:
    """Results of one stream with the intervals of their gains and, if asked for, the scores of each class."""
    intervals = {
        each.method: [round(each.low, DIGITS), round(each.high, DIGITS)]
        for each in evaluation.differences
        if each.other == "zero-shot"
    }
    classes: dict[str, dict[str, dict[str, float | int | None]]] = {}
    for row in evaluation.per_class if per_class else ():
        scores = {"samples": row.samples, "recall": row.recall, "precision": row.precision, "gain": row.gain}
        classes.setdefault(row.method, {})[row.class_name] = {
            name: None if value != value else round(value, DIGITS) for name, value in scores.items()
        }
    return [
        replace(each, gain_interval=intervals.get(each.title), per_class=classes.get(each.title)) for each in results
    ]


def interval_text(low: float, high: float) -> str:
    """An interval of differences of accuracies, in points."""
    return f"{points(low)} to {points(high)}"


def _class_rows(name: str, class_names: Sequence[str], methods: Sequence[str], answers: Answers) -> Iterator[ClassRow]:
    """The scores by class of methods, the first of which is zero-shot."""
    taken = answers.taken
    count = len(class_names)
    true_class = np.broadcast_to(answers.labels[:, None], taken.shape)
    samples = np.bincount(answers.labels[taken.any(axis=1)], minlength=count)
    asked = np.bincount(true_class[taken], minlength=count)
    hits = [np.bincount(true_class[right], minlength=count) for right in answers.right]
    for method, predictions, hit in zip(methods, answers.predictions, hits, strict=True):
        answered = np.bincount(predictions[taken], minlength=count)
        columns = (samples, _ratio(hit, asked), _ratio(hit, answered), _ratio(hit - hits[0], asked))
        for class_name, *row in zip(class_names, *(each.tolist() for each in columns), strict=True):
            yield ClassRow(name, method, class_name, *row)


def _ratio(part: HostArray, whole: HostArray) -> HostArray:
    """Nan where there is nothing to divide by."""
    return np.asarray(np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0))


def _named(streams: Any) -> dict[str, FeatureStream]:
    """Streams by name."""
    if isinstance(streams, FeatureStream | str | os.PathLike):
        streams = [streams]
    if isinstance(streams, Mapping):
        pairs = list(streams.items())
    else:
        alone = len(streams) == 1
        pairs = [
            (("stream" if alone else f"stream {i}") if isinstance(each, FeatureStream) else Path(each).stem, each)
            for i, each in enumerate(streams, 1)
        ]
    if not pairs:
        raise InputError("there are no streams to evaluate; give at least one.")
    named = {name: each if isinstance(each, FeatureStream) else read_stream(each) for name, each in pairs}
    if len(named) < len(pairs):
        raise InputError("two feature files have the same name; pass a dict with a name for each.")
    return named
