"""Pieces of a page: tables, charts, cards, thumbnails. Arguments are HTML unless they are numbers or called text."""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import PurePath

from acclimate.classify.wording import percent
from acclimate.errors import ImageError
from acclimate.images.opening import open_image, thumbnail
from acclimate.sources.source import Sample

PIXELS = 112  # longer side of a thumbnail
LENGTH = 200  # characters shown of a name
ROWS = 24  # of a list that are shown at once; the others unfold

Picture = Callable[[int], str]  # from the index or id of an image to HTML


def safe(text: str) -> str:
    """A name from outside, made safe in HTML text and attributes, and cut if very long."""
    return escape(text if len(text) <= LENGTH else text[: LENGTH - 1] + "\u2026")


def folded(summary: str, content: str) -> str:
    """Content that unfolds on a click."""
    return f"<details><summary>{summary}</summary>{content}</details>"


def pictures(samples: Sequence[Sample]) -> Picture:
    """Thumbnails by index, each made once; a box with the name for a file that is gone or not of this run."""

    @cache
    def picture(index: int) -> str:
        if not 0 <= index < len(samples):
            return '<div class="thumb gone">from an earlier run</div>'
        name = samples[index].name
        try:
            content = b64encode(thumbnail(open_image(samples[index].read()), PIXELS)).decode()
        except (ImageError, OSError):
            label = f'aria-label="{safe(name)}, no longer readable" title="{safe(name)}"'
            return f'<div class="thumb gone" role="img" {label}>{safe(PurePath(name).name)}</div>'
        return f'<img class="thumb" src="data:image/jpeg;base64,{content}" alt="{safe(name)}" title="{safe(name)}">'

    return picture


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table; columns whose head begins with # hold numbers, and those without a head bars."""
    kinds = ["number" if name.startswith("#") else "name" if name else "bars" for name in head]
    titles = (f'<th scope="col" class="{kind}">{name.lstrip("#")}</th>' for kind, name in zip(kinds, head, strict=True))
    body = ""
    for first, *others in rows:
        cells = (f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds[1:], others, strict=True))
        body += f'<tr><th scope="row" class="name">{first}</th>{"".join(cells)}</tr>'
    above = f"<caption>{caption}</caption>" if caption else ""
    drawn = f"<table>{above}<thead><tr>{''.join(titles)}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{drawn}</div>'


def long_table(head: Sequence[str], rows: Sequence[Sequence[str]], thing: str) -> str:
    """A table of which all but the first rows unfold; `thing` is what the rows are, in the plural."""
    more = rows[ROWS:]
    return table(head, rows[:ROWS]) + (folded(f"{len(more):,} more {thing}", table(head, more)) if more else "")


def bar(kind: str, share: float) -> str:
    """A horizontal bar in the colour "before" or "after"."""
    drawn = f'<rect class="{kind}" width="{100 * share:.2f}" height="6"/>'
    return f'<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'


def chart(series: Mapping[str, Sequence[float]], ticks: Iterable[str], caption: str) -> str:
    """Shares as bars, in the colours "before" and "after"; the text is outside the drawing, which may be stretched."""
    most = max(map(max, series.values()))
    top = next((top for top in (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8) if most <= top), 1.0)
    drawn = "".join(f'<line class="grid" x2="200" y1="{y}" y2="{y}"/>' for y in (0, 50, 100))
    for i, (kind, shares) in enumerate(series.items()):
        width = 200 / len(shares) / (len(series) + 0.25)  # a gap of a quarter bar after the bars of a bin
        for j, share in enumerate(shares):
            x = 200 * j / len(shares) + i * width
            height = 100 * share / top
            box = f'x="{x:.2f}" y="{100 - height:.2f}" width="{width:.2f}" height="{height:.2f}"'
            drawn += f'<rect class="{kind}" {box}><title>{percent(share)}</title></rect>'
    left = "".join(f"<span>{percent(part * top)}</span>" for part in (1.0, 0.5, 0.0))
    below = "".join(f"<span>{tick}</span>" for tick in ticks)
    svg = f'<svg viewBox="0 0 200 100" preserveAspectRatio="none" role="img" aria-label="{caption}">{drawn}</svg>'
    axes = f'<div class="y" aria-hidden="true">{left}</div>{svg}<div class="x" aria-hidden="true">{below}</div>'
    return f'<figure class="chart">{axes}<figcaption>{caption}</figcaption></figure>'


def answer(kind: str, label_text: str, score_text: str = "") -> str:
    """A line of a card: a label, and its score at the right."""
    score = f"<span>{escape(score_text)}</span>" if score_text else ""
    return f'<div class="answer {kind}"><span class="name">{safe(label_text)}</span>{score}</div>'


def card(picture: str, file_text: str, answers: Iterable[str]) -> str:
    """An image with the end of its path, and answers; the picture has the whole path as its title."""
    file = f'<div class="file name">{safe("/".join(PurePath(file_text).parts[-2:]))}</div>'
    return f'<li class="photo">{picture}<div>{file}{"".join(answers)}</div></li>'


def cards(content: Iterable[str], kind: str = "") -> str:
    """A grid of cards."""
    return f'<ul class="cards {kind}">{"".join(content)}</ul>'
