"""The report of a run: one HTML file that needs nothing else."""

import os
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from io import BytesIO
from string import Template
from typing import TYPE_CHECKING, Any

from acclimate.classify.summary import BINS, Summary
from acclimate.errors import ImageError, InputError
from acclimate.files import write_atomically, writing
from acclimate.images import open_image
from acclimate.methods.base import Adapter
from acclimate.sources.base import Sample

if TYPE_CHECKING:
    from PIL.Image import Image

BARS = 20  # labels with bars; the others are counted together
CLASSES = 40  # labels whose caches are shown; with the limits below, the file stays under about 3 MB
ENTRIES = {"positive": 3, "negative": 2}  # images shown of the caches of a label
PIXELS = 112  # longer side of a thumbnail
LENGTH = 200  # characters shown of a name


def write_report(
    path: str | os.PathLike[str],
    *,
    title: str,
    summary: Summary,
    adapter: Adapter,
    samples: Sequence[Sample],
    settings: Mapping[str, str],
    first_id: int = 0,
) -> None:
    """Write a self-contained HTML page; equal input gives equal bytes.

    Args:
        path: the file to create or replace.
        title: what was classified.
        summary: of all rows of the run.
        adapter: the one that answered; what it has learnt is shown.
        samples: the images of the run; those that are shown are read again.
        settings: what to list at the end, such as options and versions, in this order.
        first_id: id of the first image in the state of the adapter; images with smaller ids are of earlier runs.
    """
    pictures = _Pictures(samples)
    page = Template(files("acclimate.classify").joinpath("report.html").read_text("utf-8")).substitute(
        title=_text(title),
        lead=_lead(summary),
        share=_percent(summary.changed, summary.answered),
        changed=f"{summary.changed:,}",
        answered=f"{summary.answered:,}",
        unreadable_count=f"{summary.unreadable:,}",
        answers=_answers(summary),
        transitions=_transitions(summary),
        most_changed=_most_changed(summary, pictures),
        learnt=_learnt(summary, adapter, pictures, first_id),
        confidence=_confidence(summary),
        stream=_stream(summary),
        unreadable=_unreadable(summary),
        settings=_table("", ("Setting", "Value"), [(escape(key), escape(value)) for key, value in settings.items()]),
    )
    with writing(f"the report {path}", InputError, "Choose another place."):
        write_atomically(path, page.encode("utf-8", "backslashreplace"))  # a file name may not be valid Unicode


