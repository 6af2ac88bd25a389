"""Halves: zero-shot, TDA's votes, and a Gaussian head that counts as much as its two halves agree."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from math import ceil, exp, log
from typing import Any, ClassVar, cast

import numpy as np

from acclimate.arrays import Array, HostArray, covariance_inverse, device, log_softmax, move, namespace, repeat, to_host
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods.base import Adapter, Step
from acclimate.methods.cache import HIGHEST
from acclimate.methods.experts import TAUS, Answers, Pace, Scorer, Settled, effective, lowest_loss, ramp
from acclimate.methods.registry import register
from acclimate.methods.state import CLASSES, DIM, MergeRule, Sums, Tensors
from acclimate.methods.tda import TDA

BETAS = 2.0 ** np.arange(-2, 2.5, 0.5)  # temperatures of the answer
HALVES = ("even", "odd")
CHECKED = 4096  # samples of a finished stream on which agreement and confidence are measured
SHORTEST = 16  # samples from which a stream is learnt anew in the second pass: halves of fewer say nothing

Range = tuple[float, float]
Terms = dict[str, Array]


@register
@dataclass(eq=False, repr=False, kw_only=True)
class Halves(Adapter):
    """Three experts: zero-shot, TDA's votes, and a Gaussian head that is learnt twice, on even and odd samples.

    Where the two halves agree with each other more often than with zero-shot, what they say is a property of the data
    and not noise, and the head is given weight. No labels are used, and one setting serves all data. Everything that
    answers depend on changes only at fixed positions of the stream, each 1.25 times the one before, so that batches
    never matter. The guide "Our own method" derives the formulas.

    The logits are calibrated: their softmax is as confident, on average, as zero-shot is or deserves to be.

    Args:
        few_classes: say that only a few of the classes occur in the stream, which cannot be seen from the images where
            zero-shot is poor. The answer is then zero-shot's, corrected for the classes' shares.
        rounds: of the second pass (`acclimate.refine`), each of which learns from the answers of the one before.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Halves, Head, refine
        >>> rng = np.random.default_rng(0)
        >>> true = rng.integers(0, 3, 600)
        >>> features = np.eye(3)[true] + 0.6 * np.roll(np.eye(3), 1, axis=1)[true] + 0.3 * rng.standard_normal((600, 3))
        >>> adapter = Halves(Head(np.eye(3), logit_scale=10.0))
        >>> online = adapter.step(features)
        >>> bool((refine(adapter, features).argmax(axis=1) == true).mean() > (features.argmax(axis=1) == true).mean())
        True
    """

    name = "halves"
    summary = "zero-shot, TDA's votes, and a Gaussian head that counts as much as its two halves agree"
    merges: ClassVar[MergeRule | None] = "sum"
    self_taught = True
    checks_evidence = True

    few_classes: bool = False
    rounds: int = 2

    # One set for all data. docs/own_method.md has the reason for each, and what it costs to do without it.
    ANCHOR: ClassVar[float] = 2.0  # samples that the text counts for in the mean of a class
    SHRINK: ClassVar[float] = 0.5  # share of the round part in the covariance of a long stream
    KNOWN: ClassVar[float] = 0.6  # a class with this fraction of a fair share of the samples is known
    WEIGHT: ClassVar[float] = 8.0  # of a head that errs no more often than zero-shot
    RATE: ClassVar[float] = 5.0  # how fast the weight falls with the errors that the head adds
    SHARED: ClassVar[float] = 0.1  # errors that both halves make, which agreement cannot see
    DOUBT: ClassVar[float] = 1.0  # standard errors of the agreement that may be luck
    PRESENT: ClassVar[Range] = (0.5, 0.7)  # fraction of the classes shown: below, the head is silent
    RUNS: ClassVar[Range] = (0.2, 0.5)  # excess of neighbours of one class: above, the head is silent
    SURE: ClassVar[Range] = (0.33, 0.4)  # zero-shot's entropy / log K: below, few classes shown are few classes present
    EVEN: ClassVar[Range] = (0.6, 0.9)  # effective classes / K: above, shares are even and count for nothing
    TRUST: ClassVar[Range] = (0.5, 0.8)  # how often the halves side with zero-shot: below, its shares are not believed
    SHARES: ClassVar[float] = 3.0  # weight of the classes' shares in the head
    LABELS: ClassVar[float] = 0.5  # share of the adapted answer in a soft label; the rest is zero-shot's
    # Up to 256 classes and above: the block, one sample in how many is measured, and the growth from change to change.
    PACES: ClassVar[tuple[Pace, Pace]] = (Pace(32, 1, 1.25), Pace(128, 8, 2.0))

    def setup(self) -> None:
        """Declare TDA's caches, the sums behind the head, what the stream shows, and the measurements."""
        if self.rounds < 0:
            raise InputError(f"rounds must be at least 0, got {self.rounds}.")
        self.tda = TDA(self.head)
        for name, part in self.tda.parts.items():
            self.declare(name, part)
        halves: dict[str, Any] = {f"{half}_counts": (CLASSES,) for half in HALVES}
        halves |= {f"{half}_features": (CLASSES, DIM) for half in HALVES}
        one, by_class = (1,), (CLASSES,)
        shown: dict[str, Any] = {"samples": one, "shares": by_class, "sharp": by_class, "entropy": one, "equal": one}
        measured: dict[str, Any] = {"samples": one, "halves": one, "zero_shot": one, "squares": one}
        reached: dict[str, Any] = {"samples": one, "zero_shot": one, "answer": (len(BETAS),)}
        share, signed = (0.0, 1.0), (-1.0, 1.0)  # what a sample adds
        halves |= {"features": (DIM,), "outer": (DIM, DIM)}
        ranges = {name: share if name.endswith("counts") else signed for name in halves}
        self.sums = self.declare("sums", Sums(self.head, dtype=None, ranges=ranges, **halves))
        ranges = dict.fromkeys(shown, share) | {"entropy": (0.0, HIGHEST)}
        self.shown = self.declare("shown", Sums(self.head, ranges=ranges, **shown))
        # 1 for the class of the last sample. Merged streams have no last sample: the next one has no neighbour.
        self.last = self.declare("last", Tensors(self.head, dtype="float64", ranges={"top": share}, top=by_class))
        losses, ranges = (len(TAUS),), dict.fromkeys(measured, share)
        self.agreement = self.declare("agreement", Sums(self.head, ranges=ranges, **measured, losses=losses))
        ranges = dict.fromkeys(reached, share)
        self.confidence = self.declare("confidence", Sums(self.head, ranges=ranges, **reached))

    def settles_at(self, seen: int) -> int:
        """Positions grow by a factor; the first is late enough to have seen a quarter of the classes."""
        block, _, growth = self.pace
        position = block * ceil(max(1, len(self.head) / 4 / block))
        while position <= seen:
            position = max(position + block, block * ceil(growth * position / block))
        return position

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Calibrated log-probabilities of the experts, up to a constant per sample."""
        voted = self.tda.respond(evidence, ids, learn)
        if not learn:
            return Step(self._answers(evidence, voted.logits).logits, voted.changes)
        first, last = self.samples_seen, self.last["top"]
        arrays = [evidence.features, evidence.logits, evidence.probs, evidence.entropy, voted.logits, last]
        key = (first % 2, first % self.pace.every)
        found = repeat(
            self.settled, key, partial(self._lesson, first), arrays, len(evidence) * len(self.head), ("logits",)
        )
        self._add({name: term for name, term in found.items() if "." in name})
        last[...] = found["last"]
        return Step(found["logits"], voted.changes)

    def _answers(self, evidence: Evidence, voted: Array) -> "Answers":
        """What all experts say of samples on which TDA says `voted` (B, K)."""
        base = self._base(evidence, voted)
        seen = self._center(evidence) if self.scorers else None
        scores = self.scorers[0](*seen) if seen else None
        answer = self._answer(base, scores)
        # Until the halves were compared, zero-shot answers alone.
        return Answers(self.beta * answer if self.started else evidence.logits, answer, base, seen, scores)

    def _lesson(self, first: int, *arrays: Array) -> Terms:
        """The answers, and what the samples from position `first` on add to the sums."""
        evidence, voted, last = Evidence(*arrays[:4]), *arrays[4:]
        logits, answer, base, seen, scores = self._answers(evidence, voted)
        terms = {"logits": logits} | self._collect(evidence, logits, first) | self._observe(evidence, last)
        rows = slice(-first % self.pace.every, None, self.pace.every)
        if rows.start >= len(evidence):
            return terms
        if seen and scores is not None:
            even, odd = (scorer(*(part[rows] for part in seen)) for scorer in self.scorers[1:])
            terms |= self._measure_agreement(even, odd, [even, odd], scores[rows], evidence.probs[rows], base[rows])
        return terms | self._measure_confidence(answer[rows], evidence.probs[rows])

    def _add(self, terms: Terms) -> None:
        """Add terms to the sums of their names, "PART.SUM"."""
        for name, term in terms.items():
            part, _, key = name.partition(".")
            cast(Sums, self.parts[part]).add(**{key: term})

    # The answer

    def _base(self, evidence: Evidence, voted: Array) -> Array:
        """Log-probabilities (B, K) of zero-shot and TDA together."""
        logits = evidence.logits
        return log_softmax(self.shares + (voted if self.votes == 1.0 else logits + self.votes * (voted - logits)))

    def _center(self, evidence: Evidence) -> tuple[Array, Array, Array]:
        """What scorers take: features less their mean (B, d), half their norms (B, 1), and probs."""
        centred = evidence.features - self.mean
        norms = 0.5 * namespace(centred).vecdot(centred @ self.precision, centred)
        return centred, norms[:, None], evidence.probs

    def _answer(self, base: Array, scores: Array | None) -> Array:
        """The experts pooled: the weighted mean of their log-probabilities (B, K)."""
        if scores is None or not self.weight:
            return base
        pooled = log_softmax(self.tau * scores + self.prior)
        pooled *= self.weight
        pooled += base
        pooled /= 1.0 + self.weight
        return pooled

    # Learning

    def _collect(self, evidence: Evidence, answer: Array, first: int) -> Terms:
        """What samples with soft labels add to the sums of their halves; `first` is the position of the first."""
        xp, x = namespace(answer), evidence.features
        labels = self.LABELS * xp.exp(log_softmax(answer)) + (1.0 - self.LABELS) * evidence.probs
        terms: Terms = {}
        for parity, half in enumerate(HALVES):
            rows = slice((first + parity) % 2, None, 2)
            terms[f"sums.{half}_counts"] = xp.sum(labels[rows], axis=0)
            terms[f"sums.{half}_features"] = labels[rows].T @ x[rows]
        return terms | {"sums.features": xp.sum(x, axis=0), "sums.outer": x.T @ x}

    def _observe(self, evidence: Evidence, last: Array | None) -> Terms:
        """What zero-shot says of samples: which classes are shown, how surely, and whether neighbours are alike.

        `last` (K,) is 1 for the class of the sample before them; None where neighbours mean nothing.
        """
        xp, p = namespace(evidence.probs), evidence.probs
        sharp = p * p
        sharp /= xp.sum(sharp, axis=-1, keepdims=True)
        terms: Terms = {
            "shown.shares": xp.sum(p, axis=0),
            "shown.sharp": xp.sum(sharp, axis=0),
            "shown.entropy": xp.sum(evidence.entropy)[None],
            "shown.samples": xp.ones_like(p[:1, 0]) * len(evidence),
        }
        if last is not None:
            top = xp.argmax(p, axis=-1)
            now = xp.astype(xp.arange(p.shape[1], device=device(p)) == top[-1], last.dtype)
            terms["shown.equal"] = xp.sum(xp.astype(top[1:] == top[:-1], last.dtype)) + last[top[:1]]
            terms["last"] = now
        return terms

    def _measure_agreement(
        self, even: Array, odd: Array, blind: list[Array], scores: Array, probs: Array, base: Array
    ) -> Terms:
        """How often the halves agree, how often those that are `blind` agree with zero-shot, and losses by tau."""
        xp, top = namespace(scores), namespace(scores).argmax
        own = top(probs, axis=-1)
        halves = xp.astype(top(even, axis=-1) == top(odd, axis=-1), probs.dtype)
        zero_shot = sum(xp.astype(top(each, axis=-1) == own, probs.dtype) for each in blind) / len(blind)
        expected = xp.sum(xp.exp(base) * scores)
        losses = [xp.sum(xp.log(xp.sum(xp.exp(tau * scores), axis=-1))) - tau * expected for tau in TAUS.tolist()]
        return {
            "agreement.samples": xp.ones_like(probs[:1, 0]) * scores.shape[0],
            "agreement.halves": xp.sum(halves)[None],
            "agreement.zero_shot": xp.sum(zero_shot)[None],
            "agreement.squares": xp.sum((halves - zero_shot) ** 2)[None],
            "agreement.losses": xp.stack(losses),
        }

    def _measure_confidence(self, answer: Array, probs: Array) -> Terms:
        """The confidence of zero-shot, and that of the answer at each temperature."""
        xp = namespace(answer)
        answer = answer - xp.max(answer, axis=-1, keepdims=True)
        sums = [xp.sum(1.0 / xp.sum(xp.exp(beta * answer), axis=-1)) for beta in BETAS.tolist()]
        own = xp.sum(xp.max(probs, axis=-1))[None]
        samples = xp.ones_like(own) * answer.shape[0]
        return {"confidence.samples": samples, "confidence.zero_shot": own, "confidence.answer": xp.stack(sums)}

    # What follows from what was learnt

    def derive(self) -> None:
        """Compute the head, the weights of the experts and the temperatures."""
        self.settled = Settled()
        self.tda.head = self.head
        self.pace = self.PACES[len(self.head) > 256]
        self.scorers: list[Scorer] = []
        self.shares = self.prior = self.weight = self.tau = self.runs = 0.0
        self.votes = self.beta = self.present = 1.0
        self.started = False
        samples = float(self.shown["samples"][0])
        if samples and len(self.head) > 1:
            if not self.few_classes:
                self._fit(samples)
            self._weigh(samples)
            self._calibrate()

    def _fit(self, samples: float) -> None:
        """Class means with a text anchor and one covariance; scorers of all, the even and the odd samples."""
        sums, vectors, dim = self.sums, self.head.class_vectors, self.head.dim
        xp = namespace(vectors)
        text = vectors - xp.mean(vectors, axis=0)
        self.mean = sums["features"] / samples
        counts = [sums[f"{half}_counts"] for half in HALVES]
        around = [
            sums[f"{half}_features"] - count[:, None] * self.mean for half, count in zip(HALVES, counts, strict=True)
        ]
        counts, around = [counts[0] + counts[1], *counts], [around[0] + around[1], *around]

        # How far class means follow the text, by least squares; so a gap between images and texts does no harm.
        follow = xp.sum(around[0] * text) / (counts[0] @ xp.vecdot(text, text) + 1e-6)
        between = around[0] / xp.sqrt(samples * xp.clip(counts[0], min=1e-6))[:, None]
        within = sums["outer"] / samples - self.mean[:, None] * self.mean - between.T @ between
        shrink = self._shrinkage(samples)
        variance = xp.clip(xp.linalg.trace(within) / dim, min=1e-6)
        identity = xp.eye(dim, dtype=within.dtype, device=device(within))
        self.precision = covariance_inverse((1.0 - shrink) * within + (shrink * variance + 1e-6) * identity)
        for count, sum_around in zip(counts, around, strict=True):
            means = (sum_around + self.ANCHOR * follow * text) / (count + self.ANCHOR)[:, None]
            weights = means @ self.precision
            enough = self.KNOWN * xp.sum(count) / len(self.head)
            scale = 1.0 / (1.0 + 1.0 / (xp.maximum(count, enough) + self.ANCHOR))  # a mean of few is far from its own
            known = xp.clip(count / (enough + 1e-9), max=1.0)
            offsets = 0.5 * xp.vecdot(means, weights)
            self.scorers.append(Scorer(weights, offsets, scale, known, bool(xp.all(known >= 1.0))))

    def _shrinkage(self, samples: float) -> float:
        """The share of the round part in the covariance: all of it before the first sample."""
        return (self.SHRINK * samples + self.head.dim) / (samples + self.head.dim)

    def _weigh(self, samples: float) -> None:
        """The weights of the votes and of the head, its temperature and its prior."""
        classes, sharp = len(self.head), to_host(self.shown["sharp"])
        possible = classes * (1.0 - exp(-samples / classes))  # as many classes as so few samples can show
        self.present = present = ramp(effective(sharp) / possible, *self.PRESENT)
        sure = 1.0 - ramp(float(self.shown["entropy"][0]) / samples / log(classes), *self.SURE)
        self.votes = 1.0 - sure * (1.0 - present)
        measured = float(self.agreement["samples"][0])
        self.started = self.few_classes or measured > 0
        if self.few_classes:
            self.votes, self.shares = 0.0, self._log_shares(sharp, samples)
        if not measured:
            return
        names = ("halves", "zero_shot", "squares")
        halves, zero_shot, squares = (float(self.agreement[name][0]) / measured for name in names)
        excess = halves - zero_shot
        error = (max(0.0, squares - excess**2) / measured) ** 0.5  # standard error of the excess
        spared = (excess - self.SHARED - self.DOUBT * error) / max(1.0 - zero_shot, 0.02)
        chance = float(((sharp / samples) ** 2).sum())
        self.runs = ramp((float(self.shown["equal"][0]) / samples - chance) / (1.0 - chance + 1e-9), *self.RUNS)
        self.weight = self.WEIGHT * exp(self.RATE * min(0.0, spared)) * (1.0 - self.runs) * present
        self.tau = lowest_loss(to_host(self.agreement["losses"]))
        shares = to_host(self.shown["shares"])
        uneven = 1.0 - ramp(effective(shares) / classes, *self.EVEN)
        steady = max(0.0, 1.0 - 3.0 * self.runs)  # where classes come in runs, their shares are about to change
        trust = steady * ramp(zero_shot, *self.TRUST)
        self.prior = self.SHARES * uneven * trust * self._log_shares(shares, samples)

    def _log_shares(self, sums: HostArray, samples: float) -> Array:
        """Logarithm of the classes' shares of the stream, over equal shares; one more sample each."""
        classes = len(self.head)
        return move(np.log(classes * (sums + 1.0) / (samples + classes)), self.head.class_vectors)

    def _calibrate(self) -> None:
        """The temperature at which the answer is as confident as zero-shot is, or is right as the halves tell.

        Were errors independent, halves would agree with each other in a^2 of the samples and with zero-shot in a z,
        where a and z are how often they are right.
        """
        measured = float(self.confidence["samples"][0])
        if not measured:
            return
        target = float(self.confidence["zero_shot"][0]) / measured
        if halves := float(self.agreement["halves"][0]):
            samples = max(1.0, float(self.agreement["samples"][0]))
            right = float(self.agreement["zero_shot"][0]) / max(1e-12, halves * samples) ** 0.5
            target = max(target, right - self.SHARED / 2)
        reached = to_host(self.confidence["answer"]) / measured
        self.beta = float(np.exp(np.interp(min(0.98, target), reached, np.log(BETAS))))

    def advice(self) -> str:
        """Whether few classes seem to occur, and whether images of one class follow each other."""
        classes, said = len(self.head), []
        if self.present < 1.0 and self.samples_seen >= 2 * classes and not self.few_classes:
            many = f"about {effective(to_host(self.shown['sharp'])):.0f} of the {classes} classes seem to occur"
            said.append(f"{many}, so adapting holds back; if this is so, name only those or set few_classes=true.")
        if self.runs > 0.0:
            said.append("images of one class follow each other; a second pass or a shuffled order adapts better.")
        return " ".join(said)

    def learnt(self) -> dict[str, HostArray]:
        """Samples per class by their soft labels, and entries per class of TDA's caches."""
        return {"samples": self.sums.total("even_counts") + self.sums.total("odd_counts")} | super().learnt()

    # The second pass

    def refined(self, features: Array) -> Iterator[Array]:
        """Learn the stream anew from its own answers, as a set and not in order, and answer it; TDA's caches stay.

        Agreement and temperature are measured with the half that has not learnt from the sample.
        """
        again = deepcopy(self)
        again.settle()
        if features.shape[0] >= SHORTEST and len(self.head) > 1 and not self.few_classes:
            again.shown["equal"][...] = 0.0  # neighbours mean nothing any more
            again.derive()
            for _ in range(self.rounds):
                again._relearn(features)
        yield from again.answer_all(features)

    def _relearn(self, features: Array) -> None:
        for part in (self.sums, self.shown, self.agreement, self.confidence):
            part.clear()
        for start, evidence in self.observed(features):
            answer = self.respond(evidence, np.arange(start, start + len(evidence)), False).logits
            self._add(self._collect(evidence, answer, start) | self._observe(evidence, None))
        self.settle()
        samples = features.shape[0]
        step = -(-samples // max(256, min(CHECKED, 2**22 // len(self.head)))) | 1  # odd, to meet both halves
        positions = np.arange(0, samples, step)
        evidence = self.head.observe(features[::step])
        xp, base = namespace(evidence.logits), self._base(evidence, self.tda.respond(evidence, positions, False).logits)
        seen = self._center(evidence)
        scores, even, odd = (scorer(*seen) for scorer in self.scorers)
        is_even = xp.asarray(positions % 2 == 0, device=device(base))
        blind = xp.where(is_even[:, None], odd, even)
        self._add(self._measure_agreement(even, odd, [blind], blind, evidence.probs, base))
        self.agreement.settle()
        self._weigh(samples)
        self._add(self._measure_confidence(self._answer(base, scores), evidence.probs))
        self.confidence.settle()
        self._calibrate()
