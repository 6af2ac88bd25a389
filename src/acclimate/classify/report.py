"""The report of a run: one HTML file that needs nothing else."""

import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from inspect import getdoc
from itertools import pairwise
from math import log
from pathlib import PurePath
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from acclimate.classify.accuracy import FEW_IMAGES, paired_difference, score_text, wilson
from acclimate.classify.run import Classification
from acclimate.classify.summary import BINS, EXAMPLES, Summary, ranked
from acclimate.errors import ImageError, InputError, count
from acclimate.files import write_atomically, writing
from acclimate.images.opening import open_image, thumbnail
from acclimate.methods import Adapter
from acclimate.predict import NONE
from acclimate.sources.source import Sample

THUMBNAIL_PIXELS = 112  # longer side
NAME_CHARACTERS = 200  # length of a name that is shown
LISTED_ROWS = 24  # rows of a list that are shown at once; the others unfold
CHANGE_KINDS = 10  # rows of the table of changes
CHANGED_IMAGES = 12
GALLERY_IMAGES = 240  # images below their labels; with the others the file stays under about 5 MB
IMAGES_PER_PART = 3  # images per label and part of the state
LEARNT_IMAGES = 72  # images of the state in all
MATRIX_LABELS = 40  # labels in a confusion matrix; with more, only the most frequent confusions are listed
LARGE_CELL_LABELS = 15  # labels whose confusion matrix has room for large cells
CONFUSION_KINDS = 12  # rows of the table of confusions
SCORE_BOUNDS = (0.0, 0.5, 0.7, 0.9, 1.0)  # answers with scores between two bounds are judged together
CHART_TOPS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)  # possible ends of an axis


