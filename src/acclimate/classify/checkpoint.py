"""The checkpoint of a run, on one machine or on many: everything that the next image needs."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from acclimate.classifier import Classifier
from acclimate.classify.summary import Summary
from acclimate.errors import InputError, StateError
from acclimate.methods import Adapter, state_to_bytes
from acclimate.methods.gates import NearDuplicates
from acclimate.reading.walk import precision_of

MIN_DIGEST_CHARS = 32  # values from this length on are digests, and left out of messages


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
    """

    adapter: Adapter
    identity: Mapping[str, Any]
    position: int
    first_id: int
    gates: list[str]
    summary: Summary
    digest: str = ""
    kept: Kept = field(default_factory=Kept)

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
            long = max(len(str(before)), len(str(value))) >= MIN_DIGEST_CHARS
            was = "different" if long else f"{before}, not {value}"
            raise InputError(
                f"cannot resume {results}: its {name} was {was}; pass what it was begun with, choose another --out, or "
                "--overwrite it."
            )
