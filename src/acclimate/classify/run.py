"""The run: classify samples in order, write rows as they come, checkpoint, stop and go on without a trace.

A checkpoint is the adapter's state together with the length of the output at that moment. To go on, the output is cut
back to that length and the run continues from there; as batches are cut at the same places, the bytes at the end are
those of a run that was never stopped.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from acclimate.classifier import Classifier, Prediction
from acclimate.classify.outputs import LinesOutput
from acclimate.classify.rows import Row
from acclimate.classify.summary import Summary
from acclimate.errors import ImageError, InputError, RunError
from acclimate.methods import Adapter, load, save
from acclimate.methods.persist import read_notes
from acclimate.sources.base import Sample, source_fingerprint


@dataclass
class Job:
    """One classification of many images.

    Attributes:
        classifier: learns as the job goes, unless frozen.
        samples: what to classify, in order.
        output: where rows go; None to hand them to `emit` only.
        emit: called with every batch's rows.
        top_k: labels a row names.
        on_error: "skip" images that cannot be read, naming them in the output, or "fail".
        state: where to write what was learnt, at the end; without an output also when stopped.
        checkpoint_every: seconds between two checkpoints.
        stop: asked between two batches whether to stop.
    """

    classifier: Classifier
    samples: Sequence[Sample]
    output: LinesOutput | None = None
    emit: Callable[[Sequence[Row]], None] = lambda rows: None
    top_k: int = 3
    on_error: Literal["skip", "fail"] = "skip"
    state: Path | None = None
    checkpoint_every: float = 10.0
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.summary = Summary(self.classifier.labels)
        self.done = 0
        self.first_id = next_id(self.classifier.adapter)
        # What must be the same for a job to be continued; the adapter's own kind is checked with its state.
        self._identity = {
            "list of images": source_fingerprint(self.samples),
            "batch size": self.classifier.batch_size,
            "top-k": self.top_k,
            "model": self.classifier.encoder.fingerprint,
        }

    @property
    def checkpoint(self) -> Path | None:
        """The file that an unfinished job keeps beside its output."""
        return None if self.output is None else self.output.path.with_name(f"{self.output.path.name}.checkpoint")

    def can_resume(self) -> bool:
        """Whether an unfinished job is there to be continued."""
        return self.checkpoint is not None and self.checkpoint.is_file()

    def run(self, resume: bool = False) -> bool:
        """Classify everything, or what an earlier run left; False if it was stopped before the end."""
        if resume and self.can_resume():
            self._go_on()
        elif self.output is not None:
            self._write_checkpoint(0)  # before the output, so that an output without a checkpoint is a finished one
            self._guard(self.output.start)
        try:
            return self._work()
        finally:
            if self.output is not None:
                self.output.close()

    def _work(self) -> bool:
        saved = monotonic()
        policy: Literal["raise", "skip"] = "raise" if self.on_error == "fail" else "skip"
        rest = self.samples[self.done :]
        batches = self.classifier.batches(rest, self.top_k, policy, self.done, self.first_id)
        try:
            for predictions in batches:
                rows = [as_row(prediction, self.samples[prediction.index].name) for prediction in predictions]
                if self.output is not None:
                    self._guard(self.output.write, rows)
                self.done += len(rows)
                for row in rows:
                    self.summary.add(row)
                self.emit(rows)
                if self.stop():
                    break
                if monotonic() - saved >= self.checkpoint_every:
                    self._save_checkpoint()
                    saved = monotonic()
        except ImageError as error:
            self._save_checkpoint()
            name = self.samples[error.index].name
            raise RunError(f"{name}: {error} (stopped because of --on-error fail).") from error
        finally:
            batches.close()
        finished = self.done == len(self.samples)
        if not finished:
            self._save_checkpoint()
        if self.state is not None and (finished or self.output is None):  # with an output, the checkpoint has it
            save(self.classifier.adapter, self.state)
        if not finished:
            return False
        if self.output is not None and self.checkpoint is not None:
            self._guard(self.output.finish)
            self.checkpoint.unlink(missing_ok=True)
            self.output.clean_up()
        return True

    def _save_checkpoint(self) -> None:
        if self.output is not None:
            self._write_checkpoint(self._guard(self.output.sync))

    def _write_checkpoint(self, offset: int) -> None:
        assert self.checkpoint is not None
        notes = {"identity": self._identity, "done": self.done, "offset": offset, "first_id": self.first_id}
        save(self.classifier.adapter, self.checkpoint, notes)

    def _go_on(self) -> None:
        assert self.output is not None
        assert self.checkpoint is not None
        notes: Mapping[str, Any] = read_notes(self.checkpoint)
        for name, value in self._identity.items():
            if notes["identity"].get(name) != value:
                raise InputError(f"cannot go on with {self.output.path}: its {name} was another; start anew.")
        self.classifier.adapter = load(self.checkpoint, like=self.classifier.adapter)
        self.done, self.first_id = notes["done"], notes["first_id"]
        if self.done == 0:
            self._guard(self.output.start)
            return
        for row in self.output.resume(notes["offset"]):
            self.summary.add(row)

    def _guard(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """Do something to the output; if it cannot be done, say so and that nothing is lost."""
        try:
            return action(*arguments)
        except OSError as error:
            where = self.output.path if self.output is not None else "the output"
            raise RunError(
                f"cannot write {where}: {error.strerror or error}. The rows so far are whole; make room and go on "
                "with --resume."
            ) from error


def next_id(adapter: Adapter) -> int:
    """An id above all that the adapter has given out."""
    ids = [int(values.max()) + 1 for name, values in adapter.dump().items() if name.endswith(".ids") and values.size]
    return max([adapter.samples_seen, *ids])


def as_row(prediction: Prediction, file: str) -> Row:
    """A prediction as a row of the output.

    With six decimals, so that rows read back are the rows that were written; what is no Unicode in a file's name is
    spelt out, so that every name can be written.
    """
    file = file.encode("utf-8", "backslashreplace").decode()
    if prediction.error is not None:
        return Row(prediction.index, file, error=prediction.error)
    return Row(
        prediction.index,
        file,
        prediction.label,
        round(prediction.score, 6),
        tuple((answer.label, round(answer.score, 6)) for answer in prediction.top),
        prediction.zero_shot.label,
        round(prediction.zero_shot.score, 6),
        prediction.changed,
        round(prediction.entropy, 6),
    )
