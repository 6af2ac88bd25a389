"""The report of a run: one HTML file that needs nothing else."""

import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from inspect import getdoc
from math import log
from string import Template

from acclimate.classify.accuracy import wilson
from acclimate.classify.html import (
    ROWS,
    Picture,
    answer,
    bar,
    card,
    cards,
    chart,
    folded,
    long_table,
    pictures,
    safe,
    table,
)
from acclimate.classify.judgement import accuracy_part, confusion_part, labels_part, wrong_part
from acclimate.classify.run import Classification
from acclimate.classify.summary import EXAMPLES, Summary, ranked
from acclimate.classify.wording import percent, score_text
from acclimate.errors import InputError, count
from acclimate.files import write_atomically, writing
from acclimate.methods import Adapter
from acclimate.predict import NONE

CHANGES = 10  # kinds of changed answers in a table
CHANGED = 12  # changed images shown
GALLERY = 240  # images shown below their labels in all; with the others the file stays under about 5 MB
ENTRIES = 3  # images shown per label and part of the state
LEARNT = 72  # such images shown in all


def write_report(path: str | os.PathLike[str], run: Classification, title: str, settings: Mapping[str, object]) -> None:
    """Write what a run has answered and learnt as a self-contained HTML page; equal input gives equal bytes.

    The images that are shown are read again. The settings, such as options and versions, are listed at the end.
    """
    summary = run.summary
    adapter = run.classifier.adapter
    unsure = run.classifier.unsure
    picture = pictures(run.samples)
    order = [*adapter.head.class_names, *([NONE] if summary.after[NONE] or summary.truths[NONE] else [])]
    parts = {"Images per label": _labels(summary, order, picture)}
    if summary.truths:
        parts |= {
            "Was it right?": accuracy_part(summary),
            "Wrong answers": wrong_part(summary, picture),
        }
    parts["Least sure answers"] = _least_sure(summary, unsure, picture)
    if summary.truths:
        parts |= {
            "What was taken for what": confusion_part(summary, order),
            "Results by label": labels_part(summary, order),
        }
    parts["What adapting changed"] = _adapting(summary, adapter, order, picture, run.first_id)
    if summary.unreadable:
        parts["Unreadable images"] = _unreadable(summary)
    parts["How it was made"] = _settings(adapter, settings)
    sections = links = ""
    for number, (name, content) in enumerate(parts.items()):
        sections += f'<section aria-labelledby="part-{number}"><h2 id="part-{number}">{name}</h2>{content}</section>'
        links += f'<li><a href="#part-{number}">{name}</a></li>'
    page = Template(files("acclimate.classify").joinpath("report.html").read_text("utf-8")).substitute(
        title=safe(title),
        lead=f"{count(summary.answered, 'image')} sorted into {count(len(adapter.head), 'label')}.",
        figures=_figures(summary, unsure),
        links=links,
        sections=sections,
    )
    with writing(f"the report {path}", InputError, "Choose another place."):
        write_atomically(path, page.encode("utf-8", "backslashreplace"))  # a file name may not be valid Unicode


def _figures(summary: Summary, unsure: float) -> str:
    """The figures of the first screen."""
    accuracy = summary.accuracy
    answered = max(1, summary.answered)
    shown = [("images classified", f"{summary.answered:,}", "")]
    if accuracy.known:
        low, high = wilson(accuracy.right, accuracy.known)
        of = f"of {count(accuracy.known, 'answer')}" if accuracy.known < summary.answered else "of the answers"
        text = f"{of} are right (95\u202f% interval {100 * low:.1f} to {100 * high:.1f})"
        shown.append((text, percent(accuracy.right / accuracy.known), "key"))
    if unsure:
        shown.append(
            (f"unsure: a score below {unsure:g} ({percent(summary.unsure / answered)})", f"{summary.unsure:,}", "")
        )
    if none := summary.after[NONE]:
        shown.append((f"none of these ({percent(none / answered)})", f"{none:,}", ""))
    shown.append(("answers changed by adapting", f"{summary.changed:,}", ""))
    if summary.unreadable:
        shown.append(("could not be read", f"{summary.unreadable:,}", ""))
    return "".join(f'<div class="{kind}"><dt>{text}</dt><dd>{number}</dd></div>' for text, number, kind in shown)


