"""A run: images are classified in order, predictions written as they come; it can be stopped and resumed.

Where a second pass follows, the features of the images are kept in a file. When all images have been seen, each is
answered again from everything learnt, the results are written a second time, and the new ones replace the old.

A checkpoint is the state of the adapter and the length of results and features at one moment. To resume, both are cut
back to that length and the run continues from there. Batches begin at the same images, so the results end with the
same bytes as those of a run that was never stopped. A checkpoint whose summary counts two passes says that all results
of the second pass are there, whether or not they have replaced the first ones.

The images of a resumed run are those that have rows, in the order of the rows, and then all others of the source: what
was added to a folder since is classified, too, even if the results were complete. Complete rows are *kept* as they are.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, NamedTuple

from acclimate.classifier import Classifier
from acclimate.classify.outputs import FeatureFile, ResultFile, read_results, write_results
from acclimate.classify.summary import Summary
from acclimate.errors import ImageError, InputError, RunError, StateError
from acclimate.methods import Adapter, load_with_notes, save_state, state_to_bytes
from acclimate.methods.gates import NearDuplicates
from acclimate.predict import (
    NONE,
    Prediction,
    Predictions,
    readable_name,
    refuse_none,
    second_answers,
    true_labels,
)
from acclimate.reading.walk import OnError, precision_of
from acclimate.sources.source import Sample, can_be_read, file_sample

OPTIONS = "options"  # note of a state: what its run was begun with
Emit = Callable[[Sequence[Prediction], bool], None]  # predictions, and True if their answers are final


class Kept(NamedTuple):
    """Rows of an earlier run that was completed."""

    images: int = 0
    answered: int = 0  # images that could be read
    size: int = 0  # bytes


@dataclass(frozen=True)
class Checkpoint:
    """A run after some of its images, from which it can go on.

    Attributes:
        adapter: the adapter after these images.
        identity: the options that a run must have to go on; see `job_identity`.
        position: the size of the results in bytes, or the number of blocks that a cluster has written.
        first_id: id of the stream's first image in the state.
        gates: states of the gates.
        summary: counts over the predictions.
        digest: digest of the results; "" on a cluster.
        kept: rows of an earlier run that come first.
        options: what the run was begun with, for the command that continues it.
    """

    adapter: Adapter
    identity: Mapping[str, Any]
    position: int
    first_id: int
    gates: list[str]
    summary: Summary
    digest: str = ""
    kept: Kept = field(default_factory=Kept)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def notes(self) -> dict[str, Any]:
        """Everything but the adapter, as notes of its state file."""
        others = {name: value for name, value in vars(self).items() if name != "adapter"}
        return others | {"summary": self.summary.to_json()}

    @classmethod
    def from_notes(cls, adapter: Adapter, notes: Mapping[str, Any], where: object) -> "Checkpoint":
        """Return the checkpoint whose state file has this adapter and these notes.

        Raises:
            StateError: the file `where` is that of another state.
        """
        try:
            read = {"summary": Summary.from_json(notes["summary"]), "kept": Kept(*notes["kept"])}
            return cls(adapter, **{**notes, **read})
        except (LookupError, TypeError, ValueError) as error:
            raise StateError(f"{where} is not the checkpoint of a run ({error!r}); start again.") from error


def count_passes(classifier: Classifier, passes: int) -> int:
    """Return how many of so many passes change an answer; a method that answers a collection needs two."""
    if passes == 1 and classifier.adapter.kind == "collection":
        raise InputError(
            f"the method {classifier.adapter.name!r} answers all images together, in a second pass at their end; leave "
            "out --passes 1 and --follow, or use another method."
        )
    return passes if classifier.answers_twice else 1


def job_identity(classifier: Classifier, top_k: int, passes: int) -> dict[str, Any]:
    """Return what must be the same to resume a job; method, settings and labels are compared with the state."""
    identity = {
        "batch size": classifier.batch_size,
        "number of views": classifier.views,
        "kind of views": classifier.views_kind if classifier.views > 1 else "",
        "number of labels per row": top_k,
        "number of passes": passes,
        "model": classifier.encoder.fingerprint,
        "threshold of --unsure": classifier.unsure,
        "choice of --none-of-these": classifier.rejects,
        "choice to skip duplicates": any(isinstance(gate, NearDuplicates) for gate in classifier.gates),
        "decoder": classifier.decoder,
        "precision": precision_of(classifier.encoder),
    }
    if classifier.adapter.kind == "few-shot":  # its state does not change from the first image to the last
        identity["fitted file"] = hashlib.sha256(state_to_bytes(classifier.adapter)).hexdigest()
    return identity


def check_identity(found: Mapping[str, Any], identity: Mapping[str, Any], results: object) -> None:
    """Refuse to resume results that were begun with other options."""
    for name, value in identity.items():
        before = found.get(name)
        if before != value:
            # Digests are left out of the message.
            was = "different" if max(len(str(before)), len(str(value))) >= 32 else f"{before}, not {value}"
            raise InputError(
                f"cannot resume {results}: its {name} was {was}; pass what it was begun with, choose another --out, or "
                "--overwrite it."
            )


@dataclass(kw_only=True)
class Classification:
    """The classification of many images, which can be stopped and resumed."""

    classifier: Classifier  # answers, and learns unless it is frozen
    samples: Sequence[Sample]  # the images, in order
    output: ResultFile | None = None  # the file of the predictions; a run without it cannot be resumed
    emit: Emit = lambda predictions, final: None  # called with every batch, and again with those of the second pass
    top_k: int = 3  # labels per prediction
    parents: Mapping[str, str] = field(default_factory=dict)  # group of each label, whose scores are summed
    passes: int = 2  # 2 to answer all images again at the end, where that changes an answer
    on_error: OnError = "skip"  # "skip" lists unreadable images in the output, "raise" stops with a RunError
    state: Path | None = None  # file for what was learnt, written at the end; without an output also when stopped
    record: bool = False  # keep what was learnt, the features and the options beside the output, for later commands
    options: Mapping[str, Any] = field(default_factory=dict)  # what the run was begun with, as JSON can hold it
    checkpoint_every: float = 10.0  # seconds between two checkpoints
    stop: Callable[[], bool] = lambda: False  # called after every batch; True stops the run
    # Called when all images are done, with the names of those it did not give: waits for more; none end the run.
    more: Callable[[Collection[str]], Sequence[Sample]] | None = None

    def __post_init__(self) -> None:
        if self.passes not in (1, 2):
            raise InputError(f"there are one or two passes, not {self.passes}.")
        self.passes = count_passes(self.classifier, self.passes if self.more is None else 1)
        self.summary = Summary()
        self.kept = Kept()
        self.first_id = self.classifier.adapter.next_id  # id of the first image in the state
        self._scored = len(self.classifier.labels) + 1 if self.parents else self.top_k  # labels that have scores
        refuse_none(self.parents.values())
        self._identity = job_identity(self.classifier, self.top_k, self.passes)
        self._identity["parents of the labels"] = dict(self.parents) or None

    def run(self, resume: bool = False) -> bool:
        """Classify all images, or those that a stopped run has left; returns False if this run was stopped.

        A run that is stopped and has no output to continue with answers once more what it has seen.
        """
        if self.passes == 1:
            return self._run(self.output, None, resume)
        with TemporaryDirectory(prefix="acclimate-") if self.output is None else nullcontext("") as folder:
            rows = self.output or ResultFile(Path(folder, "rows.jsonl"), self.top_k)
            views = (self.classifier.views,) if self.classifier.views > 1 else ()
            return self._run(rows, FeatureFile(rows.features, (*views, self.classifier.head.dim)), resume)

    def _run(self, rows: ResultFile | None, features: FeatureFile | None, resume: bool) -> bool:
        if rows is not None and not self._open(rows, features, resume):
            return True
        finished = self.summary.passes == 2  # it was stopped after its second pass
        if not finished:
            finished = self._first_pass(rows, features)
            if rows is not None and features is not None and (finished or self.output is None):
                finished = self._second_pass(rows, features) and finished
        # The state of a run that was stopped is in its checkpoint; one that follows a folder ends by being stopped.
        ended = finished or self.more is not None
        if self.state is not None and (ended or self.output is None):
            self.classifier.save(self.state)
        if self.output is not None and ended:
            if self.record:
                notes = self.classifier.notes | {OPTIONS: dict(self.options)}
                save_state(self.classifier.adapter, self.output.state, notes)
            self.output.finish(keep_features=self.record and features is not None)
        return finished

    def _first_pass(self, rows: ResultFile | None, features: FeatureFile | None) -> bool:
        """Answer the images as they come; returns False if it was stopped before the last one."""
        self.samples = list(self.samples)
        known = {sample.name for sample in self.samples} if self.more is not None else set()
        try:
            self._answer(rows, features)
            while self.more is not None and not self.stop() and (new := self.more(known)):
                self.samples.extend(new)
                self._answer(rows, features)
        except ImageError as error:
            self._save_checkpoint(features)
            raise RunError(f"{error}.") from error
        finished = self.summary.images == len(self.samples) and self.more is None
        if not finished or features is not None:
            self._save_checkpoint(features)
        return finished

    def _answer(self, rows: ResultFile | None, features: FeatureFile | None) -> None:
        """Answer the images that have no answer yet, until the run is stopped."""
        saved = monotonic()
        start = self.summary.images
        batches = self.classifier.batches(
            self.samples[start:],
            self._scored,
            self.on_error,
            start=start,
            first_id=self.first_id,
            keep=None if features is None else features.write,
        )
        with closing(batches):
            for scored in batches:
                batch = scored.grouped(self.parents, self.top_k) if self.parents else scored
                if rows is not None:
                    rows.write(batch)
                self.summary.extend(batch)
                self.emit(batch, features is None)
                if self.stop():
                    break
                if monotonic() - saved >= self.checkpoint_every:
                    self._save_checkpoint(features)
                    saved = monotonic()

    def _second_pass(self, rows: ResultFile, features: FeatureFile) -> bool:
        """Answer all images again and write the rows anew; returns False if it was stopped, which needs an output."""
        again = rows.again
        summary = Summary(passes=2)
        again.open_like(rows, self.kept.size)
        for kept in rows.read(stop=self.kept.images):
            summary.extend(kept)
        answers = second_answers(self.classifier.adapter, features.read(), self._scored)
        for online in rows.read(self.classifier.labels, start=self.kept.images):
            if self.output is not None and self.stop():
                return False
            final = online.refined(answers, self._scored, self.classifier.unsure)
            final = final.grouped(self.parents, self.top_k) if self.parents else final
            again.write(final)
            summary.extend(final)
            self.emit(final, True)
        again.sync()
        self.summary = summary
        self._save_checkpoint(features)
        return True

    def _save_checkpoint(self, features: FeatureFile | None, first: bool = False) -> None:
        if self.output is None:
            return
        if features is not None and not first:
            features.sync()
        done = Checkpoint(
            self.classifier.adapter,
            self._identity,
            position=self.kept.size if first else self.output.sync(),
            first_id=self.first_id,
            gates=[gate.dump() for gate in self.classifier.gates],
            summary=self.summary,
            digest=self.output.digest,
            kept=self.kept,
            options=self.options,
        )
        save_state(done.adapter, self.output.checkpoint, done.notes)

    def _open(self, rows: ResultFile, features: FeatureFile | None, resume: bool) -> bool:
        """Begin, or continue what is there; returns False if nothing is left to do."""
        position = 0
        stopped = resume and rows.checkpoint.is_file()
        if stopped:
            adapter, notes = load_with_notes(rows.checkpoint, like=self.classifier.adapter)
            found = Checkpoint.from_notes(adapter, notes, rows.checkpoint)
            check_identity(found.identity, self._identity, rows.path)
            if found.summary.passes == 1 or rows.again.lines.exists():  # else they are complete
                rows.check(found.position, found.digest, {readable_name(each.name) for each in self.samples})
            for gate, remembered in zip(self.classifier.gates, found.gates, strict=False):  # there were fewer once
                gate.restore(remembered)
            self.classifier.adapter = adapter
            self.first_id = found.first_id
            self.summary = found.summary
            self.kept = found.kept
            position = found.position
        elif resume and rows.path.is_file():
            position = self._keep(rows)
            if len(self.samples) == self.kept.images and self.more is None:
                self.summary.passes = self.passes
                return False
        if not stopped:
            self._save_checkpoint(features, first=True)  # comes first: rows without a checkpoint are complete
        if self.summary.passes == 2:  # all is written
            return True
        rows.open(position)
        if stopped:
            labels = true_labels(self.classifier.labels, [sample.label for sample in self.samples])
            truths = dict(zip((readable_name(sample.name) for sample in self.samples), labels, strict=True))
            done = [prediction for block in rows.read() for prediction in block]
            for each in done:
                if (truth := truths.get(each.name, each.truth)) != each.truth:
                    was, now = (repr(label) if label else "not known" for label in (each.truth, truth))
                    raise InputError(
                        f"cannot resume {rows.path}: the true label of {each.name} was {was}, and is {now}; pass the "
                        "--truth that it was begun with, or start again."
                    )
            self._line_up([each.name for each in done], rows)
        if features is not None:
            features.open(self.summary.answered - self.kept.answered)
        return True

    def _keep(self, rows: ResultFile) -> int:
        """Keep the rows of complete results, to add those of new images; returns their size in bytes.

        Images that can be read now and could not be read before count as new, and true labels are those of this run.
        """
        records = read_results(rows.path)
        listed = {readable_name(sample.name): sample for sample in self.samples}
        known = [listed.get(record["file"]) for record in records]
        truths = true_labels(self.classifier.labels, [None if sample is None else sample.label for sample in known])
        kept: list[dict[str, Any]] = []
        for record, sample, truth in zip(records, known, truths, strict=True):
            if not record["error"] or sample is None or not can_be_read(sample):
                kept.append(record | {"index": len(kept), "true_label": truth or record["true_label"]})
        try:
            predictions = Predictions.from_records(kept).rows if kept else []
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(f"cannot continue {rows.path}: it was edited ({error}). Choose another --out.") from error
        labels = {*self.classifier.labels, NONE}
        unsure = self.classifier.unsure
        for each in (each for each in predictions if each.error is None):
            why = ""
            if others := [label for label in (each.label, each.zero_shot.label) if label not in labels]:
                why = f"it has the label {others[0]!r}"
            elif (each.none is not None) != self.classifier.rejects:
                why = f"it was made {'without' if self.classifier.rejects else 'with'} --none-of-these"
            elif each.unsure != (each.score < unsure) and abs(each.score - unsure) > 1e-3:
                why = "it was made with another --unsure"
            if why:
                raise InputError(
                    f"cannot continue {rows.path}: {why}. Use the options it was made with, or another --out."
                )
        self._line_up([each.name for each in predictions], rows, moved=any(record["sorted_to"] for record in records))
        size = 0
        if len(self.samples) > len(kept) or self.more is not None:
            size = rows.reopen(kept)
        elif [record["true_label"] or None for record in records] != [each.truth for each in predictions]:
            write_results(rows.path, kept)
        self.summary.extend(predictions)
        self.kept = Kept(self.summary.images, self.summary.answered, size)
        self.first_id -= self.kept.images  # ids are counted from there, and the new images come after the old ones
        return size

    def _line_up(self, done: Sequence[str], rows: ResultFile, moved: bool = False) -> None:
        """Put the images that have rows first, in the order of these, and then all others."""
        listed: dict[str, list[Sample]] = {}
        for sample in reversed(self.samples):
            listed.setdefault(readable_name(sample.name), []).append(sample)
        if done and self.samples and not moved and listed.keys().isdisjoint(done):
            raise InputError(
                f"cannot continue {rows.path}: none of its {len(done)} images is among those of the source. "
                "Choose another --out, or --overwrite it."
            )
        first = [listed[name].pop() if listed.get(name) else file_sample(name) for name in done]
        chosen = set(map(id, first))
        self.samples = [*first, *(sample for sample in self.samples if id(sample) not in chosen)]
