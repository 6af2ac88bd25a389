"""Few-shot sampling: the same number of labelled samples per class, drawn by a seed."""

from collections.abc import Sequence

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import InputError

MOST_HELD_OUT = 4  # samples per class held out for validation, as in CoOp's benchmark


def draw_shots(
    labels: HostArray,
    class_names: Sequence[str],
    shots: int,
    seed: int = 1,
    held_out: int = 0,
    allow_fewer: bool = False,
) -> tuple[HostArray, HostArray]:
    """Draw labelled samples of every class.

    Args:
        labels: (n,) class indices of the samples to draw from.
        class_names: K names, for errors.
        shots: samples per class.
        seed: the same seed draws the same samples; a draw of fewer shots is part of a draw of more.
        held_out: the most samples per class that are drawn in addition, for validation; a class may have fewer.
        allow_fewer: let a class give fewer shots than asked for if it has fewer samples. Where some are held out, a
            fifth of the class stays for that, at least one of two samples or more: validation without a class would
            favour the others.

    Returns:
        The positions of the shots, by class, and those of the samples that are held out.

    Raises:
        InputError: a class has too few samples; the message names the largest number that every class has.

    Examples:
        >>> import numpy as np
        >>> labels = np.array([0, 0, 0, 1, 1, 1])
        >>> shots, rest = draw_shots(labels, ["cat", "dog"], shots=2, held_out=4)
        >>> labels[shots], labels[rest]
        (array([0, 0, 1, 1]), array([0, 1]))
    """
    if shots < 1:
        raise InputError(f"a few-shot method needs at least one shot per class, got {shots}.")
    counts = np.bincount(labels, minlength=len(class_names))
    if (fewest := int(counts.min())) < (1 if allow_fewer else shots):
        name = class_names[int(counts.argmin())]
        how = f"choose at most {fewest} shots" if fewest else "add one, or remove the class"
        raise InputError(f"class {name!r} has {fewest} labelled samples, {shots} per class are asked for; {how}.")
    drawn = []
    rest = []
    for label in range(len(class_names)):
        positions = np.random.default_rng([seed, label]).permutation(np.flatnonzero(labels == label))
        number = len(positions)
        kept = min(held_out, max(1, number // 5), number - 1) if allow_fewer else 0
        taken = min(shots, number - kept)
        drawn.append(positions[:taken])
        rest.append(positions[taken : taken + held_out])
    return np.concatenate(drawn), np.concatenate(rest)
