"""Broad labels, such as "mammal" or "vehicle", which are answered through the nouns below them.

A model has seen photographs of cats called "cat" and hardly any called "mammal". The nouns below a label are in
`data/broad_labels.json`, by WordNet (see LICENSE-WORDNET). They become the kinds of a class; see `Head`.
"""

import json
from collections.abc import Sequence
from functools import cache

from acclimate.errors import same_words
from acclimate.prompts.templates import DATA

Table = dict[str, tuple[str, ...]]


@cache
def _tables() -> tuple[Table, Table]:
    """Return the nouns below broad labels, and below other nouns, by name."""
    read = json.loads((DATA / "broad_labels.json").read_text(encoding="utf-8"))
    broad, basic = (
        {name: tuple(kinds.split(", ")) for names, kinds in read[part].items() for name in names.split(", ")}
        for part in ("broad", "basic")
    )
    return broad, basic


def _singular(label: str) -> str:
    """Return the words of a label, in the singular if its plural is not listed."""
    words = same_words(label)
    known = {*_tables()[0], *_tables()[1], *nouns()}
    forms = (words, words.removesuffix("s"), words.removesuffix("es"), words.removesuffix("ies") + "y")
    return next((form for form in forms if form in known), words)


def kinds_of(labels: Sequence[str]) -> Table:
    """Return the nouns through which each broad label is answered; labels that are not broad are left out.

    A noun that is another label, or below another label that is narrower, belongs to that one.

    Examples:
        >>> kinds = kinds_of(["animal", "dog", "insect", "guitar"])
        >>> list(kinds), "cat" in kinds["animal"], "poodle" in kinds["animal"], "ant" in kinds["animal"]
        (['animal', 'insect'], True, False, False)
    """
    broad, basic = _tables()
    names = {label: _singular(label) for label in labels}
    below = {label: {*broad.get(name, basic.get(name, ()))} for label, name in names.items()}
    found = {}
    for label, name in names.items():
        kinds = set(below[label])
        for other in labels:
            if other != label and (names[other] in below[label] or (below[other] and below[other] < below[label])):
                kinds -= {names[other], *below[other]}
        if name in broad and kinds:
            found[label] = tuple(sorted(kinds))
    return found


def kind_words(kinds: Table) -> list[str]:
    """Return all nouns below the labels of `kinds_of`, whatever other labels there are, in alphabetical order."""
    return sorted({noun for label in kinds for noun in _tables()[0][_singular(label)]})


@cache
def nouns() -> tuple[str, ...]:
    """Return some thousands of things that photographs show, in alphabetical order.

    Examples:
        >>> nouns()[:3], len(nouns()) > 3000
        (('aardvark', 'abacus', 'abbey'), True)
    """
    return tuple((DATA / "nouns.txt").read_text(encoding="utf-8").splitlines())
