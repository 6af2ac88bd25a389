from dataclasses import replace

from acclimate.bench.comparison import Cell, Table, cell_text, latex, letters, notes, text_rows
from acclimate.bench.results import latex_text

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


def test_rows_show_letters():
    (_, first, second), other = text_rows(TABLE, letters([TABLE]))
    assert (first, second) == ("50.00 / 51.23 <sup>a, b</sup>", "60.00")
    assert other == ("tda <x>", "– / 52.00", "61.00 ± 0.25 / 61.50 <sup>b</sup>")  # noqa: RUF001


def test_latex_escapes_what_it_must_and_shows_the_best_of_each_column():
    text = latex([TABLE])
    assert r"\caption{An example: top-1 accuracy, \%. Model: a \& b\_c.}" in text
    assert r"zero-shot & \textbf{50.00} / 51.23 & 60.00 \\" in text
    assert r"tda \textless{}x\textgreater{} & -- / 52.00 & \textbf{61.00} $\pm$ 0.25 / 61.50 \\" in text
    assert text.count(r"\begin{tabular}{lrr}") == text.count(r"\end{tabular}") == 1
    assert latex_text("61.50 <sup>a, b</sup>") == "61.50$^{a, b}$"


def test_tables_without_figures_of_the_paper_do_not_speak_of_them():
    alone = replace(TABLE, rows=(("tda", (Cell(60.0, why=("12 of 30 images.",)), Cell(61.0))),))
    assert notes([alone]) == ["(a) 12 of 30 images."]
