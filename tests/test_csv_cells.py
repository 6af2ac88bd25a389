"""Cells that are no formulas."""

from hypothesis import example, given
from hypothesis import strategies as st

from acclimate.files import from_cell, to_cell

SIGNS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
hostile = st.text(st.sampled_from("=+-@\t\r\n'./ a1;,|\uff1d"), max_size=8) | st.text(max_size=8)


@given(hostile, st.booleans())
@example("=1+1", False)
@example("'=1+1", False)
@example("./-1.jpg", True)
@example("a;=1+1;b.webp", True)
@example(";\t=1+1", False)
def test_every_text_comes_back_and_none_is_a_formula(text, path):
    cell = to_cell(text, path)
    assert from_cell(cell) == text
    if cell.lstrip()[:1] in SIGNS or cell[:1] in ("\t", "\r", "\n"):
        float(cell)  # a number may stay a number
    for separator in ";,|\t":  # whichever a spreadsheet guesses
        for part in cell.split(separator)[1:]:
            assert part.lstrip(" ")[:1] not in SIGNS


def test_ordinary_names_are_unchanged():
    for text in ("a.jpg", "photos/-1.jpg", "it's", "./a.jpg", "/-1", "", "2-3", "-1", "+1.5e3", " 4"):
        assert to_cell(text) == from_cell(text) == text
