"""The one object a practitioner meets: an encoder, prompts and an adapter."""

import json
import os
import pickle
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, overload

import numpy as np
from PIL import Image

from acclimate.arrays import HostArray, to_host
from acclimate.encoders import BUNDLED, Encoder, Precision, as_encoder
from acclimate.errors import ImageError, InputError, ModelError, StateError, as_words, nearest
from acclimate.evidence import Head
from acclimate.files import read_snapshot
from acclimate.methods import (
    DEFAULT_METHOD,
    MODEL,
    NOTE,
    Adapter,
    Correction,
    FewShot,
    create,
    find_method,
    fit_note,
    load_fitted,
    load_with_notes,
    read_head,
    require,
    save_state,
    takes_kinds,
)
from acclimate.methods.exclusive import Turn, exclusive
from acclimate.methods.gates import Gate, NearDuplicates, Rejector, dump_gates, restore_gates
from acclimate.predict import Prediction, Predictions, SecondAnswers, adapt_batch, refuse_none
from acclimate.prompts import (
    LearnedPrompts,
    build_head,
    clean_labels,
    language_note,
    negative_vectors,
)
from acclimate.prompts.templates import DEFAULT_SET
from acclimate.reading.walk import (
    Decoder,
    OnError,
    Preparer,
    default_batch_size,
    encode_ahead,
    gpu_of,
    precision_of,
)
from acclimate.run import Batch, Run, is_run
from acclimate.sources import each_image, is_one
from acclimate.views import Kind
from acclimate.views.generated import Generator as ImageGenerator
from acclimate.views.generated import open_generator

OneImage: TypeAlias = str | os.PathLike[str] | bytes | Image.Image
SAVED = "classifier"  # the note of a state that holds the arguments of the classifier
ARGUMENTS = ("templates", "views", "views_kind", "expand", "unsure")  # attributes that it holds
GATES = "gates"  # the note of a state that holds what the gates remember
RECENT_IMAGES = 1000  # images that can be corrected by their ids
Progress = Callable[[str, int, int], None]  # the stage, the steps done since the last call, and their total


class Scored(TypedDict):
    """A label with its score."""

    label: str
    score: float


class Fit(NamedTuple):
    """The outcome of `Classifier.fit`."""

    samples: int  # images it was fitted to
    skipped: list[tuple[str, str]]  # names of images that could not be read, and the reasons
    validation: int  # validation images
    accuracy: dict[str, float]  # accuracy of zero-shot and of the method on these; empty without such images


