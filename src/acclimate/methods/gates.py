"""Gates: they decide from which samples of a stream an adapter may learn. All samples are answered.

`NearDuplicates` lets every image through once. `Rejector` recognises images that belong to none of the labels, by
everyday nouns as negatives: an image that shows one of the labels is closer to this label than to thousands of other
nouns, an image of something else is closer to some of the nouns. The idea of negative labels is NegLabel's (Jiang et
al., ICLR 2024). `HoldBack` lets all images through: where the labels fit them badly, adapted answers are held back.
"""

import math
from abc import ABC, abstractmethod
from base64 import b85decode, b85encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from acclimate.arrays import Array, HostArray, as_floats, index, log_sum_exp, move, namespace, to_host, unit_rows
from acclimate.errors import InputError
from acclimate.evidence import Evidence, Head
from acclimate.files import parse_snapshot, snapshot_bytes
from acclimate.methods.adapter import Adapter

NEAREST_SHARE = 0.05  # share of the negatives, the nearest to a label, that are left out: its synonyms and kinds
THRESHOLD = 0.5  # an image with at least this score belongs to no label
# The logistic function of the score, fitted by benchmarks/none_of_these.py (to seven sets, 2 to 102 labels)
GAP = 2.15
LABELS = 1.0
OFFSET = 6.55
DOUBT = "doubt"  # the note of a state that has what a `HoldBack` remembers
# Chosen by benchmarks/label_levels.py
CLEAR = 4.0  # standard deviations above the mean of all nouns at which one of them names clearly what an image shows
TRUSTED = 0.2  # doubt up to which adapted answers are given
DOUBTED = 0.25  # doubt from which they are the model's own
CONTRADICTED = 1 / 8  # share of the answers of a second pass that contradict those before it, from which it is left out


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

    def advice(self) -> str:
        """Return one line that a user should know of the stream; "" if there is nothing to say."""
        return ""

    def dump(self) -> str:
        """Return what it remembers of the stream, as text; "" for nothing."""
        return ""

    def restore(self, remembered: str) -> None:  # noqa: B027
        """Take over what `dump` gave."""


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
        self.recent = parse_snapshot(b85decode(remembered))[0]["recent"] if remembered else None


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
        return self._scores(self.gaps(evidence, logits))

    def gaps(self, evidence: Evidence, logits: Array | None = None) -> Array:
        """Return by how many standard deviations (B,) of its logits each of B images is closer to the labels."""
        others = self._others(evidence)
        labels = evidence.logits if logits is None else logits
        return (log_sum_exp(labels) - log_sum_exp(others)) / namespace(others).std(others, axis=-1)

    def clear_scores(self, evidence: Evidence) -> Array:
        """Return the scores (B,) of `none_scores`, and 0 for images that none of the negatives names clearly."""
        others = self._others(evidence)
        xp = namespace(others)
        deviation = xp.std(others, axis=-1)
        clear = xp.max(others, axis=-1) - xp.mean(others, axis=-1) >= CLEAR * deviation
        scores = self._scores((log_sum_exp(evidence.logits) - log_sum_exp(others)) / deviation)
        return scores * xp.astype(clear, scores.dtype)

    def _scores(self, gaps: Array) -> Array:
        xp = namespace(gaps)
        # The range of the exponent is limited for the sake of float32; scores beyond are 0 or 1 to twelve digits.
        exponent = xp.clip(GAP * gaps - LABELS * math.log(len(self.head)) + OFFSET, min=-30.0, max=30.0)
        return 1.0 / (1.0 + xp.exp(exponent))

    def _others(self, evidence: Evidence) -> Array:
        return self.head.logit_scale * (evidence.features @ self.negatives.T) + self.head.logit_bias

    def __call__(self, evidence: Evidence, offered: HostArray) -> HostArray:
        """Return which of B samples may be learnt from (B,), among those that are offered (B,)."""
        return np.asarray(offered & (to_host(self.none_scores(evidence)) < THRESHOLD))


