"""Labels that a text tower cannot read as they are meant: misspelled, Latin, negated, or saying nothing.

A label is judged by its spelling, because its vector does not tell: a word that nobody has ever written is as close to
some noun as the name of a rare bird is. `data/words.json.xz` has what is needed of WordNet (see LICENSE-WORDNET): the
English words that could be taken for a misspelled noun, and the names of species in Latin and English.
"""

import json
import lzma
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import as_words, same_words
from acclimate.evidence import Head
from acclimate.prompts.expansion import nouns
from acclimate.prompts.templates import DATA, foreign_labels

SHOWN = 5  # labels of a kind that a note names
CLOSE_SHARE = 0.2  # share of the nouns that have another one as close as labels that are too close
# Endings of adjectives and participles, which are rarely misspelled nouns
ENDINGS = re.compile(r"(ed|ing|y|al|ous|ful|en|er|ic|ive|less|able|ible)$")
NEGATION = re.compile(r"\b(not|no|non|without|except|isn't|other than)\b")
NOTHING = re.compile(
    r"((some|any|every)thing |all )?(else|others?)|misc\w*|none( of (these|them|the above))?|unknown|nothing|"
    r"(other )?(thing|object|stuff)s?|the rest|various"
)


@cache
def _everyday_words() -> frozenset[str]:
    return frozenset(word for noun in nouns() for word in noun.split() if len(word) > 2)


@cache
def _misspellings() -> dict[str, list[str]]:
    """Return the everyday words that sound like a key or have one letter more."""
    found: dict[str, list[str]] = {}
    for word in sorted(_everyday_words()):
        for key in _keys(word):
            found.setdefault(key, []).append(word)
    return found


def _keys(word: str) -> set[str]:
    """Return forms of a word, one of which it has in common with a word that is mistaken for it."""
    return {word, "sound " + _sound(word), *(word[:i] + word[i + 1 :] for i in range(len(word)))}


def _sound(word: str) -> str:
    for letters, sound in (("ph", "f"), ("ck", "k"), ("x", "ks"), ("y", "i")):
        word = word.replace(letters, sound)
    return re.sub(r"(.)\1", r"\1", word)


def similar_words(word: str) -> list[str]:
    """Return everyday words that one may have meant, the most likely first.

    Examples:
        >>> similar_words("elefant"), similar_words("dgo")
        (['elephant'], ['dog'])
    """

    def order(other: str) -> tuple[bool, bool, float]:
        likeness = SequenceMatcher(None, word, other).ratio()
        return _sound(other) != _sound(word), sorted(other) != sorted(word), -likeness

    found = {other for key in _keys(word) for other in _misspellings().get(key, ())}
    short = min(len(word), *map(len, found), 9) < 4
    return sorted(
        (each for each in found if each[0] == word[0] and (not short or sorted(each) == sorted(word))), key=order
    )


@cache
def _words() -> tuple[frozenset[str], frozenset[str], dict[str, str]]:
    """Return nouns and other words that could be taken for misspelled ones, and English names by the Latin ones."""
    read = json.loads(lzma.decompress((DATA / "words.json.xz").read_bytes()))
    return frozenset(read["nouns"].split()), frozenset(read["others"].split()), read["latin"]


def english_name(label: str) -> str:
    """Return the English name of a species that is given in Latin; "" for any other label.

    Examples:
        >>> english_name("Equus caballus"), english_name("Canis lupus familiaris"), english_name("grey horse")
        ('horse', 'dog', '')
    """
    genus, *rest = same_words(label).split()
    names = (f"{genus} {name}" for name in (" ".join(rest), *rest[::-1]))  # a subspecies has a third word
    return next((_words()[2][name] for name in names if name in _words()[2]), "")


