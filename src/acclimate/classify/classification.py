"""The answers of a stream: those of its run, then those of images that are encoded now; then the second pass.

A batch is answered when it is encoded, and replayed from its run ever after: the same batches in the same order, from
the same state, give the same answers to the bit. So nothing of the answers is stored but the table.
"""

import hashlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from acclimate.classifier import Classifier
from acclimate.classify.summary import Summary, summarise
from acclimate.classify.table import Table
from acclimate.errors import InputError, StateError, count, reason
from acclimate.files import MAX_SNAPSHOT, read_regular, write_atomically, writing
from acclimate.methods import Adapter, state_to_bytes
from acclimate.predict import Prediction, Predictions, SecondAnswers, readable_name, refuse_none, true_labels
from acclimate.run import PART_IMAGES, PART_SECONDS, STATE, Batch, Run, RunWriter
from acclimate.sources.source import Sample

Emit = Callable[[Predictions, bool], None]  # predictions, and True if their answers are final
FINAL = "final"  # what a run says of its answers when its table is whole; before, they are "online"


class Effect(NamedTuple):
    """The effect of corrections on the images that were not corrected."""

    others: int  # these images
    changed: int  # other answers than without the corrections
    known: int  # images whose true label is known
    right_before: int
    right: int

    def __str__(self) -> str:
        """Return one or two lines.

        Examples:
            >>> print(Effect(others=480, changed=9, known=480, right_before=440, right=444))
            Answered again: 9 of the 480 other images have another answer.
            Accuracy on these 480 images: 91.7 % before, 92.5 % now (+0.8 points).
        """
        lines = [f"Answered again: {self.changed:,} of the {count(self.others, 'other image')} have another answer."]
        if self.known:
            before, now = (100 * right / self.known for right in (self.right_before, self.right))
            which = "these" if self.known == self.others else "the"
            those = "" if self.known == self.others else " of them whose true label is known"
            lines.append(
                f"Accuracy on {which} {count(self.known, 'image')}{those}: {before:.1f} % before, {now:.1f} % now "
                f"({now - before:+.1f} points)."
            )
        return "\n".join(lines)


def count_passes(classifier: Classifier, passes: int) -> int:
    """Return 1 if a second pass could not change any answer, else `passes`."""
    if passes not in (1, 2):
        raise InputError(f"there are one or two passes, not {passes}.")
    if passes == 1 and classifier.adapter.kind == "collection":
        raise InputError(
            f"the method {classifier.adapter.name!r} answers all images together, in a second pass at their end; leave "
            "out --passes 1 and --follow, or use another method."
        )
    return passes if classifier.answers_twice else 1


