"""The one object a practitioner meets: an encoder, prompts and an adapter."""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from acclimate.arrays import HostArray, softmax_and_entropy, to_host
from acclimate.encoders import BUNDLED, Encoder, load_encoder
from acclimate.errors import ImageError, InputError
from acclimate.evidence import Head
from acclimate.methods import DEFAULT_METHOD, Adapter, create, find_method, load_state, require, save_state
from acclimate.predict import (
    Batch,
    Prediction,
    Preparer,
    adapt_batch,
    answer_again,
    default_workers,
    encode_ahead,
    predictions,
)
from acclimate.prompts import build_head, clean_labels
from acclimate.views import Kind
from acclimate.views.generated import Generator as ImageGenerator
from acclimate.views.generated import open_generator

OnError = Literal["raise", "skip"]


class Classifier:
    """Classifies images and adapts to them as it goes; `freeze` it to answer without learning.

    Args:
        labels: names of the classes, at least two to choose from.
        encoder: a model's name (see `load_encoder`; the bundled one needs no download), an object with the members of
            `Encoder`, or open_clip's (model, preprocess, tokenizer).
        method: name of the method; see `list_methods`.
        templates: prompts: a template with `{}`, several, callables, a dict of prompts per class, or the name of a set.
        views: per image: itself and `views - 1` other versions of it; the paper uses 64 on some datasets.
        views_kind: "augmix", "crop" or "diffusion" (see `acclimate.predict.Preparer`); what the method's paper uses
            when not given.
        generated: for diffusion views: a folder of generated images, `diffusers:MODEL`, or an object with the members
            of `acclimate.views.generated.Generator`.
        batch_size: images, counting views, encoded at once; answers do not depend on it beyond the encoder's rounding.
        workers: threads that read and prepare images.
        device: where the encoder runs, if it is given by name.
        cache: folder for encoded texts; the user's cache folder when not given, False for none.
        **settings: of the method.

    Examples:
        >>> import numpy as np
        >>> classifier = Classifier(["cat", "dog"])
        >>> red = np.full((32, 32, 3), (200, 0, 0), np.uint8)
        >>> sorted(answer["label"] for answer in classifier(red))
        ['cat', 'dog']
        >>> classifier.adapter.samples_seen
        1
    """

    def __init__(
        self,
        labels: Sequence[str],
        encoder: str | Encoder | tuple[Any, Any, Any] = BUNDLED,
        *,
        method: str = DEFAULT_METHOD,
        templates: Any = "single",
        views: int = 1,
        views_kind: Kind | None = None,
        generated: str | os.PathLike[str] | ImageGenerator | None = None,
        batch_size: int = 32,
        workers: int | None = None,
        device: str = "auto",
        cache: Path | Literal[False] | None = None,
        **settings: Any,
    ) -> None:
        if batch_size < 1 or views < 1:
            raise InputError(f"batch_size and views must be at least 1, got {batch_size} and {views}.")
        require(find_method(method), views=views > 1, text=True)
        self.encoder: Encoder = _encoder(encoder, device)
        self.templates, self.cache, self.views = templates, cache, views
        self.views_kind: Kind = views_kind or find_method(method).views_kind
        generator = None if generated is None else open_generator(generated, device)
        self._prepare = Preparer(self.encoder, views, kind=self.views_kind, generator=generator)
        self.batch_size, self.workers = batch_size, workers or default_workers()
        head = build_head(self.encoder, labels, templates, cache)
        if len(head) < 2:
            raise InputError(
                f"one label ({head.class_names[0]!r}) leaves nothing to choose; give at least two, such as 'other'."
            )
        text = self.encoder if "text" in find_method(method).needs else None  # not every model can be pickled
        self.adapter: Adapter = create(method, head, text=text, **settings)

    @property
    def head(self) -> Head:
        """The zero-shot classifier: class vectors, labels, logit scale and bias."""
        return self.adapter.head

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, in order."""
        return self.head.class_names

    @property
    def learns(self) -> bool:
        """Whether it learns from the images it is shown."""
        return self.adapter.kind == "online" and not self.adapter.frozen

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
        batches = self.batches(images if many else [images], top_k or len(self.labels), learn=adapt)
        found = [
            [{"label": answer.label, "score": answer.score} for answer in each.top]
            for batch in batches
            for each in batch
        ]
        return found if many else found[0]

    def stream(self, images: Iterable[Any], top_k: int = 5, on_error: OnError = "raise") -> Iterator[Prediction]:
        """Classify images in order as they arrive; reading and preparing run ahead in threads.

        Args:
            images: as for a call; objects with a `read` method that gives encoded bytes work, too.
            top_k: how many labels to name.
            on_error: "raise" an ImageError for an image that cannot be read, or "skip" it, yielding a prediction whose
                `error` says why.
        """
        for batch in self.batches(images, top_k, on_error):
            yield from batch

    def classify(self, images: Iterable[Any], top_k: int = 5, on_error: OnError = "raise") -> list[Prediction]:
        """Classify a finite collection of images: adapt to all of them, then answer each from everything learnt.

        The first images are answered as well as the last, and their order matters far less than online. Each prediction
        has the answer that `stream` would have given as `online`. While frozen, and for methods that learn nothing,
        that is the only answer. Features are kept in half precision until the end: 1 KB per image and view at 512
        dimensions.

        Args:
            images: as for `stream`, with an end.
            top_k: how many labels to name.
            on_error: as for `stream`.

        Examples:
            >>> import numpy as np
            >>> images = [np.full((32, 32, 3), shade, np.uint8) for shade in (0, 120, 250)]
            >>> [each.index for each in Classifier(["night", "day"]).classify(images)]
            [0, 1, 2]
        """
        kept: list[HostArray] = []
        batches = self.batches(images, top_k, on_error, keep=kept.append if self.learns else None)
        online = [prediction for batch in batches for prediction in batch]
        return list(answer_again(self.adapter, np.concatenate(kept), online, top_k)) if kept else online

    def batches(
        self,
        images: Iterable[Any],
        top_k: int = 5,
        on_error: OnError = "raise",
        *,
        start: int = 0,
        first_id: int | None = None,
        learn: bool = True,
        keep: Callable[[HostArray], None] | None = None,
    ) -> Generator[list[Prediction], None, None]:
        """`stream`, batch by batch; the state between two batches is that of the images so far.

        `start` is the position of the first image in a longer stream, and `first_id` the id of position 0 in the state;
        without it, ids are counted on from the state. With `learn` False, nothing is learnt. `keep` is called with the
        unit features, in half precision, of the images of each batch that could be read: (r, d) or (r, V, d).
        """
        for batch in self._encoded(images, on_error, start):
            failed = [
                Prediction(batch.start + place, name=name, error=error)
                for place, (name, error) in enumerate(zip(batch.names, batch.errors, strict=True))
                if error is not None
            ]
            answered = []
            if adapted := adapt_batch(self.adapter, batch, first_id, learn):
                readable = batch.readable
                names = [batch.names[index - batch.start] for index in readable]
                answered = predictions(self.head, adapted, top_k, readable, names)
                if keep is not None:
                    evidence = adapted.evidence
                    unit = evidence.features if evidence.views is None else evidence.views
                    keep(to_host(unit).astype(np.float16))
            yield sorted([*answered, *failed], key=lambda each: each.index)

    def predict(self, images: Sequence[Any]) -> HostArray:
        """Labels (n,) of images, adapting unless frozen."""
        return np.asarray(self.classes_[self.predict_proba(images).argmax(axis=1)])

    def predict_proba(self, images: Sequence[Any]) -> HostArray:
        """Probabilities (n, K) in the order of `classes_`, adapting unless frozen."""
        adapted = (adapt_batch(self.adapter, batch) for batch in self._encoded(images, "raise"))
        parts = [softmax_and_entropy(to_host(each.step.logits))[0] for each in adapted if each]
        return np.concatenate([np.empty((0, len(self.labels))), *parts])

    def add_labels(self, labels: Sequence[str]) -> None:
        """Add classes; what was learnt of the others stays."""
        new = clean_labels([*self.labels, *labels])[len(self.labels) :]
        head = build_head(self.encoder, new, self.templates, self.cache)
        self.adapter.add_classes(head.class_vectors, head.class_names)

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
        save_state(self.adapter, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a state file; one of other labels, prompts, model or settings is refused."""
        self.adapter = load_state(path, like=self.adapter)

    def _encoded(self, images: Iterable[Any], on_error: OnError, start: int = 0) -> Iterator[Batch]:
        """Encoded batches; with "raise", an image that cannot be read raises an ImageError."""
        options = {"batch_size": self.batch_size, "workers": self.workers, "start": start}
        for batch in encode_ahead(images, self._prepare, **options):
            for place, error in enumerate(batch.errors):
                if error is not None and on_error == "raise":
                    name = batch.names[place] or f"image {batch.start + place}"
                    raise ImageError(f"{name} cannot be read: {error}")
            yield batch


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
    raise InputError(f"{type(encoder).__name__} is not an encoder: it lacks {', '.join(missing)}.")
