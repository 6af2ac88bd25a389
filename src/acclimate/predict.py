"""The second half of the walk: observe -> adapt -> answer. Written once, used everywhere."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import numpy as np

from acclimate.arrays import Array, HostArray, is_tensor, namespace, softmax_and_entropy, to_host
from acclimate.errors import InputError, StateError, same_words
from acclimate.evidence import Evidence, Head
from acclimate.methods import Adapter, Step
from acclimate.methods.gates import THRESHOLD, Gate, Rejector
from acclimate.run import Batch

NONE = "none of these"  # the answer for an image that belongs to no label
# The columns of a table of results. The best labels are added: in csv as label_2, score_2, ..., elsewhere as a list.
COLUMNS: dict[str, type] = {
    "file": str,
    "label": str,
    "score": float,
    "taken": str,
    "folder": str,
    "group": str,
    "group_score": float,
    "unsure": bool,
    "true_label": str,
    "correct_label": str,
    "none_score": float,
    "online_label": str,
    "online_score": float,
    "zero_shot_label": str,
    "zero_shot_score": float,
    "changed": bool,
    "entropy": float,
    "index": int,
    "error": str,
    "sorted_to": str,
}
# The values of an unreadable image in the columns of `Predictions`
ABSENT: dict[str, Any] = {
    "classes": -1,
    "scores": 0.0,
    "zero_shot_classes": -1,
    "zero_shot_scores": 0.0,
    "online_classes": -1,
    "online_scores": 0.0,
    "entropy": 0.0,
    "ids": -1,
    "none": np.nan,
    "unsure": False,
}


@dataclass(frozen=True)
class Answer:
    """A label and its probability."""

    label: str
    score: float


@dataclass(frozen=True)
class Prediction:
    """The answer for one image: a row of `Predictions`.

    Attributes:
        index: position in the stream.
        top: the best labels after adapting, best first; empty if the image could not be read. "none of these" is among
            them by its score, first for an image that belongs to no label, and only for such an image.
        zero_shot: the model's own answer.
        entropy: entropy of the model's own answer in nats.
        name: name of the image; "" if it has none.
        error: the reason why the image could not be read; None if it could.
        id: name of the sample in the state; None if it was not learnt from.
        admitted: names of the caches that the sample entered.
        refused: the reason why the sample was not learnt from, if it should have been.
        online: the adapted answer when the image came; the first of `top` unless a second pass followed.
        truth: the true label; None if it is not known.
        none: the score of "none of these"; None if every image must have a label.
        unsure: True if the score is below the threshold that was asked for.
        taken: time at which the image was taken, as ISO 8601 in the camera's time; None if it does not say.
        group: the best group of labels, by the sum of their scores; None where labels have no groups.
        correct_label: the label that a person has given the image, whatever the answer; None for most.

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
    taken: str | None = None
    group: Answer | None = None
    correct_label: str | None = None

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
        """True if adapting changed the answer."""
        return self.label != self.zero_shot.label

    def to_json(self) -> dict[str, Any]:
        """Return everything that is known of the image as JSON values, the best labels as `predictions`."""
        return {
            **vars(self),
            "predictions": [vars(answer) for answer in self.top],
            "zero_shot": vars(self.zero_shot),
            "online": vars(self.online),
            "changed": self.changed,
        }

    def to_record(self) -> dict[str, Any]:
        """Return the row of a table of results: every one of `COLUMNS`, and all answers as `predictions`.

        Numbers have four decimals, and what is not valid Unicode in a name is escaped. An unreadable image has None
        where it has no value.
        """
        answers = [{"label": answer.label, "score": round(answer.score, 4)} for answer in self.top]
        record = dict.fromkeys(COLUMNS) | {
            "file": readable_name(self.name),
            "folder": readable_name(self.name).rpartition("/")[0] or ".",
            "taken": self.taken,
            "true_label": self.truth,
            "correct_label": self.correct_label,
            "index": self.index,
            "error": self.error,
        }
        if self.error is None:
            record |= {
                **answers[0],
                "group": None if self.group is None else self.group.label,
                "group_score": None if self.group is None else round(self.group.score, 4),
                "unsure": self.unsure,
                "none_score": None if self.none is None else round(self.none, 6),
                "online_label": self.online.label,
                "online_score": round(self.online.score, 4),
                "zero_shot_label": self.zero_shot.label,
                "zero_shot_score": round(self.zero_shot.score, 4),
                "changed": self.changed,
                "entropy": round(self.entropy, 4),
            }
        return record | {"predictions": answers}


