"""What one call of an adapter takes and did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from acclimate.arrays import Array, HostArray, namespace
from acclimate.errors import InputError
from acclimate.methods.state import LARGEST_ID

Ids = Sequence[int] | HostArray  # integers that name samples


class Change(NamedTuple):
    """What a batch did to the entries of a part."""

    admitted: list[int]  # positions in the batch of the samples that entered, even if a later one pushed them out again
    dropped: list[int]  # ids of the entries that were pushed out


@dataclass(frozen=True)
class Step:
    """What one call did.

    Attributes:
        logits: (B, K) adapted.
        changes: for each part that keeps entries, what the batch did to them; empty for methods without entries.

    Examples:
        >>> import numpy as np
        >>> from acclimate import TDA, Head
        >>> head = Head(np.eye(3), logit_scale=10.0)
        >>> step = TDA(head).adapt(head.observe(np.eye(3)))
        >>> step.logits.shape, step.changes["positive"].admitted
        ((3, 3), [0, 1, 2])
    """

    logits: Array
    changes: Mapping[str, Change] = field(default_factory=dict)


def joined(steps: Sequence[Step]) -> Step:
    """Steps of one batch, cut into pieces, as one."""
    logits = namespace(steps[0].logits).concat([step.logits for step in steps])
    changes = {name: Change([], []) for name in steps[0].changes}
    start = 0
    for step in steps:
        for name, change in step.changes.items():
            changes[name].admitted.extend(start + place for place in change.admitted)
            changes[name].dropped.extend(change.dropped)
        start += step.logits.shape[0]
    return Step(logits, changes)


def check_ids(ids: Ids, samples: int) -> HostArray:
    """The ids of so many samples, checked."""
    ids = np.asarray(ids)
    if ids.dtype.kind not in "iu" or ids.shape != (samples,):
        raise InputError(f"ids must be one integer per sample: {samples} samples, {ids.dtype} ids {ids.shape}.")
    if samples and (ids.min() < 0 or ids.max() > LARGEST_ID):
        raise InputError(f"ids must be from 0 to {LARGEST_ID}, got {ids.min()} to {ids.max()}.")
    return ids
