"""The one object a practitioner meets: an encoder, prompts and an adapter."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from acclimate.arrays import Array, HostArray, softmax_and_entropy, to_host
from acclimate.encoders import BUNDLED, Encoder, load_encoder
from acclimate.errors import ImageError, InputError
from acclimate.evidence import Evidence, observe
from acclimate.images import open_image
from acclimate.methods import create, load, save
from acclimate.prompts import class_vectors, clean_labels

PREFETCH = 3  # batches being decoded while one is encoded


@dataclass(frozen=True)
class Answer:
    """A label and its probability."""

    label: str
    score: float


@dataclass(frozen=True)
class Prediction:
    """What is said of one image.

    Attributes:
        index: position in the stream.
        top: the best labels after adapting, best first; empty if the image could not be read.
        zero_shot: the model's own answer.
        entropy: of the model's own answer, in nats.
        error: why the image could not be read; None if it could.
    """

    index: int
    top: tuple[Answer, ...]
    zero_shot: Answer
    entropy: float
    error: str | None = None

    @property
    def label(self) -> str:
        """The adapted answer; "" if the image could not be read."""
        return self.top[0].label if self.top else ""

    @property
    def score(self) -> float:
        """Its probability."""
        return self.top[0].score if self.top else 0.0

    @property
    def changed(self) -> bool:
        """Whether adapting changed the answer."""
        return self.label != self.zero_shot.label


class Classifier:
    """Sorts images into labels and adapts to them as it goes; `freeze` it to answer without learning.

    Args:
        labels: names of the classes, at least two to choose from.
        encoder: a model's name (see `load_encoder`; the bundled one needs no download), an object with the members of
            `Encoder`, or open_clip's (model, preprocess, tokenizer).
        method: name of the adapter.
        templates: prompts: a template with `{}`, several, callables, a dict of prompts per class, or a set's name.
        batch_size: images encoded at once; answers do not depend on it beyond the encoder's rounding.
        workers: threads that read and prepare images.
        device: where the encoder runs, if it is given by name.
        cache: folder for encoded texts; the user's cache folder when not given.
        **settings: of the method.
    """

    def __init__(
        self,
        labels: Sequence[str],
        encoder: str | Encoder | tuple[Any, Any, Any] = BUNDLED,
        *,
        method: str = "tda",
        templates: Any = "single",
        batch_size: int = 32,
        workers: int | None = None,
        device: str = "auto",
        cache: Path | None = None,
        **settings: Any,
    ) -> None:
        names = clean_labels(labels)
        if len(names) < 2:
            raise InputError(f"one label ({names[0]!r}) leaves nothing to choose; give at least two, such as 'other'.")
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}.")
        self.encoder: Encoder = _encoder(encoder, device)
        self.templates, self.cache = templates, cache
        self.batch_size, self.workers = batch_size, workers or min(8, (os.cpu_count() or 1) + 1)
        self.adapter = create(
            method,
            class_vectors(self.encoder, names, templates, cache),
            logit_scale=self.encoder.logit_scale,
            logit_bias=self.encoder.logit_bias,
            class_names=names,
            **settings,
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, in order."""
        return self.adapter.class_names

    @property
    def classes_(self) -> HostArray:
        """The classes as scikit-learn names them."""
        return np.array(self.labels)

    def __call__(self, images: Any, top_k: int | None = None, adapt: bool = True) -> list[Any]:
        """Classify one image, or many.

        Args:
            images: a path, Pillow image, array or encoded bytes; or a list of them.
            top_k: how many labels to name; all when not given.
            adapt: learn from these images (never while frozen).

        Returns:
            `[{"label": ..., "score": ...}]` sorted by score, as transformers does; a list of such for a list.
        """
        many = isinstance(images, (list, tuple))
        frozen = self.adapter.frozen
        self.adapter.frozen = frozen or not adapt
        try:
            predictions = list(self.stream(images if many else [images], top_k or len(self.labels)))
        finally:
            self.adapter.frozen = frozen
        answers = [[{"label": answer.label, "score": answer.score} for answer in each.top] for each in predictions]
        return answers if many else answers[0]

    def stream(
        self, images: Iterable[Any], top_k: int = 5, on_error: Literal["raise", "skip"] = "raise"
    ) -> Iterator[Prediction]:
        """Classify images as they come, in order; reading and preparing run ahead in threads.

        Args:
            images: as for a call; objects with a `read` method that gives encoded bytes will do, too.
            top_k: how many labels to name.
            on_error: "raise" an ImageError for an image that cannot be read, or "skip" it, yielding a prediction whose
                `error` says why.
        """
        for batch in self.batches(images, top_k, on_error):
            yield from batch

    def batches(
        self,
        images: Iterable[Any],
        top_k: int = 5,
        on_error: Literal["raise", "skip"] = "raise",
        start: int = 0,
        first_id: int | None = None,
    ) -> Generator[list[Prediction], None, None]:
        """`stream`, a batch at a time; the state between two batches is that of the images so far.

        Args:
            images: from position `start` on.
            top_k: how many labels to name.
            on_error: "raise" or "skip".
            start: position of the first image in the whole stream.
            first_id: id of position 0 in the caches; ids are counted on from the state when not given.
        """
        for prepared in self._prepared(images):
            yield self._answer(prepared, top_k, on_error, start, first_id)
            start += len(prepared)

    def features(self, images: Iterable[Any]) -> Iterator[tuple[HostArray, list[str | None]]]:
        """Image features without classifying, a batch at a time.

        Yields:
            Features (n, d) of the readable images of a batch, and for every image of the batch the reason why it could
            not be read, or None.
        """
        for prepared in self._prepared(images):
            errors = [str(each) if isinstance(each, ImageError) else None for each in prepared]
            readable = [each for each in prepared if not isinstance(each, ImageError)]
            yield self.encoder.encode_images(readable) if readable else np.empty((0, self.encoder.dim)), errors

    def predict(self, images: Sequence[Any]) -> HostArray:
        """Labels (n,) of images, adapting unless frozen."""
        return np.array([prediction.label for prediction in self.stream(images, 1)])

    def predict_proba(self, images: Sequence[Any]) -> HostArray:
        """Probabilities (n, K) in the order of `classes_`, adapting unless frozen."""
        position = {label: i for i, label in enumerate(self.labels)}
        probs = np.zeros((len(images), len(self.labels)))
        for prediction in self.stream(images, len(self.labels)):
            for answer in prediction.top:
                probs[prediction.index, position[answer.label]] = answer.score
        return probs

    def add_labels(self, labels: Sequence[str]) -> None:
        """Add classes; what was learnt of the others stays."""
        names = clean_labels([*self.labels, *labels])[len(self.labels) :]
        self.adapter.add_classes(class_vectors(self.encoder, names, self.templates, self.cache), names)

    def remove_labels(self, labels: Sequence[str]) -> None:
        """Remove classes and what was learnt of them."""
        self.adapter.remove_classes(labels)

    def freeze(self) -> None:
        """Answer from what was learnt so far, and learn nothing more."""
        self.adapter.freeze()

    def unfreeze(self) -> None:
        """Learn again."""
        self.adapter.unfreeze()

    def reset(self) -> None:
        """Forget everything learnt."""
        self.adapter.reset()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was learnt to a state file, atomically."""
        save(self.adapter, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a state file; one of other labels, prompts, model or settings is refused."""
        self.adapter = load(path, like=self.adapter)

    def _prepared(self, images: Iterable[Any]) -> Iterator[list[Any]]:
        """Batches of prepared images, or ImageErrors in their places, read ahead in threads."""
        source = iter(images)
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="acclimate-read")
        pending: deque[list[Future[Any]]] = deque()
        try:
            while True:
                while len(pending) <= PREFETCH and (chunk := list(islice(source, self.batch_size))):
                    pending.append([pool.submit(self._read, image) for image in chunk])
                if not pending:
                    return
                yield [future.result() for future in pending.popleft()]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, image: Any) -> Any:
        """The prepared image, or the ImageError that says why there is none."""
        try:
            read: Callable[[], bytes] | None = getattr(image, "read", None)
            return self.encoder.prepare(open_image(read() if callable(read) else image))
        except ImageError as error:
            return error
        except OSError as error:
            return ImageError(error.strerror or str(error))

    def _answer(
        self, prepared: Sequence[Any], top_k: int, on_error: str, start: int, first_id: int | None
    ) -> list[Prediction]:
        failures = {i: each for i, each in enumerate(prepared) if isinstance(each, ImageError)}
        if failures and on_error == "raise":
            position, reason = next(iter(failures.items()))
            error = ImageError(f"image {start + position} cannot be read: {reason}")
            error.index = start + position
            raise error
        readable = [i for i in range(len(prepared)) if i not in failures]
        predictions = {i: Prediction(start + i, (), Answer("", 0.0), 0.0, str(error)) for i, error in failures.items()}
        if readable:
            adapter = self.adapter
            features = self.encoder.encode_images([prepared[i] for i in readable])
            evidence = observe(features, adapter.class_vectors, adapter.logit_scale, adapter.logit_bias)
            ids = None if first_id is None else np.array(readable) + start + first_id
            logits = adapter.adapt(evidence, ids)
            answers = predictions_from(self.labels, evidence, logits, top_k, [start + i for i in readable])
            predictions.update(zip(readable, answers, strict=True))
        return [predictions[i] for i in range(len(prepared))]


