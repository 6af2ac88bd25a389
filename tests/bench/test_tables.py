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


def test_a_cell_shows_both_figures():
    assert cell_text(Cell(50.0, 51.234)) == "50.00 / 51.23"
    assert cell_text(Cell(50.0, None, sd=0.126)) == "50.00 ± 0.13 / –"  # noqa: RUF001
    assert cell_text(Cell()) == "– / –"  # noqa: RUF001


def test_reasons_have_letters_over_all_tables():
    assert letters([TABLE, TABLE]) == {"other prompts.": "a", "other model.": "b"}
    assert notes([TABLE])[1:3] == ["(a) other prompts.", "(b) other model."]


def test_markdown():
    text = FORMATS["markdown"]([TABLE])
    assert (
        "### An example: top-1 accuracy, %\n\nModel: a & b_c.\n\n| method | one | two |\n| --- | ---: | ---: |" in text
    )
    assert "| zero-shot | 50.00 / 51.23 <sup>a, b</sup> | 60.00 / – |" in text  # noqa: RUF001
    assert "| tda <x> | – / 52.00 | 61.00 ± 0.25 / 61.50 <sup>b</sup> |" in text  # noqa: RUF001
    assert text.count("Each cell: measured / reported in the paper, with its model on its data;") == 1


def test_latex_escapes_what_it_must():
    text = FORMATS["latex"]([TABLE])
    assert r"\caption{An example: top-1 accuracy, \%. Model: a \& b\_c.}" in text
    assert r"zero-shot & 50.00 / 51.23$^{a, b}$ & 60.00 / -- \\" in text
    assert r"61.00 $\pm$ 0.25 / 61.50$^{b}$ \\" in text
    assert text.count(r"\begin{tabular}{lrr}") == text.count(r"\end{tabular}") == 1


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_says_why(name):
    assert "other prompts." in FORMATS[name]([TABLE])
