"""The second half of the walk: observe -> adapt -> answer. Written once, used everywhere."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np

from acclimate.arrays import Array, HostArray, is_tensor, namespace, softmax_and_entropy, to_host
from acclimate.errors import InputError
from acclimate.evidence import Evidence, Head
from acclimate.methods import Adapter, Step
from acclimate.methods.gates import Gate
from acclimate.methods.reject import THRESHOLD, Rejector
from acclimate.prompts.templates import same_words
from acclimate.reading.walk import Batch

Made = TypeVar("Made", "Answer", "Prediction")
NONE = "none of these"  # the answer for an image that belongs to no label


@dataclass(frozen=True)
class Answer:
    """A label and its probability."""

    label: str
    score: float


@dataclass(frozen=True)
class Prediction:
    """The answer for one image.

    Attributes:
        index: position in the stream.
        top: the best labels after adapting, best first; empty if the image could not be read. "none of these" is among
            them by its score, first for an image that belongs to no label, and only for such an image.
        online: the adapted answer when the image came; the first of `top` unless a second pass followed.
        zero_shot: the model's own answer.
        entropy: of the model's own answer, in nats.
        name: of the image; "" if it has none.
        error: why the image could not be read; None if it could.
        id: that names the sample in the state; None if it was not learnt from.
        admitted: names of the caches that the sample entered.
        refused: why the sample was not learnt from, if it should have been.
        truth: the true label; None if it is not known.
        none: the score of "none of these"; None if every image must have a label.
        unsure: whether the score is below the threshold that was asked for.

    Examples:
        >>> from acclimate import Classifier
        >>> prediction = next(Classifier(["cat", "dog"]).stream([np.zeros((32, 32, 3), np.uint8)]))
        >>> prediction.index, prediction.label in ("cat", "dog"), prediction.error
        (0, True, None)
    """

    index: int
    top: tuple[Answer, ...] = ()
    zero_shot: Answer = Answer("", 0.0)
    entropy: float = 0.0
    name: str = ""
    error: str | None = None
    id: int | None = None
    admitted: tuple[str, ...] = ()
    refused: str | None = None
    online: Answer = Answer("", 0.0)
    truth: str | None = None
    none: float | None = None
    unsure: bool = False

    @property
    def label(self) -> str:
        """The adapted answer; "" if the image could not be read."""
        return self.top[0].label if self.top else ""

    @property
    def score(self) -> float:
        """The probability of the adapted answer."""
        return self.top[0].score if self.top else 0.0

    @property
    def changed(self) -> bool:
        """Whether adapting changed the answer."""
        return self.label != self.zero_shot.label


class Adapted(NamedTuple):
    """What an adapter made of a batch of B samples."""

    evidence: Evidence
    step: Step
    ids: HostArray | None = (
        None  # (B,) of the samples in the state, -1 for those not learnt from; None: none was learnt
    )
    refused: Sequence[str | None] = ()  # why each sample was not learnt from, if it should have been
    none: HostArray | None = None  # (B,) the scores of "none of these"; None if every sample must have a label

    @property
    def probs(self) -> HostArray:
        """The adapted probabilities (B, K); where images may belong to no label, the probability of that is missing."""
        probs: HostArray = softmax_and_entropy(to_host(self.step.logits))[0]
        return probs if self.none is None else probs * (1 - self.none[:, None])

    @property
    def half(self) -> HostArray:
        """Unit features (B, d) or (B, V, d) in half precision, to answer the samples again."""
        unit = self.evidence.features if self.evidence.views is None else self.evidence.views
        xp = namespace(unit)
        return to_host(xp.astype(unit, xp.float16))


def adapt_batch(
    adapter: Adapter, batch: Batch, first_id: int | None = None, learn: bool = True, gates: Sequence[Gate] = ()
) -> Adapted | None:
    """Show a batch to an adapter, which learns from what all gates let through; None if no image could be read.

    `first_id` is the id of position 0 of the stream; without it, ids are counted on from the state.
    """
    readable = batch.readable
    if not readable:
        return None
    evidence = adapter.head.observe(batch.features)
    learnt, refused = choose_samples(adapter, evidence, learn, gates)
    counted = adapter.samples_seen + np.cumsum(learnt) - learnt
    ids = counted if first_id is None else first_id + np.array(readable)
    step = adapter.adapt(evidence, ids, learnt)
    return Adapted(evidence, step, np.where(learnt, ids, -1), refused, none_scores(adapter, evidence, gates))


def choose_samples(
    adapter: Adapter, evidence: Evidence, learn: bool | HostArray, gates: Sequence[Gate]
) -> tuple[HostArray, list[str | None]]:
    """From which of B samples an adapter may learn (B,), and why not from others of those it should `learn` from."""
    learnt = np.broadcast_to(learn, len(evidence)) & adapter.counts_samples
    refused: list[str | None] = [None] * len(evidence)
    corrected = learnt & adapter.told.knows(evidence)
    for row in np.flatnonzero(corrected).tolist():
        refused[row] = "its class was told by a correction"
    learnt &= ~corrected
    for gate in gates:
        allowed = gate(evidence, learnt)
        for row in np.flatnonzero(learnt & ~allowed).tolist():
            refused[row] = gate.reason
        learnt = allowed
    return learnt, refused


def none_scores(adapter: Adapter, evidence: Evidence, gates: Sequence[Gate]) -> HostArray | None:
    """The scores (B,) of "none of these" that a rejector among the gates gives; None if there is no rejector.

    A corrected image belongs to the label that was told for it.
    """
    scores = [to_host(gate.none_scores(evidence)) for gate in gates if isinstance(gate, Rejector)]
    return np.where(adapter.told.knows(evidence), 0.0, scores[0]) if scores else None


class Answers(NamedTuple):
    """The answers for B samples as arrays, made where the logits are: small, and quick to make."""

    best: HostArray  # (B, n) class indices of the best labels after adapting, best first
    scores: HostArray  # (B, n)
    own: HostArray  # (B, 1) class index of the model's own answer
    own_scores: HostArray  # (B, 1)
    entropy: HostArray  # (B,)
    ids: HostArray | None  # (B,) as in `Adapted`
    refused: Sequence[str | None]
    none: HostArray | None  # (B,)
    admitted: dict[str, list[int]]  # samples that entered each cache


def answers_of(adapted: Adapted, top_k: int) -> Answers:
    """The `top_k` best classes of B samples, and what else a prediction says of them."""
    evidence = adapted.evidence
    step = adapted.step
    best, scores, own, own_scores = best_of(step.logits, top_k, evidence.probs)
    admitted = {name: list(dict.fromkeys(change.admitted)) for name, change in step.changes.items()}
    about = adapted.ids, adapted.refused, adapted.none, admitted
    return Answers(best, scores, own, own_scores, evidence.host_entropy, *about)


def predictions(
    head: Head,
    answers: Adapted | Answers,
    top_k: int,
    indices: Sequence[int],
    names: Sequence[str] = (),
    truths: Sequence[str | None] = (),
    unsure: float = 0.0,
) -> list[Prediction]:
    """The `top_k` best labels of B samples, given their positions in the stream, and names and true labels if known.

    Answers with a score below `unsure` are marked.
    """
    if isinstance(answers, Adapted):
        answers = answers_of(answers, top_k)
    count = len(answers.entropy)
    ids = [-1] * count if answers.ids is None else answers.ids.tolist()
    adapted = label_answers(head, answers.best, answers.scores)
    entropy = answers.entropy.tolist()
    zero_shot = [each[0] for each in label_answers(head, answers.own, answers.own_scores)]
    none = [None] * count if answers.none is None else answers.none.tolist()
    entered: dict[int, list[str]] = {}
    for name, rows in answers.admitted.items():
        for row in rows:
            entered.setdefault(row, []).append(name)
    found = []
    for row, index in enumerate(indices):
        top = with_none(adapted[row], none[row])[:top_k]
        found.append(
            _made(
                Prediction,
                index=index,
                top=top,
                online=top[0],
                zero_shot=with_none((zero_shot[row],), none[row])[0],
                entropy=entropy[row],
                name=names[row] if names else "",
                error=None,
                id=None if ids[row] < 0 else ids[row],
                admitted=tuple(entered.get(row, ())),
                refused=answers.refused[row] if answers.refused else None,
                truth=truths[row] if truths else None,
                none=none[row],
                unsure=top[0].score < unsure,
            )
        )
    return found


def true_labels(head: Head, names: Iterable[str | None]) -> list[str | None]:
    """The labels that a source means by names, such as those of folders; None where a name is not that of a label."""
    by_words = _by_words(head.class_names)
    return [by_words.get(same_words(name or "")) for name in names]


@lru_cache(maxsize=8)
def _by_words(labels: tuple[str, ...]) -> dict[str, str]:
    """Labels by their words; made once, as it takes longer for a thousand labels than a batch of answers."""
    return {same_words(label): label for label in (*labels, NONE)}


def batch_predictions(
    head: Head, batch: Batch, answers: Adapted | Answers | None, top_k: int, unsure: float = 0.0
) -> list[Prediction]:
    """`predictions` for all images of a batch, also for those that could not be read."""
    truths = true_labels(head, batch.truths)
    found = [
        Prediction(batch.start + place, name=name, error=error, truth=truths[place])
        for place, (name, error) in enumerate(zip(batch.names, batch.errors, strict=True))
        if error is not None
    ]
    if answers is not None:
        places = [index - batch.start for index in batch.readable]
        names = [batch.names[place] for place in places]
        known = [truths[place] for place in places]
        found += predictions(head, answers, top_k, batch.readable, names, known, unsure)
    return sorted(found, key=lambda each: each.index)


def answer_again(
    adapter: Adapter, features: HostArray, online: Iterable[Prediction], top_k: int, unsure: float = 0.0
) -> Iterator[Prediction]:
    """The second pass: online predictions answered once more, from everything that the adapter has learnt.

    The features (r, d) or (r, V, d) are those of the r images that could be read; the others stay as they are. So do
    the scores of "none of these", which do not depend on what was learnt.
    """
    blocks = (top_answers(adapter.head, logits, top_k) for logits in adapter.refined(features))
    yield from with_answers(online, chain.from_iterable(blocks), top_k, unsure)


def with_answers(
    online: Iterable[Prediction], answers: Iterable[tuple[Answer, ...]], top_k: int, unsure: float = 0.0
) -> Iterator[Prediction]:
    """Online predictions with other answers, one for each image that could be read."""
    answers = iter(answers)
    for each in online:
        if each.error is not None:
            yield each
            continue
        top = with_none(next(answers), each.none)[:top_k]
        yield replace(each, top=top, unsure=top[0].score < unsure)


def top_answers(head: Head, logits: Array, count: int) -> list[tuple[Answer, ...]]:
    """The `count` best labels for each row of logits (B, K), with their probabilities."""
    return label_answers(head, *best_of(logits, count))


def label_answers(head: Head, best: HostArray, scores: HostArray) -> list[tuple[Answer, ...]]:
    """The answers that class indices (B, n) and their scores (B, n) stand for."""
    names = head.class_names
    rows = zip(best.tolist(), scores.tolist(), strict=True)
    return [tuple(_made(Answer, label=names[c], score=score) for c, score in zip(*row, strict=True)) for row in rows]


def _made(kind: type[Made], **fields: object) -> Made:
    """A frozen dataclass of all its fields; its own constructor sets them one by one, which takes three times as long.

    There are six answers per image, and a GPU classifies thousands of images in a second.
    """
    made = object.__new__(kind)
    object.__setattr__(made, "__dict__", fields)
    return made


def best_of(logits: Array, count: int, probs: Array | None = None) -> list[HostArray]:
    """The `count` best classes of logits (B, K), of equal ones the first, and their probabilities.

    With probabilities (B, K) also the best class of these and its probability, (B, 1).
    """
    xp = namespace(logits)
    scores = softmax_and_entropy(logits)[0]
    best = top_classes(scores, count)
    found = [best, xp.take_along_axis(scores, best, axis=1)]
    if probs is not None:
        own = xp.argmax(probs, axis=1, keepdims=True)
        found += [own, xp.take_along_axis(probs, own, axis=1)]
    return [to_host(each) for each in found]


def with_none(answers: tuple[Answer, ...], none: float | None) -> tuple[Answer, ...]:
    """Answers (best first) among the labels, and "none of these" with the score `none`, as one distribution.

    "None of these" takes its place by its score, but it is first if, and only if, its score is at least 0.5.
    """
    if none is None:
        return answers
    labels = [Answer(answer.label, (1 - none) * answer.score) for answer in answers]
    place = 0 if none >= THRESHOLD else max(1, sum(answer.score >= none for answer in labels))
    return (*labels[:place], Answer(NONE, none), *labels[place:])


def refuse_none(labels: Iterable[str]) -> None:
    """Refuse a label that could not be told from the answer for images that belong to no label."""
    for label in labels:
        if same_words(label) == NONE:
            raise InputError(f"{label!r} is the answer for images that belong to no label; leave this label out.")


def top_classes(scores: Array, count: int) -> Array:
    """Return the classes (n, up to count) of the highest scores (n, K), highest first and of equal ones the first."""
    if is_tensor(scores):
        return namespace(scores).argsort(scores, axis=1, descending=True, stable=True)[:, :count]
    if scores.shape[1] > count:  # sorting all of a thousand classes takes longer than adapting
        best = np.sort(np.argpartition(-scores, count - 1, axis=1)[:, :count], axis=1)
        last = np.take_along_axis(scores, best, axis=1).min(axis=1, keepdims=True)
        tied = (scores >= last).sum(axis=1) > count  # a partition takes any of those that are equal to the last
        best[tied] = np.sort(np.argsort(-scores[tied], axis=1, kind="stable")[:, :count], axis=1)
    else:
        best = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    by_score = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
    return np.take_along_axis(best, by_score, axis=1)