def predictions_from(
    labels: Sequence[str], evidence: Evidence, logits: Array, top_k: int, indices: Iterable[int]
) -> list[Prediction]:
    """What adapted logits say in words.

    Args:
        labels: K names.
        evidence: of B samples.
        logits: (B, K) adapted.
        top_k: how many labels to name.
        indices: the B samples' positions in the stream.
    """
    adapted, _ = softmax_and_entropy(to_host(logits))
    probs, entropies = to_host(evidence.probs), to_host(evidence.entropy)
    best = np.argsort(-adapted, axis=1, kind="stable")[:, :top_k]
    predictions = []
    for row, (index, zero_shot) in enumerate(zip(indices, probs.argmax(axis=1), strict=True)):
        top = tuple(Answer(labels[c], float(adapted[row, c])) for c in best[row])
        own = Answer(labels[zero_shot], float(probs[row, zero_shot]))
        predictions.append(Prediction(index, top, own, float(entropies[row])))
    return predictions


def _encoder(encoder: Any, device: str) -> Encoder:
    if isinstance(encoder, str):
        return load_encoder(encoder, device)
    if isinstance(encoder, tuple) and len(encoder) == 3:
        from acclimate.encoders.open_clip import OpenClipEncoder

        return OpenClipEncoder(*encoder)
    if isinstance(encoder, Encoder):
        return encoder
    members = ("dim", "logit_scale", "logit_bias", "fingerprint", "prepare", "encode_images", "encode_text")
    missing = [name for name in members if not hasattr(encoder, name)]
    raise InputError(f"{type(encoder).__name__} is no encoder: it lacks {', '.join(missing)}.")
