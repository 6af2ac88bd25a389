"""The output folder of a job on a cluster: a parquet file per block, and `_acclimate` with the rest.

Readers of parquet ignore names that begin with an underscore, so the folder is a data set as it is.
"""

import io
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from acclimate.arrays import HostArray
from acclimate.classify.outputs import FEATURES_DTYPE, parquet_bytes
from acclimate.classify.run import Checkpoint, check_identity
from acclimate.classify.summary import BlockSummary, Summary
from acclimate.cluster.filesystem import Storage
from acclimate.errors import InputError, RunError, StateError
from acclimate.files import parse_snapshot
from acclimate.methods import Adapter, state_to_bytes
from acclimate.methods.persist import build_adapter
from acclimate.predict import Prediction, Predictions

OWN = "_acclimate"  # folder of everything but results
CHECKPOINT = f"{OWN}/checkpoint.safetensors"  # exists while the results are incomplete
COMPLETE = f"{OWN}/run.json"  # exists once the results are complete
OWNER = f"{OWN}/owner"  # names the run that writes here, while it does
ROWS = "part-{:06d}.parquet"  # rows of a block
FEATURES = OWN + "/features-{:06d}.bin"  # features of a block, for the second pass


class OutputFolder(Storage):
    """The folder of the results of a job, of which one run at a time is the owner.

    Attributes:
        owner: names the run that alone may write here, in all of its processes; "" before `claim`.
    """

    owner = ""

    def claim(self) -> None:
        """Become the run that writes here; another one that still does finds out, and stops."""
        self.owner = secrets.token_hex(16)
        self.write(OWNER, self.owner.encode())

    def check_owner(self) -> None:
        """Stop a run that another one has replaced as the owner: rows of two jobs must not mix.

        Raises:
            RunError: there is another one.
        """
        try:
            found = self.read(OWNER).decode(errors="replace")
        except FileNotFoundError:  # the other one is complete already, or the folder was emptied
            found = ""
        if self.owner and found != self.owner:
            raise RunError(
                f"another run writes, or has written, its results to {self.url}, or they were removed; this one stops. "
                "Wait for the other one, or choose another --out."
            )

    def write_rows(self, block: int, predictions: Sequence[Prediction], about: Mapping[str, str]) -> BlockSummary:
        """Write the rows of a block, all or nothing; returns what they add up to."""
        summary = BlockSummary()
        summary.extend(predictions)
        self._save(ROWS.format(block), parquet_bytes([[each.to_record() for each in predictions]], about))
        return summary

    def read_rows(self, block: int, class_names: Sequence[str] = ()) -> Predictions:
        """Read the predictions of a block, as far as the columns hold them."""
        import pyarrow.parquet as pq

        try:
            records = pq.read_table(io.BytesIO(self.read(ROWS.format(block)))).to_pylist()
            return Predictions.from_records(records, class_names)
        except (FileNotFoundError, ValueError, LookupError, TypeError) as error:
            raise self._edited(ROWS.format(block), error) from error

    def write_features(self, block: int, features: Sequence[HostArray]) -> None:
        """Keep the features of the images of a block that could be read."""
        self._save(
            FEATURES.format(block),
            b"".join(np.ascontiguousarray(each, FEATURES_DTYPE).tobytes() for each in features),
        )

    def read_features(self, block: int, shape: tuple[int, ...]) -> HostArray:
        """Read the features (r, d) or (r, V, d) of a block, whose rows have this shape."""
        try:
            return np.frombuffer(self.read(FEATURES.format(block)), FEATURES_DTYPE).reshape(-1, *shape)
        except (FileNotFoundError, ValueError) as error:
            raise self._edited(FEATURES.format(block), error) from error

    def write_checkpoint(self, done: Checkpoint) -> None:
        """Replace the checkpoint of a job."""
        self._save(CHECKPOINT, state_to_bytes(done.adapter, done.notes))

    def read_checkpoint(self, identity: Mapping[str, Any], like: Adapter) -> Checkpoint:
        """Read the checkpoint of a job, which must be this job.

        Raises:
            InputError: it is another job.
            StateError: it is damaged, or its method, settings or labels differ.
        """
        where = self.where(CHECKPOINT)
        adapter, notes = build_adapter(*parse_snapshot(self.read(CHECKPOINT), where), where, like)
        found = Checkpoint.from_notes(adapter, notes, where)
        check_identity(found.identity, identity, self.url)
        return found

    def write_complete(self, identity: Mapping[str, Any], summary: Summary, about: Mapping[str, Any]) -> None:
        """Mark the results as complete, and remove what only incomplete ones need."""
        content = {
            **about,
            "images": summary.images,
            "answered": summary.answered,
            "changed": summary.changed,
            "identity": identity,
            "summary": summary.to_json(),
        }
        self._save(COMPLETE, json.dumps(content, indent=1).encode())
        self.clean_up()

    def read_complete(self, identity: Mapping[str, Any]) -> Summary | None:
        """Read the summary of complete results of this job; None if they are not complete."""
        if not self.exists(COMPLETE):
            return None
        try:
            content = json.loads(self.read(COMPLETE))
            found = content["identity"]
            summary = Summary.from_json(content["summary"])
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise self._edited(COMPLETE, error) from error
        check_identity(found, identity, self.url)
        return summary

    def parts(self) -> list[str]:
        """Return the names of the files of rows."""
        return [name for name in self.names() if re.fullmatch(r"part-\d+\.parquet", name)]

    def check_no_results(self) -> None:
        """Refuse to mix with the results of a job, complete or not.

        Raises:
            InputError: there are some.
        """
        if self.exists(CHECKPOINT) or self.exists(COMPLETE) or self.parts():
            raise InputError(f"{self.url} has results; pass --resume to complete them, or --overwrite to replace them.")

    def remove_results(self) -> None:
        """Remove the results of a job, and nothing else."""
        self.remove(COMPLETE)
        self.clean_up()
        for name in self.parts():
            self.remove(name)

    def clean_up(self) -> None:
        """Remove the checkpoint, and then what is only needed with it."""
        self.remove(CHECKPOINT)
        for name in self.names(OWN):
            if name.startswith("features-"):
                self.remove(f"{OWN}/{name}")
        self.remove(OWNER)

    def _save(self, name: str, content: bytes) -> None:
        self.check_owner()
        self.write(name, content)

    def _edited(self, name: str, error: Exception) -> StateError:
        return StateError(f"{self.where(name)} is missing or was edited ({error}); start again with --overwrite.")