class Classifier:
    """Classifies images and adapts to them as it goes; `freeze` it to answer without learning.

    Few-shot methods do not learn as they go: `fit` them to labelled images first.

    Threads may share a classifier: they encode at the same time, and each batch of images is answered and learnt by one
    of them. Labels must not change while another thread is in `classify`. A classifier can be pickled and copied; the
    copy learns by itself. A model that was loaded by name is loaded again where it is unpickled, and copies share it.

    Args:
        labels: names of the classes, at least two, or one with `reject`; those of the file when `fitted` is given; or a
            `Head` of the same model, whose class vectors are taken as they are.
        encoder: a model's name (see `load_encoder`; the bundled one needs no download), an object with the members of
            `Encoder`, open_clip's (model, preprocess, tokenizer), or transformers' (model, processor) or pipeline.
        method: name of the method, see `list_methods`; "accord" when not given.
        templates: prompts: a template with `{}`, several, callables, a dict of prompts per class, or the name of a set;
            "single" when not given.
        views: number of views per image: itself and `views - 1` other versions; TDA's authors use 64 on some datasets.
        views_kind: see `acclimate.reading.walk.Preparer`; the kind that the method's authors use when not given.
        generated: for diffusion views: a folder of generated images, `diffusers:MODEL`, or an object with the members
            of `acclimate.views.generated.Generator`.
        batch_size: images, counting views, encoded at once; 32, or 256 on a GPU, when not given. Answers do not depend
            on it beyond the encoder's rounding.
        workers: threads that read and prepare images; for a GPU, processes.
        device: where the encoder runs, if it is given by name. On a GPU, the adapter lives there, too.
        precision: precision of the encoder's image tower; see `load_encoder`.
        compile: compile the image tower; see `load_encoder`.
        decoder: what decodes JPEGs for a GPU; see `acclimate.reading.walk.Preparer`.
        cache: folder for encoded texts; the user's cache folder when not given, False for none.
        fitted: a file of a few-shot method that was fitted, from `acclimate fit` or `save`; method, settings, labels
            and prompts come from it. It must have been fitted with the same model.
        expand: answer broad labels, such as "mammal" or "vehicle", through everyday nouns below them; see
            `build_head`. Few-shot methods, and those that learn prompts, have labels as they are.
        reject: recognise images that belong to no label: they are answered "none of these" and not learnt from.
        skip_duplicates: do not learn from images that are nearly the same as one of the last; for cameras.
        unsure: answers with a lower score are marked as unsure.
        progress: called while texts are encoded, with the stage ("encoding the labels", "encoding the negatives"), the
            prompts encoded since its last call, and their total.
        **settings: settings of the method.

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
        labels: Sequence[str] | Head | None = None,
        encoder: str | Encoder | tuple[Any, ...] = BUNDLED,
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
        expand: bool = True,
        reject: bool = False,
        skip_duplicates: bool = False,
        unsure: float = 0.0,
        progress: Progress = lambda stage, done, total: None,
        **settings: Any,
    ) -> None:
        _check_arguments(labels, batch_size, views, unsure, fitted is not None, bool(method or settings))
        method = method or DEFAULT_METHOD
        require(find_method(method), views=views > 1, text=True, labels=True)
        self.expand = expand and fitted is None and takes_kinds(find_method(method))
        self.turn = Turn()  # a thread holds it while it reads or changes what was learnt
        self.encoder: Encoder = as_encoder(encoder, device, precision, compile)
        self.model = encoder if isinstance(encoder, str) else type(self.encoder).__name__
        self.cache = cache
        self.views = views
        self.batch_size = batch_size or default_batch_size(self.encoder)
        self.workers = workers
        self.unsure = unsure
        self.gates: list[Gate] = [NearDuplicates()] if skip_duplicates else []
        self.about_fit: Mapping[str, Any] = {}  # the note of a fitted file
        self._recent: dict[int, tuple[str, HostArray]] = {}  # id -> name and feature (d,) of images learnt from
        fit: FewShot | None = None
        if fitted is not None:
            fit, self.about_fit = load_fitted(fitted, self.encoder, self.model)
        self.views_kind: Kind = views_kind or (fit or find_method(method)).views_kind
        generator = None if generated is None else open_generator(generated, device)
        self.preparer = Preparer(self.encoder, views, kind=self.views_kind, generator=generator, decoder=decoder)
        self.decoder = self.preparer.decoder  # the one that is used
        self.templates = templates or (DEFAULT_SET if fit is None else self.about_fit.get("templates"))
        new_head = partial(self._head, progress=progress, reject=reject)
        if fit is None:
            self.adapter: Adapter = create(method, new_head(labels or ()), self.encoder, **settings)
        else:
            self.adapter = fit
            new = () if labels is None else labels.class_names if isinstance(labels, Head) else labels
            if labels is not None and set(map(as_words, new)) != set(map(as_words, self.labels)):
                fit.relabel(new_head(labels))
            elif templates is not None:
                raise InputError("the prompts of these labels come from the fitted file; leave the templates out.")
        self._begin(reject, progress)

    @exclusive
    def __deepcopy__(self, memo: dict[int, Any]) -> "Classifier":
        twin = object.__new__(type(self))
        shared = (self.encoder, self.preparer.generator, self.head)
        memo.update({id(self): twin} | {id(each): each for each in shared})
        vars(twin).update(deepcopy(vars(self), memo))
        return twin

    @exclusive
    def __getstate__(self) -> dict[str, Any]:
        for model in (self.encoder, self.preparer.generator):
            try:
                getattr(model, "loaded_from", ()) or pickle.dumps(model)
            except Exception as error:  # pickle raises whatever the object raises
                raise ModelError(
                    f"this classifier cannot be pickled, as its {type(model).__name__} cannot: {error}. Load the model "
                    "by its name."
                ) from error
        return vars(self) | {"_recent": dict(self._recent)}

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
        """True if it learns from the images it is shown."""
        return self.adapter.kind == "online" and not self.adapter.frozen

    @property
    def answers_twice(self) -> bool:
        """True if images that have an end are answered again: from everything learnt, or as a collection."""
        return self.learns or self.adapter.kind == "collection"

    @property
    def rejects(self) -> bool:
        """True if images that belong to no label are answered "none of these"."""
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
        adapter = self.adapter
        if not isinstance(adapter, FewShot):
            raise InputError(f"the method {adapter.name!r} learns without labels; there is nothing to fit.")
        held_images, held_labels = validation or ((), ())
        classes = self._class_indices(images, labels)
        held_classes = self._class_indices(held_images, held_labels)
        adapter.require_every_class(classes)
        read = partial(self._features, on_error=on_error, progress=progress, total=len(images) + len(held_images))
        features, fitted_to, skipped = read(images, classes, views)
        held_features, truth, held_skipped = read(held_images, held_classes, 1)
        if lost := set(classes.tolist()) - set(fitted_to.tolist()):
            name, why = skipped[0]
            raise ImageError(
                f"none of the images of {self.labels[min(lost)]!r} can be read. The first of {len(skipped)} unreadable "
                f"images is {name}: {why}"
            )
        steps = adapter.fit_steps(len(fitted_to), len(truth))
        held = (held_features, truth) if len(truth) else None
        adapter.fit(features, fitted_to, validation=held, progress=lambda done: progress("fitting", done, steps))
        self.about_fit = self._describe_fit(np.bincount(fitted_to))
        accuracy = {}
        if len(truth):
            answers = {
                "zero-shot": adapter.head.observe(held_features).logits,
                adapter.name: adapter.step(held_features),
            }
            accuracy = {name: float((to_host(each).argmax(axis=1) == truth).mean()) for name, each in answers.items()}
        return Fit(len(fitted_to), skipped + held_skipped, len(truth), accuracy)

    @overload
    def __call__(self, images: OneImage, top_k: int | None = ..., adapt: bool = ...) -> list[Scored]: ...
    @overload
    def __call__(
        self, images: list[Any] | tuple[Any, ...], top_k: int | None = ..., adapt: bool = ...
    ) -> list[list[Scored]]: ...
    @overload
    def __call__(self, images: Any, top_k: int | None = ..., adapt: bool = ...) -> list[Any]: ...
    def __call__(self, images: Any, top_k: int | None = None, adapt: bool = True) -> list[Any]:
        """Classify one image, or many.

        It learns from them: the same image can be answered differently the next time. `adapt=False` only answers.

        Args:
            images: a path, Pillow image, array or tensor (h, w, c) or (c, h, w), or encoded bytes; or many: a folder, a
                glob pattern or another source (see `acclimate.sources.open_source`), a list of any of these, an array
                of images, or rows, tuples and batches that hold images (see `acclimate.sources.rows.images_in`).
            top_k: how many answers to name; all when not given.
            adapt: learn from these images (never while frozen).

        Returns:
            `[{"label": ..., "score": ...}]` sorted by score, as transformers does; a list of such for many. To type
            checkers, a path is that of one image; `classify` takes folders.
        """
        batches = self.batches(images, top_k or len(self.labels) + self.rejects, learn=adapt)
        found = [[Scored(label=x.label, score=x.score) for x in each.top] for batch in batches for each in batch]
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
        that is the only answer; a method that answers collections does so in any case. Features are kept as float16
        until the end: 1 KB per image and view at 512 dimensions.

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
        found = []
        for batch in self.encoded(images, on_error):
            kept.append(to_host(batch.features))
            found.append(self.answer(batch, top_k))
        if self.answers_twice and any(map(len, kept)):
            answers = SecondAnswers(self.adapter, np.concatenate([each for each in kept if len(each)]), top_k)
            found = [block.answered_again(answers, top_k, self.unsure) for block in found]
        return [prediction for block in found for prediction in block]

    def batches(
        self, images: Any, top_k: int = 5, on_error: OnError = "raise", *, learn: bool = True
    ) -> Iterator[Predictions]:
        """Classify as `stream` does, batch by batch; the state between two batches is that of the images so far.

        With `learn` False, nothing is learnt.
        """
        with closing(self.encoded(images, on_error)) as encoded:
            for batch in encoded:
                yield self.answer(batch, top_k, learn=learn)

    def encoded(self, images: Any, on_error: OnError = "raise", start: int = 0) -> Generator[Batch, None, None]:
        """Encode images batch by batch; those of a run are there already, and only the batches of a run are its own.

        `start` is the position of the first image in a longer stream.
        """
        if isinstance(images, (str, os.PathLike)) and is_run(images):
            run = self.check_run(Run.open(images))
            run.check_whole()
            yield from run.batches()
            return
        yield from encode_ahead(
            each_image(images),
            self.preparer,
            start=start,
            batch_size=self.batch_size,
            workers=self.workers,
            on_error=on_error,
        )

    def check_run(self, run: Run) -> Run:
        """Return a run if its features were made as this classifier makes them; else raise an `InputError`."""
        ours = self.about_features
        known = {name: run.features.get(name) for name in ("fingerprint", "views", "views_kind", "dim")}
        for name, value in known.items():
            if value != ours[name]:
                was = f"another model ({run.features.get('model')})" if name == "fingerprint" else f"{name} {value}"
                raise InputError(
                    f"the features of {run.path} were made with {was}; name the same, or encode the images."
                )
        return run

    @property
    def about_features(self) -> dict[str, Any]:
        """Model and settings of reading that features are made with."""
        return {"model": self.model, **self.preparer.about}

    @exclusive
    def answer(self, batch: Batch, top_k: int = 5, *, first_id: int | None = None, learn: bool = True) -> Predictions:
        """Answer an encoded batch, and learn from it; `first_id` is the id of position 0 in the state.

        Without it, ids are counted on from the state.
        """
        found, evidence = adapt_batch(
            self.adapter, batch, top_k, self.unsure, first_id=first_id, learn=learn, gates=self.gates
        )
        if evidence is not None:
            features = iter(to_host(evidence.original_view))
            for id, name, error in zip(found.ids.tolist(), found.names, found.errors, strict=True):
                feature = None if error else next(features)
                if id >= 0 and feature is not None:
                    self._recent[id] = (name, feature)
            for id in list(self._recent)[:-RECENT_IMAGES]:
                del self._recent[id]
        return found

    def predict(self, images: Any, adapt: bool = True) -> HostArray:
        """Return the labels (n,) of images, "none of these" for those that belong to no label.

        As in a call, it learns from them, unlike scikit-learn, unless `adapt` is False.
        """
        found = [np.array(batch.labels)[batch.classes[:, 0]] for batch in self.batches(images, 1, learn=adapt)]
        return np.concatenate([self.classes_[:0], *found])

    def predict_proba(self, images: Any, adapt: bool = True) -> HostArray:
        """Return probabilities (n, K) in the order of `classes_`. Learns from the images, unless `adapt` is False.

        Where images may belong to no label, the sum of a row is the probability that the image belongs to one.

        Examples:
            >>> Classifier(["night", "day"]).predict_proba(np.zeros((5, 32, 32, 3), np.uint8), adapt=False).shape
            (5, 2)
        """
        batches = self.batches(images, len(self.labels) + self.rejects, learn=adapt)
        return np.concatenate([np.empty((0, len(self.labels))), *(batch.probs for batch in batches)])

    @exclusive
    def correct(self, image_or_id: Any, label: str) -> int:
        """Correct the label of an image, even while frozen; returns the id of the correction.

        See `Adapter.corrections`.

        Args:
            image_or_id: an image as for a call, or the `Prediction.id` of one of the last 1000 that were learnt from.
            label: the right one; the one that was answered confirms the answer.

        Examples:
            >>> image, classifier = np.full((32, 32, 3), 20, np.uint8), Classifier(["night", "day"])
            >>> id = classifier.correct(image, "day")
            >>> classifier(image)[0]["label"]
            'day'
        """
        label_index = self._class_indices([image_or_id], [label]).tolist()
        if not isinstance(image_or_id, (int, np.integer)):
            one_view = Preparer(self.encoder, decoder=self.decoder)
            [batch] = encode_ahead([image_or_id], one_view, batch_size=1, workers=1, on_error="raise")
            return self.adapter.corrections.correct(batch.features, label_index, names=batch.names)[0]
        id = int(image_or_id)
        if id not in self._recent:
            raise InputError(f"no image with the id {id} was learnt from recently; pass the image instead.")
        name, feature = self._recent[id]
        return self.adapter.corrections.correct(feature[None], label_index, ids=[id], names=[name])[0]

    @exclusive
    def undo(self, id: int) -> None:
        """Take a correction back, as if it had never been made."""
        self.adapter.corrections.undo([id])

    @property
    def corrections(self) -> list[Correction]:
        """The corrections, sorted by id."""
        return list(self.adapter.corrections)

    @exclusive
    def add_labels(self, labels: Sequence[str]) -> None:
        """Add classes; what was learnt of the others stays."""
        if self.templates is None:
            raise InputError("the prompts of the labels are not in the file, so no label can be added; begin anew.")
        every = clean_labels([*self.labels, *labels])
        refuse_none(every if self.rejects else ())
        self._relabel(every)

    @exclusive
    def remove_labels(self, labels: Sequence[str]) -> None:
        """Remove classes and what was learnt of them."""
        self._relabel(self.head.remove(labels).class_names)

    def freeze(self) -> None:
        """Answer from what was learnt so far, and learn nothing more."""
        self.adapter.freeze()

    def unfreeze(self) -> None:
        """Learn again."""
        self.adapter.unfreeze()

    @exclusive
    def reset(self) -> None:
        """Forget everything learnt."""
        self.adapter.reset()
        restore_gates(self.gates, {}, "nothing")
        self._recent.clear()
        self.about_fit = {}

    @property
    def notes(self) -> dict[str, Any]:
        """The notes that a state file carries: the model that made the features, what `load` needs, and on a fit."""
        notes = {MODEL: self.encoder.fingerprint, "decoder": self.decoder, "precision": precision_of(self.encoder)}
        fit = {NOTE: self.about_fit} if self.about_fit else {}
        return notes | {GATES: dump_gates(self.gates), SAVED: self._arguments()} | fit

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of the classifier that a file can hold, but those of its adapter."""
        duplicates = any(isinstance(gate, NearDuplicates) for gate in self.gates)
        arguments = {"reject": self.rejects, "skip_duplicates": duplicates}
        if name := getattr(self.encoder, "loaded_from", ()):
            arguments["encoder"] = name[0]
        for name in ARGUMENTS:
            with suppress(TypeError):  # functions cannot be written to a file
                arguments[name] = json.loads(json.dumps(getattr(self, name)))
        return arguments

    @exclusive
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was learnt, or what a few-shot method was fitted to, to a state file, atomically."""
        save_state(self.adapter, path, self.notes)

    @classmethod
    def load(cls, path: str | os.PathLike[str], encoder: Any = None, **arguments: Any) -> "Classifier":
        """Make a classifier from a file that `save` wrote; it continues from there, bit for bit.

        Args:
            path: the file.
            encoder: the model, as for the class; the one whose name is in the file when not given.
            **arguments: arguments of the class that differ from those of the classifier that was saved, or that a file
                cannot hold: templates that are functions, how the model runs (`device`, `precision`), `cache`.

        Raises:
            StateError: the file was not saved by a classifier, or was made with another model.

        Examples:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     Classifier(["night", "day"]).save(f"{folder}/sky.safetensors")
            ...     Classifier.load(f"{folder}/sky.safetensors").labels
            ('night', 'day')
        """
        tensors, description = read_snapshot(path)
        head = read_head(tensors, description, path)
        notes = description["notes"]
        if not isinstance(notes.get(SAVED), dict):
            raise StateError(f"{path} was not saved by a Classifier; make one of its labels, and `continue_from` it.")
        model = encoder or notes[SAVED].get("encoder")
        if model is None:
            raise InputError(f"the model of {path} was not loaded by name; pass it as encoder=.")
        names = {*ARGUMENTS, "reject", "skip_duplicates"}
        arguments = {name: value for name, value in notes[SAVED].items() if name in names} | arguments
        if notes.get(NOTE):
            del arguments["templates"]
            classifier = cls(None, model, fitted=path, **arguments)
        else:
            templates = arguments.get("templates")
            arguments = description["settings"] | arguments
            classifier = cls(head, model, method=description["method"], **arguments)
            classifier.templates = templates
        if len({notes.get(MODEL), classifier.encoder.fingerprint} - {None, ""}) > 1:
            raise StateError(f"{path} was made with another model than {classifier.model!r}; load that one.")
        classifier.continue_from(path)
        return classifier

    @exclusive
    def continue_from(self, path: str | os.PathLike[str]) -> None:
        """Continue from a state file; one of other prompts, model or settings is refused.

        Where the labels have changed since, what was learnt of those that remain is kept, with the corrections to them;
        a warning says what changed.
        """
        head = read_head(*read_snapshot(path), path)
        changed = head.class_names != self.labels and self._is_like(head)
        like = create(self.adapter.name, head, self.encoder, **self.adapter.settings) if changed else self.adapter
        adapter, notes = load_with_notes(path, like=like)
        if changed:
            found = {"new": set(self.labels) - {*head.class_names}, "gone": {*head.class_names} - set(self.labels)}
            named = "".join(f"; {what}: {', '.join(sorted(each)[:10])}" for what, each in found.items() if each)
            about = named or "; their order is another"
            warnings.warn(f"the labels have changed since {path}{about}. What was learnt is kept.", stacklevel=3)
            adapter.replace_head(self.head)
        restore_gates(self.gates, notes.get(GATES, {}), path)
        self.adapter = adapter
        self._recent.clear()
        self.about_fit = fit_note(notes)

    def _is_like(self, head: Head) -> bool:
        """Return True if a head has some of the labels, with the same vectors unless they are broad."""
        shared = [name for name in self.labels if name in head.class_names]
        alike = [name for name in shared if name not in head.expanded and name not in self.head.expanded]
        about = ((each.dim, each.logit_scale, each.logit_bias) for each in (self.head, head))
        if not shared or len({*about}) > 1 or self.adapter.kind == "few-shot":
            return False
        ours, theirs = (
            to_host(each.class_vectors)[[each.class_names.index(name) for name in alike]] for each in (self.head, head)
        )
        return np.allclose(ours, theirs, atol=1e-4)

    def _head(self, labels: Sequence[str] | Head, progress: Progress, reject: bool) -> Head:
        if isinstance(labels, Head):
            return labels
        head = self._build(labels, progress=partial(progress, "encoding the labels"))
        if len(head) < 2 and not reject:
            how = "give at least two, or pass --none-of-these (in Python reject=True) to ask which images show it"
            raise InputError(f"one label ({head.class_names[0]!r}) leaves nothing to choose; {how}.")
        if self.model == BUNDLED and (note := language_note(head.class_names)):
            warnings.warn(note, stacklevel=3)
        return head

    def _build(self, labels: Sequence[str], **options: Any) -> Head:
        templates = self.templates or DEFAULT_SET
        return build_head(self.encoder, labels, templates, self.cache, expand=self.expand, **options)

    def _relabel(self, labels: Sequence[str]) -> None:
        """Let everything that depends on the labels follow them; what broad ones mean depends on all of them."""
        self.adapter.replace_head(self._build(labels, known=self.head).to(self.head.class_vectors))
        for gate in self.gates:
            gate.relabel(self.head)

    def _begin(self, reject: bool, progress: Progress) -> None:
        """Move a new adapter to the encoder's GPU if there is one, and make the gates that know nouns."""
        if (gpu := gpu_of(self.encoder)) is not None:
            import torch

            self.adapter.to(torch.empty(0, dtype=torch.float32, device=gpu))
        if reject:
            refuse_none(self.labels)
            negatives = negative_vectors(self.encoder, self.cache, partial(progress, "encoding the negatives"))
            self.gates.insert(0, Rejector(self.head, negatives))  # what is foreign is not remembered as a duplicate

    def _class_indices(self, images: Sequence[Any], labels: Sequence[str]) -> HostArray:
        """Return the class indices (n,) of the labels of n images."""
        if len(images) != len(labels):
            raise InputError(f"{len(images)} images and {len(labels)} labels; give one label per image.")
        indices = {label: i for i, label in enumerate(self.labels)}
        if unknown := [label for label in labels if label not in indices]:
            raise InputError(f"no class is named {unknown[0]!r}; {nearest(str(unknown[0]), self.labels)}")
        return np.array([indices[label] for label in labels], dtype=np.int64)

    def _features(
        self,
        images: Sequence[Any],
        classes: HostArray,
        views: int,
        on_error: OnError,
        progress: Progress,
        total: int,
    ) -> tuple[HostArray, HostArray, list[tuple[str, str]]]:
        """Return features and classes of the images that can be read, and names of the others with the reasons."""
        parts = [np.empty((0, self.encoder.dim), np.float32)]
        kept: list[int] = []
        skipped = []
        prepare = Preparer(self.encoder, views, kind=self.adapter.views_kind, decoder=self.decoder)
        for batch in encode_ahead(images, prepare, batch_size=self.batch_size, workers=self.workers, on_error=on_error):
            parts.append(to_host(batch.features))
            kept += batch.readable
            skipped += [(name, error) for name, error in zip(batch.names, batch.errors, strict=True) if error]
            progress("encoding", len(batch.names), total)
        return np.concatenate(parts[1:] or parts), classes[kept], skipped

    def _describe_fit(self, shots: HostArray) -> dict[str, Any]:
        """Return the note on a fit to these numbers of shots (K,)."""
        about: dict[str, Any] = {
            "model": self.model,
            "fingerprint": self.encoder.fingerprint,
            "shots": int(shots.min()),
            "most_shots": int(shots.max()),
        }
        templates = self.templates.name if isinstance(self.templates, LearnedPrompts) else self.templates
        with suppress(TypeError):  # functions cannot be written to a file
            about["templates"] = json.loads(json.dumps(templates))
        return about


def _check_arguments(
    labels: object, batch_size: int | None, views: int, unsure: float, fitted: bool, chosen: bool
) -> None:
    if (batch_size is not None and batch_size < 1) or views < 1:
        raise InputError(f"batch_size and views must be at least 1, got {batch_size} and {views}.")
    if not 0 <= unsure <= 1:
        raise InputError(f"unsure is a score from 0 to 1, got {unsure}.")
    if not fitted and labels is None:
        raise InputError("a classifier needs labels, or a fitted file that has them.")
    if fitted and chosen:
        raise InputError("the method and its settings come from the fitted file; leave them out.")
