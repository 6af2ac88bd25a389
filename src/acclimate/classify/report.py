"""The report of a run: one HTML file that needs nothing else."""

import os
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import PurePath
from string import Template

from acclimate.classify.run import Classification
from acclimate.classify.summary import Summary
from acclimate.errors import ImageError, InputError
from acclimate.files import write_atomically, writing
from acclimate.images import open_image, thumbnail
from acclimate.methods import Adapter
from acclimate.sources.base import Sample

LABELS = 40  # labels in a table
CHANGES = 20  # kinds of changed answers in a table
ENTRIES = 3  # images shown per label and part of the state
PICTURES = 200  # such images shown in all; the file stays under about 3 MB
PIXELS = 112  # longer side of a thumbnail
LENGTH = 200  # characters shown of a name

Picture = Callable[[int], str]  # from the index or id of an image to HTML


def write_report(path: str | os.PathLike[str], run: Classification, title: str, settings: Mapping[str, object]) -> None:
    """Write what a run has answered and learnt as a self-contained HTML page; equal input gives equal bytes.

    The images that are shown are read again. The settings, such as options and versions, are listed at the end.
    """
    summary, adapter = run.summary, run.classifier.adapter
    picture, nothing = _pictures(run.samples), "<p>No image was classified.</p>"
    order = sorted(adapter.head.class_names, key=lambda label: -summary.before[label] - summary.after[label])
    answers = {"Zero-shot": summary.before, "Adapted": summary.after}
    most = max([0, *summary.before.values(), *summary.after.values()])
    page = Template(files("acclimate.classify").joinpath("report.html").read_text("utf-8")).substitute(
        title=_text(title),
        images=count(summary.answered, "image"),
        labels=count(len(order), "label"),
        share=_percent(summary.changed / max(1, summary.answered)),
        changed=count(summary.changed, "answer"),
        passes=_passes(summary),
        advice=f'<p class="advice">Note: {escape(advice)}</p>' if (advice := adapter.advice()) else "",
        unreadable_count=count(summary.unreadable, "image"),
        answers=_label_table(order, answers, "Answers by label", full=most),
        transitions=_transitions(summary),
        most_changed=_most_changed(summary, picture),
        learnt=_learnt(adapter, order, lambda entry_id: picture(entry_id - run.first_id)),
        confidence=_confidence(summary) if summary.answered else nothing,
        stream=_stream(summary) if summary.answered else nothing,
        unreadable=_unreadable(summary),
        settings=_table(("Setting", "Value"), [(escape(name), escape(str(value))) for name, value in settings.items()]),
    )
    with writing(f"the report {path}", InputError, "Choose another place."):
        write_atomically(path, page.encode("utf-8", "backslashreplace"))  # a file name may not be valid Unicode


def _passes(summary: Summary) -> str:
    """Which answers are shown, and how they came about."""
    if summary.passes == 1:
        return "Each image was answered once, when it came."
    online, again = count(summary.changed_online, "answer"), count(summary.changed_again, "online answer")
    text = "Each image was answered online, when it came, and once more in a second pass, from everything seen."
    text += f" Online, adapting changed {online}; the second pass changed {again}."
    return f"{text} Where nothing else is said, answers are those of the second pass."


def _pictures(samples: Sequence[Sample]) -> Picture:
    """Thumbnails by index, each made once; a box with the name for a file that is gone or not of this run."""

    @cache
    def picture(index: int) -> str:
        if not 0 <= index < len(samples):
            return '<div class="thumb gone">from an earlier run</div>'
        name = samples[index].name
        try:
            content = b64encode(thumbnail(open_image(samples[index].read()), PIXELS)).decode()
        except (ImageError, OSError):
            label = f'aria-label="{_text(name)}, no longer readable" title="{_text(name)}"'
            return f'<div class="thumb gone" role="img" {label}>{_text(PurePath(name).name)}</div>'
        return f'<img class="thumb" src="data:image/jpeg;base64,{content}" alt="{_text(name)}" title="{_text(name)}">'

    return picture