def misspelled(label: str) -> str:
    """Return a label with its misspelled words replaced; "" if it has none.

    Names that are written with capitals or digits are left alone.

    Examples:
        >>> misspelled("girafe"), misspelled("yorkshire terier"), misspelled("keeshond")
        ('giraffe', 'yorkshire terrier', '')
    """
    if re.search(r"\d|\B[A-Z]|\W[A-Z]", as_words(label)):
        return ""
    real_nouns, others, _ = _words()
    words = same_words(label).split()
    alone = len(words) == 1
    meant = []
    for word in words:
        forms = {word, word.removesuffix("s"), word.removesuffix("es")}
        known = len(word) < 3 or not word.isalpha() or forms & _everyday_words() or word in real_nouns
        known = known or (word in others and (not alone or bool(ENDINGS.search(word))))
        meant.append(next(iter([] if known else similar_words(word)), word))
    return "" if meant == words else " ".join(meant)


def label_notes(labels: Sequence[str], english: bool = True) -> list[str]:
    """Return what to change in labels, by their spelling, as sentences; labels in other languages are left alone.

    Unless they must be `english`, labels of which half look misspelled are taken for another language, too.

    Examples:
        >>> label_notes(["dgo", "Equus caballus", "not a cat", "guitar"])  # doctest: +NORMALIZE_WHITESPACE
        ["did you mean 'dog' for 'dgo'?",
         "models know English names better than Latin ones: try 'horse' for 'Equus caballus'.",
         "'not a cat' is read as what it says no to: name what is there instead, or leave it out and pass
          --none-of-these."]
    """
    if foreign_labels(labels):
        return []
    latin = {label: name for label in labels if (name := english_name(label))}
    typos = {label: word for label in labels if label not in latin and (word := misspelled(label))}
    if not english and len(typos) > len(labels) / 2:
        return []
    negated = [label for label in labels if NEGATION.search(same_words(label))]
    nothing = [label for label in labels if NOTHING.fullmatch(same_words(label))]
    found = []
    if typos:
        found.append(f"did you mean {_replacements(typos)}?")
    if latin:
        found.append(f"models know English names better than Latin ones: try {_replacements(latin)}.")
    if negated:
        found.append(
            f"{_quoted(negated)} is read as what it says no to: name what is there instead, or leave it out and pass "
            "--none-of-these."
        )
    if nothing:
        found.append(f"no image looks like {_quoted(nothing)}: leave it out, and pass --none-of-these.")
    return found


def expansion_note(expanded: Mapping[str, int]) -> str:
    """Return which broad labels are answered through how many nouns, as a sentence; "" for none."""
    broad = _listed([f"{label} {number}" for label, number in expanded.items()])
    return broad and f"broad labels are answered through the nouns below them ({broad}); --no-expand leaves that out."


def close_labels(head: Head, negatives: HostArray) -> str:
    """Return which labels a model can hardly tell apart, as a sentence; "" for none.

    These are closer to each other than 80 % of everyday nouns are to the one that is nearest to them.
    `negatives` (M, d) are the unit vectors of the nouns, from the same model.
    """
    some = negatives[::10]  # enough for a quantile
    nearest = np.partition(some @ negatives.T, -2, axis=1)[:, -2]  # the last is the noun itself
    limit = np.quantile(nearest, 1 - CLOSE_SHARE)
    cosines = np.triu(head.name_vectors @ head.name_vectors.T, 1)
    first, second = np.nonzero(cosines > limit)
    order = np.argsort(-cosines[first, second])
    pairs = [f"{head.class_names[first[i]]!r} and {head.class_names[second[i]]!r}" for i in order]
    return f"the model can hardly tell apart {_listed(pairs)}." if pairs else ""


def _replacements(meant: dict[str, str]) -> str:
    return _listed([f"{word!r} for {label!r}" for label, word in meant.items()])


def _quoted(labels: Sequence[str]) -> str:
    return _listed([repr(label) for label in labels])


def _listed(phrases: Sequence[str]) -> str:
    more = f" and {len(phrases) - SHOWN} more" if len(phrases) > SHOWN else ""
    return ", ".join(phrases[:SHOWN]) + more
