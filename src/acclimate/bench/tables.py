"""Tables of results: each cell shows the measured figure, the paper's figure, and why the two may differ."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

ABSENT = "\N{EN DASH}"
LEGEND = "Each cell: measured / reported in the paper."
ALWAYS = (
    "Where both figures are given, they always differ by precision (the authors' runs use half precision, these do "
    "not) and by the order of the samples."
)


@dataclass(frozen=True)
class Cell:
    """A measured figure and the paper's figure; None where there is none.

    Attributes:
        measured: for instance an accuracy in percent.
        reported: the paper's figure.
        sd: standard deviation over several orders.
        why: reasons why the two may differ.
    """

    measured: float | None = None
    reported: float | None = None
    sd: float | None = None
    why: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table of cells.

    Attributes:
        title: what the figures are.
        context: what they were measured with.
        corner: heading of the row names.
        columns: headings.
        rows: for each row its name and one cell per column.
    """

    title: str
    context: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


def letters(tables: Sequence[Table]) -> dict[str, str]:
    """Reason -> the letter that refers to it, over all tables."""
    given = dict.fromkeys(
        reason for table in tables for _, cells in table.rows for cell in cells for reason in cell.why
    )
    return dict(zip(given, ascii_lowercase, strict=False))


def notes(tables: Sequence[Table]) -> list[str]:
    """The notes below the tables: how to read a cell, and the reasons by letter."""
    return [LEGEND, *(f"({letter}) {reason}" for reason, letter in letters(tables).items()), ALWAYS]


def cell_text(cell: Cell) -> str:
    """A cell as text, without the letters of its reasons.

    Examples:
        >>> cell_text(Cell(61.3, 61.35, sd=0.12))
        '61.30 ± 0.12 / 61.35'
    """
    spread = "" if cell.sd is None else f" ± {cell.sd:.2f}"
    return f"{_figure(cell.measured)}{spread} / {_figure(cell.reported)}"


def markdown(tables: Sequence[Table]) -> str:
    """Tables as Markdown."""
    known = letters(tables)
    parts = [part for table in tables for part in (f"### {table.title}", table.context, markdown_table(table, known))]
    return "\n\n".join([*parts, *notes(tables)]) + "\n"


def markdown_table(table: Table, known: Mapping[str, str]) -> str:
    """One table as Markdown without title and notes; `known` maps reasons to letters."""
    lines = ["| " + " | ".join((table.corner, *table.columns)) + " |", "| --- |" + " ---: |" * len(table.columns)]
    for name, cells in table.rows:
        texts = [cell_text(cell) + (f" <sup>{_letters_of(cell, known)}</sup>" if cell.why else "") for cell in cells]
        lines.append("| " + " | ".join((name, *texts)) + " |")
    return "\n".join(lines)


def latex(tables: Sequence[Table]) -> str:
    """Tables as LaTeX; they need the booktabs package."""
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
            texts = [
                _tex(cell_text(cell)) + (f"$^{{{_letters_of(cell, known)}}}$" if cell.why else "") for cell in cells
            ]
            parts.append(" & ".join((_tex(name), *texts)) + r" \\")
        parts += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join([*parts, r"\noindent " + _tex(" ".join(notes(tables))), ""])


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {"markdown": markdown, "latex": latex}


def _figure(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}"


def _letters_of(cell: Cell, known: Mapping[str, str]) -> str:
    return ", ".join(sorted(known[reason] for reason in cell.why))


def _tex(text: str) -> str:
    escapes = {
        "\\": r"\textbackslash{}",
        "±": r"$\pm$",
        ABSENT: "--",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
    escapes |= {sign: "\\" + sign for sign in "&%$#_{}"}
    return "".join(escapes.get(sign, sign) for sign in text)