@dataclass(kw_only=True)
class Classification:
    """The classification of many images, which can be stopped and resumed.

    Args:
        classifier: answers, and learns unless it is frozen; in the state before the first image.
        run: the run whose batches are answered first, and to which new ones are appended; None to keep nothing.
        encode: returns the batches that follow those of the run, given the position of the first; None for none.
        expected: images of the whole stream; None if it has no end.
        table: the file of the results; None for none.
        emit: called with every batch, and again with those of the second pass.
        top_k: labels per prediction.
        parents: group of each label, whose scores are summed.
        truths: true labels by the names of images, which replace those of the source.
        passes: 2 to answer all images again at the end, where that changes an answer.
        state: file to which what was learnt is written at the end.
        forget: images whose label in the table is not one that a person has given any more.
        stop: called after every batch; True stops the run.
        part_images: images of a part of the run.
        part_seconds: time between two writes of a part that is not full.
        samples: the images, for a report that shows some of them.
        temporary: the folder of a run that is not kept.

    Attributes:
        blocks: the predictions, batch by batch; after the second pass the final ones.
        effect: the effect of the corrections of the run; None without any.
        notes: lines that a user should know of the end of the run.
    """

    classifier: Classifier
    run: Run | None = None
    encode: Callable[[int], Iterator[Batch]] | None = None
    expected: int | None = None
    table: Table | None = None
    emit: Emit = lambda predictions, final: None
    top_k: int = 3
    parents: Mapping[str, str] = field(default_factory=dict)
    truths: Mapping[str, str] | None = None
    passes: int = 2
    state: Path | None = None
    forget: Collection[str] = ()
    stop: Callable[[], bool] = lambda: False
    part_images: int = PART_IMAGES
    part_seconds: float = PART_SECONDS
    samples: Sequence[Sample] = ()
    temporary: TemporaryDirectory[str] | None = None

    def __post_init__(self) -> None:
        self.passes = count_passes(self.classifier, self.passes)
        self.blocks: list[Predictions] = []
        self._grown_from: list[Predictions] = []  # the answers as they came, once there are others
        self.effect: Effect | None = None
        self.notes: list[str] = []
        self.first_id = self.classifier.adapter.next_id  # id of the first image in the state
        self._scored = len(self.classifier.labels) + 1 if self.parents else self.top_k  # labels that have scores
        self._state_before = digest(self.state)
        self._replayed = 0 if self.run is None else self.run.images
        refuse_none(self.parents.values())

    @property
    def images(self) -> int:
        """Number of images that were answered."""
        return sum(map(len, self.blocks))

    @property
    def summary(self) -> Summary:
        """Counts over the predictions."""
        return summarise(self.blocks, self.passes)

    def answer(self) -> bool:
        """Answer all images; returns False if the run was stopped before the last one.

        A run that is stopped and has no table answers once more what it has seen.
        """
        try:
            finished = self._first_pass()
            if not finished and self.expected is not None and self.table is not None:
                return False
            again = self.run is not None and bool(self.blocks) and (self.passes == 2 or bool(self.run.corrections))
            if again and self.run is not None and not self._second_pass(self.run):
                return False
            self._finish()
        finally:
            if self.temporary is not None:
                self.temporary.cleanup()
        return finished

    def _first_pass(self) -> bool:
        """Answer the images as they come; returns False if it was stopped before the last one."""
        table = self.table if self.table is not None and self.table.grows else None
        growing = table is not None and not table.path.exists() and not self._replayed
        if table is not None and growing:
            self._note(grown=True)
            table.begin()
        with closing(self._batches()) as batches:
            for batch in batches:
                block = self._answer(batch)
                self.blocks.append(block)
                if table is not None and growing:
                    table.append(block)
                elif table is not None and self.images == self._replayed and self.passes == 1 and self.encode:
                    self._write_table()  # new images are appended to it
                    self._note(grown=True)
                    growing = True
                self.emit(block, self.passes == 1)
                if self.stop():
                    return False
        return self.expected is not None

    def _batches(self) -> Generator[Batch, None, None]:
        """Yield the batches of the run, then new ones, which are kept in the run."""
        if self.run is not None:
            yield from self.run.batches()
        if self.encode is None:
            return
        writer = None if self.run is None else RunWriter(self.run, self.part_images, self.part_seconds)
        complete = False
        try:
            for batch in self.encode(self._replayed):
                if writer is not None:
                    writer.append(batch)
                yield batch
            complete = self.expected is not None
        finally:
            if writer is not None:
                writer.close(complete)

    def _answer(self, batch: Batch) -> Predictions:
        found = self.classifier.answer(batch, self._scored, first_id=self.first_id)
        if self.truths is not None:
            named = [self.truths.get(readable_name(name)) for name in found.names]
            found = replace(found, truths=true_labels(found.labels, named))
        return self._grouped(found)

    def _grouped(self, found: Predictions) -> Predictions:
        return found.grouped(self.parents, self.top_k) if self.parents else found

    def _second_pass(self, run: Run) -> bool:
        """Answer all images again, and once more where corrections were taught; returns False if it was stopped."""
        final = self.blocks if self.passes == 1 else self._answered_again(run)
        corrections = run.corrections
        if final is not None and corrections:
            before = final
            known = self._teach(run, corrections)
            after = self._answered_again(run)
            final = after and [_corrected(*pair, known) for pair in zip(before, after, strict=True)]
            self.effect = None if final is None else _effect(before, final)
        if final is None:
            return False
        self._grown_from = self.blocks
        self.blocks = final
        for block in final:
            self.emit(block, True)
        return True

    def _answered_again(self, run: Run) -> list[Predictions] | None:
        """Return new answers for all images from everything that was learnt; None if it was stopped."""
        answers = SecondAnswers(
            self.classifier.adapter, run.stored_features, self._scored, second_pass=self.passes == 2
        )
        again = []
        for block in self.blocks:
            if self.table is not None and self.stop():
                return None
            again.append(self._grouped(block.answered_again(answers, self._scored, self.classifier.unsure)))
        return again

    def _teach(self, run: Run, corrections: Mapping[str, str]) -> dict[str, str]:
        """Teach the adapter the right labels of images of the run; returns those that are among its labels."""
        adapter = self.classifier.adapter
        rows = readable_rows(run)
        labels = adapter.head.class_names
        known = {name: label for name, label in corrections.items() if label in labels and name in rows}
        if len(known) < len(corrections):
            gone = count(len(corrections) - len(known), "correction")
            self.notes.append(f"{gone} left out: there is no such label, or no such image, here.")
        if known:
            teach(adapter, run, known)
        return known

    def _finish(self) -> None:
        """Write the table, what was learnt, and that the answers are final."""
        if self.table is not None:
            self._write_table()
        state = state_to_bytes(self.classifier.adapter, self.classifier.notes)
        ours = {"", self._state_before if self.run is None else str(self.run.answer.get("state_digest"))}
        if self.run is not None:
            ours.add(digest(self.run.path / STATE))  # written before a kill
            with writing(self.run.path / STATE):
                write_atomically(self.run.path / STATE, state)
            self.run.answer["answers"] = FINAL
        if self.state is not None:
            self._write_state(self.state, state, ours)
        if self.run is not None:
            self.run.save()
            self.run.take_place()

    def _write_table(self) -> None:
        """Write all rows in the place of the table that is there."""
        if self.table is None:
            return
        about = {} if self.run is None else self.run.answer
        online = (self._grown_from or self.blocks) if about.get("grown") else None
        signed, edited = self.table.write(self._rows(), about.get("signature"), online, self.forget)
        about |= {"signature": signed, "grown": False}
        if edited is not None:
            self.notes.append(f"answers in {self.table.path} were edited; the table as it was is now {edited}.")

    def _note(self, **about: Any) -> None:
        if self.run is not None:
            self.run.answer |= about
            self.run.save()

    def _rows(self) -> Iterator[list[Prediction]]:
        """Yield the rows of the table: those of images that could be read later take the place of the first ones."""
        replaced = set(() if self.run is None else self.run.features.get("replaced", ()))
        for block in self.blocks:
            yield [row for row in block if row.index not in replaced]

    def _write_state(self, path: Path, state: bytes, ours: Collection[str]) -> None:
        """Write what was learnt to the state file, unless another run has learnt into it since."""
        if digest(path) not in {*ours, hashlib.sha256(state).hexdigest()}:
            self.notes.append(
                f"another run has learnt into {path} since this one began, so it is left as it is; merge it with "
                "what this run learnt by `acclimate state merge`."
            )
            return
        with writing(path, StateError, "What was there before is untouched."):
            write_atomically(path, state)
        if self.run is not None:
            self.run.answer["state_digest"] = digest(path)


