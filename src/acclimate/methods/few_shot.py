"""What methods that are fitted to labelled samples have in common."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from acclimate.arrays import Array, HostArray
from acclimate.errors import InputError
from acclimate.evidence import Evidence, Head
from acclimate.methods.base import Adapter, Ids, Step, require

Labels = Sequence[int] | HostArray


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
        ...     def learn(self, features, labels, validation, progress):
        ...         for label in range(len(self.head)):
        ...             self.means["mean"][label] = features[labels == label].mean(axis=0)
        ...
        ...     def respond(self, evidence, ids, learn):
        ...         return Step(self.head.logit_scale * evidence.features @ self.means["mean"].T)
        >>> adapter = NearestMean(Head(np.eye(2), logit_scale=10.0))
        >>> adapter.fit(np.array([[0.6, 0.8], [1.0, 0.0]]), labels=[0, 1])
        >>> adapter.step(np.array([[0.6, 0.8]])).argmax(axis=1)
        array([0])
    """

    kind = "few-shot"
    needs = frozenset({"labels"})

    def fit(
        self,
        features: Array,
        labels: Labels,
        *,
        validation: tuple[Array, Labels] | None = None,
        progress: Callable[[int], None] = lambda steps: None,
    ) -> None:
        """Fit it to labelled samples; what it was fitted to before is forgotten.

        Args:
            features: (n, d), or (n, V, d) for V augmented versions of each sample; of any length.
            labels: (n,) class indices; every class of the head needs at least one sample.
            validation: features (m, d) and labels (m,) of other samples, for methods that choose settings by them.
            progress: called with the number of steps done, out of `fit_steps(n)`.
        """
        unit, checked = self._labelled(features, labels)
        self.require_every_class(checked)
        held_out = None if validation is None else self._labelled(*validation)
        self.reset()
        self.learn(unit, checked, held_out, progress)
        self.seen = {self.origin: len(checked)}
        self.derive()

    def require_every_class(self, labels: HostArray) -> None:
        """Refuse labels (n,) that leave out a class of the head."""
        if missing := sorted(set(range(len(self.head))) - set(labels.tolist())):
            named = ", ".join(repr(self.head.class_names[label]) for label in missing[:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise InputError(f"no labelled sample of {named}{more}; every class needs at least one.")

    @abstractmethod
    def learn(
        self,
        features: Array,
        labels: HostArray,
        validation: tuple[Array, HostArray] | None,
        progress: Callable[[int], None],
    ) -> None:
        """Fill the state from unit features (n, d) or (n, V, d) and labels (n,); see `fit`."""

    def fit_steps(self, samples: int) -> int:
        """Number of steps that `fit` takes on so many samples, for a progress bar."""
        return 1

    def relabel(self, head: Head) -> None:
        """Answer for other classes than those it was fitted to; most methods cannot."""
        raise InputError(
            f"the method {self.name!r} was fitted to {len(self.head)} classes and cannot answer for others; "
            "leave the labels out, or fit it to the new ones."
        )

    @property
    def counts_samples(self) -> bool:
        """Never: what it answers teaches it nothing."""
        return False

    def adapt(self, evidence: Evidence, ids: Ids | None = None, learn: bool = True) -> Step:
        """Answer evidence; an adapter that was not fitted refuses."""
        if not self.seen:
            require(type(self), views=True, text=True)
        return super().adapt(evidence, ids, learn)

    def _labelled(self, features: Array, labels: Labels) -> tuple[Array, HostArray]:
        """Unit features and labels as a checked pair."""
        unit, checked = self.head.unit_features(features), np.asarray(labels)
        if checked.dtype.kind not in "iu" or checked.shape != (unit.shape[0],):
            raise InputError(
                f"labels must be one class index per sample: {unit.shape[0]} samples, {checked.dtype} labels "
                f"{checked.shape}."
            )
        if checked.min() < 0 or checked.max() >= len(self.head):
            raise InputError(f"labels must be class indices from 0 to {len(self.head) - 1}.")
        return unit, checked