@dataclass(frozen=True, eq=False)
class Predictions(Sequence[Prediction]):
    """The answers for B images, as columns; indexing and iterating give one `Prediction` per image.

    A class is an index into `labels`, or -1 for no class: an image that could not be read has none.

    Attributes:
        labels: the class names, and "none of these" as the last.
        classes: (B, n) the best classes after adapting, best first.
        scores: (B, n) their probabilities.
        zero_shot_classes: (B,) the model's own answers.
        zero_shot_scores: (B,) their probabilities.
        online_classes: (B,) the adapted answers when the images came.
        online_scores: (B,) their probabilities.
        entropy: (B,) entropy of the model's own answers in nats.
        ids: (B,) names of the samples in the state, -1 for those not learnt from.
        none: (B,) scores of "none of these", NaN where every image must have a label.
        unsure: (B,) True for scores below the threshold that was asked for.
        admitted: B times the names of the caches that the sample entered.
        refused: B reasons why a sample was not learnt from; None for none.
        names: B names of images.
        errors: B reasons why an image could not be read; None for those that could.
        truths: B true labels; None for those not known.
        taken: B times at which the images were taken; None for those that do not say.
        groups: B best groups of labels; None where labels have no groups.
        corrected: B labels that a person has given the images; None for most.
        start: position of the first image in the stream.
    """

    labels: tuple[str, ...]
    classes: HostArray
    scores: HostArray
    zero_shot_classes: HostArray
    zero_shot_scores: HostArray
    online_classes: HostArray
    online_scores: HostArray
    entropy: HostArray
    ids: HostArray
    none: HostArray
    unsure: HostArray
    admitted: Sequence[tuple[str, ...]] = ()
    refused: Sequence[str | None] = ()
    names: Sequence[str] = ()
    errors: Sequence[str | None] = ()
    truths: Sequence[str | None] = ()
    taken: Sequence[str | None] = ()
    groups: Sequence[Answer | None] = ()
    corrected: Sequence[str | None] = ()
    start: int = 0

    @classmethod
    def of(
        cls,
        head: Head,
        evidence: Evidence,
        step: Step,
        top_k: int,
        unsure: float = 0.0,
        *,
        ids: HostArray | None = None,
        refused: Sequence[str | None] = (),
        none: HostArray | None = None,
    ) -> "Predictions":
        """Return the `top_k` best labels of B samples that could be read, from what the model and an adapter say.

        Args:
            head: the classes.
            evidence: the model's own answers.
            step: the adapted answers.
            top_k: labels per sample.
            unsure: answers with a lower score are marked.
            ids: (B,) names of the samples in the state, -1 for those not learnt from; None if none was learnt from.
            refused: B reasons why a sample was not learnt from; empty for none.
            none: (B,) scores of "none of these"; None if every sample must have a label.
        """
        count = len(evidence)
        none = np.full(count, np.nan) if none is None else none
        own, own_scores = with_none(*best_of(evidence.probs, 1), none, len(head), 1)
        best, scores = with_none(*best_of(softmax_and_entropy(step.logits)[0], top_k), none, len(head), top_k)
        admitted: list[tuple[str, ...]] = [()] * count
        for name, change in step.changes.items():
            for row in set(change.admitted):
                admitted[row] += (name,)
        return cls(
            (*head.class_names, NONE),
            classes=best,
            scores=scores,
            zero_shot_classes=own[:, 0],
            zero_shot_scores=own_scores[:, 0],
            online_classes=best[:, 0],
            online_scores=scores[:, 0],
            entropy=evidence.host_entropy,
            ids=np.full(count, -1) if ids is None else ids,
            none=none,
            unsure=scores[:, 0] < unsure,
            admitted=admitted,
            refused=refused or [None] * count,
            names=[""] * count,
            errors=[None] * count,
            truths=[None] * count,
            taken=[None] * count,
            groups=[None] * count,
            corrected=[None] * count,
        )

    def among(self, batch: Batch) -> "Predictions":
        """Return the predictions for all images of a batch, of which these are those that could be read."""
        rows = _readable_rows(batch.errors)
        columns: dict[str, Any] = {name: _spread(getattr(self, name), rows, ABSENT[name]) for name in ABSENT}
        return replace(
            self,
            **columns,
            admitted=[() if row < 0 else self.admitted[row] for row in rows],
            refused=[None if row < 0 else self.refused[row] for row in rows],
            names=batch.names,
            errors=batch.errors,
            truths=true_labels(self.labels, batch.truths),
            taken=batch.taken or [None] * len(batch.names),
            groups=[None] * len(batch.names),
            corrected=[None if row < 0 else self.corrected[row] for row in rows],
            start=batch.start,
        )

    def answered_again(self, answers: "SecondAnswers", top_k: int, unsure: float) -> "Predictions":
        """Return the same images with the next answers of a second pass over a stream that they are part of.

        The scores of "none of these" stay: they do not depend on what was learnt.
        """
        rows = _readable_rows(self.errors)
        readable = int((rows >= 0).sum())
        if not readable:
            return self
        classes, scores = answers.take(readable)
        classes, scores = with_none(classes, scores, self.none[rows >= 0], len(self.labels) - 1, top_k)
        return replace(
            self,
            classes=_spread(classes, rows, -1),
            scores=_spread(scores, rows, 0.0),
            unsure=_spread(scores[:, 0] < unsure, rows, False),
        )

    def grouped(self, parents: Mapping[str, str], top_k: int) -> "Predictions":
        """Return the same images with the best group of each, by the sum of the scores of its labels.

        "none of these" is the group where it is the label, and nowhere else.

        Args:
            parents: the group of each label; a label without one is a group of its own.
            top_k: labels that are kept of each image; before, all of them must be there.
        """
        names = list(dict.fromkeys(parents.get(label, label) for label in self.labels))
        group_of = np.array([names.index(parents.get(label, label)) for label in self.labels])
        sums = np.zeros((len(self), len(names)))
        np.add.at(sums, (np.arange(len(self))[:, None], group_of[self.classes]), self.scores)
        foreign = (self.classes[:, :1] == len(self.labels) - 1).any(axis=1)
        best = np.where(foreign, len(names) - 1, sums[:, :-1].argmax(axis=1))
        scores = sums[np.arange(len(self)), best].tolist()
        found = [Answer(names[group], score) for group, score in zip(best.tolist(), scores, strict=True)]
        return replace(
            self,
            classes=self.classes[:, :top_k],
            scores=self.scores[:, :top_k],
            groups=[None if error else answer for answer, error in zip(found, self.errors, strict=True)],
        )

    @property
    def probs(self) -> HostArray:
        """Probabilities (B, K) of the classes, 0 for those that are not among the best."""
        probs = np.zeros((len(self), len(self.labels)))
        np.put_along_axis(probs, self.classes, self.scores, axis=1)
        return probs[:, :-1]

    @property
    def rows(self) -> list[Prediction]:
        """The predictions one by one."""
        return self._rows(slice(None))

    def _rows(self, part: slice) -> list[Prediction]:
        labels = (*self.labels, "")
        names: dict[str, Any] = {
            "entropy": self.entropy,
            "name": self.names,
            "error": self.errors,
            "admitted": self.admitted,
            "refused": self.refused,
            "truth": self.truths,
            "unsure": self.unsure,
            "taken": self.taken,
            "group": self.groups,
            "correct_label": self.corrected,
        }
        columns: dict[str, Sequence[Any]] = {
            name: values[part].tolist() if isinstance(values, np.ndarray) else values[part]
            for name, values in names.items()
        }
        answers = {
            "zero_shot": (self.zero_shot_classes, self.zero_shot_scores),
            "online": (self.online_classes, self.online_scores),
        }
        for name, (classes, scores) in answers.items():
            pairs = zip(classes[part].tolist(), scores[part].tolist(), strict=True)
            columns[name] = [Answer(labels[best], score) for best, score in pairs]
        tops = zip(self.classes[part].tolist(), self.scores[part].tolist(), strict=True)
        columns["top"] = [tuple(Answer(labels[c], x) for c, x in zip(*top, strict=True) if c >= 0) for top in tops]
        columns["id"] = [None if id < 0 else id for id in self.ids[part].tolist()]
        columns["none"] = [None if isnan(score) else score for score in self.none[part].tolist()]
        columns["index"] = range(self.start, self.start + len(self))[part]
        return [Prediction(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]

    def __len__(self) -> int:
        return len(self.errors)

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self.rows)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return self._rows(row)
        position = range(len(self))[row]
        return self._rows(slice(position, position + 1))[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Predictions) and self.rows == other.rows