class HoldBack(Gate):
    """A gate that lets all images through, and holds adapted answers back where the labels fit the images badly.

    A method learns from the model's own answers. Where images show what some noun names clearly and no label does,
    these answers say little, and a method makes them worse. The doubt in the labels is the mean score of "none of
    these" over the images so far, those without such a noun counting as 0: of blurred images, nouns say as little as
    labels. From a doubt of 0.2 to one of 0.25, answers go over from adapted ones to the model's own. A second pass of
    which more than an eighth contradicts the adapter as it was before is left out.

    Args:
        head: the labels.
        negatives: those of a `Rejector`.
    """

    reason = "never"  # it refuses nothing

    def __init__(self, head: Head, negatives: Array) -> None:
        self.rejector = Rejector(head, negatives)
        self.images = 0
        self.doubts = 0.0  # their sum over the images

    def __call__(self, evidence: Evidence, offered: HostArray) -> HostArray:
        """Return what is offered."""
        return offered

    def relabel(self, head: Head) -> None:
        """Follow a change of the labels."""
        self.rejector.relabel(head)

    def dump(self) -> str:
        """Return the images seen and the sum of their doubts, as text."""
        return f"{self.images} {self.doubts!r}" if self.images else ""

    def restore(self, remembered: str) -> None:
        """Take over what `dump` gave."""
        images, doubts = remembered.split() if remembered else ("0", "0")
        self.images = int(images)
        self.doubts = float(doubts)

    def temper(self, adapter: Adapter, evidence: Evidence, logits: Array, learnt: HostArray) -> Array:
        """Return the logits (B, K) of an adapter as far as they are to be trusted, counting what is learnt from."""
        found = to_host(self.rejector.clear_scores(evidence)).astype(np.float64) * learnt
        doubts = np.cumsum(np.append(self.doubts, found))[1:]
        images = self.images + np.cumsum(learnt)
        self.doubts = float(doubts[-1])
        self.images = int(images[-1])
        return _mixed(adapter, evidence, logits, _trust(doubts / np.maximum(images, 1)))

    @property
    def doubt(self) -> float:
        """The doubt in the labels."""
        return self.doubts / max(self.images, 1)

    def advice(self) -> str:
        """Say how far adapted answers are held back; "" if they are not."""
        if self.doubt <= TRUSTED:
            return ""
        how = "adapted answers are not given" if self.doubt >= DOUBTED else "adapted answers are partly held back"
        return f"many images are closer to other words than to the labels, so {how}; name what they show more exactly."


def doubt_of(gates: Sequence[Gate]) -> float | None:
    """Return the doubt that a gate has found; None if none looks for it."""
    return next((gate.doubt for gate in gates if isinstance(gate, HoldBack)), None)


def noted_doubt(notes: Mapping[str, Any]) -> float | None:
    """Return the doubt of the notes of a state; None if they have none."""
    images, _, doubts = str(notes.get(DOUBT, "")).partition(" ")
    return float(doubts) / int(images) if images else None


Answer = Callable[[Array], Iterator[Array]]  # it takes features (n, d) or (n, V, d) and yields logits (b, K)


def answer_held_back(adapter: Adapter, again: Answer, features: Array, doubt: float) -> Iterator[Array]:
    """Answer features by `again`, a second pass of the adapter, as far as its answers are to be trusted."""
    trust = _trust(np.array([doubt]))
    start = 0
    for logits in (adapter.last_answers if _contradicted(adapter, again, features) else again)(features):
        evidence = adapter.head.observe(features[start : start + len(logits)])
        start += len(logits)
        yield _mixed(adapter, evidence, logits, trust)


def _contradicted(adapter: Adapter, again: Answer, features: Array) -> bool:
    if not getattr(adapter, "rounds", 0) or again == adapter.last_answers:
        return False
    pairs = zip(again(features), adapter.last_answers(features), strict=True)
    differ = np.concatenate([to_host(a).argmax(axis=1) != to_host(b).argmax(axis=1) for a, b in pairs])
    return bool(differ.mean() > CONTRADICTED)


def _trust(doubts: HostArray) -> HostArray:
    return np.clip((DOUBTED - doubts) / (DOUBTED - TRUSTED), 0.0, 1.0)


def _mixed(adapter: Adapter, evidence: Evidence, logits: Array, trust: HostArray) -> Array:
    """Return logits (B, K) between the model's own, with the votes of corrections, and those of an adapter."""
    if (trust == 1.0).all():
        return logits
    own = adapter.corrections.vote(evidence.logits, evidence)
    return own + move(trust, own)[:, None] * (logits - own)
