"""The feature store: a dataset is encoded once per model, and every method then runs on its features in seconds.

One folder holds `features.npy` (n, views, d), unit rows in float16, and `manifest.json`, which says what they are
features of and how many are done. The folder's name ends in a fingerprint of the model with its preprocessing, the
images with their labels and the views, so other features never pass for these. Prompts are no part of it: class vectors
are made apart.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

import numpy as np

from acclimate.arrays import HostArray, unit_rows
from acclimate.bench.datasets import Dataset, Listing
from acclimate.bench.encode import iter_view_batches
from acclimate.encoders import Encoder
from acclimate.errors import RunError
from acclimate.files import write_atomically
from acclimate.prompts import class_vectors, prompts_for
from acclimate.stream import FeatureStream
from acclimate.views import VERSION as VIEWS_VERSION

FORMAT = 1  # to be raised when the same images would be stored otherwise
SEED = 0  # of the views
CHECKPOINT = 4096  # images, views counted, between two notes of what is done


def stored_stream(
    dataset: Dataset,
    listing: Listing,
    encoder: Encoder,
    templates: str,
    views: int,
    store: Path,
    *,
    model: str = "",
    batch_size: int = 64,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda images: None,
) -> FeatureStream:
    """The features of a dataset with its labels and class vectors; encoded here unless they are in the store.

    Whatever stops the encoding, the next call goes on where it stopped.

    Args:
        dataset: whose images they are.
        listing: its images.
        encoder: the model.
        templates: name of the set of templates.
        views: per image; 1 for the image alone, else itself and `views - 1` AugMix views.
        store: the folder of all features.
        model: what results call the model; also tells models apart that have no fingerprint.
        batch_size: images, views counted, encoded at once.
        workers: threads that read and augment images.
        progress: called with the number of images done.

    Returns:
        A stream with features (n, d), float32, for one view; (n, views, d), float16 and left on disk, for many.

    Raises:
        RunError: an image cannot be read. A score over fewer images would be a score of another dataset.
    """
    device = gpu_of(encoder)
    known = {
        "format": FORMAT,
        "dataset": dataset.key,
        "encoder": encoder.fingerprint or model,
        "images": _fingerprint(listing),
        "shape": [len(listing), views, encoder.dim],
        # Pillow and PyTorch round pixels differently.
        "views": None if views == 1 else [SEED, VIEWS_VERSION, "pillow" if device is None else "torch"],
    }
    name = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]
    folder = store / f"{dataset.key}-{views}-{name}"
    encode_s = _encode_missing(folder, known, listing, encoder, batch_size, workers, device, progress)
    features: HostArray = np.load(folder / "features.npy", mmap_mode="r")
    if views == 1:
        features = unit_rows(features[:, 0].astype(np.float32), "features")
    names, prompts = _prompts(listing.class_names, templates)
    return FeatureStream(
        features=features,
        class_vectors=class_vectors(encoder, names, prompts),
        logit_scale=encoder.logit_scale,
        class_names=names,
        labels=listing.labels,
        logit_bias=encoder.logit_bias,
        metadata={
            "encoder": model or encoder.fingerprint,
            "class_vectors": templates,
            "encode_s": repr(encode_s),
            **({} if listing.domains is None else {"domains": json.dumps(listing.domains)}),
        },
    )


def gpu_of(encoder: Encoder) -> str | None:
    """The GPU an encoder runs on, for the work around it; None if it runs on none."""
    device = str(getattr(encoder, "device", "cpu"))
    return device if device.startswith("cuda") else None


def _encode_missing(
    folder: Path,
    known: dict[str, Any],
    listing: Listing,
    encoder: Encoder,
    batch_size: int,
    workers: int | None,
    device: str | None,
    progress: Callable[[int], None],
) -> float:
    """Encode what is not done yet; the seconds that all of it took."""
    views = known["shape"][1]
    batch_images = max(1, batch_size // views)
    done, encode_s = _done(folder, known)
    progress(done)
    if done == len(listing):
        return encode_s
    noted = done
    began = perf_counter() - encode_s
    batches = iter_view_batches(
        listing.paths[done:], encoder, views, SEED, workers, batch_images, first=done, device=device
    )
    try:
        with _open(folder, known["shape"], done) as file:
            try:
                for batch, errors in batches:
                    for path, error in zip(listing.paths[done : done + len(errors)], errors, strict=True):
                        if error is not None:
                            raise RunError(
                                f"{path} cannot be read: {error}. Get it again and run again; it goes on here."
                            )
                    file.write(unit_rows(batch.astype(np.float32), "features").astype(np.float16).tobytes())
                    done += len(batch)
                    progress(len(batch))
                    if (done - noted) * views >= CHECKPOINT:
                        _note(folder, file, known, done, perf_counter() - began)
                        noted = done
            finally:
                # Batches are whole, so that the next call cuts the images as this one would have, and rounds alike.
                encode_s = perf_counter() - began
                _note(folder, file, known, done, encode_s)
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}; make room or change --store.") from error
    return encode_s


def _open(folder: Path, shape: Sequence[int], done: int) -> BinaryIO:
    """The file of features, made if it is not there, at the place of the next image.

    It is written as a file, not through a memory map, in which a full disk would end the process.
    """
    path = folder / "features.npy"
    features = _features(path, shape)
    if features is None:
        folder.mkdir(parents=True, exist_ok=True)
        features = np.lib.format.open_memmap(path, "w+", np.float16, tuple(shape))
    file = path.open("r+b")
    file.seek(features.offset + done * features[0].nbytes)
    return file


def _features(path: Path, shape: Sequence[int]) -> Any:
    """The features of a file as a memory map; None if it is not there, or damaged."""
    with suppress(OSError, ValueError):
        features = np.load(path, mmap_mode="r")
        if list(features.shape) == shape:
            return features
    return None


def _note(folder: Path, file: BinaryIO, known: dict[str, Any], done: int, encode_s: float) -> None:
    """Say how far it is; only once those features are on the disk."""
    file.flush()
    os.fsync(file.fileno())
    note = {**known, "done": done, "encode_s": encode_s}
    write_atomically(folder / "manifest.json", json.dumps(note, indent=2).encode() + b"\n")


def _done(folder: Path, known: dict[str, Any]) -> tuple[int, float]:
    """How many images are encoded, and how long it took; none if what lies there is damaged."""
    with suppress(OSError, ValueError, KeyError):
        note = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if {key: note[key] for key in known} == known and _features(
            folder / "features.npy", known["shape"]
        ) is not None:
            return int(note["done"]), float(note["encode_s"])
    return 0, 0.0


def _fingerprint(listing: Listing) -> str:
    """Of the names of the images below their folder, and their labels, in order."""
    digest = hashlib.sha256()
    for path, label in zip(listing.paths, listing.labels.tolist(), strict=True):
        digest.update(f"{path.relative_to(listing.folder).as_posix()}\0{label}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _prompts(class_names: Sequence[str], templates: str) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """Names that differ, and their prompts: ImageNet says two pairs of classes alike, and so do their prompts."""
    prompts: dict[str, list[str]] = {}
    for name in class_names:
        distinct = name if name not in prompts else f"{name} (2)"
        (prompts[distinct],) = prompts_for([name], templates)
    return tuple(prompts), prompts
