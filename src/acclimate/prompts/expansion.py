"""Broad labels, such as "mammal" or "vehicle", which are answered through the nouns below them.

A model has seen photographs of cats called "cat" and hardly any called "mammal". The nouns below a label are in
`data/broad_labels.json`, by WordNet (see LICENSE-WORDNET). They become the kinds of a class; see `Head`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from acclimate.arrays import to_host
from acclimate.errors import same_words
from acclimate.evidence import Head
from acclimate.prompts.head import TextEncoder, finish, head_steps, nouns, shipped_vectors
from acclimate.prompts.templates import DATA, DEFAULT_SET, LearnedPrompts, Templates, prompts_for

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


def expand_head(
    encoder: TextEncoder,
    head: Head,
    templates: Templates | LearnedPrompts = DEFAULT_SET,
    cache: Path | Literal[False] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Head:
    """Return a head whose broad classes have kinds, which are encoded in the same prompts as the labels.

    Nothing is expanded where each class has prompts of its own, or learned ones. Arguments are those of `build_head`.

    Examples:
        >>> from acclimate import build_head, load_encoder
        >>> encoder = load_encoder("bundled")
        >>> head = expand_head(encoder, build_head(encoder, ["mammal", "guitar"]))
        >>> head.kind_counts[0] > 100, head.kind_counts[1]
        (True, 0)
    """
    kinds = kinds_of(head.class_names)
    if not kinds or isinstance(templates, Mapping | LearnedPrompts):
        return head
    words = sorted({noun for label in kinds for noun in _tables()[0][_singular(label)]})  # whatever the other labels
    vectors = None
    if prompts_for(words, templates) == prompts_for(words, DEFAULT_SET):
        vectors = shipped_vectors(encoder)
    if vectors is None:
        vectors = to_host(finish(head_steps(encoder, words, templates, cache), progress).class_vectors)
        place = {noun: i for i, noun in enumerate(words)}
    else:
        place = {noun: i for i, noun in enumerate(nouns())}
    own = to_host(head.class_vectors)
    groups = [vectors[[place[noun] for noun in kinds.get(label, ())]] for label in head.class_names]
    groups = [np.concatenate([own[i : i + 1], group]) if len(group) else group for i, group in enumerate(groups)]
    means = [group.mean(axis=0) if len(group) else own[i] for i, group in enumerate(groups)]
    return replace(
        head,
        class_vectors=np.stack(means),
        kinds=np.concatenate(groups).astype(own.dtype),
        kind_counts=tuple(map(len, groups)),
    )
