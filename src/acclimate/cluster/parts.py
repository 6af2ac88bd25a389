"""The output folder of a job on a cluster: a parquet file per block, and `_acclimate` with the rest.

Readers of parquet ignore names that begin with an underscore, so the folder is a data set as it is.
"""

import io
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from acclimate.arrays import HostArray
from acclimate.classify.outputs import FEATURES_DTYPE, parquet_bytes
from acclimate.classify.run import Checkpoint, check_identity
from acclimate.classify.summary import BlockSummary, Summary
from acclimate.cluster.storage import Storage
from acclimate.errors import InputError, RunError, StateError
from acclimate.files import parse_snapshot
from acclimate.methods import Adapter, state_to_bytes
from acclimate.methods.persist import build_adapter
from acclimate.predict import Prediction, Predictions

OWN = "_acclimate"  # folder of everything but results
CHECKPOINT = f"{OWN}/checkpoint.safetensors"  # exists while the results are incomplete
COMPLETE = f"{OWN}/run.json"  # exists once the results are complete
OWNER = f"{OWN}/owner"  # names the run that writes here, while it does
HINT = "What was done so far is kept; pass --resume to go on."


def part_name(block: int) -> str:
    """Return the file of the rows of a block."""
    return f"part-{block:06d}.parquet"


def features_name(block: int) -> str:
    """Return the file of the features of a block, for the second pass."""
    return f"{OWN}/features-{block:06d}.bin"


def write_part(out: Storage, block: int, predictions: Sequence[Prediction], about: Mapping[str, str]) -> BlockSummary:
    """Write the rows of a block, all or nothing; returns what they add up to."""
    summary = BlockSummary()
    summary.extend(predictions)
    write(out, part_name(block), parquet_bytes([[each.to_record() for each in predictions]], about))
    return summary


def read_part(out: Storage, block: int, class_names: Sequence[str] = ()) -> Predictions:
    """Read the predictions of a block, as far as the columns hold them."""
    import pyarrow.parquet as pq

    try:
        records = pq.read_table(io.BytesIO(out.read(part_name(block)))).to_pylist()
        return Predictions.from_records(records, class_names)
    except (FileNotFoundError, ValueError, LookupError, TypeError) as error:
        raise _edited(out, part_name(block), error) from error


def write_features(out: Storage, block: int, features: Sequence[HostArray]) -> None:
    """Keep the features of the images of a block that could be read."""
    content = b"".join(np.ascontiguousarray(each, FEATURES_DTYPE).tobytes() for each in features)
    write(out, features_name(block), content)


def read_features(out: Storage, block: int, shape: tuple[int, ...]) -> HostArray:
    """Read the features (r, d) or (r, V, d) of a block, whose rows have this shape."""
    try:
        return np.frombuffer(out.read(features_name(block)), FEATURES_DTYPE).reshape(-1, *shape)
    except (FileNotFoundError, ValueError) as error:
        raise _edited(out, features_name(block), error) from error


def write(out: Storage, name: str, content: bytes) -> None:
    """Write a file of a job that has begun."""
    try:
        out.write(name, content)
    except InputError as error:
        raise RunError(f"{error} {HINT}") from error


def claim(out: Storage) -> str:
    """Become the run that writes here; another one that still does finds out, and stops."""
    owner = secrets.token_hex(16)
    write(out, OWNER, owner.encode())
    return owner


def check_owner(out: Storage, owner: str) -> None:
    """Stop a run whose results another one writes now: rows of two jobs must not mix.

    Raises:
        RunError: there is another one.
    """
    try:
        found = out.read(OWNER).decode(errors="replace")
    except FileNotFoundError:  # the other one is complete already, or the folder was emptied
        found = ""
    except OSError as error:
        raise RunError(f"cannot read {out.where(OWNER)}: {error}. {HINT}") from error
    if found != owner:
        raise RunError(
            f"another run writes, or has written, its results to {out.url}, or they were removed; this one stops. Wait "
            "for the other one, or choose another --out."
        )


def write_checkpoint(out: Storage, done: Checkpoint) -> None:
    """Replace the checkpoint of a job."""
    write(out, CHECKPOINT, state_to_bytes(done.adapter, done.notes))


def read_checkpoint(out: Storage, identity: Mapping[str, Any], like: Adapter) -> Checkpoint:
    """Read the checkpoint of a job, which must be this job.

    Raises:
        InputError: it is another job.
        StateError: it is damaged, or its method, settings or labels differ.
    """
    where = out.where(CHECKPOINT)
    adapter, notes = build_adapter(*parse_snapshot(out.read(CHECKPOINT), where), where, like)
    found = Checkpoint.from_notes(adapter, notes, where)
    check_identity(found.identity, identity, out.url)
    return found


def write_complete(out: Storage, identity: Mapping[str, Any], summary: Summary, about: Mapping[str, Any]) -> None:
    """Mark the results as complete, and remove what only incomplete ones need."""
    counts = {"images": summary.images, "answered": summary.answered, "changed": summary.changed}
    content = {**about, **counts, "identity": identity, "summary": summary.to_json()}
    write(out, COMPLETE, json.dumps(content, indent=1).encode())
    clean_up(out)


def read_complete(out: Storage, identity: Mapping[str, Any]) -> Summary | None:
    """Read the summary of complete results of this job; None if they are not complete."""
    if not out.exists(COMPLETE):
        return None
    try:
        content = json.loads(out.read(COMPLETE))
        check_identity(content["identity"], identity, out.url)
        return Summary.from_json(content["summary"])
    except InputError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise _edited(out, COMPLETE, error) from error


def clean_up(out: Storage) -> None:
    """Remove the checkpoint, and then what is only needed with it."""
    out.remove(CHECKPOINT)
    _remove(out, OWN, "features-")
    out.remove(OWNER)


def check_no_results(out: Storage) -> None:
    """Refuse to mix with the results of a job, complete or not.

    Raises:
        InputError: there are some.
    """
    if out.exists(CHECKPOINT) or out.exists(COMPLETE) or has_parts(out):
        raise InputError(f"{out.url} has results; pass --resume to complete them, or --overwrite to replace them.")


def has_parts(out: Storage) -> bool:
    """Return True if there are files of rows."""
    return any(map(_is_part, out.names()))


def remove_results(out: Storage) -> None:
    """Remove the results of a job, and nothing else."""
    out.remove(COMPLETE)
    clean_up(out)
    _remove(out, "", "part-")


def _remove(out: Storage, folder: str, prefix: str) -> None:
    names: Iterable[str] = out.names(folder)
    for name in names:
        if name.startswith(prefix) and (folder or _is_part(name)):
            out.remove(f"{folder}/{name}" if folder else name)


def _is_part(name: str) -> bool:
    return name.startswith("part-") and name.endswith(".parquet") and name[5:-8].isdigit()


def _edited(out: Storage, name: str, error: Exception) -> StateError:
    return StateError(f"{out.where(name)} is missing or was edited ({error}); start again with --overwrite.")
