"""Cells that are no formulas."""

from hypothesis import example, given
from hypothesis import strategies as st

from acclimate.files import from_cell, to_cell

hostile = st.text(st.sampled_from("=+-@\t\r\n'./ a1\uff1d"), max_size=8) | st.text(max_size=8)


@given(hostile, st.booleans())
@example("=1+1", False)
@example("'=1+1", False)
@example("./-1.jpg", True)
def test_every_text_comes_back_and_none_is_a_formula(text, path):
    cell = to_cell(text, path)
    assert from_cell(cell) == text
    assert cell.endswith(text)
    if cell.lstrip()[:1] in tuple("=+-@\uff1d\uff0b\uff0d\uff20") or cell[:1] in ("\t", "\r", "\n"):
        float(cell)  # a number may stay a number


def test_ordinary_names_are_unchanged():
    for text in ("a.jpg", "photos/-1.jpg", "it's", "./a.jpg", "/-1", "", "2-3", "-1", "+1.5e3", " 4"):
        assert to_cell(text) == from_cell(text) == text
