"""Labels that do not look English, which a model that reads English only takes for something else."""

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

# Shares of the labels that must look foreign: English has words such as 'café' and 'chat', too.
FOREIGN_SHARE = 0.1
ACCENTED_SHARE = 1 / 3


def foreign_labels(labels: Sequence[str]) -> str:
    """Return why labels do not look English, in words; "" if they do.

    One label in a script other than Latin is enough. Otherwise at least two labels must be frequent words of the same
    language, one of them unknown to English, or a third of the labels, two at least, must have accents.

    Examples:
        >>> foreign_labels(["chat", "chien", "oiseau"])
        "'chat', 'chien' and 'oiseau' look French"
        >>> foreign_labels(["cat", "jalapeño", "chat"])
        ''
    """
    if other := [label for label in labels if any(c.isalpha() and not _is_latin(c) for c in label)]:
        return f"{_listed(other)} {'has' if len(other) == 1 else 'have'} letters that are not Latin"
    for language, (own, shared) in _words().items():
        sure = [label for label in labels if _tokens(label) & own]
        likely = [label for label in labels if _tokens(label) & (own | shared)]
        if sure and len(likely) >= max(2, FOREIGN_SHARE * len(labels)):
            return f"{_listed(likely)} look {language}"
    accented = [label for label in labels if any(map(_is_accented, label))]
    if len(accented) >= max(2, ACCENTED_SHARE * len(labels)):
        return f"{_listed(accented)} have accents"
    return ""


def language_note(labels: Sequence[str]) -> str:
    """Return a note for users of a model that reads English only, if their labels do not look English; else ""."""
    why = foreign_labels(labels)
    return why and (
        f"{why}; the bundled model reads English only, and guesses at other words. "
        "Write the labels in English, or choose a model for your language."
    )


@cache
def _words() -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Return by language the frequent words that are not English, and those that English has as well."""
    described = json.loads((files("acclimate.prompts") / "data" / "foreign_words.json").read_text(encoding="utf-8"))
    return {
        language: (frozenset(words["own"].split()), frozenset(words["shared"].split()))
        for language, words in described.items()
    }


def _tokens(label: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]+", label.casefold()))


def _is_latin(letter: str) -> bool:
    return letter.isascii() or unicodedata.name(letter, "LATIN").startswith(("LATIN", "FEMININE", "MASCULINE", "MICRO"))


def _is_accented(letter: str) -> bool:
    return not letter.isascii() and unicodedata.name(letter, "").startswith("LATIN")


def _listed(labels: Sequence[str]) -> str:
    *first, last = [repr(label) for label in labels[:3]]
    return f"{', '.join(first)} and {last}" if first else last
