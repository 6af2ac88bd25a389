"""Head and Evidence: a zero-shot classifier as one value, and what it predicts for a batch.

Evidence is the seam of the library: encoders and views know nothing of methods, methods nothing of images.
"""

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import log
from typing import Any

import numpy as np

from acclimate.arrays import (
    Array,
    HostArray,
    as_floats,
    device,
    entropy_of,
    first_equal_rows,
    index,
    is_tensor,
    log_sum_exp,
    move,
    namespace,
    ordinary_tensors,
    softmax_and_entropy,
    to_host,
    unit_rows,
)
from acclimate.errors import LONGEST_TEXT, InputError, StateError, is_text, nearest

LOGARITHMS = (2.5, 6.0)  # of the scales of models, of which none is that small itself
LARGEST_LOGIT = 1e9  # no model has a larger scale or bias, and single precision may not hold what follows from it
# Of a broad class: the weight of its name beside its kinds, and how far the number of kinds is held against them
NAME_WEIGHT = 1 / 3
KINDS_DISCOUNT = 0.5
KEPT_VIEWS = 0.1  # share of the views that make the evidence of a sample (TDA's code; its paper does not mention views)


@dataclass(frozen=True)
class Evidence:
    """Zero-shot answers for B samples as one immutable value; all arrays share namespace, device and dtype.

    Attributes:
        features: (B, d) image features; unit length for one view, the mean of unit vectors for many.
        logits: (B, K) `s f W^T + bias`.
        probs: (B, K) softmax of the logits; for many views the mean of the softmaxes of the views that were kept.
        entropy: (B,) entropy of `probs` in nats.
        views: (B, V, d) unit features of all V views; None for one view per sample.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head
        >>> evidence = Head(np.eye(3), logit_scale=10.0).observe(np.array([[0.9, 0.1, 0.0], [0.1, 0.2, 0.9]]))
        >>> evidence.logits.argmax(axis=1)
        array([0, 2])
        >>> evidence[1:].features.shape
        (1, 3)
    """

    features: Array
    logits: Array
    probs: Array
    entropy: Array
    views: Array | None = None

    def __len__(self) -> int:
        return int(self.logits.shape[0])

    def __getitem__(self, part: slice) -> "Evidence":
        if part.indices(len(self)) == (0, len(self), 1):
            return self
        views = None if self.views is None else self.views[part]
        return Evidence(self.features[part], self.logits[part], self.probs[part], self.entropy[part], views)

    @property
    def original_view(self) -> Array:
        """Unit features (B, d) of the images themselves: the first of their views."""
        return self.features if self.views is None else self.views[:, 0]

    @cached_property
    def host_entropy(self) -> HostArray:
        """The entropies (B,) as a NumPy array."""
        return to_host(self.entropy)

    @cached_property
    def predicted(self) -> HostArray:
        """The classes (B,) of the highest logits as a NumPy array."""
        return to_host(namespace(self.logits).argmax(self.logits, axis=-1))