class _Pictures:
    """Thumbnails of the samples, each made once."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples
        self._sources: dict[int, str] = {}

    def show(self, index: int) -> str:
        """A thumbnail, or a box with the name of the file if it cannot be read any more or is not of this run."""
        here = 0 <= index < len(self._samples)
        name = self._samples[index].name if here else "from an earlier run"
        if here and index not in self._sources:
            self._sources[index] = self._read(self._samples[index])
        full, short = _text(name), _text(name.replace("\\", "/").rsplit("/")[-1])
        if source := self._sources.get(index):
            return f'<img class="thumb" src="{source}" alt="{full}" title="{full}">'
        gone = f"{full}, no longer readable" if here else full
        return f'<div class="thumb gone" role="img" aria-label="{gone}" title="{full}">{short}</div>'

    def _read(self, sample: Sample) -> str:
        try:
            return "data:image/jpeg;base64," + b64encode(_thumbnail(open_image(sample.read()))).decode()
        except (ImageError, OSError):
            return ""


def _thumbnail(picture: "Image") -> bytes:
    from PIL import Image

    small = picture.convert("RGBA")
    small.thumbnail((PIXELS, PIXELS))
    flat = Image.new("RGB", small.size, "white")  # a new picture: where and with what it was taken is not passed on
    flat.paste(small, mask=small)
    buffer = BytesIO()
    flat.save(buffer, "JPEG", quality=80, optimize=True)
    return buffer.getvalue()


def _lead(summary: Summary) -> str:
    if not summary.answered:
        return "No image was classified."
    sorted_into = f"{_count(summary.answered, 'image')} sorted into {_count(len(summary.after), 'label')}."
    return f"{sorted_into} Adapting changed {_count(summary.changed, 'answer')}."


def _answers(summary: Summary) -> str:
    counts = [(label, old, summary.after[label]) for label, old in summary.before.items()]
    counts.sort(key=lambda row: -row[1] - row[2])
    most = max([1, *(max(old, new) for _, old, new in counts)])
    rows = [(_text(label), _bars(old / most, new / most), *_numbers(old, new)) for label, old, new in counts[:BARS]]
    if rest := counts[BARS:]:
        old, new = sum(row[1] for row in rest), sum(row[2] for row in rest)
        rows.append((_count(len(rest), "other label"), "", *_numbers(old, new)))
    return _table("Answers by label", ("Label", "", "#Zero-shot", "#Adapted", "#Change"), rows)


def _numbers(old: int, new: int) -> tuple[str, str, str]:
    change = f"{new - old:+,}".replace("-", "\u2212") if new != old else "0"
    return f"{old:,}", f"{new:,}", change


def _bars(*shares: float) -> str:
    """Horizontal bars, each a share of the full width: grey for zero-shot, green for adapted."""
    kinds = ("before", "after")[-len(shares) :]
    bars = "".join(
        f'<rect class="{kind}" y="{7 * i}" width="{100 * share:.2f}" height="6"/>'
        for i, (kind, share) in enumerate(zip(kinds, shares, strict=True))
    )
    height = 7 * len(shares) - 1
    return f'<svg viewBox="0 0 100 {height}" preserveAspectRatio="none" aria-hidden="true">{bars}</svg>'


def _transitions(summary: Summary) -> str:
    rows = [(_text(old), _text(new), f"{count:,}") for old, new, count in summary.transitions()]
    if not rows:
        return '<p class="soft">No answer changed.</p>'
    note = "Rare changes were not all counted: these numbers are lower bounds." if summary.pairs_dropped else ""
    head = ("Zero-shot answer", "Adapted answer", "#Images")
    return _table("Most frequent changes", head, rows) + f'<p class="note">{note}</p>'


def _most_changed(summary: Summary, pictures: _Pictures) -> str:
    answer = '<div class="answer {}"><span class="name">{}</span><span>{:.2f}</span></div>'
    cards = []
    for row in summary.most_changed():
        old = answer.format("old", _text(row.zero_shot.label), row.zero_shot.score)
        new = answer.format("new", _text(row.label), row.score)
        file = f'<div class="file name">{_text(row.name)}</div>'
        cards.append(f'<li class="change">{pictures.show(row.index)}<div>{file}{old}{new}</div></li>')
    if not cards:
        return "<p>No answer changed.</p>"
    many = "All" if len(cards) == summary.changed else f"{len(cards)} of the {summary.changed:,}"
    text = (
        f"{many} changed answers, beginning with those where the model was most confident both before and after. The "
    )
    text += "zero-shot answer is grey, the adapted one bold, each with its probability."
    return f'<p>{text}</p><ul class="cards">{"".join(cards)}</ul>'


def _learnt(summary: Summary, adapter: Adapter, pictures: _Pictures, first_id: int) -> str:
    caches = _caches(adapter, first_id)
    if not caches:
        return "<p>Nothing was learnt: no image is kept.</p>"
    names, given = adapter.class_names, summary.after
    shown = sorted(caches, key=lambda label: (-given.get(names[label], 0), label))[:CLASSES]
    cards = []
    for label in shown:
        kinds = "".join(_cache(kind, entries, names, pictures) for kind, entries in caches[label].items())
        answers = _count(given.get(names[label], 0), "answer")
        title = f'<h3><span class="name">{_text(names[label])}</span><span class="soft">{answers}</span></h3>'
        cards.append(f'<li class="learnt">{title}<div class="kinds">{kinds}</div></li>')
    text = "These images take part in every answer. Those the model was surest of speak for their label; some it was "
    text += "unsure of speak against the labels it hesitated between. The number is the entropy in nats: 0 is certain."
    if len(shown) < len(caches):
        text += f" Shown are the {len(shown)} commonest of {len(caches):,} labels; the others are left out."
    if any(len(entries) > ENTRIES[kind] for label in shown for kind, entries in caches[label].items()):
        text += f" At most {ENTRIES['positive']} images for a label and {ENTRIES['negative']} against are shown."
    return f'<p>{text}</p><ul class="cards wide">{"".join(cards)}</ul>'


def _caches(adapter: Adapter, first_id: int) -> dict[int, dict[str, list[Any]]]:
    """By class and kind of cache: (entropy, index, marks) of the entries, the surest first."""
    state, caches = adapter.dump(), dict[int, dict[str, list[Any]]]()
    for kind in ENTRIES:
        if f"{kind}.ids" in state:
            columns = [state[f"{kind}.{field}"].tolist() for field in ("classes", "entropies", "ids", "marks")]
            for label, entropy, entry_id, marks in sorted(zip(*columns, strict=True)):
                caches.setdefault(label, {}).setdefault(kind, []).append((entropy, entry_id - first_id, marks))
    return caches


def _cache(kind: str, entries: Sequence[Any], names: Sequence[str], pictures: _Pictures) -> str:
    entries = entries[: ENTRIES[kind]]
    row = "".join(
        f"<figure>{pictures.show(index)}<figcaption>{_small(entropy)}</figcaption></figure>"
        for entropy, index, _ in entries
    )
    if kind == "positive":
        return f'<div><h4>For</h4><div class="row">{row}</div></div>'
    marks = Counter(mark for *_, marked in entries for mark in marked if mark >= 0)
    ordered = sorted(marks, key=lambda mark: (-marks[mark], mark))
    labels = ", ".join(_name(names[mark]) for mark in ordered[:5]) or "no label"
    more = f" and {len(ordered) - 5:,} more" if len(ordered) > 5 else ""
    return f'<div class="no"><h4>Against</h4><div class="row">{row}</div></div><p>Against {labels}{more}</p>'


def _confidence(summary: Summary) -> str:
    if not summary.answered:
        return "<p>No image was classified.</p>"
    top = _ceiling(max(*summary.before_bins, *summary.after_bins) / summary.answered)
    bars = []
    for i, counts in enumerate(zip(summary.before_bins, summary.after_bins, strict=True)):
        heights = [100 * count / summary.answered / top for count in counts]
        bars.append(
            f"<g><title>{i / BINS:.2f} to {(i + 1) / BINS:.2f}: {counts[0]:,} zero-shot, {counts[1]:,} adapted</title>"
            f'<rect class="before" x="{10 * i + 1}" y="{100 - heights[0]:.2f}" width="4" height="{heights[0]:.2f}"/>'
            f'<rect class="after" x="{10 * i + 5}" y="{100 - heights[1]:.2f}" width="4" height="{heights[1]:.2f}"/></g>'
        )
    caption = "probability of the answer given; height: share of images"
    return _chart("".join(bars), top, ("0", "0.25", "0.5", "0.75", "1"), caption)


def _stream(summary: Summary) -> str:
    if not summary.answered:
        return "<p>No image was classified.</p>"
    bins = summary.along_stream(least=50)  # with fewer images a point, chance would draw the line
    shares = [changed / rows for _, rows, changed in bins]
    top = _ceiling(max(shares))
    middles = [200 * (start + rows / 2) / summary.answered for start, rows, _ in bins]
    points = zip([0.0, *middles, 200.0], [shares[0], *shares, shares[-1]], strict=True)
    line = " ".join(f"{x:.2f},{100 - 100 * share / top:.2f}" for x, share in points)
    drawn = f'<polygon class="area" points="0,100 {line} 200,100"/><polyline class="line" points="{line}"/>'
    caption = f"images classified, {bins[0][1]:,} per point; height: share of changed answers"
    return _chart(drawn, top, ("0", f"{summary.answered:,}"), caption)


def _chart(drawn: str, top: float, ticks: Iterable[str], caption: str) -> str:
    """A drawing 200 wide and 100 high, stretched to the page's width; words stand beside it, where they keep shape."""
    grid = "".join(f'<line class="grid" x2="200" y1="{y}" y2="{y}"/>' for y in (0, 50, 100))
    left = "".join(f"<span>{_percent(part * top, 1.0)}</span>" for part in (1.0, 0.5, 0.0))
    below = "".join(f"<span>{tick}</span>" for tick in ticks)
    svg = f'<svg viewBox="0 0 200 100" preserveAspectRatio="none" role="img" aria-label="{caption}">{grid}{drawn}</svg>'
    axes = f'<div class="y" aria-hidden="true">{left}</div>{svg}<div class="x" aria-hidden="true">{below}</div>'
    return f'<figure class="chart">{axes}<figcaption>{caption}</figcaption></figure>'


