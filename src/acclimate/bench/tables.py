"""Tables of results: every cell shows what was measured beside what the paper reports, and why the two differ."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from string import ascii_lowercase

ABSENT = "\N{EN DASH}"
LEGEND = "Each cell: measured / reported in the paper."
ALWAYS = (
    "Where both figures stand, they differ in any case by precision (the authors' runs are in half precision, these "
    "are not) and by the order of the samples."
)


@dataclass(frozen=True)
class Cell:
    """A measured figure beside the paper's; None where there is none.

    Attributes:
        measured: for instance an accuracy in percent.
        reported: the paper's figure.
        sd: standard deviation over the orders, where there were many.
        why: reasons for which the two need not agree.
    """

    measured: float | None = None
    reported: float | None = None
    sd: float | None = None
    why: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table of cells.

    Attributes:
        name: the recipe it belongs to.
        title: what the figures are.
        context: what they were measured with.
        corner: heading of the rows' names.
        columns: headings.
        rows: a name and as many cells as there are columns, each.
    """

    name: str
    title: str
    context: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


def letters(tables: Sequence[Table]) -> dict[str, str]:
    """Each reason in the tables, and the letter that stands for it."""
    given = dict.fromkeys(
        reason for table in tables for _, cells in table.rows for cell in cells for reason in cell.why
    )
    return dict(zip(given, ascii_lowercase, strict=False))


def notes(tables: Sequence[Table]) -> list[str]:
    """What stands below the tables: how to read a cell, and the reasons by letter."""
    return [LEGEND, *(f"({letter}) {reason}" for reason, letter in letters(tables).items()), ALWAYS]


def cell_text(cell: Cell) -> str:
    """A cell as people read it, without the letters of its reasons."""
    spread = "" if cell.sd is None else f" ± {cell.sd:.2f}"
    return f"{_figure(cell.measured)}{spread} / {_figure(cell.reported)}"


def markdown(tables: Sequence[Table]) -> str:
    """Tables for a README or a pull request."""
    known = letters(tables)
    parts = [part for table in tables for part in (f"### {table.title}", table.context, markdown_table(table, known))]
    return "\n\n".join([*parts, *notes(tables)]) + "\n"


def markdown_table(table: Table, known: Mapping[str, str]) -> str:
    """A table alone, with the letters of its cells' reasons."""
    lines = ["| " + " | ".join((table.corner, *table.columns)) + " |", "| --- |" + " ---: |" * len(table.columns)]
    for name, cells in table.rows:
        lines.append("| " + " | ".join((name, *(cell_text(cell) + _sup(cell, known) for cell in cells))) + " |")
    return "\n".join(lines)


def latex(tables: Sequence[Table]) -> str:
    """Tables for a paper; they need the booktabs package."""
    known = letters(tables)
    parts = []
    for table in tables:
        parts += [
            r"\begin{table}",
            rf"\caption{{{_tex(table.title)}. {_tex(table.context)}}}",
            rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
            r"\toprule",
            " & ".join(_tex(heading) for heading in (table.corner, *table.columns)) + r" \\",
            r"\midrule",
        ]
        for name, cells in table.rows:
            marked = (_tex(cell_text(cell)) + (f"$^{{{_marks(cell, known)}}}$" if cell.why else "") for cell in cells)
            parts.append(" & ".join((_tex(name), *marked)) + r" \\")
        parts += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join([*parts, r"\noindent " + _tex(" ".join(notes(tables))), ""])


def comma_separated(tables: Sequence[Table]) -> str:
    """Every cell of every table on a line of its own."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "title", "context", "row", "column", "measured", "sd", "reported", "why"])
    for table in tables:
        for name, cells in table.rows:
            for column, cell in zip(table.columns, cells, strict=True):
                figures = ("" if each is None else f"{each:.4f}" for each in (cell.measured, cell.sd, cell.reported))
                about = (table.name, table.title, table.context, name, column)
                writer.writerow([*about, *figures, " ".join(cell.why)])
    return text.getvalue()


def html(tables: Sequence[Table]) -> str:
    """One page that needs nothing else."""
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}"
        "table{border-collapse:collapse}th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid #ddd}"
        "th:first-child,td:first-child{text-align:left}.wide{overflow-x:auto}"
    )
    known = letters(tables)
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>acclimate: results</title>',
        f"<style>{style}</style></head><body>",
    ]
    for table in tables:
        heading = "".join(f'<th scope="col">{escape(each)}</th>' for each in (table.corner, *table.columns))
        parts += [f"<h2>{escape(table.title)}</h2>", f"<p>{escape(table.context)}</p>", "<div class=wide><table>"]
        parts.append(f"<tr>{heading}</tr>")
        for name, cells in table.rows:
            marked = "".join(f"<td>{escape(cell_text(cell))}{_sup(cell, known)}</td>" for cell in cells)
            parts.append(f"<tr><td>{escape(name)}</td>{marked}</tr>")
        parts.append("</table></div>")
    return "\n".join([*parts, *(f"<p>{escape(note)}</p>" for note in notes(tables)), "</body></html>", ""])


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
    "html": html,
}


def _figure(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}"


def _marks(cell: Cell, known: Mapping[str, str]) -> str:
    return ", ".join(sorted(known[reason] for reason in cell.why))


def _sup(cell: Cell, known: Mapping[str, str]) -> str:
    return f" <sup>{_marks(cell, known)}</sup>" if cell.why else ""


def _tex(text: str) -> str:
    plain = {
        "\\": r"\textbackslash{}",
        "±": r"$\pm$",
        ABSENT: "--",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
    plain |= {sign: "\\" + sign for sign in "&%$#_{}"}
    return "".join(plain.get(sign, sign) for sign in text)
