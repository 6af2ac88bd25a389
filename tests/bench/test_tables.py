import csv
import io
from dataclasses import replace

import pytest

from acclimate.bench.comparison import FORMATS, Cell, Table, cell_text, letters, notes

TABLE = Table(
    title="An example: top-1 accuracy, %",
    context="Model: a & b_c.",
    corner="method",
    columns=("one", "two"),
    rows=(
        ("zero-shot", (Cell(50.0, 51.234, why=("other prompts.", "other model.")), Cell(60.0))),
        ("tda <x>", (Cell(None, 52.0), Cell(61.0, 61.5, sd=0.25, why=("other model.",)))),
    ),
)


def test_a_cell_shows_both_figures_or_the_one_there_is():
    assert cell_text(Cell(50.0, 51.234)) == "50.00 / 51.23"
    assert cell_text(Cell(50.0, None, sd=0.126)) == "50.00 ± 0.13"
    assert cell_text(Cell(None, 51.0)) == "– / 51.00"  # noqa: RUF001
    assert cell_text(Cell()) == "–"  # noqa: RUF001


def test_reasons_have_letters_over_all_tables():
    assert letters([TABLE, TABLE]) == {"other prompts.": "a", "other model.": "b"}
    assert notes([TABLE])[1:3] == ["(a) other prompts.", "(b) other model."]


def test_markdown():
    text = FORMATS["markdown"]([TABLE])
    assert (
        "### An example: top-1 accuracy, %\n\nModel: a & b_c.\n\n| method | one | two |\n| --- | ---: | ---: |" in text
    )
    assert "| zero-shot | 50.00 / 51.23 <sup>a, b</sup> | 60.00 |" in text
    assert "| tda <x> | – / 52.00 | 61.00 ± 0.25 / 61.50 <sup>b</sup> |" in text  # noqa: RUF001
    assert text.count("Each cell: measured / reported in the paper, with its model on its data;") == 1


def test_latex_escapes_what_it_must():
    text = FORMATS["latex"]([TABLE])
    assert r"\caption{An example: top-1 accuracy, \%. Model: a \& b\_c.}" in text
    assert r"zero-shot & 50.00 / 51.23$^{a, b}$ & 60.00 \\" in text
    assert r"61.00 $\pm$ 0.25 / 61.50$^{b}$ \\" in text
    assert text.count(r"\begin{tabular}{lrr}") == text.count(r"\end{tabular}") == 1


def test_csv_has_a_line_per_cell_with_full_figures():
    lines = list(
        csv.DictReader(io.StringIO(FORMATS["csv"]([replace(TABLE, rows=(*TABLE.rows, ("none", (Cell(), Cell()))))])))
    )
    cells = [(name, column, cell) for name, row in TABLE.rows for column, cell in zip(TABLE.columns, row, strict=True)]
    assert len(lines) == len(cells)
    for line, (name, column, cell) in zip(lines, cells, strict=True):
        assert (line["row"], line["column"], line["why"]) == (name, column, " ".join(cell.why))
        for key in ("measured", "reported", "sd"):
            assert line[key] == ("" if getattr(cell, key) is None else str(getattr(cell, key)))


def test_tables_without_figures_of_the_paper_do_not_speak_of_them():
    alone = replace(TABLE, rows=(("tda", (Cell(60.0, why=("12 of 30 images.",)), Cell(61.0))),))
    assert notes([alone]) == ["(a) 12 of 30 images."]
    assert "| tda | 60.00 <sup>a</sup> | 61.00 |" in FORMATS["markdown"]([alone])


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_says_why(name):
    assert "other prompts." in FORMATS[name]([TABLE])
