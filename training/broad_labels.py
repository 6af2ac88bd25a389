"""List the nouns below broad labels such as "mammal" or "vehicle", by WordNet: the file behind `--expand`.

python training/broad_labels.py /usr/share/wordnet --to src/acclimate/prompts/data/broad_labels.json

A noun is below a label if WordNet says that its first sense in photographs is a kind of it. WordNet is in Debian's
package wordnet-base. What WordNet has no word for, or places otherwise than people who label photographs, is in
broad_labels.json. Labels of the basic level, such as "dog", "car" or "chair", are not broad: models know them well.
The nouns below those are listed, too, because they belong to "dog" and not to "animal" where both are labels.
"""

import argparse
import json
import re
from functools import cache
from pathlib import Path

from acclimate.prompts import nouns

KINDS = {"03": "top", "05": "animal", "06": "thing", "08": "body", "13": "food", "17": "nature"}
KINDS |= {"18": "person", "19": "event", "20": "plant", "27": "substance"}
OURS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))  # what WordNet does not say
PHRASE = re.compile(r"\b(of|at|in|on|for|with|from|and)\b|^(toy|model) ")  # the last word does not say what it is


class WordNet:
    """The nouns of WordNet's database files."""

    def __init__(self, folder: Path) -> None:
        self.kinds: dict[str, str] = {}  # of a sense
        self.parents: dict[str, list[str]] = {}
        self.senses: dict[str, list[str]] = {}  # of a word, the most frequent first
        for line in _lines(folder / "data.noun"):
            fields = line.split(" | ")[0].split()
            pointers = fields[4 + 2 * int(fields[3], 16) :]
            found = list(zip(pointers[1::4], pointers[2::4], strict=False))
            if all(symbol != "@i" for symbol, _ in found):  # not somebody's or something's name
                self.kinds[fields[0]] = KINDS.get(fields[1], "")
            self.parents[fields[0]] = [sense for symbol, sense in found if symbol == "@"]
        for line in _lines(folder / "index.noun"):
            fields = line.split()
            self.senses[fields[0].replace("_", " ")] = fields[-int(fields[2]) :]

    def sense(self, word: str, kind: str | None = None) -> str | None:
        """Return the first sense of a word that photographs can show, of this kind if one is given."""
        found = [self.kinds.get(each, "") for each in self.senses.get(word, ())]
        pairs = zip(self.senses.get(word, ()), found, strict=True)
        return next((each for each, name in pairs if name and name != "event" and kind in (None, name)), None)

    @cache  # noqa: B019 (there is one, for as long as the script runs)
    def above(self, sense: str) -> frozenset[str]:
        """Return a sense and everything that it is a kind of."""
        return frozenset({sense}).union(*map(self.above, self.parents[sense]))

    def kinds_of(self, noun: str) -> frozenset[str]:
        """Return everything that a noun is a kind of."""
        if noun in _listed(OURS["animals"]):
            found = {self.sense(noun, "animal")}
        else:
            last = "" if PHRASE.search(noun) else noun.split()[-1]
            found = {self.sense(noun) or self.sense(last)}
        first = next(iter(found))
        if first in self.kinds and self.kinds[first] == "plant":  # and what it gives
            found.add(self.sense(noun, "food"))
        return frozenset().union(*map(self.above, found - {None}))

    def nouns_below(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Return the nouns below each broad label, and below each noun that is none."""
        above = {noun: self.kinds_of(noun) for noun in nouns() if noun not in _listed(OURS["dropped"])}
        broad = {}
        for names, kind in OURS["broad"].items():
            first, *others = names.split(", ")
            label = self.sense(first, kind)
            found = {noun for noun in above if label in above[noun]} - _listed(OURS["taken"].get(first, ""))
            broad[names] = sorted((found | _listed(OURS["given"].get(first, ""))) - {first, *others})
        broad |= {names: sorted(_listed(text) - set(names.split(", "))) for names, text in OURS["ours"].items()}
        listed = {noun for kinds in broad.values() for noun in kinds}
        basic = {}
        for noun in listed.intersection(above).difference(", ".join(broad).split(", ")):
            label = self.sense(noun, "animal" if noun in _listed(OURS["animals"]) else None)
            found = {other for other in listed.intersection(above) if label in above[other]} - {noun}
            if found := found | _listed(OURS["given"].get(noun, "")):
                basic[noun] = sorted(found)
        return broad, dict(sorted(basic.items()))


def _lines(path: Path) -> list[str]:
    """Return the lines of a file of WordNet without its licence."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("  ")]


def _listed(text: str) -> set[str]:
    found = set(re.split(r",\s+", text)) - {""}
    assert found <= set(nouns()), found - set(nouns())
    return found


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wordnet", type=Path, help="folder of WordNet's files")
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    found = dict(zip(("broad", "basic"), WordNet(options.wordnet).nouns_below(), strict=True))
    parts = [
        f'"{part}": {{\n'
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(', '.join(kinds))}" for name, kinds in labels.items())
        + "\n}"
        for part, labels in found.items()
    ]
    options.to.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    print(", ".join(f"{len(labels)} {part} labels" for part, labels in found.items()), "->", options.to)


if __name__ == "__main__":
    main()
