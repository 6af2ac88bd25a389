"""The part of the report for images whose true labels are known: what was right, and what was taken for what."""

from collections.abc import Sequence
from itertools import pairwise

from acclimate.classify.accuracy import FEW, paired_difference, wilson
from acclimate.classify.html import Picture, answer, card, cards, folded, long_table, safe, table
from acclimate.classify.summary import BINS, Summary, ranked
from acclimate.classify.wording import score_text
from acclimate.errors import count

MATRIX = 40  # labels in a confusion matrix; of more, only the most frequent confusions are listed
SMALL = 15  # labels whose confusion matrix has room for large cells
CONFUSIONS = 12  # of them
SCORES = (0.0, 0.5, 0.7, 0.9, 1.0)  # bounds of the scores whose answers are judged together


def accuracy_part(summary: Summary) -> str:
    """Accuracy before and after adapting, and by the score of the answers."""
    accuracy = summary.accuracy
    known = f"{accuracy.known:,} of {count(summary.answered, 'image')}"
    text = (
        f"The true label is known of {known}. Zero-shot is the model alone. The interval is where the accuracy on many "
    )
    text += "more such images would be expected, with 95\u202f% confidence."
    text += " <strong>So few images say little.</strong>" if accuracy.known < FEW else ""
    rows = []
    for who, right in (("Zero-shot", accuracy.right_before), ("Adapted", accuracy.right)):
        low, high = wilson(right, accuracy.known)
        rows.append((who, f"{right:,}", _points(right / accuracy.known), f"{_points(low)} to {_points(high)}"))
    low, high = paired_difference(accuracy.gained, accuracy.lost, accuracy.known)
    points = (accuracy.gained - accuracy.lost) / accuracy.known
    change = f"+{accuracy.gained:,} \u2212{accuracy.lost:,}"
    rows.append(("Difference", change, _points(points, "+"), f"{_points(low, '+')} to {_points(high, '+')}"))
    main = table(("", "#Right", "#Accuracy in %", "#95\u202f% interval"), rows)
    return f'<p>{text}</p><div class="pair"><div>{main}</div><div>{_by_score(summary)}</div></div>'


def labels_part(summary: Summary, order: Sequence[str]) -> str:
    """How well each label was found."""
    rows = []
    present = [label for label in order if summary.truths[label] or summary.judged[label]]
    for label in sorted(present, key=lambda each: _share(summary.right[each], summary.truths[each], 2.0)):
        truths = summary.truths[label]
        right = summary.right[label]
        judged = summary.judged[label]
        found = (_percent(number[label], truths) for number in (summary.right_before, summary.right))
        rows.append((safe(label), f"{truths:,}", *found, f"{judged:,}", _percent(right, judged)))
    text = "<p>Found: the share of a label's images that were answered with it (recall). Correct: the share of the "
    text += "answers with this label that are right (precision). The label that was found least often comes first.</p>"
    head = ("Label", "#Images", "#Found, zero-shot", "#Found, adapted", "#Answers", "#Correct")
    return f'{text}<div class="narrow">{long_table(head, rows, "labels")}</div>'


def confusion_part(summary: Summary, order: Sequence[str]) -> str:
    """What was taken for what: a matrix if it is not too large, and the most frequent confusions."""
    if not summary.confusions:
        return "<p>No answer is wrong.</p>"
    rows = [
        (safe(truth), safe(label), f"{number:,}", _percent(number, summary.truths[truth]))
        for (truth, label), number in summary.confusions.most_common(CONFUSIONS)
    ]
    pairs = table(("True label", "Answer", "#Images", "#Share"), rows, "Most frequent confusions")
    if summary.confusions.total() < summary.truths.total() - summary.right.total():
        pairs += '<p class="note">Rare confusions were not all counted: these numbers are lower bounds.</p>'
    shown = [label for label in order if summary.truths[label] or summary.judged[label]]
    if len(shown) > MATRIX:
        text = f"{len(shown):,} labels are too many for a table of all pairs; the most frequent confusions are these."
        return f'<p>{text}</p><div class="narrow">{pairs}</div>'
    text = "A row is a true label, a column an answer, and the number says how many images. Right answers are on the "
    text += "diagonal; the stronger the colour, the larger the share of the row."
    return f'<p>{text}</p>{_matrix(summary, shown)}<div class="narrow">{pairs}</div>'


def wrong_part(summary: Summary, picture: Picture) -> str:
    """The wrong answers, the most confident first."""
    accuracy = summary.accuracy
    wrong = accuracy.known - accuracy.right
    if not wrong:
        return "<p>None of the answers whose truth is known.</p>"
    shown = [
        card(
            picture(record["index"]),
            record["file"],
            [
                answer("wrong", record["label"], score_text(record["score"])),
                answer("truth", f"true: {record['true_label']}"),
            ],
        )
        for record in ranked(summary.wrong)
    ]
    many = count(wrong, "wrong answer") if len(shown) == wrong else f"{len(shown)} of {wrong:,} wrong answers"
    text = f"{many}; the most confident come first. Check the true label, too: it may be the one that is wrong."
    more = folded(f"{len(shown) - 24} more", cards(shown[24:])) if len(shown) > 24 else ""
    return f"<p>{text}</p>{cards(shown[:24])}{more}"


def _by_score(summary: Summary) -> str:
    """How many answers are right, by their score."""
    rows = []
    for low, high in pairwise(SCORES):
        bins = slice(round(low * BINS), round(high * BINS))
        judged = sum(summary.judged_bins[bins])
        right = sum(summary.right_bins[bins])
        rows.append((f"{low:g} to {high:g}", f"{judged:,}", _percent(right, judged)))
    return table(("Score of the answer", "#Images", "#Right"), rows, "Can the score be trusted?")


def _matrix(summary: Summary, labels: Sequence[str]) -> str:
    head = "".join(f'<th scope="col"><span class="name">{safe(label)}</span></th>' for label in labels)
    body = ""
    for truth in filter(summary.truths.__getitem__, labels):
        body += f'<tr><th scope="row" class="name">{safe(truth)}</th>'
        for label in labels:
            number = summary.right[truth] if label == truth else summary.confusions[truth, label]
            kind = "hit" if label == truth else "miss"
            colour = f' class="{kind}" style="--share:{number / summary.truths[truth]:.3f}"' if number else ""
            body += f"<td{colour}>{f'{number:,}' if number else ''}</td>"
        body += "</tr>"
    corner = '<td class="corner">true \u2193 answer \u2192</td>'
    content = f"<thead><tr>{corner}{head}</tr></thead><tbody>{body}</tbody>"
    size = "small" if len(labels) <= SMALL else ""
    region = 'class="scroll" role="region" aria-label="Confusion matrix" tabindex="0"'
    return f'<div {region}><table class="matrix {size}">{content}</table></div>'


def _points(share: float, sign: str = "") -> str:
    return f"{round(100 * share, 9):{sign}.1f}".replace("-", "\u2212")


def _share(part: int, whole: int, otherwise: float) -> float:
    return part / whole if whole else otherwise


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}\u202f%" if whole else "\u2013"
