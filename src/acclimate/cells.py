"""Cells of csv files that no spreadsheet takes for a formula, and the text that they stand for."""

import re

# What makes a spreadsheet calculate, behind any number of the marks that `to_cell` puts before it.
# The last four are the same signs in full width.
FORMULA = re.compile(r"((?:'|\./)*)(?:[\t\r\n]|\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
NUMBER = re.compile(r"\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\s*")


def to_cell(text: str, path: bool = False) -> str:
    """The text as a cell: with an apostrophe, or `./` before a relative path, where it would be a formula.

    Examples:
        >>> to_cell("=HYPERLINK(1)"), to_cell("-2+3.jpg", path=True), to_cell("-2.5"), to_cell("a-b")
        ("'=HYPERLINK(1)", './-2+3.jpg', '-2.5', 'a-b')
    """
    return ("./" if path else "'") + text if _marks(text) is not None else text


def from_cell(cell: str) -> str:
    """The text of a cell that `to_cell` made; other cells are text as they are.

    Examples:
        >>> from_cell("'=HYPERLINK(1)"), from_cell("./-2+3.jpg"), from_cell("'quoted'"), from_cell("./a.jpg")
        ('=HYPERLINK(1)', '-2+3.jpg', "'quoted'", './a.jpg')
    """
    return re.sub(r"^(?:'|\./)", "", cell) if _marks(cell) else cell


def _marks(text: str) -> str | None:
    """The marks before a formula; None if the text is not one."""
    found = FORMULA.match(text)
    return None if found is None or NUMBER.fullmatch(text, found.end(1)) else found[1]