def adapt_batch(
    adapter: Adapter,
    batch: Batch,
    top_k: int,
    unsure: float = 0.0,
    *,
    first_id: int | None = None,
    learn: bool = True,
    gates: Sequence[Gate] = (),
) -> tuple[Predictions, Evidence | None]:
    """Show a batch to an adapter, which learns from what all gates let through; there is no evidence of no image.

    `first_id` is the id of position 0 of the stream; without it, ids are counted on from the state.
    """
    readable = batch.readable
    if not readable:
        shapes = {"classes": (0, 0), "scores": (0, 0)}
        columns: dict[str, Any] = {name: np.empty(shapes.get(name, 0), type(ABSENT[name])) for name in ABSENT}
        return Predictions((*adapter.head.class_names, NONE), **columns).among(batch), None
    first = None if first_id is None else first_id + np.array(readable)
    found, _, evidence = walk(adapter, batch.features, top_k, unsure, ids=first, learn=learn, gates=gates)
    return found.among(batch), evidence


def walk(
    adapter: Adapter,
    features: Array,
    top_k: int,
    unsure: float = 0.0,
    *,
    next_id: int | None = None,
    ids: HostArray | None = None,
    learn: bool | HostArray = True,
    gates: Sequence[Gate] = (),
) -> tuple[Predictions, Step, Evidence]:
    """Observe features, choose which to learn from, adapt to these, and answer: the walk that every way in takes.

    Args:
        adapter: what learns and answers.
        features: (B, d), or (B, V, d) for V views per image.
        top_k: labels that are kept of each image.
        unsure: answers with a lower score are marked.
        next_id: the id of the first sample that is learnt from; those after it count on. That of the state by default.
        ids: (B,) the ids of all samples, learnt from or not, instead.
        learn: which samples (B,) may be learnt from, if their labels were not corrected and all gates let them through.
        gates: the gates, in order.
    """
    evidence = adapter.head.observe(features)
    learnt, refused = choose_samples(adapter, evidence, learn, gates)
    if ids is None:
        ids = (adapter.samples_seen if next_id is None else next_id) + np.cumsum(learnt) - learnt
    step = adapter.adapt(evidence, ids, learnt)
    none = none_scores(adapter, evidence, gates)
    ids = np.where(learnt, ids, -1)
    found = Predictions.of(adapter.head, evidence, step, top_k, unsure, ids=ids, refused=refused, none=none)
    known = adapter.corrections.is_corrected(evidence).tolist()
    best = found.classes[:, 0].tolist()
    labels = [found.labels[i] if is_known else None for i, is_known in zip(best, known, strict=True)]
    return replace(found, corrected=labels), step, evidence


