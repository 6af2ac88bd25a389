"""Corrections: samples whose class a person has told. They are certain evidence, and the caches give way to them."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from acclimate.arrays import Array, HostArray, device, index, move, namespace, to_host, unit_rows
from acclimate.errors import InputError, StateError
from acclimate.evidence import Evidence
from acclimate.methods.state import LARGEST_ID, Dump, State

SAME = 0.999  # cosine from which two features are of the same image
LIKE = 0.6  # cosine from which they are if they have the same id, too: one may be of other views of the image
MOST = 2000  # corrections; more cost more than they teach
TOO_MANY = f"at most {MOST} images can be corrected; with more, fit a few-shot method by `acclimate fit` instead"
CERTAIN = 15.0  # nats between the class that was told for an image and the next, when the image is shown again
# One set for all data; docs/corrections.md says what they do, and benchmarks/corrections.py measures them.
SHARPNESS = 7.0  # how fast likeness falls with the angle between two images
DOUBT = 0.3  # how much a correction stands for its image alone, and not for those that are like it
STRENGTH = 4.0  # nats that an answer moves by which was wholly wrong
BLOCK = 2**22  # pairs of an entry and a correction that are compared at once
LONGEST = 4096  # bytes kept of the end of a name; all names take as much room as the longest
FIELDS = {"keys": ("f", 2), "classes": ("i", 1), "ids": ("i", 1), "names": ("u", 2)}  # kind of number and axes


class Correction(NamedTuple):
    """An image whose class was told.

    Attributes:
        id: names the image in the state.
        class_index: the class that was told.
        label: the name of the class.
        name: of the image, such as its path; "" if none was given.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, ZeroShot
        >>> adapter = ZeroShot(Head(np.eye(2), logit_scale=10.0, class_names=["cat", "dog"]))
        >>> _ = adapter.correct(np.array([[0.8, 0.6]]), [1], ids=[3], names=["yard.jpg"])
        >>> adapter.corrections
        [Correction(id=3, class_index=1, label='dog', name='yard.jpg')]
    """

    id: int
    class_index: int
    label: str
    name: str = ""


class Corrections(State):
    """Unit features with the classes that were told for them; an image has one class, the one that was told last.

    They vote for their classes on images that are similar, and decide alone on the image itself. The order in which
    they were told does not matter. Merged states have the corrections of all; where two tell different classes for one
    image, that of the lower index is kept. An image is recognised by its plain view, whatever other views there are.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head
        >>> corrections = Corrections(Head(np.eye(3), logit_scale=10.0))
        >>> corrections.add(np.eye(3)[:1], np.array([2]), np.array([7]))
        >>> corrections.listed()
        [Correction(id=7, class_index=2, label='2', name='')]
        >>> evidence = corrections.head.observe(np.eye(3)[:1])
        >>> evidence.logits.argmax(axis=1), corrections.voted(evidence.logits, evidence).argmax(axis=1)
        (array([0]), array([2]))
    """

    rule = "union"

    def __len__(self) -> int:
        return len(self.ids)

    def clear(self) -> None:
        """Forget every correction."""
        self.keys = self.head.class_vectors[:0]  # (n, d)
        self.classes = np.empty(0, np.int64)
        self.ids = np.empty(0, np.int64)
        self.names = _as_bytes([])
        self._settled()

    def listed(self) -> list[Correction]:
        """All corrections, sorted by id."""
        labels = [self.head.class_names[label] for label in self.classes]
        names = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in self.names]
        columns = (self.ids.tolist(), self.classes.tolist(), labels, names)
        return [Correction(*each) for each in zip(*columns, strict=True)]

    def add(self, features: Array, classes: HostArray, ids: HostArray, names: Sequence[str] = ()) -> None:
        """Tell the classes (n,) of unit features (n, d) with ids (n,); earlier corrections of the same images go."""
        if classes.dtype.kind not in "iu" or classes.shape != ids.shape:
            what = f"{len(ids)} images, {classes.dtype} classes {classes.shape}"
            raise InputError(f"classes must be one class index per image: {what}.")
        if classes.min() < 0 or classes.max() >= len(self.head):
            raise InputError(f"classes must be class indices from 0 to {len(self.head) - 1}.")
        if len(ids) > MOST:
            raise InputError(f"{TOO_MANY}.")
        dump = self._full_dump()
        told = {"keys": to_host(features), "classes": classes, "ids": ids, "names": _as_bytes(names or [""] * len(ids))}
        rows = _stacked([dump, {name: values.astype(dump[name].dtype) for name, values in told.items()}])
        same = rows["keys"] @ rows["keys"][len(self) :].T >= SAME
        same |= rows["ids"][:, None] == ids
        kept = ~np.triu(same, 1 - len(self)).any(axis=1)  # the last word on each image
        if kept.sum() > MOST:
            raise InputError(f"{TOO_MANY}.")
        self.restore(_sorted({name: values[kept] for name, values in rows.items()}))

    def discard(self, ids: HostArray) -> None:
        """Take back the corrections with these ids."""
        if unknown := sorted(set(ids.tolist()) - set(self.ids.tolist())):
            known = f"there are {', '.join(map(str, self.ids[:5].tolist()))}" if len(self) else "there is none"
            more = f" and {len(self) - 5} more" if len(self) > 5 else ""
            raise InputError(f"no correction has the id {unknown[0]}; {known}{more}.")
        dump = self._full_dump()
        self.restore({name: values[~np.isin(dump["ids"], ids)] for name, values in dump.items()})

    def knows(self, evidence: Evidence) -> HostArray:
        """Which of B samples are corrected images: (B,)."""
        if not len(self):
            return np.zeros(len(evidence), bool)
        cosines = self._cosines(evidence)
        return to_host(namespace(cosines).max(cosines, axis=-1)) >= SAME

    def voted(self, logits: Array, evidence: Evidence) -> Array:
        """Logits (B, K) with the votes of the corrections."""
        if not len(self):
            return logits
        xp = namespace(logits)
        cosines = self._cosines(evidence)
        logits = logits + _likeness(cosines, evidence.probs, self._probs) @ self._votes
        rows = np.flatnonzero(to_host(xp.max(cosines, axis=-1)) >= SAME)
        if len(rows):
            told = index(self.classes[to_host(xp.argmax(cosines, axis=-1))[rows]], logits)
            rows = index(rows, logits)
            logits[rows, told] = xp.max(logits[rows], axis=-1) + CERTAIN
        return logits

    def contradicts(self, keys: HostArray, classes: HostArray, ids: HostArray) -> HostArray:
        """Which entries with keys (E, d), classes (E,) and ids (E,) are corrected images under another class: (E,)."""
        if not len(self):
            return np.zeros(len(classes), bool)
        told = to_host(self.keys).T.astype(keys.dtype)
        found = np.zeros(len(classes), bool)
        size = max(1, BLOCK // len(self))
        for start in range(0, len(classes), size):
            rows = slice(start, start + size)
            lengths = np.maximum(np.linalg.norm(keys[rows], axis=1, keepdims=True), 1e-12)
            cosines = (keys[rows] / lengths) @ told
            same = (cosines >= SAME) | ((cosines >= LIKE) & (ids[rows, None] == self.ids))
            found[rows] = (same & (classes[rows, None] != self.classes)).any(axis=1)
        return found

    def dump(self) -> Dump:
        """Keys (n, d), classes and ids (n,), names as UTF-8 (n, length), sorted by id; nothing where there are none."""
        return self._full_dump() if len(self) else {}

    def restore(self, arrays: Mapping[str, HostArray]) -> None:
        """Replace the corrections by dumped ones."""
        if not arrays:
            self.clear()
            return
        require = self.require
        count = len(self.head)
        require(set(arrays) == set(FIELDS), f"corrections hold {', '.join(FIELDS)}")
        for name, (kind, axes) in FIELDS.items():
            numbers = "real numbers" if kind == "f" else "whole numbers"
            require(arrays[name].dtype.kind == kind, f"{name} must be {numbers}")
            require(arrays[name].ndim == axes, f"{name} must have {axes} axes")
            require(len(arrays[name]) == len(arrays["ids"]), f"{name} must have one row per correction")
        keys = arrays["keys"]
        classes = arrays["classes"]
        if len(keys) > MOST:
            raise StateError(f"the state has {len(keys)} corrections; {TOO_MANY}.")
        require(keys.shape[1] == self.head.dim, f"keys must have {self.head.dim} columns")
        require(1 <= arrays["names"].shape[1] <= LONGEST, f"names must have 1 to {LONGEST} bytes")
        require(np.isfinite(keys).all(), "keys must be finite")
        with np.errstate(over="ignore"):
            require(np.all(np.abs(np.linalg.norm(keys, axis=1) - 1.0) < 0.01), "keys must have unit length")
        require(not np.any((classes < 0) | (classes >= count)), f"classes must be from 0 to {count - 1}")
        self.keys = move(keys.copy(), self.head.class_vectors)
        self.classes = classes.astype(np.int64)
        self.ids = arrays["ids"].astype(np.int64)
        self.names = arrays["names"].astype(np.uint8)
        self._settled()

    def check(self, arrays: Mapping[str, HostArray], samples: int) -> None:
        """Refuse ids that no image has, and corrections that are not sorted or there twice."""
        if not arrays:
            return
        self.require_within(arrays["ids"], 0, LARGEST_ID, "ids")
        ended = arrays["names"][:, :-1] == 0
        self.require(not np.any(ended & (arrays["names"][:, 1:] > 0)), "names must not have zeros before their ends")
        rows = list(zip(arrays["ids"].tolist(), (row.tobytes() for row in arrays["keys"]), strict=True))
        self.require(rows == sorted(set(rows)), "corrections must be sorted by id, then by key, and differ")

    def reindexed(self, arrays: Dump, position: HostArray, classes: int) -> Dump:
        """Keep the corrections to classes that remain."""
        if not arrays:
            return arrays
        kept = position[arrays["classes"]] >= 0
        moved = arrays | {"classes": position[arrays["classes"]]}
        return {name: values[kept] for name, values in moved.items()}

    def merged(self, dumps: Sequence[Dump], start: Dump | None = None) -> Dump:
        """The corrections of all, sorted by id, then by key; an image that several correct counts once.

        The corrections are taken by class, then by id and key; one of an image that was taken already is left out.
        A correction of `start` that one of them took back or replaced is gone.
        """
        told = [set(_identities(dump)) for dump in dumps]
        gone = {each for each in _identities(start or {}) if not all(each in held for held in told)}
        rows = _stacked(dumps) if (dumps := [dump for dump in dumps if dump]) else {}
        kept = np.array([each not in gone for each in _identities(rows)], bool)
        if not kept.any():
            return {}
        rows = _sorted({name: values[kept] for name, values in rows.items()})
        order = np.argsort(rows["classes"], kind="stable")
        keys = unit_rows(rows["keys"][order], "keys")
        new = np.full(len(keys), True)
        for first in range(0, len(keys), 1000):
            repeats = np.triu(keys[first : first + 1000] @ keys.T >= SAME, first + 1)
            for place, later in enumerate(repeats, first):
                if new[place]:
                    new &= ~later
        return {name: values[np.sort(order[new])] for name, values in rows.items()}

    def _full_dump(self) -> Dump:
        width = max(1, int((self.names > 0).any(axis=0).sum()))  # as long as the longest name that is left
        arrays = {"keys": to_host(self.keys), "classes": self.classes, "ids": self.ids, "names": self.names[:, :width]}
        return {name: values.copy() for name, values in arrays.items()}

    def _cosines(self, evidence: Evidence) -> Array:
        return evidence.original_view @ self.keys.T

    def _settled(self) -> None:
        """Compute the votes (n, K): how the model's errors on the corrected images carry over to those like them.

        This is kernel ridge regression of the error, the class that was told less the probabilities of the model. What
        the model knew anyway votes for nothing, and corrections of similar images share their vote.
        """
        like = self.head.class_vectors
        self._probs = self._votes = namespace(like).zeros((0, len(self.head)), dtype=like.dtype, device=device(like))
        if len(self):
            self._probs = self.head.observe_unit(self.keys).probs
            keys, probs = (to_host(each).astype(np.float64) for each in (self.keys, self._probs))
            errors = -probs
            errors[np.arange(len(self)), self.classes] += 1.0
            likeness = _likeness(keys @ keys.T, probs, probs) + DOUBT * np.eye(len(self))
            self._votes = move(STRENGTH * np.linalg.solve(likeness, errors), like)


def _likeness(cosines: Array, probs: Array, others: Array) -> Array:
    """How like B samples are n others, from 0 to 1: by their cosines (B, n), and by what the model sees in both."""
    xp = namespace(cosines)
    return xp.exp(SHARPNESS * (cosines - 1.0)) * (xp.sqrt(probs) @ xp.sqrt(others).T) ** 2


def _identities(rows: Dump) -> list[tuple[int, int, bytes]]:
    """Id, class and key of each correction."""
    if not rows:
        return []
    keys = [row.tobytes() for row in rows["keys"]]
    return list(zip(rows["ids"].tolist(), rows["classes"].tolist(), keys, strict=True))


def _stacked(dumps: Sequence[Dump]) -> Dump:
    """The rows of several dumps, one after another."""
    width = max(dump["names"].shape[1] for dump in dumps)
    padded = [dump | {"names": np.pad(n := dump["names"], ((0, 0), (0, width - n.shape[1])))} for dump in dumps]
    return {name: np.concatenate([dump[name] for dump in padded]) for name in FIELDS}


def _sorted(rows: Dump) -> Dump:
    """The rows sorted by id, then by key, class and name."""
    keys, names = ([row.tobytes() for row in rows[name]] for name in ("keys", "names"))
    columns = (rows["ids"].tolist(), keys, rows["classes"].tolist(), names, range(len(keys)))
    order = [place for *_, place in sorted(zip(*columns, strict=True))]
    return {name: values[order] for name, values in rows.items()}


def _as_bytes(names: Sequence[str]) -> HostArray:
    """Names as rows of UTF-8, padded with zeros."""
    rows = [name.replace("\0", "").encode(errors="backslashreplace")[-LONGEST:] for name in names]
    longest = max([1, *map(len, rows)])
    return np.frombuffer(b"".join(row.ljust(longest, b"\0") for row in rows), np.uint8).reshape(-1, longest)


def id_of(feature: HostArray) -> int:
    """An id for an image that was not answered before, from its unit feature (d,): the same for the same feature.

    It is far above the ids of samples of a stream, and one that JavaScript can hold.
    """
    digest = hashlib.sha256(np.ascontiguousarray(feature, np.float32).tobytes()).digest()
    return int.from_bytes(digest[:6], "big") | 2**48