def _unreadable(summary: Summary) -> str:
    if not summary.unreadable:
        return "<p>None: every image could be read.</p>"
    rows = [(_text(file), _text(reason)) for file, reason in summary.reasons]
    first = f" The first {len(rows)} are listed." if len(rows) < summary.unreadable else ""
    text = f"{_count(summary.unreadable, 'image')} could not be read and got no answer.{first}"
    return f"<p>{text}</p>" + _table("", ("File", "Reason"), rows)


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML; columns whose head begins with # hold numbers."""
    kinds = ["number" if name.startswith("#") else "name" if name else "bars" for name in head]
    titles = (f'<th scope="col" class="{kind}">{name.lstrip("#")}</th>' for kind, name in zip(kinds, head, strict=True))
    body = []
    for first, *others in rows:
        cells = (f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds[1:], others, strict=True))
        body.append(f'<tr><th scope="row" class="name">{first}</th>{"".join(cells)}</tr>')
    above = f"<caption>{caption}</caption>" if caption else ""
    return f"<table>{above}<thead><tr>{''.join(titles)}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _text(value: str) -> str:
    """A name from outside, made safe in HTML text and attributes, and cut if very long."""
    return escape(value if len(value) <= LENGTH else value[: LENGTH - 1] + "\u2026")


def _name(value: str) -> str:
    return f'<span class="name">{_text(value)}</span>'


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _percent(part: float, whole: float) -> str:
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.3g}\u202f%" if 0 < percent < 100 else f"{percent:.0f}\u202f%"


def _small(number: float) -> str:
    return f"{number:.3f}" if number >= 0.001 else "&lt;0.001"


def _ceiling(share: float) -> float:
    """The nearest round share above, for the top of an axis."""
    return next((top for top in (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8) if share <= top), 1.0)