def choose_samples(
    adapter: Adapter, evidence: Evidence, learn: bool | HostArray, gates: Sequence[Gate]
) -> tuple[HostArray, list[str | None]]:
    """Choose the samples (B,) to learn from, and say why not from others of those the adapter should `learn` from."""
    learnt = np.broadcast_to(learn, len(evidence)) & adapter.counts_samples
    corrected = learnt & adapter.corrections.is_corrected(evidence)
    refused: HostArray = np.full(len(evidence), None)
    refused[corrected] = "its label was corrected"
    learnt &= ~corrected
    for gate in gates:
        allowed = gate(evidence, learnt)
        refused[learnt & ~allowed] = gate.reason
        learnt = allowed
    return learnt, refused.tolist()


def none_scores(adapter: Adapter, evidence: Evidence, gates: Sequence[Gate]) -> HostArray | None:
    """Return the scores (B,) of "none of these" from the rejector among the gates; None if there is no rejector.

    A corrected image belongs to the label that was given for it.
    """
    scores = [to_host(gate.none_scores(evidence)) for gate in gates if isinstance(gate, Rejector)]
    return np.where(adapter.corrections.is_corrected(evidence), 0.0, scores[0]) if scores else None


class SecondAnswers:
    """The answers of a second pass over a stream, in order, some at a time.

    Args:
        adapter: the adapter that has been shown the stream.
        features: (n, d) or (n, V, d), of the samples that could be read.
        top_k: labels per sample.
        second_pass: False to answer from what was learnt as it is.
    """

    def __init__(self, adapter: Adapter, features: Any, top_k: int, second_pass: bool = True) -> None:
        as_it_is = (adapter.frozen or not second_pass) and adapter.kind != "collection"
        found = adapter.frozen_logits(features) if as_it_is else adapter.second_pass_blocks(features)
        self._blocks = (best_of(softmax_and_entropy(logits)[0], top_k) for logits in found)
        self._classes = np.empty((0, 0), np.int64)
        self._scores = np.empty((0, 0), np.float32)

    def take(self, count: int) -> tuple[HostArray, HostArray]:
        """Return the best classes and their probabilities (count, top_k) of the next samples."""
        classes = [self._classes]
        scores = [self._scores]
        held = len(self._classes)
        while held < count:
            more_classes, more_scores = next(self._blocks)
            classes.append(more_classes)
            scores.append(more_scores)
            held += len(more_classes)
        all_classes, all_scores = (np.concatenate([each for each in parts if len(each)]) for parts in (classes, scores))
        self._classes = all_classes[count:]
        self._scores = all_scores[count:]
        return all_classes[:count], all_scores[:count]


