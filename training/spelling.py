"""Pack what a look at the spelling of labels needs: see `acclimate.prompts.spelling`.

python training/spelling.py /usr/share/wordnet --to src/acclimate/prompts/data/words.json.xz

The file has English words that could be taken for a misspelled everyday noun, nouns and others apart, and the English
name of each species that WordNet has in Latin. WordNet is in Debian's package wordnet-base.
"""

import argparse
import json
import lzma
import random
import re
import string
from collections.abc import Iterator
from pathlib import Path

from acclimate.prompts import nouns
from acclimate.prompts.spelling import _everyday_words, english_name, misspelled, similar_words
from acclimate.sources.datasets import DATASETS

LIVING = ("05", "20")  # WordNet's files of animals and plants
LATIN = re.compile(r"[A-Z][a-z]+( [a-z]+){1,2}")
ENDINGS = {
    "noun": ("", "s", "es"),
    "verb": ("", "s", "es", "d", "ed", "ing"),
    "adj": ("", "er", "est"),
    "adv": ("",),
}


def synsets(folder: Path, part: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the file number and the lemmas of each synset of a part of speech."""
    for line in (folder / f"data.{part}").read_text(encoding="utf-8").splitlines():
        if not line.startswith("  "):
            fields = line.split(" | ")[0].split()
            lemmas = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
            yield fields[1], [re.sub(r"\(.*\)", "", lemma).replace("_", " ") for lemma in lemmas]


def words(folder: Path, part: str) -> set[str]:
    """Return the words of a part of speech with their regular forms, and the irregular ones."""
    found = {line.split()[0] for line in (folder / f"{part}.exc").read_text(encoding="utf-8").splitlines()}
    lemmas = {word.lower() for _, names in synsets(folder, part) for name in names for word in re.split("[ -]", name)}
    for lemma in lemmas:
        found |= {lemma + ending for ending in ENDINGS[part]}
        if part == "verb":
            found |= {lemma[:-1] + "ing", lemma + lemma[-1:] + "ing", lemma + lemma[-1:] + "ed"}
        if part in ("noun", "verb") and lemma.endswith("y"):
            found |= {lemma[:-1] + "ies", lemma[:-1] + "ied"}
    return {word for word in found - _everyday_words() if word.isascii() and word.isalpha() and similar_words(word)}


def english_names(folder: Path) -> dict[str, str]:
    """Return the English names of species by the Latin ones, in lower case."""
    living = [names for file, names in synsets(folder, "noun") if file in LIVING]
    genera = {name.removeprefix("genus ") for names in living for name in names if name.startswith("genus ")}
    english = {name.split()[-1] for names in living for name in names if name.islower()}
    found = {"homo sapiens": "person"}
    for names in living:
        latin = [name for name in names if LATIN.fullmatch(name) and name.split()[0] in genera]
        others = [name for name in names if name not in latin and name.split()[-1] in english]
        if others:
            found |= {name.lower(): min(others, key=lambda name: not name.islower()) for name in latin}
    return found


def measure() -> str:
    """Return how many published class names are taken for misspelled, and how many nouns with a typo are not."""
    names = {name for dataset in DATASETS.values() for name in dataset.class_names}
    flagged = sum(bool(misspelled(name) or english_name(name)) for name in names)
    rng = random.Random(0)
    missed = 0
    for noun in (sample := rng.sample([noun for noun in nouns() if noun.isalpha() and len(noun) > 3], 1000)):
        at = rng.randrange(1, len(noun))
        head = noun[:at]
        tail = noun[at:]
        letter = rng.choice(string.ascii_lowercase)
        missed += not misspelled(rng.choice((head + tail[1:], head + letter + tail[1:], head + letter + tail)))
    return f"{flagged} of {len(names)} class names flagged, {missed} of {len(sample)} typos not noticed"


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wordnet", type=Path, help="folder of WordNet's files")
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    real_nouns = words(options.wordnet, "noun")
    others = set().union(*(words(options.wordnet, part) for part in ("verb", "adj", "adv"))) - real_nouns
    latin = english_names(options.wordnet)
    content = {"nouns": " ".join(sorted(real_nouns)), "others": " ".join(sorted(others)), "latin": latin}
    options.to.write_bytes(lzma.compress(json.dumps(content).encode(), preset=9))
    print(measure())
    print(f"{len(real_nouns)} nouns, {len(others)} other words, {len(latin)} species -> {options.to}")


if __name__ == "__main__":
    main()
