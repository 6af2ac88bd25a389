"""The one object a practitioner meets: an encoder, prompts and an adapter."""

import os
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from acclimate.arrays import Array, HostArray, index, to_host
from acclimate.encoders import BUNDLED, Encoder, Precision, as_encoder
from acclimate.errors import InputError, nearest
from acclimate.evidence import Head
from acclimate.fitting import Fit, Fitting, Progress, load_fit, save_fit
from acclimate.methods import DEFAULT_METHOD, Adapter, Correction, create, find_method, load_fitted, require
from acclimate.methods.gates import Gate, NearDuplicates
from acclimate.methods.reject import THRESHOLD, Rejector
from acclimate.predict import NONE, Adapted, Prediction, adapt_batch, answer_again, batch_predictions, refuse_none
from acclimate.prompts import build_head, clean_labels, language_note, negative_vectors
from acclimate.prompts.templates import DEFAULT_SET, as_words
from acclimate.reading.walk import Batch, Decoder, OnError, Preparer, default_batch_size, encode_ahead, gpu_of
from acclimate.sources import each_image, is_one
from acclimate.views import Kind
from acclimate.views.generated import Generator as ImageGenerator
from acclimate.views.generated import open_generator


class Classifier:
    """Classifies images and adapts to them as it goes; `freeze` it to answer without learning.

    Few-shot methods do not learn as they go: `fit` them to labelled images first.

    Args:
        labels: names of the classes, at least two, or one with `reject`; those of the file when `fitted` is given.
        encoder: a model's name (see `load_encoder`; the bundled one needs no download), an object with the members of
            `Encoder`, or open_clip's (model, preprocess, tokenizer).
        method: name of the method, see `list_methods`; "accord" when not given.
        templates: prompts: a template with `{}`, several, callables, a dict of prompts per class, or the name of a set;
            "single" when not given.
        views: per image: itself and `views - 1` other versions of it; TDA's authors use 64 on some datasets.
        views_kind: of `acclimate.reading.walk.Preparer`; what the method's authors use when not given.
        generated: for diffusion views: a folder of generated images, `diffusers:MODEL`, or an object with the members
            of `acclimate.views.generated.Generator`.
        batch_size: images, counting views, encoded at once; 32, or 256 on a GPU, when not given. Answers do not depend
            on it beyond the encoder's rounding.
        workers: threads that read and prepare images; for a GPU, processes.
        device: where the encoder runs, if it is given by name. On a GPU, the adapter lives there, too.
        precision: of the encoder's image tower; see `load_encoder`.
        compile: compile the image tower; see `load_encoder`.
        decoder: what decodes JPEGs for a GPU; see `acclimate.reading.walk.Preparer`.
        cache: folder for encoded texts; the user's cache folder when not given, False for none.
        fitted: a file of a few-shot method that was fitted, from `acclimate fit` or `save`; method, settings, labels
            and prompts come from it. It must have been fitted with the same model.
        reject: recognise images that belong to no label: they are answered "none of these" and not learnt from.
        skip_duplicates: do not learn from images that are nearly the same as one of the last; for cameras.
        unsure: answers with a lower score are marked as unsure.
        progress: called while texts are encoded, with the stage ("encoding the labels", "encoding the negatives"), the
            prompts encoded since its last call, and their total.
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
        labels: Sequence[str] | None = None,
        encoder: str | Encoder | tuple[Any, Any, Any] = BUNDLED,
        *,
        method: str | None = None,
        templates: Any = None,
        views: int = 1,
        views_kind: Kind | None = None,
        generated: str | os.PathLike[str] | ImageGenerator | None = None,
        batch_size: int | None = None,
        workers: int | None = None,
        device: str = "auto",
        precision: Precision = "auto",
        compile: bool = False,
        decoder: Decoder = "auto",
        cache: Path | Literal[False] | None = None,
        fitted: str | os.PathLike[str] | None = None,
        reject: bool = False,
        skip_duplicates: bool = False,
        unsure: float = 0.0,
        progress: Progress = lambda stage, done, total: None,
        **settings: Any,
    ) -> None:
        if (batch_size is not None and batch_size < 1) or views < 1:
            raise InputError(f"batch_size and views must be at least 1, got {batch_size} and {views}.")
        if not 0 <= unsure <= 1:
            raise InputError(f"unsure is a score from 0 to 1, got {unsure}.")
        if fitted is None and labels is None:
            raise InputError("a classifier needs labels, or a fitted file that has them.")
        if fitted is not None and (method or settings):
            raise InputError("the method and its settings come from the fitted file; leave them out.")
        method = method or DEFAULT_METHOD
        require(find_method(method), views=views > 1, text=True, labels=True)
        self.encoder: Encoder = as_encoder(encoder, device, precision, compile)
        self.model = encoder if isinstance(encoder, str) else type(self.encoder).__name__
        self.cache = cache
        self.views = views
        self.batch_size = batch_size or default_batch_size(self.encoder)
        self.workers = workers
        # images that can be corrected by their ids
        self.unsure = unsure
        self._recent = Recent()
        self.gates: list[Gate] = [NearDuplicates()] if skip_duplicates else []
        self.about_fit: Mapping[str, Any] = {}  # what a few-shot method was fitted to
        self.adapter: Adapter
        if fitted is not None:
            ready, self.about_fit = load_fitted(fitted, self.encoder, self.model)
            self.adapter = ready
            method = ready.name
        self.views_kind: Kind = views_kind or find_method(method).views_kind
        generator = None if generated is None else open_generator(generated, device)
        self.preparer = Preparer(self.encoder, views, kind=self.views_kind, generator=generator, decoder=decoder)
        self.decoder = self.preparer.decoder  # that is used
        self.templates = templates or (DEFAULT_SET if fitted is None else self.about_fit.get("templates"))
        if fitted is None:
            text = self.encoder if "text" in find_method(method).needs else None  # not every model can be pickled
            self.adapter = create(method, self._head(labels or (), progress, reject), text=text, **settings)
        elif labels is not None and set(map(as_words, labels)) != set(map(as_words, self.labels)):
            ready.relabel(self._head(labels, progress, reject))
        elif templates is not None:
            raise InputError("the prompts of these labels come from the fitted file; leave the templates out.")
        if (gpu := gpu_of(self.encoder)) is not None:
            import torch

            self.adapter.to(torch.empty(0, dtype=torch.float32, device=gpu))
        if reject:
            refuse_none(self.labels)
            negatives = negative_vectors(self.encoder, cache, partial(progress, "encoding the negatives"))
            self.gates.insert(0, Rejector(self.head, negatives))  # what is foreign is not remembered as a duplicate

    def __repr__(self) -> str:
        named = ", ".join(map(repr, self.labels[:5])) + (", ..." if len(self.labels) > 5 else "")
        does = "learns" if self.learns else "frozen" if self.adapter.frozen else "does not learn from the stream"
        about = f"model={self.model!r}, method={self.adapter.name!r}, images seen: {self.adapter.samples_seen}, {does}"
        about += (", reject=True" if self.rejects else "") + (f", unsure={self.unsure:g}" if self.unsure else "")
        return f"Classifier({len(self.labels)} {'label' if len(self.labels) == 1 else 'labels'}: {named}; {about})"

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
    def rejects(self) -> bool:
        """Whether images that belong to no label are answered "none of these"."""
        return any(isinstance(gate, Rejector) for gate in self.gates)

    @property
    def classes_(self) -> HostArray:
        """The classes as scikit-learn names them."""
        return np.array(self.labels)

    def fit(
        self,
        images: Sequence[Any],
        labels: Sequence[str],
        *,
        validation: tuple[Sequence[Any], Sequence[str]] | None = None,
        views: int = 1,
        on_error: OnError = "raise",
        progress: Progress = lambda stage, done, total: None,
    ) -> Fit:
        """Fit a few-shot method to labelled images, replacing any earlier fit.

        Args:
            images: n images, as for a call; every class needs at least one.
            labels: n names of classes.
            validation: other images and their labels, for methods that choose settings by them.
            views: versions of each image to fit to: itself and `views - 1` random crops. Answers use one view.
            on_error: "skip" to leave out images that cannot be read.
            progress: called with the stage ("encoding", "fitting"), steps done since its last call, and their total.

        Examples:
            >>> import numpy as np
            >>> shades = [np.full((32, 32, 3), shade, np.uint8) for shade in (0, 20, 240, 250)]
            >>> classifier = Classifier(["dark", "bright"], method="tip-adapter", alpha=20.0)
            >>> classifier.fit(shades, ["dark", "dark", "bright", "bright"]).samples
            4
            >>> classifier(np.full((32, 32, 3), 10, np.uint8))[0]["label"]
            'dark'
        """
        reading: dict[str, Any] = {"batch_size": self.batch_size, "workers": self.workers, "on_error": on_error}
        prepare = partial(Preparer, self.encoder, kind=self.adapter.views_kind, decoder=self.decoder)
        work = Fitting(self.adapter, self.encoder, self.model, prepare, reading, progress)
        fit, self.about_fit = work.fit(images, labels, validation or ((), ()), views, self.templates)
        return fit

    def __call__(self, images: Any, top_k: int | None = None, adapt: bool = True) -> list[Any]:
        """Classify one image, or many.

        It learns from them: the same image can be answered differently the next time. `adapt=False` only answers.

        Args:
            images: a path, Pillow image, array or tensor (h, w, c) or (c, h, w), or encoded bytes; or many: a folder, a
                glob pattern or another source (see `acclimate.sources.open_source`), a list of any of these, or an
                array of images.
            top_k: how many answers to name; all when not given.
            adapt: learn from these images (never while frozen).

        Returns:
            `[{"label": ..., "score": ...}]` sorted by score, as transformers does; a list of such for many.
        """
        batches = self.batches(images, top_k or len(self.labels) + self.rejects, learn=adapt)
        answers = (each.top for batch in batches for each in batch)
        found = [[{"label": answer.label, "score": answer.score} for answer in top] for top in answers]
        return found[0] if is_one(images) else found

    def stream(self, images: Any, top_k: int = 5, on_error: OnError = "raise") -> Iterator[Prediction]:
        """Classify images in order as they arrive; reading and preparing run ahead in threads.

        Args:
            images: as for a call, or any iterable of such, which is read as it goes; objects with a `read` method that
                gives encoded bytes work, too.
            top_k: how many labels to name.
            on_error: "raise" an ImageError for an image that cannot be read, or "skip" it, yielding a prediction whose
                `error` says why.
        """
        for batch in self.batches(images, top_k, on_error):
            yield from batch

    def classify(self, images: Any, top_k: int = 5, on_error: OnError = "raise") -> list[Prediction]:
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
        return list(answer_again(self.adapter, np.concatenate(kept), online, top_k, self.unsure)) if kept else online

    def batches(
        self,
        images: Any,
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
            adapted = adapt_batch(self.adapter, batch, first_id, learn, self.gates)
            if adapted is not None:
                self._recent.add(adapted, [batch.names[index - batch.start] for index in batch.readable])
                if keep is not None:
                    keep(adapted.half)
            yield batch_predictions(self.head, batch, adapted, top_k, self.unsure)

    def predict(self, images: Any, adapt: bool = True) -> HostArray:
        """Labels (n,) of images, "none of these" for those that belong to no label.

        As in a call, it learns from them, unlike scikit-learn, unless `adapt` is False.
        """
        probs = self.predict_proba(images, adapt)
        labels = np.asarray(self.classes_[probs.argmax(axis=1)])
        return np.where(probs.sum(axis=1) <= 1 - THRESHOLD, NONE, labels) if self.rejects else labels

    def predict_proba(self, images: Any, adapt: bool = True) -> HostArray:
        """Probabilities (n, K) in the order of `classes_`. Learns from the images, unless `adapt` is False.

        Where images may belong to no label, the sum of a row is the probability that the image belongs to one.

        Examples:
            >>> Classifier(["night", "day"]).predict_proba(np.zeros((5, 32, 32, 3), np.uint8), adapt=False).shape
            (5, 2)
        """
        batches = self._encoded(images, "raise")
        found = (adapt_batch(self.adapter, batch, learn=adapt, gates=self.gates) for batch in batches)
        return np.concatenate([np.empty((0, len(self.labels))), *(each.probs for each in found if each)])

    def correct(self, image_or_id: Any, label: str) -> int:
        """Tell the label of an image, even while frozen; returns the id of the correction. See `Adapter.correct`.

        Args:
            image_or_id: an image as for a call, or the `Prediction.id` of one of the last 1000 that were learnt from.
            label: the right one; the one that was answered confirms the answer.

        Examples:
            >>> image, classifier = np.full((32, 32, 3), 20, np.uint8), Classifier(["night", "day"])
            >>> id = classifier.correct(image, "day")
            >>> classifier(image)[0]["label"]
            'day'
        """
        if label not in self.labels:
            raise InputError(f"no class is named {label!r}; {nearest(str(label), self.labels)}")
        place = [self.labels.index(label)]
        if not isinstance(image_or_id, (int, np.integer)):
            plain = Preparer(self.encoder, decoder=self.decoder)
            [batch] = encode_ahead([image_or_id], plain, batch_size=1, workers=1, on_error="raise")
            return self.adapter.correct(batch.features, place, names=batch.names)[0]
        name, feature = self._recent.find(int(image_or_id))
        return self.adapter.correct(feature[None], place, ids=[int(image_or_id)], names=[name])[0]

    def undo(self, id: int) -> None:
        """Take a correction back, as if it had never been made."""
        self.adapter.undo([id])

    @property
    def corrections(self) -> list[Correction]:
        """The images whose label was told, sorted by id."""
        return self.adapter.corrections

    def add_labels(self, labels: Sequence[str]) -> None:
        """Add classes; what was learnt of the others stays."""
        if self.templates is None:
            raise InputError("the prompts of the fitted file are not known, so no label can be added; fit again.")
        new = clean_labels([*self.labels, *labels])[len(self.labels) :]
        refuse_none(new if self.rejects else ())
        head = build_head(self.encoder, new, self.templates, self.cache)
        self.adapter.add_classes(head.class_vectors, head.class_names)
        for gate in self.gates:
            gate.relabel(self.head)

    def remove_labels(self, labels: Sequence[str]) -> None:
        """Remove classes and what was learnt of them."""
        self.adapter.remove_classes(labels)
        for gate in self.gates:
            gate.relabel(self.head)

    def freeze(self) -> None:
        """Answer from what was learnt so far, and learn nothing more."""
        self.adapter.freeze()

    def unfreeze(self) -> None:
        """Learn again."""
        self.adapter.unfreeze()

    def reset(self) -> None:
        """Forget everything learnt."""
        self.adapter.reset()
        self._begin({})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was learnt, or what a few-shot method was fitted to, to a state file, atomically."""
        save_fit(self.adapter, path, self.encoder, self.decoder, self.about_fit)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a state file; one of other labels, prompts, model or settings is refused."""
        self.adapter, about_fit = load_fit(path, like=self.adapter)
        self._begin(about_fit)

    def _head(self, labels: Sequence[str], progress: Progress, reject: bool) -> Head:
        shown = partial(progress, "encoding the labels")
        head = build_head(self.encoder, labels, self.templates or DEFAULT_SET, self.cache, shown)
        if len(head) < 2 and not reject:
            how = "give at least two, or pass --none-of-these (in Python reject=True) to ask which images show it"
            raise InputError(f"one label ({head.class_names[0]!r}) leaves nothing to choose; {how}.")
        if self.model == BUNDLED and (note := language_note(head.class_names)):
            warnings.warn(note, stacklevel=3)
        return head

    def _begin(self, about_fit: Mapping[str, Any]) -> None:
        """Forget the images of the stream so far."""
        self.about_fit = about_fit
        self._recent = Recent()
        for gate in self.gates:
            gate.restore("")

    def _encoded(self, images: Any, on_error: OnError, start: int = 0) -> Iterator[Batch]:
        reading: dict[str, Any] = {"batch_size": self.batch_size, "workers": self.workers, "on_error": on_error}
        return encode_ahead(each_image(images), self.preparer, start=start, **reading)


class Recent:
    """Names and features of the last images that were learnt from.

    Args:
        most: how many of them.
    """

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        # id -> name, features of a batch (n, d) where they live, and row; the latest last
        self._images: dict[int, tuple[str, Array, int]] = {}

    def add(self, adapted: Adapted, names: Sequence[str]) -> None:
        """Remember the images of a batch of B that were learnt from; `names` are those of all."""
        if adapted.ids is None:
            return
        learnt = np.flatnonzero(adapted.ids >= 0)[-self.most :]
        features = adapted.evidence.original_view
        features = features[index(learnt, features)]
        for row, place in enumerate(learnt.tolist()):
            id = int(adapted.ids[place])
            self._images.pop(id, None)
            self._images[id] = names[place], features, row
        for id in list(self._images)[: -self.most]:
            del self._images[id]

    def find(self, id: int) -> tuple[str, HostArray]:
        """The name and the feature (d,) of an image; InputError if it is not among the last."""
        if id not in self._images:
            raise InputError(f"no image with the id {id} was learnt from recently; pass the image instead.")
        name, features, row = self._images[id]
        return name, to_host(features[row])
