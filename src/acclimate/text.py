r"""Foreign text, such as labels and names of files: which characters it may have, and how it is printed.

All rules rest on the Unicode categories of characters: control characters and separators of lines (`CONTROL`), halves
of characters, which cannot be written as UTF-8 (`HALVES`), and marks without a shape of their own (`FORMAT`).
"""

import unicodedata
from collections.abc import Collection

from acclimate.errors import InputError

CONTROL, HALVES, FORMAT = ("Cc", "Zl", "Zp"), ("Cs",), ("Cf",)
JOINERS = "\u200c\u200d"  # of the format characters, those that Persian, Hindi and emoji are spelled with: harmless
LONGEST_TEXT = 4096  # characters of a name


def is_text(value: object) -> bool:
    r"""Whether it is a string that can be a name: of LONGEST_TEXT characters at most, and without lone surrogates.

    Examples:
        >>> is_text("chat noir"), is_text("\ud800"), is_text(7)
        (True, False, False)
    """
    return isinstance(value, str) and len(value) <= LONGEST_TEXT and not _characters(value, HALVES)


def check_text(text: str, what: str) -> str:
    r"""The same text; InputError if it has characters that cannot be written on one line of UTF-8.

    Examples:
        >>> check_text("chat noir", "label 1")
        'chat noir'
        >>> check_text("cat\0", "label 1")
        Traceback (most recent call last):
        acclimate.errors.InputError: label 1 has the control character '\x00'; remove it.
    """
    if found := _characters(text, CONTROL + HALVES):
        first = min(found, key=text.index)
        half = unicodedata.category(first) in HALVES
        kind = "half a character (a lone surrogate)," if half else "the control character"
        raise InputError(f"{what} has {kind} {first!a}; remove it.")
    return text


def printable(text: object) -> str:
    r"""The text in one line, with everything escaped that could control a terminal or misplace what stands beside it.

    Names of files and classes are foreign text: they may hold escape sequences, newlines, marks that turn the direction
    of writing, or bytes that are not Unicode.

    Examples:
        >>> printable("Größe \U0001f408 \x1b[2J\n\u202e\udcff.jpg")
        'Größe \U0001f408 \\x1b[2J\\n\\u202e\\udcff.jpg'
    """
    text = str(text)
    hidden = _characters(text, CONTROL + HALVES + FORMAT) - {*JOINERS}
    return text.translate({ord(each): each.encode("unicode_escape").decode() for each in hidden}) if hidden else text


def _characters(text: str, categories: Collection[str]) -> set[str]:
    """The characters of a text that belong to one of the categories."""
    if text.isascii() and text.isprintable():
        return set()
    return {each for each in set(text) if unicodedata.category(each) in categories}
