"""The run: classify images in order, write predictions as they come, save checkpoints, stop and resume.

A checkpoint is the state of the adapter and the length of the results at one moment. To resume, the results are cut
back to that length and the run continues from there. Batches begin at the same images, so the results end with the
same bytes as those of a run that was never stopped.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from acclimate.classifier import Classifier, OnError
from acclimate.classify.outputs import ResultFile
from acclimate.classify.summary import Summary
from acclimate.errors import ImageError, InputError, RunError
from acclimate.methods import load_with_notes, save_state
from acclimate.predict import Prediction
from acclimate.sources.base import Sample, source_fingerprint


@dataclass(kw_only=True)
class Classification:
    """The classification of many images, which can be stopped and resumed."""

    classifier: Classifier  # answers, and learns unless it is frozen
    samples: Sequence[Sample]  # the images, in order
    output: ResultFile | None = None  # where predictions are written; a run without it cannot be resumed
    emit: Callable[[Sequence[Prediction]], None] = lambda predictions: None  # called with every batch
    top_k: int = 3  # labels per prediction
    on_error: OnError = "skip"  # "skip" lists unreadable images in the output, "raise" stops with a RunError
    state: Path | None = None  # where to save what was learnt, at the end; without an output also when stopped
    checkpoint_every: float = 10.0  # seconds between two checkpoints
    stop: Callable[[], bool] = lambda: False  # called after every batch; True stops the run

    def __post_init__(self) -> None:
        self.summary = Summary()
        self.first_id = self.classifier.adapter.next_id  # of the first image, in the state
        # What must be the same to resume; the method, its settings and the labels are checked with the state.
        self._identity = {
            "list of images": source_fingerprint(self.samples),
            "batch size": self.classifier.batch_size,
            "number of views": self.classifier.views,
            "number of labels per row": self.top_k,
            "model": self.classifier.encoder.fingerprint,
        }

    def run(self, resume: bool = False) -> bool:
        """Classify all images, or those that a stopped run has left; returns False if this run was stopped."""
        if self.output is not None:
            self._open(self.output, resume)
        saved, start = monotonic(), self.summary.images
        batches = self.classifier.batches(
            self.samples[start:], self.top_k, self.on_error, start=start, first_id=self.first_id
        )
        try:
            with closing(batches):
                for batch in batches:
                    if self.output is not None:
                        self.output.write(batch)
                    for prediction in batch:
                        self.summary.add(prediction)
                    self.emit(batch)
                    if self.stop():
                        break
                    if monotonic() - saved >= self.checkpoint_every:
                        self._save_checkpoint()
                        saved = monotonic()
        except ImageError as error:
            self._save_checkpoint()
            raise RunError(f"{error}.") from error
        finished = self.summary.images == len(self.samples)
        if not finished:
            self._save_checkpoint()
        if self.state is not None and (finished or self.output is None):  # otherwise the checkpoint holds the state
            save_state(self.classifier.adapter, self.state)
        if finished and self.output is not None:
            self.output.finish()
        return finished

    def _save_checkpoint(self, first: bool = False) -> None:
        if self.output is not None:
            notes = {"identity": self._identity, "offset": 0 if first else self.output.sync()}
            notes |= {"first_id": self.first_id, "summary": self.summary.to_json()}
            save_state(self.classifier.adapter, self.output.checkpoint, notes)

    def _open(self, output: ResultFile, resume: bool) -> None:
        if not (resume and output.checkpoint.is_file()):
            self._save_checkpoint(first=True)  # before the file, so that results without a checkpoint are complete
            output.open()
            return
        adapter, notes = load_with_notes(output.checkpoint, like=self.classifier.adapter)
        for name, value in self._identity.items():
            if notes["identity"].get(name) != value:
                raise InputError(f"cannot resume {output.path}: its {name} was different; start again.")
        self.classifier.adapter, self.first_id = adapter, notes["first_id"]
        self.summary = Summary.from_json(notes["summary"])
        output.open(notes["offset"])
