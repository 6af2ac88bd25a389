"""Gates: from which samples of a stream an adapter may learn."""

from base64 import b85decode, b85encode
from typing import Protocol

import numpy as np

from acclimate.arrays import HostArray, to_host
from acclimate.errors import InputError
from acclimate.evidence import Evidence, Head
from acclimate.files import parse_snapshot, snapshot_bytes


class Gate(Protocol):
    """Decides from which samples of a stream the adapter may learn; all are answered."""

    reason: str  # why it refuses samples

    def __call__(self, evidence: Evidence, offered: HostArray) -> HostArray:
        """Which of B samples may be learnt from (B,), among those that are offered (B,)."""
        ...

    def relabel(self, head: Head) -> None:
        """Follow a change of the labels."""
        ...

    def dump(self) -> str:
        """What it remembers of the stream, as text; "" for nothing."""
        ...

    def restore(self, remembered: str) -> None:
        """Take over what `dump` gave."""
        ...


class NearDuplicates:
    """A gate that lets an image through once: a camera that stands still must not fill the caches with one view.

    An image whose feature is close to that of one of the last images that were let through is not learnt from.

    Args:
        threshold: the cosine from which two images count as one.
        remembered: how many images it compares with.

    Examples:
        >>> from acclimate import Head
        >>> evidence = Head(np.eye(3), logit_scale=10.0).observe(np.eye(3)[[0, 0, 1, 0, 2]])
        >>> NearDuplicates()(evidence, np.full(5, True)).tolist()
        [True, False, True, False, True]
    """

    reason = "nearly the same as an image before it"

    def __init__(self, threshold: float = 0.95, remembered: int = 100) -> None:
        if not 0 < threshold <= 1 or remembered < 1:
            raise InputError(f"threshold must be in (0, 1] and remembered at least 1, got {threshold}, {remembered}.")
        self.threshold = threshold
        self.remembered = remembered
        self.recent: HostArray | None = None  # (up to remembered, d) unit features, the latest last

    def __call__(self, evidence: Evidence, offered: HostArray) -> HostArray:
        """Which of B samples may be learnt from (B,), among those that are offered (B,)."""
        features = to_host(evidence.features)
        unit = features / np.linalg.norm(features, axis=1, keepdims=True)
        recent = unit[:0] if self.recent is None else self.recent
        known = np.concatenate([recent, unit])
        close = unit @ known.T >= self.threshold
        kept = list(range(len(recent)))  # rows of `known` to compare with
        allowed: HostArray = offered.copy()
        for row in np.flatnonzero(offered).tolist():
            allowed[row] = not close[row, kept[-self.remembered :]].any()
            kept += [len(recent) + row] if allowed[row] else []
        self.recent = known[kept[-self.remembered :]]
        return allowed

    def relabel(self, head: Head) -> None:
        """Follow a change of the labels: what it remembers does not depend on them."""

    def dump(self) -> str:
        """What it remembers of the stream, as text; "" for nothing."""
        return "" if self.recent is None else b85encode(snapshot_bytes({"recent": self.recent}, {})).decode()

    def restore(self, remembered: str) -> None:
        """Take over what `dump` gave."""
        self.recent = parse_snapshot(b85decode(remembered))[0]["recent"] if remembered else None