class ReportTable(NamedTuple):
    """Rows of text; columns whose head begins with # hold numbers, and those without a head bars: kind and share."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    shown: int = LISTED_ROWS  # the other rows unfold
    unnamed: str = "bars"  # the kind of columns without a head


class Chart(NamedTuple):
    """Shares as vertical bars."""

    bars: list[tuple[str, float, float, float]]  # colour, left edge and width in 200ths of the chart, share
    top: float  # the end of the vertical axis
    ticks: Sequence[str]
    caption: str
    legend: Sequence[str] = ()


def write_report(path: str | os.PathLike[str], run: Classification, title: str, settings: Mapping[str, object]) -> None:
    """Write what a run has answered and learnt as a self-contained HTML page; equal input gives equal bytes.

    The images that are shown are read again. The settings, such as options and versions, are listed at the end.
    """
    summary = run.summary
    adapter = run.classifier.adapter
    order = [*adapter.head.class_names, *([NONE] if summary.after[NONE] or summary.truths[NONE] else [])]
    found = sorted(filter(summary.after.__getitem__, order), key=lambda label: -summary.after[label])
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters |= {
        "short": short,
        "percent": percent,
        "score_text": score_text,
        "file_name": lambda path: PurePath(path).name,
        "file_in_folder": lambda path: "/".join(PurePath(path).parts[-2:]),
    }
    template = environment.from_string(files("acclimate.classify").joinpath("report.html").read_text("utf-8"))
    page = template.render(
        title=title,
        summary=summary,
        adapter=adapter,
        advice=adapter.advice(),
        unsure=run.classifier.unsure,
        first_id=run.first_id,
        order=order,
        found=found,
        judged=[label for label in order if summary.truths[label] or summary.judged[label]],
        known=summary.accuracy.known,
        tables=_tables(summary, adapter, order, settings),
        charts=_charts(summary) if summary.answered else {},
        thumbnail=_thumbnails(run.samples),
        columns=adapter.learnt(),
        entries=adapter.entries(),
        shown_entries=_shown_entries(adapter),
        largest_entropy=log(len(adapter.head)),
        examples_per_label=max(1, min(EXAMPLES, GALLERY_IMAGES // max(1, len(found)))),
        gallery_images=GALLERY_IMAGES,
        listed_rows=LISTED_ROWS,
        changed_images=CHANGED_IMAGES,
        images_per_part=IMAGES_PER_PART,
        matrix_labels=MATRIX_LABELS,
        large_cell_labels=LARGE_CELL_LABELS,
        few_images=FEW_IMAGES,
        count=count,
        ranked=ranked,
        wilson=wilson,
    )
    with writing(f"the report {path}", InputError, "Choose another place."):
        write_atomically(path, page.encode("utf-8", "backslashreplace"))  # a file name may not be valid Unicode


def short(name: str) -> str:
    """Return a name from outside, cut if it is very long."""
    return name if len(name) <= NAME_CHARACTERS else name[: NAME_CHARACTERS - 1] + "\u2026"


def percent(share: float) -> str:
    """Return a share in percent with three digits.

    Examples:
        >>> percent(0.86486)
        '86.5\u202f%'
    """
    return f"{100 * share:.3g}\u202f%"


def _thumbnails(samples: Sequence[Sample]) -> Callable[[int], dict[str, str]]:
    """Return a function from an index to a name and a base64 JPEG, each made once and "" if there is none."""

    @cache
    def read(index: int) -> dict[str, str]:
        if not 0 <= index < len(samples):
            return {"name": "", "content": ""}
        try:
            content = b64encode(thumbnail(open_image(samples[index].read()), THUMBNAIL_PIXELS)).decode()
        except (ImageError, OSError):
            content = ""
        return {"name": samples[index].name, "content": content}

    return read


def _tables(
    summary: Summary, adapter: Adapter, order: Sequence[str], settings: Mapping[str, object]
) -> dict[str, ReportTable | None]:
    changes = [
        (short(old), short(new), f"{number:,}") for (old, new), number in summary.pairs.most_common(CHANGE_KINDS)
    ]
    confusions = [
        (short(truth), short(label), f"{number:,}", _share(number, summary.truths[truth]))
        for (truth, label), number in summary.confusions.most_common(CONFUSION_KINDS)
    ]
    numbers = {name: values.tolist() for name, values in adapter.learnt().items() if name not in adapter.entries()}
    labels = adapter.head.class_names
    learnt = {name: dict(zip(labels, values, strict=True)) for name, values in numbers.items()}
    arguments = re.split(r"\n(?:Note|Examples|Raises):", (getdoc(type(adapter)) or "").partition("\nArgs:\n")[2])[0]
    meanings = dict(re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", arguments, re.MULTILINE))
    method = [(name, str(value), " ".join(meanings.get(name, "").split())) for name, value in adapter.settings.items()]
    reasons = [(short(file), short(reason)) for file, reason in summary.reasons]
    facts = [(name, str(value)) for name, value in settings.items()]
    return {
        "accuracy": _accuracy_table(summary) if summary.truths else None,
        "by_score": _by_score_table(summary),
        "by_label": _by_label_table(summary, order),
        "confusions": ReportTable(
            ("True label", "Answer", "#Images", "#Share"), confusions, "Most frequent confusions"
        ),
        "changes": ReportTable(("Zero-shot answer", "Adapted answer", "#Images"), changes, "Most frequent changes"),
        "before_and_after": _label_table(order, {"Zero-shot": summary.before, "Adapted": summary.after}),
        "learnt": _label_table(labels, learnt) if learnt else None,
        "unreadable": ReportTable(("File", "Reason"), reasons),
        "settings": ReportTable(("", ""), facts, shown=len(facts), unnamed=""),
        "method": ReportTable(
            ("Setting", "Value", "Meaning"), method, f"Settings of the method {short(adapter.name)}", len(method)
        ),
    }


def _accuracy_table(summary: Summary) -> ReportTable:
    accuracy = summary.accuracy
    rows = []
    for who, right in (("Zero-shot", accuracy.right_before), ("Adapted", accuracy.right)):
        low, high = wilson(right, accuracy.known)
        rows.append((who, f"{right:,}", _points(right / accuracy.known), f"{_points(low)} to {_points(high)}"))
    low, high = paired_difference(accuracy.gained, accuracy.lost, accuracy.known)
    points = _points((accuracy.gained - accuracy.lost) / accuracy.known, "+")
    change = f"+{accuracy.gained:,} \u2212{accuracy.lost:,}"
    rows.append(("Difference", change, points, f"{_points(low, '+')} to {_points(high, '+')}"))
    return ReportTable(("", "#Right", "#Accuracy in %", "#95\u202f% interval"), rows)


def _by_score_table(summary: Summary) -> ReportTable:
    rows = []
    for low, high in pairwise(SCORE_BOUNDS):
        bins = slice(round(low * BINS), round(high * BINS))
        judged = sum(summary.judged_bins[bins])
        rows.append((f"{low:g} to {high:g}", f"{judged:,}", _share(sum(summary.right_bins[bins]), judged)))
    return ReportTable(("Score of the answer", "#Images", "#Right"), rows, "Can the score be trusted?")


def _by_label_table(summary: Summary, order: Sequence[str]) -> ReportTable:
    """Return how well each label was found, that which was found least often first."""
    found = []
    for label in order:
        truths = summary.truths[label]
        judged = summary.judged[label]
        if truths or judged:
            recall = summary.right[label] / truths if truths else 2.0
            shares = (_share(number[label], truths) for number in (summary.right_before, summary.right))
            row = (short(label), f"{truths:,}", *shares, f"{judged:,}", _share(summary.right[label], judged))
            found.append((recall, row))
    head = ("Label", "#Images", "#Found, zero-shot", "#Found, adapted", "#Answers", "#Correct")
    return ReportTable(head, [row for _, row in sorted(found, key=lambda each: each[0])])


def _label_table(order: Iterable[str], columns: Mapping[str, Mapping[str, float]]) -> ReportTable:
    """Return numbers by label, each with a bar; the labels with the largest numbers come first."""
    most = {name: max(values.values(), default=0) or 1 for name, values in columns.items()}
    rows = []
    for label in sorted(order, key=lambda label: -sum(values[label] for values in columns.values())):
        row: list[Any] = [short(label)]
        for name, values in columns.items():
            row.append(("before" if name == "Zero-shot" else "after", values[label] / most[name]))
            row.append(f"{round(values[label], 3):,}")
        rows.append(row)
    return ReportTable(["Label", *(cell for name in columns for cell in ("", f"#{short(name)}"))], rows)


def _charts(summary: Summary) -> dict[str, Chart]:
    bins = {"before": summary.before_bins, "after": summary.after_bins}
    scores = {kind: [number / summary.answered for number in numbers] for kind, numbers in bins.items()}
    sizes = [summary.bin_width] * (summary.answered // summary.bin_width) or [summary.answered]  # full bins, or one
    series = {"before": summary.stream_online} if summary.passes == 2 else {}
    shares = {
        kind: [number / size for number, size in zip(numbers, sizes, strict=False)]
        for kind, numbers in (series | {"after": summary.stream}).items()
    }
    return {
        "scores": _chart(
            scores,
            ("0", "0.25", "0.5", "0.75", "1"),
            "score of the answer; height: share of images",
            ("zero-shot", "adapted"),
        ),
        "stream": _chart(
            shares,
            ("0", f"{sum(sizes):,}"),
            f"images classified, {sizes[0]:,} per bar; height: share of changed answers",
            ("online", "second pass") if summary.passes == 2 else (),
        ),
    }


def _chart(series: Mapping[str, Sequence[float]], ticks: Sequence[str], caption: str, legend: Sequence[str]) -> Chart:
    most = max(map(max, series.values()))
    bars = []
    for i, (kind, shares) in enumerate(series.items()):
        width = 200 / len(shares) / (len(series) + 0.25)  # a gap of a quarter bar after the bars of a bin
        bars += [(kind, 200 * j / len(shares) + i * width, width, share) for j, share in enumerate(shares)]
    return Chart(bars, next(top for top in CHART_TOPS if most <= top), ticks, caption, legend)


def _shown_entries(adapter: Adapter) -> dict[str, dict[str, list[Any]]]:
    """Return some entries of the state by label and part."""
    entries = adapter.entries()
    labels = adapter.head.class_names
    grouped: dict[str, dict[str, list[Any]]] = {label: {name: [] for name in entries} for label in labels}
    for name, kept in entries.items():
        for entry in kept:
            grouped[labels[entry.class_index]][name].append(entry)
    filled = {label: parts for label, parts in grouped.items() if any(parts.values())}
    shown = list(filled)[: LEARNT_IMAGES // (IMAGES_PER_PART * max(1, len(entries)))]
    return {label: {name: kept[:IMAGES_PER_PART] for name, kept in filled[label].items()} for label in shown}


def _points(share: float, sign: str = "") -> str:
    return f"{round(100 * share, 9):{sign}.1f}".replace("-", "\u2212")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}\u202f%" if whole else "\u2013"
