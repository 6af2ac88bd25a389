"""Gates: they decide from which samples of a stream an adapter may learn. All samples are answered.

`NearDuplicates` lets every image through once. `Rejector` recognises images that belong to none of the labels, by
everyday nouns as negatives: an image that shows one of the labels is closer to this label than to thousands of other
nouns, an image of something else is closer to some of the nouns. The idea of negative labels is NegLabel's (Jiang et
al., ICLR 2024).
"""

import math
from abc import ABC, abstractmethod
from base64 import b85decode, b85encode
from collections.abc import Sequence
from typing import Any

import numpy as np

from acclimate.arrays import (
    Array,
    HostArray,
    as_floats,
    index,
    log_sum_exp,
    move,
    namespace,
    ordinary_tensors,
    to_host,
    unit_rows,
)
from acclimate.errors import InputError, StateError
from acclimate.evidence import Evidence, Head
from acclimate.files import parse_snapshot, snapshot_bytes

NEAREST_SHARE = 0.05  # share of the negatives, the nearest to a label, that are left out: its synonyms and kinds
THRESHOLD = 0.5  # an image with at least this score belongs to no label
# The logistic function of the score, fitted by benchmarks/none_of_these.py (to seven sets, 2 to 102 labels)
GAP = 2.15
LABELS = 1.0
OFFSET = 6.55


class Gate(ABC):
    """A rule for the samples of a stream that an adapter may learn from.

    Attributes:
        reason: why it refuses samples.
    """

    reason: str

    @abstractmethod
    def __call__(self, evidence: Evidence, offered: HostArray) -> HostArray:
        """Return which of B samples may be learnt from (B,), among those that are offered (B,)."""

    def relabel(self, head: Head) -> None:  # noqa: B027
        """Follow a change of the labels."""

    def dump(self) -> str:
        """Return what it remembers of the stream, as text; "" for nothing."""
        return ""

    def restore(self, remembered: str) -> None:  # noqa: B027
        """Take over what `dump` gave."""


def dump_gates(gates: Sequence[Gate]) -> dict[str, str]:
    """Return what gates remember of the stream, by the names of their classes, as a note of a state."""
    return {type(gate).__name__: gate.dump() for gate in gates}


def restore_gates(gates: Sequence[Gate], remembered: Any, what: object) -> None:
    """Let gates take over what `dump_gates` gave for a state `what`; those that it does not name forget everything."""
    for gate in gates:
        try:
            gate.restore(remembered.get(type(gate).__name__, ""))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise StateError(
                f"{what} holds a memory of images that cannot be used; it was damaged or edited."
            ) from error


class NearDuplicates(Gate):
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
        """Return which of B samples may be learnt from (B,), among those that are offered (B,)."""
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

    def dump(self) -> str:
        """Return the features of the last images that were let through, as text."""
        return "" if self.recent is None else b85encode(snapshot_bytes({"recent": self.recent}, {})).decode()

    def restore(self, remembered: str) -> None:
        """Take over what `dump` gave."""
        recent = parse_snapshot(b85decode(remembered))[0]["recent"] if remembered else None
        if recent is not None and (recent.ndim != 2 or not np.isfinite(recent).all()):
            raise ValueError("features must be (n, d) and finite")
        self.recent = recent


class Rejector(Gate):
    """A gate for images that belong to none of the labels, with a score of how likely that is.

    With the logits z of K labels and n of the negatives, the gap of an image is
    `(logsumexp(z) - logsumexp(n)) / std(n)`, and its score is `sigmoid(ln K - 6.55 - 2.15 gap)`. In units of the
    spread of an image's own logits, gaps of different models and images can be compared. The gap of an image that
    belongs to no label grows with the number of labels, one of which is the nearest by chance. The score depends on
    the model's own answer alone, never on what was learnt. Nouns that broad labels are answered through are no
    negatives.

    Args:
        head: the labels.
        negatives: (M, d) text vectors of the negatives, at least two, from the same model; see
            `acclimate.prompts.negative_vectors`.

    Examples:
        >>> from acclimate import build_head, load_encoder
        >>> from acclimate.prompts import negative_vectors
        >>> encoder = load_encoder("bundled")
        >>> head = build_head(encoder, ["cat", "dog", "bird"])
        >>> rejector = Rejector(head, negative_vectors(encoder))
        >>> black = encoder.encode_images([np.full((3, 128, 128), -1.7, np.float32)])
        >>> bool(rejector.none_scores(head.observe(black))[0] > 0.5)
        True
    """

    reason = "belongs to no label"

    def __init__(self, head: Head, negatives: Array) -> None:
        self._all = unit_rows(as_floats(negatives, "negatives"), "negatives")
        if self._all.ndim != 2 or self._all.shape[0] < 2 or self._all.shape[1] != head.dim:
            raise InputError(
                f"negatives must be (2 or more, {head.dim}), got {tuple(self._all.shape)}; encode them by the same "
                "model as the labels."
            )
        self.relabel(head)

    def relabel(self, head: Head) -> None:
        """Follow a change of the labels."""
        negatives = move(self._all, head.class_vectors)
        nearness = to_host(negatives @ head.class_vectors.T).max(axis=1)
        if head.kinds is not None:
            nearness[to_host(negatives @ head.kinds.T).argmax(axis=0)] = np.inf
        count = math.ceil((1 - NEAREST_SHARE) * np.isfinite(nearness).sum())
        farthest = np.sort(np.argsort(nearness, kind="stable")[:count])
        self.head = head
        self.negatives = negatives[index(farthest, negatives)]

    def none_scores(self, evidence: Evidence, logits: Array | None = None) -> Array:
        """Return the score (B,) that each of B images belongs to no label, from 0 to 1; at least 0.5 if it does not.

        `logits` (B, K) are of the labels; the zero-shot ones when not given.
        """
        gaps = self.gaps(evidence, logits)
        xp = namespace(gaps)
        # The range of the exponent is limited for the sake of float32; scores beyond are 0 or 1 to twelve digits.
        exponent = xp.clip(GAP * gaps - LABELS * math.log(len(self.head)) + OFFSET, min=-30.0, max=30.0)
        return 1.0 / (1.0 + xp.exp(exponent))

    @ordinary_tensors()
    def gaps(self, evidence: Evidence, logits: Array | None = None) -> Array:
        """Return by how many standard deviations (B,) of its logits each of B images is closer to the labels."""
        others = self.head.logit_scale * (evidence.features @ self.negatives.T) + self.head.logit_bias
        labels = evidence.logits if logits is None else logits
        return (log_sum_exp(labels) - log_sum_exp(others)) / namespace(others).std(others, axis=-1)

    def __call__(self, evidence: Evidence, offered: HostArray) -> HostArray:
        """Return which of B samples may be learnt from (B,), among those that are offered (B,)."""
        return np.asarray(offered & (to_host(self.none_scores(evidence)) < THRESHOLD))