def _transitions(summary: Summary) -> str:
    most = summary.pairs.most_common(CHANGES)
    rows = [(_text(old), _text(new), f"{number:,}") for (old, new), number in most]
    if not rows:
        return '<p class="soft">No answer changed.</p>'
    dropped = summary.pairs.total() < summary.changed
    note = "Rare changes were not all counted: these numbers are lower bounds." if dropped else ""
    table = _table(("Zero-shot answer", "Adapted answer", "#Images"), rows, "Most frequent changes")
    return f'{table}<p class="note">{note}</p>'


def _most_changed(summary: Summary, picture: Picture) -> str:
    answer = '<div class="answer {}"><span class="name">{}</span><span>{:.2f}</span></div>'
    cards = []
    for _, _, record in sorted(summary.most_changed, reverse=True):
        file = f'<div class="file name">{_text(record["file"])}</div>'
        old = answer.format("old", _text(record["zero_shot_label"]), record["zero_shot_score"])
        new = answer.format("new", _text(record["label"]), record["score"])
        if record["online_label"] != record["label"]:
            old += answer.format("old", f"online: {_text(record['online_label'])}", record["online_score"])
        cards.append(f'<li class="change">{picture(record["index"])}<div>{file}{old}{new}</div></li>')
    if not cards:
        return "<p>No answer changed.</p>"
    many = "All" if len(cards) == summary.changed else f"{len(cards)} of the {summary.changed:,}"
    text = f"{many} changed answers; those with the most confident answers before and after come first. The "
    text += "zero-shot answer is grey, the adapted one bold, each with its probability."
    if summary.passes == 2:
        text += " Where the second pass changed the online answer, that is shown between them."
    return f'<p>{text}</p><ul class="cards">{"".join(cards)}</ul>'


