"""The report of a run: one HTML file that needs nothing else."""

import os
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from inspect import cleandoc
from math import log
from pathlib import PurePath
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from jinja2.filters import do_truncate

from acclimate.classify.classification import Classification
from acclimate.classify.counts import Counts
from acclimate.classify.summary import EXAMPLES, FEW_IMAGES, Summary, paired_difference, score_text, wilson
from acclimate.errors import ImageError, InputError, count
from acclimate.files import write_atomically, writing
from acclimate.images.opening import open_image, thumbnail
from acclimate.methods import Adapter
from acclimate.predict import NONE
from acclimate.sources.source import Sample

GALLERY_IMAGES = 240  # images below their labels; with the others the file stays under about 5 MB
IMAGES_PER_PART = 3  # images per label and part of the state


def write_report(
    path: str | os.PathLike[str],
    run: Classification,
    title: str,
    settings: Mapping[str, object],
    counts: Counts | None = None,
) -> None:
    """Write what a run has answered and learnt as a self-contained HTML page; equal input gives equal bytes.

    The images that are shown are read again. The settings, such as options and versions, are listed at the end. The
    first of the counts are shown.
    """
    summary = run.summary
    adapter = run.classifier.adapter
    order = [*adapter.head.class_names, *([NONE] if summary.after[NONE] or summary.truths[NONE] else [])]
    found = sorted(filter(summary.after.__getitem__, order), key=lambda label: -summary.after[label])
    numbers = {
        name: dict(zip(adapter.head.class_names, values.tolist(), strict=True))
        for name, values in adapter.class_statistics().items()
        if name not in adapter.entries()
    }
    judged = [label for label in order if summary.truths[label] or summary.judged[label]]
    page = _template().render(
        title=title,
        summary=summary,
        adapter=adapter,
        advice=adapter.advice(),
        unsure=run.classifier.unsure,
        first_id=run.first_id,
        settings=settings,
        counts=counts,
        meanings=setting_meanings(type(adapter)),
        order=order,
        found=found,
        judged=judged,
        by_recall=sorted(judged, key=partial(_recall, summary)),
        by_answers=_by_sum(order, [summary.before, summary.after]),
        numbers=numbers,
        by_numbers=_by_sum(adapter.head.class_names, numbers.values()),
        charts=_charts(summary) if summary.answered else {},
        thumbnail=_thumbnails(run.samples),
        shown_entries=_shown_entries(adapter),
        largest_entropy=log(len(adapter.head)),
        examples_per_label=max(1, min(EXAMPLES, GALLERY_IMAGES // max(1, len(found)))),
    )
    with writing(f"the report {path}", InputError, "Choose another place."):
        write_atomically(path, page.encode("utf-8", "backslashreplace"))  # a file name may not be valid Unicode


def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters |= {
        "short": partial(do_truncate, environment, length=200, killwords=True, end="\u2026", leeway=0),
        "percent": percent,
        "score_text": score_text,
        "file_name": lambda path: PurePath(path).name,
        "file_in_folder": lambda path: "/".join(PurePath(path).parts[-2:]),
    }
    environment.globals |= {
        "gallery_images": GALLERY_IMAGES,
        "images_per_part": IMAGES_PER_PART,
        "few_images": FEW_IMAGES,
        "count": count,
        "in_variety": _in_variety,
        "wilson": wilson,
        "paired_difference": paired_difference,
        "share": _share,
        "points": _points,
    }
    return environment.from_string(files("acclimate.classify").joinpath("report.html").read_text("utf-8"))


def percent(share: float) -> str:
    """Return a share in percent with three digits.

    Examples:
        >>> percent(0.86486)
        '86.5\u202f%'
    """
    return f"{100 * share:.3g}\u202f%"


def _thumbnails(samples: Sequence[Sample]) -> Callable[[int, int], dict[str, str]]:
    """Return a function from an index and a size to a name and a base64 JPEG, each made once, "" if there is none."""

    @cache
    def read(index: int, pixels: int) -> dict[str, str]:
        if not 0 <= index < len(samples):
            return {"name": "", "content": ""}
        try:
            content = b64encode(thumbnail(open_image(samples[index].read()), pixels)).decode()
        except (ImageError, OSError):
            content = ""
        return {"name": samples[index].name, "content": content}

    return read


def _in_variety(changes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort ranked changes: those not known to be wrong first, and of them one of each kind before a second."""
    met: Counter[tuple[str, str]] = Counter()
    keyed = []
    for record in changes:
        kind = (record["zero_shot_label"], record["label"])
        keyed.append((record["true_label"] not in (None, record["label"]), met[kind], record))
        met[kind] += 1
    return [record for _, _, record in sorted(keyed, key=lambda each: each[:2])]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}\u202f%" if whole else "\u2013"


def _points(share: float, sign: str = "") -> str:
    return f"{round(100 * share, 9):{sign}.1f}".replace("-", "\u2212")


def _recall(summary: Summary, label: str) -> float:
    return summary.right[label] / summary.truths[label] if summary.truths[label] else 2.0  # comes last


def _by_sum(labels: Iterable[str], columns: Iterable[Mapping[str, float]]) -> list[str]:
    """Sort labels by the sum of their numbers in all columns, the largest first."""
    return sorted(labels, key=lambda label: -sum(values[label] for values in columns))


def setting_meanings(method: type[Adapter]) -> dict[str, str]:
    """Return the meaning of each setting of a method, from the docstrings of its class and of the bases."""
    found: dict[str, str] = {}
    for each in reversed(method.__mro__):
        listed = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", cleandoc(each.__doc__ or ""), re.MULTILINE | re.DOTALL)
        lines = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed[1] if listed else "", re.MULTILINE)
        found |= {name: " ".join(text.split()) for name, text in lines}
    return found


def _charts(summary: Summary) -> dict[str, dict[str, Any]]:
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
            ("model alone", "adapted"),
        ),
        "stream": _chart(
            shares,
            ("0", f"{sum(sizes):,}"),
            f"images classified, {sizes[0]:,} per bar; height: share of changed answers",
            ("as they came", "at the end") if summary.passes == 2 else (),
        ),
    }


def _chart(
    series: Mapping[str, Sequence[float]], ticks: Sequence[str], caption: str, legend: Sequence[str]
) -> dict[str, Any]:
    """Return a chart of shares: bars of a colour, with left edge and width in 200ths of the chart, and a share."""
    tops = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
    top = next(top for top in tops if max(map(max, series.values())) <= top)
    bars = []
    for i, (kind, shares) in enumerate(series.items()):
        width = 200 / len(shares) / (len(series) + 0.25)  # a gap of a quarter bar after the bars of a bin
        bars += [(kind, 200 * j / len(shares) + i * width, width, share) for j, share in enumerate(shares)]
    return {"bars": bars, "top": top, "ticks": ticks, "caption": caption, "legend": legend}


def _shown_entries(adapter: Adapter) -> dict[str, dict[str, list[Any]]]:
    """Return some entries of the state by label and part, 72 at most."""
    entries = adapter.entries()
    labels = adapter.head.class_names
    grouped: dict[str, dict[str, list[Any]]] = {label: {name: [] for name in entries} for label in labels}
    for name, kept in entries.items():
        for entry in kept:
            grouped[labels[entry.class_index]][name].append(entry)
    filled = {label: parts for label, parts in grouped.items() if any(parts.values())}
    shown = list(filled)[: 72 // (IMAGES_PER_PART * max(1, len(entries)))]
    return {label: {name: kept[:IMAGES_PER_PART] for name, kept in filled[label].items()} for label in shown}
