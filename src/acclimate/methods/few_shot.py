"""The base of methods that are fitted to labelled samples, and the files of such fits."""

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from acclimate.arrays import Array, HostArray, check_integers
from acclimate.errors import InputError, StateError
from acclimate.evidence import Head
from acclimate.files import read_snapshot
from acclimate.methods.adapter import Adapter, MethodKind, ViewsKind
from acclimate.methods.persist import build_adapter, read_head

MODEL = "model"  # note of a state: fingerprint of the model that made the features
NOTE = "fitted"  # note of a fitted state: model, fingerprint, templates, shots, most_shots, seed, source
Labels = Sequence[int] | HostArray
Progress = Callable[[int], None]


class Labelled(NamedTuple):
    """Samples with labels: unit features (n, d) or (n, V, d), and class indices (n,)."""

    features: Array
    labels: HostArray


@dataclass(eq=False, repr=False, kw_only=True)
class FewShot(Adapter):
    """An adapter that is fitted to labelled samples, and learns nothing from the stream it answers.

    A method fills in `learn`; the samples it was fitted to count as seen.

    Examples:
        A method that answers by the nearest class mean:

        >>> from dataclasses import dataclass
        >>> import numpy as np
        >>> from acclimate import FewShot, Head, Step, Tensors
        >>> @dataclass(eq=False, repr=False, kw_only=True)
        ... class NearestMean(FewShot):
        ...     name = "nearest-mean"
        ...     summary = "cosine to the mean of the labelled samples of each class"
        ...
        ...     def setup(self):
        ...         self.means = self.declare("means", Tensors(self.head, mean=("classes", "dim")))
        ...
        ...     def learn(self, shots, validation, progress):
        ...         for label in range(len(self.head)):
        ...             self.means["mean"][label] = shots.features[shots.labels == label].mean(axis=0)
        ...
        ...     def respond(self, evidence, ids, learn):
        ...         return Step(self.head.logit_scale * evidence.features @ self.means["mean"].T)
        >>> adapter = NearestMean(Head(np.eye(2), logit_scale=10.0))
        >>> adapter.fit(np.array([[0.6, 0.8], [1.0, 0.0]]), labels=[0, 1])
        >>> adapter.step(np.array([[0.6, 0.8]])).argmax(axis=1)
        array([0])
    """

    kind: ClassVar[MethodKind] = "few-shot"
    needs = frozenset({"labels"})
    views_kind: ClassVar[ViewsKind] = "crop"  # the augmented versions that it is fitted to

    def fit(
        self,
        features: Array,
        labels: Labels,
        *,
        validation: tuple[Array, Labels] | None = None,
        progress: Progress = lambda steps: None,
    ) -> None:
        """Fit to labelled samples, replacing any earlier fit; if that fails, the earlier fit stays.

        Args:
            features: (n, d), or (n, V, d) for V augmented versions of each sample; of any length.
            labels: (n,) class indices; every class of the head needs at least one sample.
            validation: features (m, d) and labels (m,) of other samples, for methods that choose numbers by them.
            progress: called with the number of steps done, out of `fit_steps(n, m)`.
        """
        shots = self._labelled(features, labels)
        self.require_every_class(shots.labels)
        held_out = None if validation is None else self._labelled(*validation)
        dump = self.dump()
        seen = self.seen
        try:
            self.reset()
            self.learn(shots, held_out, progress)
        except BaseException:  # Ctrl-C as well
            self.restore(dump)
            self.seen = seen
            raise
        self.seen = {self.origin: len(shots.labels)}
        self.recompute()

    @abstractmethod
    def learn(self, shots: Labelled, validation: Labelled | None, progress: Progress) -> None:
        """Fill the state; see `fit`."""

    def fit_steps(self, samples: int, held_out: int = 0) -> int:
        """Return the number of steps that `fit` takes on so many samples and validation samples, for a progress bar."""
        return 1

    def chosen(self) -> dict[str, float]:
        """Return the numbers that were chosen by validation samples, by name; empty if there are none."""
        return {}

    @classmethod
    def takes_new_classes(cls, settings: Mapping[str, Any]) -> bool:
        """Return True if it can answer, with these settings, for classes that it was not fitted to."""
        return False

    def relabel(self, head: Head) -> None:
        """Answer for other classes than those it was fitted to, if it can."""
        if not self.takes_new_classes(self.settings):
            raise InputError(
                f"the method {self.name!r} was fitted to {len(self.head)} classes and cannot answer for others; "
                "leave the labels out, or fit it to the new ones."
            )
        self.replace_head(head)

    def require_every_class(self, labels: HostArray) -> None:
        """Refuse labels (n,) that leave out a class of the head."""
        if missing := sorted(set(range(len(self.head))) - set(labels.tolist())):
            named = ", ".join(repr(self.head.class_names[label]) for label in missing[:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise InputError(f"no labelled sample of {named}{more}; every class needs at least one.")

    def _labelled(self, features: Array, labels: Labels) -> Labelled:
        unit = self.head.unit_features(features)
        return Labelled(unit, check_integers(labels, unit.shape[0], len(self.head) - 1, "labels"))


def load_fitted(
    path: str | os.PathLike[str], encoder: Any = None, model: str = ""
) -> tuple[FewShot, Mapping[str, Any]]:
    """Read a few-shot adapter that was fitted and saved, and the note on what it was fitted to.

    Args:
        path: a file that `acclimate fit` or `Classifier.save` wrote.
        encoder: the model that will encode images; None if there are only features.
        model: its name, for errors.

    Raises:
        StateError: the file is not a state, is damaged, holds a method that is not few-shot or was not fitted, or was
            fitted with another model.
        InputError: the method needs the encoder's text tower, and there is none.
    """
    tensors, description = read_snapshot(path)
    head = read_head(tensors, description, path)
    about = fit_note(description["notes"])
    if encoder is not None:
        dims = (head.dim, encoder.dim)
        prints = (about.get("fingerprint"), encoder.fingerprint)
        if dims[0] != dims[1] or (all(prints) and prints[0] != prints[1]):
            raise StateError(
                f"{path} was fitted with the model {about.get('model', 'unknown')!r:.80} ({dims[0]} dimensions), "
                f"not with {model!r} ({dims[1]} dimensions); use that model, or fit again."
            )
    adapter, _ = build_adapter(tensors, description, path, encoder=encoder)
    if not isinstance(adapter, FewShot) or not adapter.seen:
        raise StateError(
            f"{path} is a state of {adapter.name!r} that was not fitted to labelled samples; "
            "write one with `acclimate fit`."
        )
    return adapter, about


def fit_note(notes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the note on what a state was fitted to, among its notes; empty if there is none."""
    about = notes.get(NOTE)
    return about if isinstance(about, dict) else {}


def describe_fit(about: Mapping[str, Any]) -> str:
    """Return the note of a fitted file in words."""
    seed = "" if about.get("seed") is None else f", drawn with seed {about['seed']}"
    source = f" of {about['source']}" if about.get("source") else ""
    return f"fitted to {describe_shots(about)}{source}{seed}, encoded with {about.get('model')}"


def describe_shots(about: Mapping[str, Any]) -> str:
    """Return the number of shots per class, from the note of a fitted file, in words.

    Examples:
        >>> describe_shots({"shots": 3, "most_shots": 16})
        '3 to 16 shots per class'
    """
    fewest = about.get("shots")
    most = about.get("most_shots", fewest)
    number = f"{fewest}" if most == fewest else f"{fewest} to {most}"
    return f"{number} shot{'' if number == '1' else 's'} per class"
