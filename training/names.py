"""Collect the names that the text tower learns: class names of the image pack, nouns of WordNet, and phrases of both.

    python training/names.py ../shared/train/index.csv /usr/share/wordnet --to names.txt

The class names come first, then a line with --, then everything else in a fixed order. WordNet is in Debian's package
wordnet-base.
"""

import argparse
import csv
import random
import re
from pathlib import Path


def lemmas(path: Path, common: bool = False) -> list[str]:
    """Return the words of a WordNet index, or with `common` only those that occur in its tagged texts."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            continue
        fields = line.split()
        word = fields[0].replace("_", " ")
        tagged = int(fields[-1 - int(fields[2])])  # the number of tagged senses precedes the synset offsets
        if re.fullmatch(r"[a-z][a-z' -]+", word) and len(word.split()) <= 3 and (tagged > 0 or not common):
            found.append(word)
    return found


def main() -> None:
    """Write the list."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("index", type=Path, help="index.csv of the image pack")
    parser.add_argument("wordnet", type=Path, help="folder of WordNet's index files")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--phrases", type=int, default=80_000)
    options = parser.parse_args()
    with options.index.open(encoding="utf-8") as file:
        classes = sorted({row["class_name"] for row in csv.DictReader(file)})
    nouns = lemmas(options.wordnet / "index.noun")
    common = [word for word in lemmas(options.wordnet / "index.noun", common=True) if " " not in word]
    adjectives = [word for word in lemmas(options.wordnet / "index.adj", common=True) if " " not in word]
    verbs = [word for word in lemmas(options.wordnet / "index.verb", common=True) if " " not in word]
    rng = random.Random(0)
    things = common + classes * 3
    shapes = (
        lambda: f"{rng.choice(adjectives)} {rng.choice(things)}",
        lambda: f"{rng.choice(common)} {rng.choice(things)}",
        lambda: f"{_ing(rng.choice(verbs))} {rng.choice(things)}",
        lambda: f"{rng.choice(things)} {_ing(rng.choice(verbs))}",
        lambda: f"{rng.choice(things)} and {rng.choice(things)}",
    )
    phrases = {rng.choice(shapes)() for _ in range(options.phrases)}
    rest = sorted({*nouns, *phrases}.difference(classes))
    options.to.write_text("\n".join([*classes, "--", *rest]) + "\n", encoding="utf-8")
    print(f"{len(classes)} class names, {len(nouns)} nouns, {len(phrases)} phrases -> {options.to}")


def _ing(verb: str) -> str:
    return (verb[:-1] if verb.endswith("e") and not verb.endswith("ee") else verb) + "ing"


if __name__ == "__main__":
    main()
