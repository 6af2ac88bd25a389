"""Accord: zero-shot and a Gaussian classifier on two views, believed as far as its views agree with each other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import ClassVar, NamedTuple

import numpy as np

from acclimate.arrays import Array, HostArray, log_softmax, move, namespace, to_host
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods import CLASSES, DIM, Adapter, MergeRule, Step, Sums, Tensors, observed, register
from acclimate.methods.own.two_views import (
    BETAS,
    EVEN,
    SEEN,
    TAUS,
    VIEWS,
    Figures,
    Scores,
    TwoViews,
    best_tau,
    compare_views,
    confidence_reached,
    cross_entropies,
    information,
    temperature,
)

BLOCK_SAMPLES = 32  # parameters change at multiples of it
MEASURED_SAMPLES = 4096  # samples of a finished stream on which temperatures and agreement are measured


class Parameters(NamedTuple):
    """Everything that answers depend on."""

    model: TwoViews
    taus: Sequence[float] = (0.05, 0.05)  # temperatures of the classifier, by belief
    weights: Sequence[float] = (1.0, 0.0, 0.0)  # weights of zero-shot, "even" and "seen"
    # Factor on the log-shares of the classes: how sure zero-shot is, by whose labels they are counted
    trust: float = 1.0
    zero_shot_offset: Array | float = 0.0  # (K,) added to zero-shot's logits to even them out
    beta: float = 1.0  # temperature of the answer
    offset: Array | float = 0.0  # (K,) added to the answer to even it out

    def pool(self, logits: Array, scores: Scores) -> tuple[Array, Array]:
        """Return zero-shot's log-probabilities, evened out, and the weighted mean of those of all experts: (B, K)."""
        log_probs = log_softmax(logits + self.zero_shot_offset)
        pooled = self.weights[0] * log_probs
        for belief, weight in enumerate(self.weights[1:]):
            if weight > 1e-4:  # an expert with less weight is not asked
                pooled += weight * log_softmax(
                    scores.scored(belief, scores.distances(belief), self.taus[belief], self.trust)
                )
        return log_probs, pooled