def _learnt(adapter: Adapter, order: Sequence[str], picture: Picture) -> str:
    labels, parts = adapter.head.class_names, adapter.entries()
    columns = {name: dict(zip(labels, values.tolist(), strict=True)) for name, values in adapter.learnt().items()}
    if not columns:
        return f"<p>Nothing: the method {_text(adapter.name)} answers every image by itself.</p>"
    text = escape(f"{adapter.name}: {adapter.summary}. It has learnt from {count(adapter.samples_seen, 'image')}.")
    sums = {name: values for name, values in columns.items() if name not in parts}
    table = _label_table(order, sums) if sums else ""
    if not parts:
        return f"<p>{text}</p>{table}"
    text += " Every new image is compared with the images below. The number is the entropy of the zero-shot answer in "
    kept = {labels[entry.class_index] for entries in parts.values() for entry in entries}
    shown = [label for label in order if label in kept][: PICTURES // (ENTRIES * len(parts))]
    text += f"nats: 0 is certain. Shown are {len(shown)} of {len(labels):,} labels, up to {ENTRIES} images in a row."
    cards = ""
    for label in shown:
        cards += f'<li class="learnt"><h3 class="name">{_text(label)}</h3><div class="kinds">'
        for part, entries in parts.items():
            first = [entry for entry in entries if labels[entry.class_index] == label][:ENTRIES]
            figures = (f"{picture(entry.id)}<figcaption>{entry.entropy:.3f}</figcaption>" for entry in first)
            row = "".join(f"<figure>{figure}</figure>" for figure in figures)
            cards += f'<div><h4>{_text(part)}</h4><div class="row">{row}</div></div>' if row else ""
        cards += "</div></li>"
    return f'<p>{text}</p><ul class="cards wide">{cards}</ul>{table}'


def _confidence(summary: Summary) -> str:
    bins = {"before": summary.before_bins, "after": summary.after_bins}
    shares = {kind: [count / summary.answered for count in counts] for kind, counts in bins.items()}
    return _chart(shares, ("0", "0.25", "0.5", "0.75", "1"), "probability of the answer; height: share of images")


def _stream(summary: Summary) -> str:
    sizes = [summary.bin_width] * (summary.answered // summary.bin_width) or [summary.answered]  # full bins, or one
    bins = {"after": summary.stream}
    legend = ""
    if summary.passes == 2:
        bins = {"before": summary.stream_online, "after": summary.stream}
        legend = '<p class="legend"><span>online</span><span class="new">second pass</span></p>'
    shares = {kind: [number / size for number, size in zip(each, sizes, strict=False)] for kind, each in bins.items()}
    caption = f"images classified, {sizes[0]:,} per bar; height: share of changed answers"
    return legend + _chart(shares, ("0", f"{sum(sizes):,}"), caption)


def _chart(series: Mapping[str, Sequence[float]], ticks: Iterable[str], caption: str) -> str:
    """Shares as bars, in the colours "before" and "after"; the text is outside the drawing, which may be stretched."""
    most = max(map(max, series.values()))
    top = next((top for top in (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8) if most <= top), 1.0)
    drawn = "".join(f'<line class="grid" x2="200" y1="{y}" y2="{y}"/>' for y in (0, 50, 100))
    for i, (kind, shares) in enumerate(series.items()):
        width = 200 / len(shares) / (len(series) + 0.25)  # a gap of a quarter bar after the bars of a bin
        for j, share in enumerate(shares):
            x, height = 200 * j / len(shares) + i * width, 100 * share / top
            box = f'x="{x:.2f}" y="{100 - height:.2f}" width="{width:.2f}" height="{height:.2f}"'
            drawn += f'<rect class="{kind}" {box}><title>{_percent(share)}</title></rect>'
    left = "".join(f"<span>{_percent(part * top)}</span>" for part in (1.0, 0.5, 0.0))
    below = "".join(f"<span>{tick}</span>" for tick in ticks)
    svg = f'<svg viewBox="0 0 200 100" preserveAspectRatio="none" role="img" aria-label="{caption}">{drawn}</svg>'
    axes = f'<div class="y" aria-hidden="true">{left}</div>{svg}<div class="x" aria-hidden="true">{below}</div>'
    return f'<figure class="chart">{axes}<figcaption>{caption}</figcaption></figure>'


def _unreadable(summary: Summary) -> str:
    if not summary.unreadable:
        return "<p>None: every image could be read.</p>"
    rows = [(_text(file), _text(reason)) for file, reason in summary.reasons]
    first = f" The first {len(rows)} are listed." if len(rows) < summary.unreadable else ""
    text = f"{count(summary.unreadable, 'image')} could not be read and got no answer.{first}"
    return f"<p>{text}</p>{_table(('File', 'Reason'), rows)}"


def _label_table(
    order: Sequence[str], columns: Mapping[str, Mapping[str, float]], caption: str = "", full: float = 0.0
) -> str:
    """Numbers by label, each with a bar; the longest bar is `full`, or the largest number of the column."""
    head, rows = ["Label"], [[_text(label)] for label in order[:LABELS]]
    for name, values in columns.items():
        head += ["", f"#{_text(name)}"]
        kind, most = "before" if name == "Zero-shot" else "after", full or max(values.values(), default=0) or 1
        for row, label in zip(rows, order, strict=False):
            bar = f'<rect class="{kind}" width="{100 * values[label] / most:.2f}" height="6"/>'
            row += [f'<svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">{bar}</svg>']
            row += [f"{round(values[label], 3):,}"]
    more = f'<p class="note">{len(order) - LABELS:,} other labels are not shown.</p>' if len(order) > LABELS else ""
    return _table(head, rows, caption) + more


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table of HTML; columns whose head begins with # hold numbers, and those without a head bars."""
    kinds = ["number" if name.startswith("#") else "name" if name else "bars" for name in head]
    titles = (f'<th scope="col" class="{kind}">{name.lstrip("#")}</th>' for kind, name in zip(kinds, head, strict=True))
    body = ""
    for first, *others in rows:
        cells = (f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds[1:], others, strict=True))
        body += f'<tr><th scope="row" class="name">{first}</th>{"".join(cells)}</tr>'
    above = f"<caption>{caption}</caption>" if caption else ""
    return f"<table>{above}<thead><tr>{''.join(titles)}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: str) -> str:
    """A name from outside, made safe in HTML text and attributes, and cut if very long."""
    return escape(value if len(value) <= LENGTH else value[: LENGTH - 1] + "\u2026")


def count(number: int, thing: str) -> str:
    """A number of things, in the singular or the plural."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}\u202f%"
