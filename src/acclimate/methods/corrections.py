"""Corrections: samples whose class a person has given. They are certain evidence."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from acclimate.arrays import (
    Array,
    HostArray,
    check_integers,
    device,
    index,
    move,
    namespace,
    softmax_and_entropy,
    to_host,
    unit_rows,
)
from acclimate.errors import InputError, StateError, nearest
from acclimate.evidence import Evidence
from acclimate.methods.exclusive import exclusive
from acclimate.methods.state import LARGEST_ID, Dump, Ids, State

SAME_IMAGE_COSINE = 0.999  # features that are closer are of the same image
MAX_CORRECTIONS = 2000  # more cost more than they teach
TOO_MANY = f"at most {MAX_CORRECTIONS} images can be corrected; fit a few-shot method by `acclimate fit` instead"
CERTAIN_NATS = 15.0  # lead of the corrected class when the image is shown again
# One set for all data; docs/corrections.md says what they do, and benchmarks/corrections.py measures them.
GAMMA_LOCAL = 50.0  # how fast likeness falls with the angle between two images, where little is known: near-duplicates
GAMMA_BROAD = 10.0  # the same where corrections predict each other
EVIDENCE_NATS = 2.0  # the lead that this takes: log-likelihood of the corrections, each left out in turn
RIDGE = 0.3  # how much a correction stands for its image alone, and not for those that are like it
SMALLEST_PROB = 1e-6  # a correction that nothing predicts counts no more than this
STRENGTH = 4.0  # nats that a wholly wrong answer is moved by
NAME_BYTES = 4096  # the end of a longer name is kept; all names take as much room as the longest
FIELDS = {"keys": ("f", 2), "classes": ("i", 1), "ids": ("i", 1), "names": ("u", 2)}  # kind of number and axes


class Correction(NamedTuple):
    """An image whose class was corrected.

    Attributes:
        id: names the image in the state.
        class_index: the class that was given.
        label: the name of the class.
        name: name of the image, such as its path; "" if none was given.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, ZeroShot
        >>> adapter = ZeroShot(Head(np.eye(2), logit_scale=10.0, class_names=["cat", "dog"]))
        >>> _ = adapter.corrections.correct(np.array([[0.8, 0.6]]), [1], ids=[3], names=["yard.jpg"])
        >>> list(adapter.corrections)
        [Correction(id=3, class_index=1, label='dog', name='yard.jpg')]
    """

    id: int
    class_index: int
    label: str
    name: str = ""


class Corrections(State):
    """The corrections of an adapter, sorted by id: images with the classes that a person has given them.

    A corrected image gets its class when it is shown again, votes for it on similar images, and is not learnt from any
    more. An image has one class, the last that was given; the order in which
    different images are corrected does not matter. Merged states have the corrections of all; where two give different
    classes to one image, that of the lower index is kept. An image is recognised by its original view, whatever other
    views there are.

    Examples:
        >>> import numpy as np
        >>> from acclimate import TDA, Head
        >>> adapter = TDA(Head(np.eye(3), logit_scale=10.0))
        >>> image = np.array([[0.9, 0.4, 0.1]])
        >>> adapter.corrections.correct(image, [1], ids=[7])
        [7]
        >>> adapter.step(image).argmax(axis=1), [each.label for each in adapter.corrections]
        (array([1]), ['1'])
        >>> adapter.corrections.undo([7])
        >>> adapter.step(image).argmax(axis=1), len(adapter.corrections)
        (array([0]), 0)
    """

    rule = "union"

    def __len__(self) -> int:
        return len(self.ids)

    @exclusive
    def __iter__(self) -> Iterator[Correction]:
        labels = [self.head.class_names[label] for label in self.classes]
        names = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in self.names]
        return map(Correction, self.ids.tolist(), self.classes.tolist(), labels, names)

    def clear(self) -> None:
        """Forget every correction."""
        none = np.empty(0, np.int64)
        self._take({"keys": np.empty((0, self.head.dim)), "classes": none, "ids": none, "names": _as_bytes([])})

    @exclusive
    def correct(
        self, features: Array, classes: Sequence[int] | HostArray, ids: Ids | None = None, names: Sequence[str] = ()
    ) -> list[int]:
        """Give classes to images, even while the adapter is frozen; `undo` takes it back without a trace.

        Args:
            features: (n, d), or (n, V, d) for V views per image, of which the first, the original, counts.
            classes: (n,) class indices; they may confirm what the adapter answers.
            ids: (n,) integers that name the images, those given to `step`; made from the features when not given.
            names: n names of the images for people, such as paths, to be listed with the corrections.

        Returns:
            The n ids.
        """
        keys = to_host(self.head.observe(features).original_view)
        labels = check_integers(classes, len(keys), len(self.head) - 1, "classes")
        if len(keys) > MAX_CORRECTIONS:
            raise InputError(f"{TOO_MANY}.")
        given = check_integers([id_of(key) for key in keys] if ids is None else ids, len(keys), LARGEST_ID, "ids")
        added = {"keys": keys, "classes": labels, "ids": given, "names": _as_bytes(names or [""] * len(keys))}
        rows = _stacked([self._rows(), added])
        same = (rows["keys"] @ keys.T >= SAME_IMAGE_COSINE) | (rows["ids"][:, None] == given)
        kept = ~np.triu(same, 1 - len(self)).any(axis=1)  # the last correction of each image
        if kept.sum() > MAX_CORRECTIONS:
            raise InputError(f"{TOO_MANY}.")
        self._take(_sorted({name: values[kept] for name, values in rows.items()}))
        return [int(each) for each in given]

    @exclusive
    def undo(self, ids: Ids) -> None:
        """Take back the corrections with these ids, as if they had never been made."""
        gone = check_integers(ids, len(ids), LARGEST_ID, "ids")
        if unknown := sorted(set(gone.tolist()) - set(self.ids.tolist())):
            raise InputError(f"no correction has the id {unknown[0]}; {nearest(str(unknown[0]), map(str, self.ids))}")
        kept = ~np.isin(self.ids, gone)
        self._take({name: values[kept] for name, values in self._rows().items()})

    @exclusive
    def is_corrected(self, evidence: Evidence) -> HostArray:
        """Return which of B samples are corrected images: (B,)."""
        if not len(self):
            return np.zeros(len(evidence), bool)
        cosines = evidence.original_view @ self.keys.T
        return to_host(namespace(cosines).max(cosines, axis=-1)) >= SAME_IMAGE_COSINE

    def vote(self, logits: Array, evidence: Evidence) -> Array:
        """Return logits (B, K) with the votes of the corrections."""
        if not len(self):
            return logits
        xp = namespace(logits)
        cosines = evidence.original_view @ self.keys.T
        logits = logits + _likeness(cosines, evidence.probs, self._probs, self.sharpness) @ self._votes
        rows = np.flatnonzero(to_host(xp.max(cosines, axis=-1)) >= SAME_IMAGE_COSINE)
        if len(rows):
            classes = index(self.classes[to_host(xp.argmax(cosines, axis=-1))[rows]], logits)
            rows = index(rows, logits)
            logits[rows, classes] = xp.max(logits[rows], axis=-1) + CERTAIN_NATS
        return logits

    def dump(self) -> Dump:
        """Return keys (n, d), classes and ids (n,), names as UTF-8 (n, length), sorted by id; {} if there are none."""
        return {name: values.copy() for name, values in self._rows().items()} if len(self) else {}

    def restore(self, arrays: Mapping[str, HostArray]) -> None:
        """Replace the corrections by dumped ones."""
        if not arrays:
            self.clear()
            return
        self.require_entries(arrays, FIELDS)
        self.require(1 <= arrays["names"].shape[1] <= NAME_BYTES, f"names must have 1 to {NAME_BYTES} bytes")
        if len(arrays["ids"]) > MAX_CORRECTIONS:
            raise StateError(f"the state has {len(arrays['ids'])} corrections; {TOO_MANY}.")
        self._take(arrays)

    def reindexed(self, arrays: Dump, position: HostArray, classes: int) -> Dump:
        """Keep the corrections to classes that remain."""
        if not arrays:
            return arrays
        kept = position[arrays["classes"]] >= 0
        moved = arrays | {"classes": position[arrays["classes"]]}
        return {name: values[kept] for name, values in moved.items()}

    def merged(self, dumps: Sequence[Dump], start: Dump | None = None) -> Dump:
        """Return the corrections of all, sorted by id, then by key; an image that several correct counts once.

        The corrections are taken by class, then by id and key; one of an image that was taken already is left out.
        A correction of `start` that one of them took back or replaced is gone.
        """
        held = [set(_identities(dump)) for dump in dumps]
        gone = {each for each in _identities(start or {}) if not all(each in identities for identities in held)}
        rows = _stacked(dumps) if (dumps := [dump for dump in dumps if dump]) else {}
        kept = np.array([each not in gone for each in _identities(rows)], bool)
        if not kept.any():
            return {}
        rows = _sorted({name: values[kept] for name, values in rows.items()})
        order = np.argsort(rows["classes"], kind="stable")
        keys = unit_rows(rows["keys"][order], "keys")
        new = np.full(len(keys), True)
        for first in range(0, len(keys), 1000):
            repeats = np.triu(keys[first : first + 1000] @ keys.T >= SAME_IMAGE_COSINE, first + 1)
            for row, later in enumerate(repeats, first):
                if new[row]:
                    new &= ~later
        return {name: values[np.sort(order[new])] for name, values in rows.items()}

    def _rows(self) -> Dump:
        return {"keys": to_host(self.keys), "classes": self.classes, "ids": self.ids, "names": self.names}

    def _take(self, rows: Mapping[str, HostArray]) -> None:
        """Take over rows, and compute the votes (n, K): how the model's errors on them carry over to similar images.

        This is kernel ridge regression of the error, the corrected class less the probabilities of the model. What the
        model knew anyway votes for nothing, and corrections of similar images share their vote. They carry over to less
        similar images, too, if each correction is predicted better that way from all others.
        """
        like = self.head.class_vectors
        width = max(1, int((rows["names"] > 0).any(axis=0).sum()))
        self.keys = move(rows["keys"].copy(), like)
        self.classes = rows["classes"].astype(np.int64)
        self.ids = rows["ids"].astype(np.int64)
        self.names = rows["names"][:, :width].astype(np.uint8)
        self.sharpness = GAMMA_LOCAL
        self._probs = self._votes = namespace(like).zeros((0, len(self.head)), dtype=like.dtype, device=device(like))
        if len(self):
            evidence = self.head.observe_unit(self.keys)
            self._probs = evidence.probs
            near, near_fit = self._ridge(evidence, GAMMA_LOCAL)
            wide, wide_fit = self._ridge(evidence, GAMMA_BROAD)
            is_wide = wide_fit > near_fit + EVIDENCE_NATS
            self.sharpness = GAMMA_BROAD if is_wide else GAMMA_LOCAL
            self._votes = move(wide if is_wide else near, like)

    def _ridge(self, evidence: Evidence, sharpness: float) -> tuple[HostArray, float]:
        """Return the votes (n, K) at a sharpness, and the log-likelihood of the corrections, each left out in turn."""
        keys, probs, logits = (to_host(x).astype(np.float64) for x in (self.keys, evidence.probs, evidence.logits))
        rows = np.arange(len(self))
        errors = -probs
        errors[rows, self.classes] += 1.0
        likeness = _likeness(keys @ keys.T, probs, probs, sharpness)
        inverse = np.linalg.inv(likeness + RIDGE * np.eye(len(self)))
        votes = STRENGTH * inverse @ errors
        left_out = logits + STRENGTH * errors - votes / np.diag(inverse)[:, None]
        return votes, float(np.log(softmax_and_entropy(left_out)[0][rows, self.classes] + SMALLEST_PROB).sum())


def id_of(feature: HostArray) -> int:
    """Return an id for an image that was not answered before: the same for the same unit feature (d,).

    It is far above the ids of samples of a stream, and one that JavaScript can hold.
    """
    digest = hashlib.sha256(np.ascontiguousarray(feature, np.float32).tobytes()).digest()
    return int.from_bytes(digest[:6], "big") | 2**48


def _likeness(cosines: Array, probs: Array, others: Array, sharpness: float) -> Array:
    """Return how like B samples are n others, from 0 to 1: by cosines (B, n), and by what the model sees in both."""
    xp = namespace(cosines)
    return xp.exp(sharpness * (cosines - 1.0)) * (xp.sqrt(probs) @ xp.sqrt(others).T) ** 2


def _identities(rows: Dump) -> list[tuple[int, int, bytes]]:
    if not rows:
        return []
    keys = [row.tobytes() for row in rows["keys"]]
    return list(zip(rows["ids"].tolist(), rows["classes"].tolist(), keys, strict=True))


def _stacked(dumps: Sequence[Dump]) -> Dump:
    width = max(dump["names"].shape[1] for dump in dumps)
    padded = [dump | {"names": np.pad(n := dump["names"], ((0, 0), (0, width - n.shape[1])))} for dump in dumps]
    return {name: np.concatenate([dump[name] for dump in padded]) for name in FIELDS}


def _sorted(rows: Dump) -> Dump:
    """Return the rows sorted by id, then by key, class and name."""
    keys, names = ([row.tobytes() for row in rows[name]] for name in ("keys", "names"))
    columns = (rows["ids"].tolist(), keys, rows["classes"].tolist(), names, range(len(keys)))
    order = [row for *_, row in sorted(zip(*columns, strict=True))]
    return {name: values[order] for name, values in rows.items()}


def _as_bytes(names: Sequence[str]) -> HostArray:
    rows = [name.replace("\0", "").encode(errors="backslashreplace")[-NAME_BYTES:] for name in names]
    longest = max([1, *map(len, rows)])
    return np.frombuffer(b"".join(row.ljust(longest, b"\0") for row in rows), np.uint8).reshape(-1, longest)