@register
@dataclass(eq=False, repr=False, kw_only=True)
class Accord(Adapter):
    """Three experts under one score: zero-shot, and a Gaussian classifier under two beliefs about the classes.

    The classifier is learnt from the stream's own soft labels on two views of the features that share no coordinate.
    It believes either that all classes are equally frequent ("even") or that they are as frequent as they were seen
    ("seen"). Each belief is scored by its gain, how often its views agree with each other beyond how often they agree
    with zero-shot, less `bar` times its stake, what zero-shot believes to lose if the belief were followed. The answer
    is the mean of the log-probabilities of all experts, weighted by a softmax of their scores. No labels are used, and
    one set of constants serves all data.

    Everything that answers depend on changes only at fixed positions of the stream, each 1.25 times the one before, so
    that batches never matter. Where neighbours are alike, a sample is expected to have the class of the last one. The
    guide "Our own method" derives the formulas. The softmax of the logits is calibrated.

    Args:
        rounds: rounds of the second pass, each of which learns from the answers of the one before.
        anchor_even: samples that the text counts for in the mean of a class, believing even.
        anchor_seen: the same, believing seen; classes that do not occur must stay at their text.
        shrink: share of the round part in the covariance of a long stream.
        bar: gain that is asked for a unit of stake.
        slope: change of log-weight for a score as large as the smallest stake.
        odds: log-odds of even before anything was measured.
        least: weight of zero-shot, as a fraction of the largest weight.
        uneven: information in the shares of the classes at which they are not equally frequent.
        doubt: standard errors of the likeness of neighbours that may be luck.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Accord, Head
        >>> rng = np.random.default_rng(5)
        >>> true = rng.integers(0, 8, 800)
        >>> vectors, shift = rng.standard_normal((2, 8, 16)) / 4
        >>> features = (vectors + 0.8 * shift)[true] + 0.2 * rng.standard_normal((800, 16))
        >>> adapter = Accord(Head(vectors, logit_scale=10.0))
        >>> zero_shot = adapter.head.observe(features).logits
        >>> online = adapter.step(features)
        >>> answers = (zero_shot, online, adapter.second_pass(features))
        >>> errors = [int((logits.argmax(axis=1) != true).sum()) for logits in answers]
        >>> errors[0] > errors[1] and errors[0] > errors[2]
        True
    """

    name = "accord"
    summary = "zero-shot and Gaussians on two views of the features, believed as far as the views agree"
    published = "this library; its constants were chosen on the marked streams"
    merges: ClassVar[MergeRule | None] = "sum"
    self_taught = True

    rounds: int = 2

    # One set for all data. docs/own_method.md has the reason for each, and what it costs to do without it.
    anchor_even: float = 2.0
    anchor_seen: float = 8.0
    shrink: float = 0.5
    bar: float = 1.5
    slope: float = 2.0
    odds: float = 1.0
    least: float = 0.15
    uneven: float = 0.07
    doubt: float = 3.0

    def setup(self) -> None:
        """Declare the sums behind the classifier, what is counted without labels, and the last sample."""
        if min(self.anchor_even, self.anchor_seen, self.least, self.uneven) <= 0 or self.doubt < 0:
            raise InputError("anchor_even, anchor_seen, least and uneven must be above 0, and doubt at least 0.")
        if not 0 <= self.shrink <= 1 or self.least > 1:
            raise InputError("shrink must be from 0 to 1, and least at most 1: they are shares.")
        self.sums = self.declare("sums", self._new_sums())
        beliefs = len((EVEN, SEEN))
        self.counted = self.declare(
            "counted",
            Sums(
                self.head,
                samples=(1,),
                evened=(CLASSES,),  # zero-shot's answers, evened out
                answered=(CLASSES,),
                predicted=(CLASSES,),  # samples by zero-shot's class
                equal=(1,),  # samples with zero-shot's class of the sample before
                compared=(1,),  # samples on which the views were compared
                confidence=(1,),  # zero-shot's confidence
                agree=(beliefs,),  # samples on which the views agree with each other
                with_zero_shot=(beliefs,),  # samples on which a view agrees with zero-shot
                stake=(beliefs,),
                information=(1,),  # information in the shares of the classes
                tempered=(1,),  # samples on which temperatures were measured
                reached=(len(BETAS),),  # confidence of the answer at each temperature
                losses=(beliefs, len(TAUS)),  # cross-entropies to zero-shot at each temperature of the classifier
            ),
        )
        # Of the last sample: its probabilities, and 1 for zero-shot's class. Merged streams have no last sample.
        self.last = self.declare("last", Tensors(self.head, dtype="float64", probs=(CLASSES,), predicted=(CLASSES,)))

    def _new_sums(self) -> Sums:
        first, second = (len(range(self.head.dim)[view]) for view in VIEWS)
        return Sums(
            self.head,
            dtype=None,
            counts=(CLASSES,),
            by_class=(CLASSES, DIM),
            features=(DIM,),
            outer_0=(first, first),
            outer_1=(second, second),
        )

    def next_flush(self, seen: int) -> int:
        """Return the next of growing positions, the first late enough to have seen a quarter of the classes.

        Each is a multiple of a block, and at least 1.25 times the one before.
        """
        position = BLOCK_SAMPLES * ceil(max(1.0, len(self.head) / 4 / BLOCK_SAMPLES))
        while position <= seen:
            position = max(position + BLOCK_SAMPLES, BLOCK_SAMPLES * ceil(1.25 * position / BLOCK_SAMPLES))
        return position

    # Online

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return calibrated log-probabilities of the experts, up to a constant per sample."""
        xp = namespace(evidence.logits)
        logits = evidence.logits
        probs = evidence.probs
        if self.parameters is not None:
            scores = self.parameters.model(evidence.features)
            log_probs, pooled = self.parameters.pool(evidence.logits, scores)
            logits = self.parameters.beta * pooled + self.parameters.offset
            probs = xp.exp(log_probs)
        if not learn:
            return Step(logits)
        answer = log_softmax(logits)
        if self.likeness:
            answer = self._chain(answer)
            logits = answer
        answered = xp.exp(answer)
        predicted = evidence.predicted
        before = np.flatnonzero(to_host(self.last["predicted"]))
        equal = float(np.count_nonzero(np.diff(np.append(before, predicted)) == 0))
        like = self.counted["samples"]
        self.counted.add(
            samples=move(np.array([float(len(evidence))]), like),
            predicted=move(np.bincount(predicted, minlength=len(self.head)).astype(float), like),
            equal=move(np.array([equal]), like),
            answered=xp.sum(answered, axis=0),
            evened=xp.sum(xp.exp(log_softmax(evidence.logits + self.trial)), axis=0),
        )
        self.last["probs"][...] = xp.astype(answered[-1, :], self.last["probs"].dtype)
        self.last["predicted"][...] = 0.0
        self.last["predicted"][int(predicted[-1])] = 1.0
        if self.parameters is not None:
            self.counted.add(**compare_views(scores, self.parameters.taus, evidence.probs))
            rows = self._tempered(self.samples_seen)
            if rows.start < len(evidence):
                self.counted.add(
                    **information(scores, rows),
                    losses=cross_entropies(scores, evidence.probs, rows),
                    reached=confidence_reached(pooled[rows]),
                )
        self._learn(self.sums, evidence.features, self._label(answered, probs))
        return Step(logits)

    def _tempered(self, first: int) -> slice:
        """Return the samples from position `first` on that temperatures are measured on: a part above 255 classes."""
        every = max(1, len(self.head) // 128)
        return slice(-first % every, None, every)

    @staticmethod
    def _label(answered: Array, probs: Array) -> Array:
        # The mean of the answer, which learns, and of zero-shot, which does not drift.
        return 0.5 * (answered + probs)

    @staticmethod
    def _learn(sums: Sums, features: Array, labels: Array) -> None:
        """Add samples (B, d) with soft labels (B, K) to sums."""
        xp = namespace(features)
        first, second = (features[:, view] for view in VIEWS)
        sums.add(
            counts=xp.sum(labels, axis=0),
            by_class=labels.T @ features,
            features=xp.sum(features, axis=0),
            outer_0=first.T @ first,
            outer_1=second.T @ second,
        )

    def _chain(self, answer: Array) -> Array:
        """Multiply answers (B, K) by the prior of a Markov chain: the class is the last one's, or any."""
        rows = np.exp(to_host(answer).astype(np.float64))
        any_class = (1.0 - self.likeness) / len(self.head)
        last = to_host(self.last["probs"])
        for row in rows:
            row *= self.likeness * last + any_class
            row /= row.sum()
            last = row
        return move(np.log(rows + 1e-30), answer)

    # What follows from what was counted

    def recompute(self) -> None:
        """Compute the classifier, the weights of the experts, the temperatures and the offsets."""
        self.parameters: Parameters | None = None
        self.likeness = 0.0
        self.trial: Array | float = 0.0
        figures = {name: to_host(self.counted[name]) for name in self.counted.names}
        samples = float(figures["samples"][0])
        if not samples or len(self.head) < 2:
            return
        self.likeness = self._likeness(figures)
        self.trial = self._offset(figures["evened"], 1.0)
        self.parameters = Parameters(self._model(self.sums, samples))
        if not figures["compared"][0]:
            return
        # Where classes come in runs, their shares so far say nothing of the next sample: only even is asked.
        weights = self._weights(figures, (EVEN,)) if self.likeness else self._weigh(figures)
        strength = 0.0 if self.likeness else self._evenness(weights)
        self.parameters = self.parameters._replace(
            taus=[best_tau(losses) for losses in figures["losses"]],
            weights=weights,
            trust=self._trust(figures),
            zero_shot_offset=strength * self.trial,
            beta=temperature(figures, weights),
            offset=self._offset(figures["answered"], strength),
        )

    def _model(self, sums: Sums, samples: float) -> TwoViews:
        return TwoViews(sums, samples, self.head.class_vectors, (self.anchor_even, self.anchor_seen), self.shrink)

    @staticmethod
    def _trust(figures: Figures) -> float:
        return float(figures["confidence"][0] / figures["compared"][0])

    def _likeness(self, figures: Figures) -> float:
        """Return how often neighbours have one class beyond chance, less what may be luck."""
        samples = float(figures["samples"][0])
        equal = float(figures["equal"][0]) / samples
        chance = float(((figures["predicted"] / samples) ** 2).sum())
        error = sqrt(max(equal * (1.0 - equal), chance * (1.0 - chance)) / samples)
        return max(0.0, (equal - self.doubt * error - chance) / (1.0 - chance + 1e-9))

    def _weigh(self, figures: Figures) -> list[float]:
        """Return the weights of zero-shot, even and seen; even is out where shares tell much of the features.

        With few classes and a poor zero-shot, even may score well, but features are then far likelier under the shares.
        """
        found = float(figures["information"][0]) / float(figures["tempered"][0])
        out = 1.0 / (1.0 + np.exp(np.clip(5.0 * (1.0 - found / self.uneven), -30.0, 30.0)))
        pairs = zip(self._weights(figures, (EVEN, SEEN)), self._weights(figures, (SEEN,)), strict=True)
        return [float((1.0 - out) * both + out * seen) for both, seen in pairs]

    def _weights(self, figures: Figures, beliefs: Sequence[int]) -> list[float]:
        """Return the weights of zero-shot, even and seen, of which only `beliefs` are asked."""
        stake = figures["stake"] + 1.0  # one sample more is at stake, so that a few lucky ones give no weight
        gain = figures["agree"] - figures["with_zero_shot"]
        scores = self.slope * (gain - self.bar * stake) / stake[list(beliefs)].min()
        scores[EVEN] += self.odds
        scores = np.where(np.isin((EVEN, SEEN), beliefs), scores, -np.inf)
        zero_shot = max(0.0, scores.max() + np.log(self.least))
        weights = np.exp(np.append(zero_shot, scores) - max(zero_shot, scores.max()))
        return [float(weight) for weight in weights / weights.sum()]

    @staticmethod
    def _evenness(weights: Sequence[float]) -> float:
        """Return how far even is believed rather than seen, which is how far answers are evened out."""
        _, even, seen = weights
        return even / max(even + seen, 1e-9)

    def _offset(self, answered: HostArray, strength: float) -> Array:
        """Return offsets (K,) that make classes which are answered more often than others less likely."""
        return move(-strength * np.log((answered + 1.0) / (answered.mean() + 1.0)), self.head.class_vectors)

    def advice(self) -> str:
        """Say that classes seem to be rare, where "seen" is believed and their effective number is below 0.6 of all."""
        classes = len(self.head)
        if self.parameters is None or self.samples_seen < 2 * classes:
            return ""
        shares = to_host(self.counted["answered"]) / float(self.counted["samples"][0])
        many = float(np.exp(-(shares * np.log(shares + 1e-12)).sum()))
        _, even, seen = self.parameters.weights
        if seen <= even or many >= 0.6 * classes:
            return ""
        how = f"rare or absent (the answers are spread as if over about {many:.0f})"
        return f"some of the {classes} labels seem to be {how}; if you know labels that do not occur, leave them out."

    def class_statistics(self) -> dict[str, HostArray]:
        """Return the samples per class, by their soft labels."""
        return {"samples": to_host(self.sums.total("counts"))}

    # The second pass

    def second_pass_blocks(self, features: Array) -> Iterator[Array]:
        """Learn the stream anew as a set, whatever its order, and answer it; no sample is judged by itself.

        Streams of fewer than 16 samples are not learnt anew.
        """
        if features.shape[0] < 16 or len(self.head) < 2 or not self.rounds:
            yield from self.frozen_logits(features)
            return
        rounds: list[Parameters] = []
        for _ in range(self.rounds):
            rounds.append(self._round(features, rounds))
        for _, evidence in observed(self.head, features):
            answer, _ = self._relabel(evidence, rounds)
            yield self.corrections.vote(answer + rounds[-1].offset, evidence)

    def _relabel(self, evidence: Evidence, rounds: Sequence[Parameters]) -> tuple[Array, Array]:
        """Return the answers (B, K) of the last of some rounds, and the soft labels (B, K) that follow from them."""
        xp = namespace(evidence.logits)
        answer = evidence.logits
        labels = evidence.probs
        for parameters in rounds:
            log_probs, pooled = parameters.pool(evidence.logits, parameters.model(evidence.features, labels))
            answer = log_softmax(parameters.beta * pooled)
            labels = self._label(xp.exp(answer), xp.exp(log_probs))
        return answer, labels

    def _round(self, features: Array, rounds: Sequence[Parameters]) -> Parameters:
        """Learn from the answers of the rounds so far, and measure what was learnt on some of the samples."""
        sums = self._new_sums()
        for _, evidence in observed(self.head, features):
            self._learn(sums, evidence.features, self._relabel(evidence, rounds)[1])
        sums.flush()
        model = self._model(sums, features.shape[0])
        step = ceil(features.shape[0] / max(256, min(MEASURED_SAMPLES, 2**22 // len(self.head))))
        evidence = self.head.observe(features[::step])
        scores = model(evidence.features, self._relabel(evidence, rounds)[1])
        rows = self._tempered(0)
        taus = [best_tau(losses) for losses in to_host(cross_entropies(scores, evidence.probs, rows))]
        measured = compare_views(scores, taus, evidence.probs) | information(scores, rows)
        figures = {name: to_host(each) for name, each in measured.items()}
        weights = self._weigh(figures)
        strength = self._evenness(weights)
        parameters = Parameters(
            model,
            taus,
            weights,
            trust=self._trust(figures),
            zero_shot_offset=strength * self._evened(log_softmax(evidence.logits), 1.0, step),
        )
        _, pooled = parameters.pool(evidence.logits, scores)
        figures["reached"] = to_host(confidence_reached(pooled[rows]))
        beta = temperature(figures, weights)
        return parameters._replace(beta=beta, offset=self._evened(log_softmax(beta * pooled), strength, step))

    def _evened(self, log_probs: Array, strength: float, step: int, iterations: int = 4) -> Array:
        """Return offsets (K,) that follow from their own effect on log-probabilities (B, K) of one sample in `step`."""
        xp = namespace(log_probs)
        offset = xp.zeros_like(log_probs[0, :])
        probs = xp.exp(log_probs)
        for _ in range(iterations if strength else 0):
            factors = xp.exp(offset)
            answered = step * to_host(factors * ((1.0 / (probs @ factors)) @ probs))
            offset += (self._offset(answered, strength) - offset) / (1.0 + strength)
        return offset