def teach(adapter: Adapter, run: Run, labels: Mapping[str, str]) -> None:
    """Correct the images of a run that have these names to these labels, which must be among those of the adapter."""
    rows = readable_rows(run)
    features = run.stored_features[np.array([rows[name] for name in labels])]
    classes = [adapter.head.class_names.index(label) for label in labels.values()]
    adapter.corrections.correct(features, classes, names=list(labels))


def readable_rows(run: Run) -> dict[str, int]:
    """Return the row of the features of each image of a run that could be read, by its name as results have it."""
    names = [readable_name(name) for name, error in zip(run.names, run.errors, strict=True) if error is None]
    return {name: row for row, name in reversed([*enumerate(names)])}  # of equal names the first


def digest(path: Path | None) -> str:
    """Return the digest of a file; "" if there is none."""
    if path is None or not path.exists():
        return ""
    try:
        return hashlib.sha256(read_regular(path, MAX_SNAPSHOT)).hexdigest()
    except OSError as error:
        raise StateError(f"{path} cannot be read: {reason(error)}.") from error


def _corrected(before: Predictions, after: Predictions, corrections: Mapping[str, str]) -> Predictions:
    """Return the answers after corrections were taught; corrected images keep theirs, beside the right label."""
    labels = [corrections.get(readable_name(name)) for name in before.names]
    others = np.array([label is None for label in labels])
    if after.classes.shape != before.classes.shape:  # no image of the block could be read
        return before
    return replace(
        after,
        classes=np.where(others[:, None], after.classes, before.classes),
        scores=np.where(others[:, None], after.scores, before.scores),
        unsure=np.where(others, after.unsure, before.unsure),
        groups=[new if other else old for new, old, other in zip(after.groups, before.groups, others, strict=True)],
        corrected=labels,
    )


def _effect(before: Sequence[Predictions], after: Sequence[Predictions]) -> Effect:
    """Return the effect of corrections on all other images."""
    counts = np.zeros(5, np.int64)
    for old, new in zip(before, after, strict=True):
        others = np.array(
            [error is None and label is None for error, label in zip(new.errors, new.corrected, strict=True)]
        )
        if others.any():
            rows = {label: row for row, label in enumerate(new.labels)} | {None: -1}
            truths = np.array([rows[truth] for truth in new.truths])[others]
            was = old.classes[others, 0]
            now = new.classes[others, 0]
            counts += [len(now), (was != now).sum(), (truths >= 0).sum(), (was == truths).sum(), (now == truths).sum()]
    return Effect(*counts.tolist())