@dataclass(frozen=True, eq=False)
class Head:
    """A zero-shot classifier: class vectors, logit scale, logit bias and class names as one immutable value.

    A head lives where its class vectors live (array library, device; float32 at least).

    Args:
        class_vectors: (K, d) text features of the classes; scaled to unit rows here, once.
        logit_scale: the model's factor on cosines, for instance 100 for OpenAI's CLIP.
        logit_bias: the model's offset on logits; 0 for models without one.
        class_names: K distinct names; "0", "1", ... when not given.
        kinds: (M, d) text features of what broad classes are answered through, class by class: the first of a class is
            that of its name, the others are those of its kinds; None where no class is broad. The logit of a broad
            class is a weighted mean of its name's logit and of what the n logits give together, their log-sum-exp less
            half of ln n: both the name and one of the kinds must fit, and many kinds are no great advantage.
        kind_counts: how many of them each of the K classes has; 0 for a class that is not broad.

    Examples:
        >>> import numpy as np
        >>> head = Head(np.eye(2), logit_scale=100.0, class_names=["cat", "dog"])
        >>> head.observe(np.array([[0.8, 0.6]])).logits
        array([[80., 60.]])
        >>> head.add(np.array([[1.0, 1.0]]), ["fox"]).remove(["cat"]).class_names
        ('dog', 'fox')
    """

    class_vectors: Array
    logit_scale: float
    logit_bias: float = 0.0
    class_names: tuple[str, ...] = ()
    kinds: Array | None = None
    kind_counts: tuple[int, ...] = ()

    @ordinary_tensors()
    def __post_init__(self) -> None:
        vectors = as_floats(self.class_vectors, "class vectors")
        if vectors.ndim != 2 or 0 in vectors.shape:
            raise InputError(
                f"class vectors must be (classes, dim) with at least one class, got shape {tuple(vectors.shape)}."
            )
        given: tuple[Any, Any] = (self.logit_scale, self.logit_bias)
        scale, bias = (float(x.detach() if is_tensor(x) else x) for x in given)
        if not (0 < scale <= LARGEST_LOGIT and abs(bias) <= LARGEST_LOGIT):
            raise InputError(
                f"logit_scale must be a positive number and logit_bias a number, got {scale} and {bias}; "
                f"take both from the model (OpenAI's CLIP: 100 and 0; at most {LARGEST_LOGIT:.0e})."
            )
        if LOGARITHMS[0] <= scale <= LOGARITHMS[1]:
            how = "pass model.logit_scale.exp(), as models keep the logarithm"
            warnings.warn(f"logit_scale={scale:g} looks like a logarithm; {how} (OpenAI's CLIP: 100).", stacklevel=4)
        names = tuple(self.class_names) or tuple(str(i) for i in range(vectors.shape[0]))
        if len(names) != vectors.shape[0]:
            raise InputError(
                f"{len(names)} class names for {vectors.shape[0]} class vectors; give one name per vector."
            )
        if not all(map(is_text, names)):
            raise InputError(f"class names must be strings of Unicode characters, {LONGEST_TEXT} at most each.")
        if len(set(names)) < len(names):
            ((repeated, _),) = Counter(names).most_common(1)
            raise InputError(f"class names must differ; {repeated[:80]!r} is duplicated.")
        vectors = unit_rows(vectors, "class vectors")
        vars(self).update(class_vectors=vectors, logit_scale=scale, logit_bias=bias, class_names=names)
        if self.kinds is None:
            vars(self).update(kind_counts=())
        else:
            kinds = move(unit_rows(as_floats(self.kinds, "kinds"), "kinds"), vectors)
            counts = tuple(map(int, self.kind_counts))
            if kinds.ndim != 2 or kinds.shape[1] != vectors.shape[1] or len(counts) != len(names) or min(counts) < 0:
                raise InputError(f"kinds must be (kinds, {vectors.shape[1]}), with a count for each class.")
            if sum(counts) != kinds.shape[0]:
                raise InputError(f"the counts of kinds add up to {sum(counts)}, and there are {kinds.shape[0]} kinds.")
            vars(self).update(kinds=kinds, kind_counts=counts)

    @classmethod
    def from_file(cls, tensors: Mapping[str, Any], about: Any, what: object) -> "Head":
        """Make the head of a file `what` from the tensors of `to_file` and the other arguments by name, checked."""
        try:
            return cls(tensors.get("class_vectors"), kinds=tensors.get("kinds"), **about)
        except (InputError, OverflowError, TypeError, ValueError) as error:
            why = str(error).removesuffix(".")
            raise StateError(f"{what} holds a head that cannot be used ({why}); it was damaged or edited.") from error

    def to_file(self) -> tuple[dict[str, HostArray], dict[str, Any]]:
        """Return the tensors, and the other arguments by name, from which `from_file` makes the head again."""
        tensors = {"class_vectors": to_host(self.class_vectors)}
        about = {"class_names": self.class_names, "logit_scale": self.logit_scale, "logit_bias": self.logit_bias}
        if self.kinds is None:
            return tensors, about
        return tensors | {"kinds": to_host(self.kinds)}, about | {"kind_counts": self.kind_counts}

    def __len__(self) -> int:
        return len(self.class_names)

    def __repr__(self) -> str:
        scale = f"logit_scale={self.logit_scale}, logit_bias={self.logit_bias}"
        return f"Head(classes={len(self)}, dim={self.dim}, {scale})"

    @property
    def dim(self) -> int:
        """Length of a feature."""
        return int(self.class_vectors.shape[1])

    @cached_property
    def fingerprint(self) -> str:
        """Digest of class names, class vectors, scale and bias: equal for equal heads."""
        digest = hashlib.sha256(repr((self.class_names, self.logit_scale, self.logit_bias)).encode())
        for vectors in self.to_file()[0].values():
            digest.update(vectors.astype(np.float32).tobytes())
        return digest.hexdigest()[:32]

    def observe(self, features: Array) -> Evidence:
        """Return zero-shot evidence.

        Args:
            features: (B, d), or (B, V, d) for V views per sample; of any length. Many views become the mean of the
                tenth with the lowest entropy, at least one.

        Note:
            Views, and the tenth of them that is kept, are in the code of TDA's authors only, not in their paper. As in
            that code, the mean feature of many views is not scaled to unit length again.
        """
        return self.observe_unit(self.unit_features(features))

    @ordinary_tensors()
    def unit_features(self, features: Array) -> Array:
        """Return features (B, d) or (B, V, d) as unit rows where the head lives, refusing those without a direction."""
        floats = as_floats(features, "features")
        shape = tuple(floats.shape)
        if len(shape) not in (2, 3):
            raise InputError(
                f"features must be (samples, dim) or (samples, views, dim), got shape {shape}. "
                "Put one sample in a batch of one: features[None]."
            )
        if shape[-1] != self.dim:
            raise InputError(
                f"features have dim {shape[-1]}, the class vectors {self.dim}. "
                "Were they made by another model, or are they transposed?"
            )
        if 0 in shape:
            raise InputError(f"no samples: features have shape {shape}.")
        return unit_rows(move(floats, self.class_vectors), "features")

    @ordinary_tensors()
    def observe_unit(self, unit: Array) -> Evidence:
        """Return evidence for what `unit_features` gave."""
        if unit.ndim == 3:
            return self._observe_views(unit)
        logits = (self.logit_scale * unit) @ self.class_vectors.T
        if self.kinds is not None:
            each = (self.logit_scale * unit) @ self.kinds.T
            for index_of_class, first, end in self._broad:
                together = log_sum_exp(each[:, first:end]) - KINDS_DISCOUNT * log(end - first)
                logits[:, index_of_class] = NAME_WEIGHT * each[:, first] + (1.0 - NAME_WEIGHT) * together
        if self.logit_bias:
            logits += self.logit_bias
        logits = self._tied(logits)
        return Evidence(unit, logits, *softmax_and_entropy(logits))

    def _observe_views(self, unit: Array) -> Evidence:
        xp = namespace(unit)
        samples, views, dim = unit.shape
        each = self.observe_unit(xp.reshape(unit, (samples * views, dim)))
        kept = xp.argsort(xp.reshape(each.entropy, (samples, views)), axis=-1, stable=True)
        kept = kept[:, : max(1, int(KEPT_VIEWS * views))]
        flat = xp.reshape(kept + views * xp.arange(samples, device=device(unit))[:, None], (-1,))

        def mean_of_kept(values: Array) -> Array:
            return xp.mean(xp.reshape(values[flat], (samples, kept.shape[1], -1)), axis=1)

        logits = self._tied(mean_of_kept(each.logits))
        probs = self._tied(mean_of_kept(each.probs))
        return Evidence(mean_of_kept(each.features), logits, probs, entropy_of(probs), unit)

    @property
    def name_vectors(self) -> HostArray:
        """Unit vectors (K, d) of the names of all classes, also of the broad ones."""
        vectors = np.array(to_host(self.class_vectors))
        if self.kinds is not None:
            for index_of_class, first, _ in self._broad:
                vectors[index_of_class] = to_host(self.kinds[first, :])
        return vectors

    @property
    def expanded(self) -> dict[str, int]:
        """The broad classes, and the number of kinds that each is answered through."""
        return {self.class_names[i]: end - first - 1 for i, first, end in self._broad}

    @cached_property
    def _broad(self) -> list[tuple[int, int, int]]:
        """The broad classes, and the range of the kinds of each."""
        ends = list(accumulate(self.kind_counts))
        return [
            (i, end - count, end) for i, (end, count) in enumerate(zip(ends, self.kind_counts, strict=True)) if count
        ]

    @cached_property
    def _repeated(self) -> tuple[Array, Array] | None:
        """Indices of the classes whose vector an earlier class has, and of the first that has it; None for none."""
        first = first_equal_rows(to_host(self.class_vectors))
        later = np.flatnonzero(first < np.arange(len(first)))
        return (index(later, self.class_vectors), index(first[later], self.class_vectors)) if len(later) else None

    def _tied(self, columns: Array) -> Array:
        """Return columns (B, K), changed in place so that those of equal classes are equal to the bit.

        A matrix product rounds its columns differently, and differently for every batch size: without this, rounding
        would choose between two classes that cannot be told apart, and the first would not always win.
        """
        if self._repeated:
            later, first = self._repeated
            columns[:, later] = columns[:, first]
        return columns

    def add(self, class_vectors: Array, class_names: Sequence[str]) -> "Head":
        """Return a head with N more classes: vectors (N, d) and names that the head does not have yet."""
        new = Head(class_vectors, self.logit_scale, self.logit_bias, tuple(class_names)).to(self.class_vectors)
        if new.dim != self.dim:
            raise InputError(f"the new class vectors have dim {new.dim}, the head {self.dim}.")
        vectors = namespace(new.class_vectors).concat([self.class_vectors, new.class_vectors])
        counts = self.kind_counts and (*self.kind_counts, *[0] * len(new))
        return replace(
            self, class_vectors=vectors, class_names=(*self.class_names, *new.class_names), kind_counts=counts
        )

    def remove(self, class_names: Iterable[str]) -> "Head":
        """Return a head without these classes."""
        gone = set(class_names)
        if unknown := sorted(gone.difference(self.class_names)):
            raise InputError(f"no class named {unknown[0]!r} to remove; {nearest(unknown[0], self.class_names)}")
        kept = [i for i, name in enumerate(self.class_names) if name not in gone]
        if not kept:
            raise InputError("removing every class would leave nothing to choose from; keep at least one.")
        vectors = self.class_vectors[index(kept, self.class_vectors)]
        left = replace(
            self,
            class_vectors=vectors,
            class_names=tuple(self.class_names[i] for i in kept),
            kinds=None,
        )
        ranges = {i: range(first, end) for i, first, end in self._broad if i in kept}
        if self.kinds is None or not ranges:
            return left
        kinds = self.kinds[index([row for rows in ranges.values() for row in rows], self.kinds)]
        return replace(left, kinds=kinds, kind_counts=tuple(len(ranges.get(i, ())) for i in kept))

    def to(self, like: Array) -> "Head":
        """Return the same head where `like` lives: array library, device and dtype (float32 at least)."""
        return replace(self, class_vectors=move(self.class_vectors, as_floats(like, "the array to follow")))

    def differences(self, other: "Head") -> list[str]:
        """Return the differences from another head as phrases; an empty list if there are none."""
        found = []
        if len(self) != len(other):
            found.append(f"{len(self)} classes against {len(other)}")
        elif self.class_names != other.class_names:
            pairs = enumerate(zip(self.class_names, other.class_names, strict=True))
            i, (ours, theirs) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
            found.append(f"class {i} is {ours!r} against {theirs!r}")
        if self.dim != other.dim:
            found.append(f"dim {self.dim} against {other.dim}")
        if (self.logit_scale, self.logit_bias) != (other.logit_scale, other.logit_bias):
            scales = [f"{head.logit_scale:g} (bias {head.logit_bias:g})" for head in (self, other)]
            found.append(f"logit scale {scales[0]} against {scales[1]}")
        if not found and self.expanded != other.expanded:
            how = "as they are in it, so pass" if other.expanded else "expanded in it, so leave out"
            how = "expanded otherwise in it; choose" if self.expanded and other.expanded else how
            found.append(f"broad labels are {how} --no-expand (expand=False)")
        if not found and not np.allclose(to_host(self.class_vectors), to_host(other.class_vectors), atol=1e-4):
            found.append("the class vectors differ (another model or other prompts)")
        return found
