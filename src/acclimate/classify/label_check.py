"""Labels compared with images, before anything is classified with them."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from acclimate.arrays import HostArray, to_host
from acclimate.errors import same_words
from acclimate.evidence import Head
from acclimate.methods.gates import THRESHOLD, Rejector
from acclimate.prompts import kinds_of, nouns


@dataclass(frozen=True)
class LabelCheck:
    """Images that are nearest to each label, and those that are nearer to something else.

    Attributes:
        nearest: images by the label that is nearest to them.
        foreign: how many of these are much closer to some noun than to any label.
        missing: the nouns that are nearest to the foreign images, and belong to no label.
    """

    nearest: Counter[str]
    foreign: Counter[str]
    missing: Counter[str]


def compare_with_images(head: Head, negatives: HostArray, features: HostArray) -> LabelCheck:
    """Compare labels with images.

    Args:
        head: the labels.
        negatives: (M, d) vectors of all nouns.
        features: (n, d) of the images, from the same model.

    Examples:
        >>> from acclimate import build_head, load_encoder
        >>> from acclimate.prompts import negative_vectors
        >>> encoder = load_encoder("bundled")
        >>> guitars = build_head(encoder, ["guitar", "acoustic guitar"]).class_vectors
        >>> check = compare_with_images(build_head(encoder, ["cat", "dog"]), negative_vectors(encoder), guitars)
        >>> check.foreign.total(), check.missing
        (2, Counter({'guitar': 2}))
    """
    evidence = head.observe(features)
    foreign = to_host(Rejector(head, negatives).none_scores(evidence)) >= THRESHOLD
    names = np.array(head.class_names)[evidence.predicted]
    mine = {same_words(label) for label in head.class_names}.union(*kinds_of(head.class_names).values())
    others = [i for i, noun in enumerate(nouns()) if noun not in mine]
    found = (to_host(evidence.original_view[foreign]) @ negatives[others].T).argmax(axis=1)
    missing = Counter(nouns()[others[i]] for i in found)
    return LabelCheck(Counter(names.tolist()), Counter(names[foreign].tolist()), missing)