def answers_again(adapter: Adapter, features: Array, none: Sequence[float | None]) -> list[Answer]:
    """Return the best answers of a second pass over features (n, d) or (n, V, d), "none of these" among them.

    `none` are the scores of "none of these" (n,), None where every image must have a label. A corrected image belongs
    to the label that was given for it.
    """
    features = adapter.head.unit_features(features)
    scores = np.where(adapter.corrections.is_corrected(adapter.head.observe(features)), 0.0, np.array(none, float))
    classes, best = SecondAnswers(adapter, features, 1).take(len(scores))
    classes, best = with_none(classes, best, scores, len(adapter.head), 1)
    labels = (*adapter.head.class_names, NONE)
    return [Answer(labels[row], score) for row, score in zip(classes[:, 0].tolist(), best[:, 0].tolist(), strict=True)]


def true_labels(labels: Sequence[str], names: Iterable[str | None]) -> list[str | None]:
    """Return the labels that a source means by names, such as those of folders; None for names that are no label."""
    by_words = {same_words(label): label for label in (*labels, NONE)}
    return [by_words.get(same_words(name or "")) for name in names]


def refuse_none(labels: Iterable[str]) -> None:
    """Refuse a label that could not be told from the answer for images that belong to no label."""
    for label in labels:
        if same_words(label) == NONE:
            raise InputError(f"{label!r} is the answer for images that belong to no label; leave this label out.")


def with_none(
    classes: HostArray, scores: HostArray, none: HostArray, none_class: int, top_k: int
) -> tuple[HostArray, HostArray]:
    """Insert "none of these" with its scores (B,) among classes and scores (B, n), best first, as one distribution.

    It comes first if, and only if, its score is at least 0.5. Else its score stands for its odds against the best
    label, so that no share is higher than that of the answer. NaN inserts nothing.
    """
    scores = scores.astype(np.float64)
    if np.isnan(none).any():
        return classes, scores
    none = none.astype(np.float64)[:, None]
    refused = none >= THRESHOLD
    odds = np.where(refused, none, none * scores[:, :1])
    scores *= 1 - none
    total = np.where(refused, 1.0, 1 - none + odds)
    scores /= total
    none = odds / total
    key = np.where(refused, np.inf, none)
    order = np.argsort(-np.concatenate([scores, key], axis=1), axis=1, kind="stable")[:, :top_k]
    classes = np.concatenate([classes, np.full_like(classes[:, :1], none_class)], axis=1)
    scores = np.concatenate([scores, none], axis=1)
    return np.take_along_axis(classes, order, axis=1), np.take_along_axis(scores, order, axis=1)


def best_of(probs: Array, count: int) -> tuple[HostArray, HostArray]:
    """Return the `count` best classes of probabilities (B, K), of equal ones the first, and their probabilities.

    Raises:
        StateError: some are not finite. Features and class vectors are, so the state has numbers that are too large.
    """
    best = top_classes(probs, count)
    scores = to_host(namespace(probs).take_along_axis(probs, best, axis=1))
    if not np.isfinite(scores).all():
        raise StateError(
            "the scores are not numbers, as the state or a setting is too large; take another state or other settings."
        )
    return to_host(best), scores


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


def readable_name(name: str) -> str:
    """Return the name of an image as results have it: what is not valid Unicode is escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def is_true(value: Any) -> bool:
    """Return True if a cell of results says true; spreadsheets write it in capitals."""
    return str(value).casefold() == "true"


def _readable_rows(errors: Sequence[str | None]) -> HostArray:
    """Return the row of each image among those that could be read; -1 for one that could not."""
    readable = np.array([error is None for error in errors], bool)
    return np.where(readable, np.cumsum(readable) - 1, -1)


def _spread(column: HostArray, rows: HostArray, absent: Any) -> HostArray:
    """Return the values of a column by row; `absent` for the row -1."""
    return np.concatenate([column, np.full((1, *column.shape[1:]), absent, column.dtype)])[rows]