def _labels(summary: Summary, order: Sequence[str], picture: Picture) -> str:
    """Every label with its number of images and some of them."""
    if not summary.answered:
        return "<p>No image was classified.</p>"
    found = sorted(filter(summary.after.__getitem__, order), key=lambda label: -summary.after[label])
    each = max(1, min(EXAMPLES, GALLERY // len(found)))
    shown = []
    for rank, label in enumerate(found):
        images = summary.after[label]
        figures = ""
        for index, score, right in ranked(summary.examples[label])[:each] if rank < GALLERY else ():
            mark = "" if right else '<span class="mark">wrong</span>'
            figures += f'<figure title="{escape(score_text(score))}">{picture(index)}{mark}</figure>'
        name = f'<h3><span class="name">{safe(label)}</span><span class="many">{images:,}</span></h3>'
        line = bar("after", images / summary.after[found[0]])
        shown.append(f'<li class="label">{name}{line}<div class="gallery">{figures}</div></li>')
    text = f"{count(len(found), 'label')} of {len(order):,} with images, the most frequent first. "
    text += f"The images are a random choice, up to {each} per label."
    more = folded(f"{len(found) - ROWS:,} more labels", cards(shown[ROWS:])) if len(found) > ROWS else ""
    empty = [safe(label) for label in order if not summary.after[label]]
    names = f'<p class="names">{", ".join(empty)}</p>'
    more += folded(f"{count(len(empty), 'label')} without an image", names) if empty else ""
    return f"<p>{text}</p>{cards(shown[:ROWS])}{more}"


def _least_sure(summary: Summary, unsure: float, picture: Picture) -> str:
    if not summary.answered:
        return "<p>No image was classified.</p>"
    text = "The answers with the lowest scores, and the second best label of each: the ones to check first."
    if unsure:
        unsure_ones = f"{summary.unsure:,} of {count(summary.answered, 'answer')} are unsure"
        text = f"{unsure_ones}: their score is below {unsure:g}. {text}"
    text += " A score is the share of belief that the label gets among all labels. It tends to be too high, and it is "
    text += "not the chance of being right."
    shown = []
    for record in ranked(summary.least_sure):
        kinds = ("first unsure" if record["unsure"] else "first", "old")
        answers = zip(kinds, record["predictions"], strict=False)
        lines = [answer(kind, each["label"], score_text(each["score"])) for kind, each in answers]
        shown.append(card(picture(record["index"]), record["file"], lines))
    return f"<p>{text}</p>{cards(shown)}"


def _adapting(summary: Summary, adapter: Adapter, order: Sequence[str], picture: Picture, first_id: int) -> str:
    """What adapting changed, and what was learnt."""
    changed = f"Adapting changed {count(summary.changed, 'answer')} of {summary.answered:,}."
    text = f"{changed} {_passes(summary)} A changed answer is not always a better one: the method is not told which "
    text += "answers are right."
    advice = f'<p class="advice">Note: {escape(advice)}</p>' if (advice := adapter.advice()) else ""
    content = f"<p>{text}</p>{advice}"
    if summary.changed:
        content += _transitions(summary) + _most_changed(summary, picture)
    if summary.answered:
        answers = {"Zero-shot": summary.before, "Adapted": summary.after}
        content += folded("Answers by label, before and after", _label_table(order, answers))
        content += folded("Scores before and after", _confidence(summary))
        content += folded("Changed answers from the first image to the last", _stream(summary))
    return content + folded("What it has learnt", _learnt(adapter, lambda entry_id: picture(entry_id - first_id)))


def _passes(summary: Summary) -> str:
    """Which answers are shown, and how they came about."""
    if summary.passes == 1:
        return "Each image was answered once, when it came."
    online = count(summary.changed_online, "answer")
    again = count(summary.changed_again, "online answer")
    text = "Each image was answered online, when it came, and once more in a second pass, from everything seen."
    text += f" Online, adapting changed {online}; the second pass changed {again}."
    return f"{text} Where nothing else is said, answers are those of the second pass."


def _transitions(summary: Summary) -> str:
    most = summary.pairs.most_common(CHANGES)
    rows = [(safe(old), safe(new), f"{number:,}") for (old, new), number in most]
    note = "Rare changes were not all counted: these numbers are lower bounds."
    dropped = f'<p class="note">{note}</p>' if summary.pairs.total() < summary.changed else ""
    head = ("Zero-shot answer", "Adapted answer", "#Images")
    return f'<div class="narrow">{table(head, rows, "Most frequent changes")}{dropped}</div>'


def _most_changed(summary: Summary, picture: Picture) -> str:
    shown = []
    for record in ranked(summary.most_changed)[:CHANGED]:
        lines = [answer("old", record["zero_shot_label"], score_text(record["zero_shot_score"]))]
        if record["online_label"] != record["label"]:
            lines.append(answer("old", f"online: {record['online_label']}", score_text(record["online_score"])))
        truth = record["true_label"]
        kind = "wrong" if truth and truth != record["label"] else "new"
        lines.append(answer(kind, record["label"], score_text(record["score"])))
        lines += [answer("truth", f"true: {truth}")] if truth else []
        shown.append(card(picture(record["index"]), record["file"], lines))
    many = "All" if len(shown) == summary.changed else f"{len(shown)} of the {summary.changed:,}"
    text = f"{many} changed answers; those with the most confident answers before and after come first. The "
    text += "zero-shot answer is grey, the adapted one bold, each with its score."
    text += " A cross marks adapted answers that are wrong." if summary.truths else ""
    if summary.passes == 2:
        text += " Where the second pass changed the online answer, that is shown between them."
    return f"<p>{text}</p>{cards(shown)}"


def _learnt(adapter: Adapter, picture: Picture) -> str:
    labels = adapter.head.class_names
    kept = adapter.entries()
    columns = {name: dict(zip(labels, values.tolist(), strict=True)) for name, values in adapter.learnt().items()}
    if not columns:
        return f"<p>Nothing: the method {safe(adapter.name)} answers every image by itself.</p>"
    text = escape(f"{adapter.name}: {adapter.summary}. It has learnt from {count(adapter.samples_seen, 'image')}.")
    sums = {name: values for name, values in columns.items() if name not in kept}
    numbers = _label_table(labels, sums) if sums else ""
    if not kept:
        return f"<p>{text}</p>{numbers}"
    filled = [label for label in labels if any(columns[name][label] for name in kept)]
    shown = filled[: LEARNT // (ENTRIES * len(kept))]
    text += (
        " Every new image is compared with the images below. The number says how undecided the model alone was (the "
    )
    text += f"entropy of its answer): 0 is certain, {log(len(labels)):.2f} a mere guess. Shown are {len(shown)} of "
    text += f"{count(len(labels), 'label')}, up to {ENTRIES} images in a row."
    content = []
    for label in shown:
        groups = ""
        for name, entries in kept.items():
            first = [entry for entry in entries if labels[entry.class_index] == label][:ENTRIES]
            figures = (f"{picture(entry.id)}<figcaption>{entry.entropy:.2f}</figcaption>" for entry in first)
            row = "".join(f"<figure>{figure}</figure>" for figure in figures)
            groups += f'<div><h4>{safe(name)}</h4><div class="row">{row}</div></div>' if row else ""
        content.append(f'<li class="learnt"><h3 class="name">{safe(label)}</h3><div class="kinds">{groups}</div></li>')
    return f"<p>{text}</p>{cards(content, 'wide')}{numbers}"


def _confidence(summary: Summary) -> str:
    bins = {"before": summary.before_bins, "after": summary.after_bins}
    shares = {kind: [count / summary.answered for count in counts] for kind, counts in bins.items()}
    legend = '<p class="legend"><span>zero-shot</span><span class="new">adapted</span></p>'
    caption = "score of the answer; height: share of images"
    return legend + chart(shares, ("0", "0.25", "0.5", "0.75", "1"), caption)


def _stream(summary: Summary) -> str:
    sizes = [summary.bin_width] * (summary.answered // summary.bin_width) or [summary.answered]  # full bins, or one
    bins = {"after": summary.stream}
    legend = ""
    if summary.passes == 2:
        bins = {"before": summary.stream_online, "after": summary.stream}
        legend = '<p class="legend"><span>online</span><span class="new">second pass</span></p>'
    shares = {kind: [number / size for number, size in zip(each, sizes, strict=False)] for kind, each in bins.items()}
    caption = f"images classified, {sizes[0]:,} per bar; height: share of changed answers"
    return legend + chart(shares, ("0", f"{sum(sizes):,}"), caption)


def _unreadable(summary: Summary) -> str:
    rows = [(safe(file), safe(reason)) for file, reason in summary.reasons]
    first = f" The first {len(rows)} are listed." if len(rows) < summary.unreadable else ""
    text = f"{count(summary.unreadable, 'image')} could not be read and got no answer.{first}"
    return f'<p>{text}</p><div class="facts">{table(("File", "Reason"), rows)}</div>'


def _label_table(order: Sequence[str], columns: Mapping[str, Mapping[str, float]]) -> str:
    """Numbers by label, each with a bar; the labels with the largest numbers come first."""
    head = ["Label", *(cell for name in columns for cell in ("", f"#{safe(name)}"))]
    most = {name: max(values.values(), default=0) or 1 for name, values in columns.items()}
    rows = []
    for label in sorted(order, key=lambda label: -sum(values[label] for values in columns.values())):
        row = [safe(label)]
        for name, values in columns.items():
            row.append(bar("before" if name == "Zero-shot" else "after", values[label] / most[name]))
            row.append(f"{round(values[label], 3):,}")
        rows.append(row)
    return long_table(head, rows, "labels")


def _settings(adapter: Adapter, settings: Mapping[str, object]) -> str:
    """What the run was given, and the settings of the method in the words of its documentation."""
    rows = [(escape(name), escape(str(value))) for name, value in settings.items()]
    content = f'<div class="facts">{table(("", ""), rows)}</div>'.replace('class="bars"', "")
    many = count(len(adapter.head), "label")
    names = ", ".join(map(safe, adapter.head.class_names))
    folds = len(adapter.head) > ROWS
    content += folded(many, f'<p class="names">{names}</p>') if folds else f"<p>{many}: {names}</p>"
    if not adapter.settings:
        return content
    arguments = re.split(r"\n(?:Note|Examples|Raises):", (getdoc(type(adapter)) or "").partition("\nArgs:\n")[2])[0]
    meanings = dict(re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", arguments, re.MULTILINE))
    told = [
        (escape(name), escape(str(value)), escape(" ".join(meanings.get(name, "").split())))
        for name, value in adapter.settings.items()
    ]
    head = ("Setting", "Value", "Meaning")
    return content + f'<div class="facts">{table(head, told, f"Settings of the method {safe(adapter.name)}")}</div>'
