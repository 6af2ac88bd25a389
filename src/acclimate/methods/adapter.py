"""What an adapter is: the frame that every method fills in.

A method is one file: a dataclass whose fields are its settings. It declares the parts of its state in `setup` and
answers evidence in `respond`; saving, loading, merging, class changes, moves between devices and resets follow from the
declared parts. `acclimate.checks.check_adapter` says whether a method keeps the library's laws.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, ClassVar, Literal, TypeVar, cast

import numpy as np

from acclimate.arrays import Array, HostArray, as_floats, is_array_api_obj, move, namespace, to_host
from acclimate.errors import InputError
from acclimate.evidence import Evidence, Head
from acclimate.methods.corrections import Correction, Corrections, id_of
from acclimate.methods.settings import check_settings
from acclimate.methods.settings import require as require
from acclimate.methods.state import Dump, Entry, MergeRule, State
from acclimate.methods.step import Change as Change
from acclimate.methods.step import Ids as Ids
from acclimate.methods.step import Step as Step
from acclimate.methods.step import check_ids, joined

# Logits computed at once, where that makes 256 to 1024 samples: enough to fill the matrix products and to hide the cost
# of each call on a GPU, few enough to stay in the CPU's cache and to bound memory at 20,000 classes.
BLOCK_LOGITS = 2**20
CORRECTIONS = "corrections"  # the part of the state that every adapter has
MethodKind = Literal["online", "episodic", "few-shot"]
ViewsKind = Literal["augmix", "crop", "large-crop", "diffusion"]
AnyState = TypeVar("AnyState", bound=State)


@dataclass(eq=False, repr=False)
class Adapter(ABC):
    """A classifier that may learn from the samples it is shown. An adapter is one method at work on one stream.

    It lives where its head lives. Features from elsewhere are brought there, and answers go back to the caller's
    array library, device and dtype.

    Args:
        head: the zero-shot classifier to start from.
        origin: name of the stream this adapter sees. When adapters are merged, samples of different origins add up.
        text: the encoder, for methods that need its text tower.

    Attributes:
        name: of the method, for `create` and the command line.
        summary: one line on what it does.
        kind: "online" (learns from every sample), "episodic" (answers every sample by itself) or "few-shot" (is fitted
            to labelled samples).
        merges: how states merge: "union", "sum", or None if they cannot.
        self_taught: whether it learns from its own answers, so that what it learns depends on the order of samples.
        needs: what it needs in addition to features: "views", "text" (a text tower), "labels".
        views_kind: the views that its authors use: "augmix", "crop", "large-crop" or "diffusion".
        seen: number of samples learnt from, by origin.
        frozen: whether it answers without learning.

    Examples:
        A method that sharpens the zero-shot answer:

        >>> from dataclasses import dataclass
        >>> import numpy as np
        >>> from acclimate import Adapter, Head, Step
        >>> @dataclass(eq=False, repr=False, kw_only=True)
        ... class Sharpen(Adapter):
        ...     name = "sharpen"
        ...     summary = "zero-shot logits times a factor"
        ...     factor: float = 2.0
        ...
        ...     def respond(self, evidence, ids, learn):
        ...         return Step(self.factor * evidence.logits)
        >>> Sharpen(Head(np.eye(2), logit_scale=10.0), factor=3.0).step(np.array([[0.6, 0.8]]))
        array([[18., 24.]])
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    kind: ClassVar[MethodKind] = "online"
    merges: ClassVar[MergeRule | None] = None
    self_taught: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()
    views_kind: ClassVar[ViewsKind] = "augmix"

    head: Head
    _: KW_ONLY
    origin: str = ""
    text: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.head, Head):
            kind = type(self.head).__name__
            raise InputError(f"an adapter needs a Head, got {kind}; write Head(class_vectors, logit_scale=...).")
        if "text" in self.needs and self.text is None:
            require(type(self), views=True, labels=True)
        for name, value in check_settings(type(self), self.settings).items():
            setattr(self, name, value)
        self.seen: dict[str, int] = {}
        self.frozen = False
        self.parts: dict[str, State] = {}
        self.declare(CORRECTIONS, Corrections(self.head))  # first, so that the other parts can follow it
        self.setup()
        self.derive()

    def setup(self) -> None:  # noqa: B027 (a method without state has nothing to declare)
        """Check the settings and declare the parts of the state."""

    def declare(self, name: str, part: AnyState) -> AnyState:
        """Declare a part of the state, to be cleared, saved, loaded, merged and moved with the adapter."""
        self.parts[name] = part
        part.contradicted = self.told.contradicts
        return part

    @property
    def told(self) -> Corrections:
        """The corrections, as a part of the state."""
        return cast(Corrections, self.parts[CORRECTIONS])

    @abstractmethod
    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Answer evidence for B samples as if they came one by one.

        State may change only if `learn`, and only when nothing can fail any more.
        """

    def derive(self) -> None:  # noqa: B027
        """Compute what follows from the state; called whenever the state was settled, restored, moved or cleared."""

    def period(self) -> int:
        """Samples of the stream from one settling of the state to the next; 0 for methods that settle by themselves.

        Batches are cut at multiples of the period, so `respond` never sees samples of two periods at once.
        """
        return 0

    def settles_at(self, seen: int) -> int:
        """The position of the stream, after `seen` samples, where the state settles next; for periods that vary."""
        period = self.period()
        return (seen // period + 1) * period if period else 0

    def advice(self) -> str:
        """What a user should know of the stream, in one line; "" if there is nothing to say."""
        return ""

    def learnt(self) -> dict[str, HostArray]:
        """What was learnt of each class, as named columns (K,); entries per class for methods that keep entries."""
        classes = {name: [entry.class_index for entry in entries] for name, entries in self.entries().items()}
        return {name: np.bincount(held, minlength=len(self.head)) for name, held in classes.items()}

    @property
    def settings(self) -> dict[str, Any]:
        """The method's settings by name."""
        return {name: getattr(self, name) for name in self.default_settings()}

    @classmethod
    def default_settings(cls) -> dict[str, Any]:
        """The method's settings with their defaults."""
        return {each.name: each.default for each in fields(cls) if each.name not in ("head", "origin", "text")}

    @property
    def counts_samples(self) -> bool:
        """Whether the samples it is shown count as seen."""
        return not self.frozen

    @property
    def samples_seen(self) -> int:
        """Number of samples learnt from."""
        return sum(self.seen.values())

    @property
    def capacity(self) -> int:
        """The most samples per class that it keeps as entries; 0 for methods that keep none."""
        return sum(part.capacity for part in self.parts.values())

    @property
    def next_id(self) -> int:
        """An id above all that were given out."""
        return max([self.samples_seen, *(part.next_id for part in self.parts.values())])

    def entries(self) -> dict[str, list[Entry]]:
        """The samples that each part keeps, sorted by class and entropy; empty for methods that keep none."""
        return {name: part.entries() for name, part in self.parts.items() if part.capacity}

    def step(self, features: Array, ids: Ids | None = None, learn: bool = True) -> Array:
        """Classify samples in order, learning from each; any way to cut a stream into steps gives the same answers.

        Args:
            features: (n, d), or (n, V, d) for V views per sample; of any length.
            ids: (n,) distinct integers that name the samples for good, for instance their positions in a stream that
                is adapted in shards; the running count when not given.
            learn: False to answer without learning.

        Returns:
            (n, K) adapted logits in the caller's array library, device and dtype.
        """
        unit = self.head.unit_features(features)
        ids = None if ids is None else check_ids(ids, unit.shape[0])
        size = self._block_size(unit)
        answers = []
        for start in range(0, unit.shape[0], size):
            block = slice(start, start + size)
            evidence = self.head.observe_unit(unit[block])
            answers.append(self.adapt(evidence, None if ids is None else ids[block], learn=learn).logits)
        logits = answers[0] if len(answers) == 1 else namespace(unit).concat(answers)
        return move(logits, features if is_array_api_obj(features) else as_floats(features, "features"))

    def adapt(self, evidence: Evidence, ids: Ids | None = None, learn: bool | HostArray = True) -> Step:
        """Answer evidence from the adapter's head, for B samples as if they came one by one.

        `ids` (B,) are those of `step`. `learn` says whether to learn from the samples, or (B,) from which of them.
        Images that were corrected are not learnt from: their class is known.
        """
        if "views" in self.needs and evidence.views is None:
            require(type(self))
        if not len(self.told):
            return self._adapt(evidence, ids, learn)
        step = self._adapt(evidence, ids, learn & ~self.told.knows(evidence))
        return replace(step, logits=self.told.voted(step.logits, evidence))

    def _adapt(self, evidence: Evidence, ids: Ids | None, learn: bool | HostArray) -> Step:
        """`adapt` without corrections."""
        count = len(evidence)
        first = self.samples_seen
        chosen = np.full(count, learn) & self.counts_samples
        ids = first + np.cumsum(chosen) - chosen if ids is None else np.asarray(ids, dtype=np.int64)
        if not chosen.any():
            return self.respond(evidence, ids, False)
        if len(self.parts) > 1:
            evidence.require_finite()
        turns = [*(np.flatnonzero(np.diff(chosen)) + 1).tolist(), count]  # where runs of samples of one kind end
        steps = []
        start = 0
        turn = 0
        while start < count:
            learning = bool(chosen[start])
            seen = self.samples_seen
            end = turns[turn]
            due = self.settles_at(seen) if learning else 0
            end = min(end, start + due - seen) if due else end
            steps.append(self.respond(evidence[start:end], ids[start:end], learning))
            if learning:
                self.seen[self.origin] = self.seen.get(self.origin, 0) + end - start
                if self.samples_seen == due:
                    self.settle()
            start = end
            turn = turn + (end == turns[turn])
        return steps[0] if len(steps) == 1 else joined(steps)

    def correct(
        self, features: Array, classes: Sequence[int] | HostArray, ids: Ids | None = None, names: Sequence[str] = ()
    ) -> list[int]:
        """Tell the classes of images, even while frozen; `undo` takes it back as if it had never been told.

        A corrected image gets its class when it is shown again, votes for it on images that are like it, and leaves the
        caches of other classes. It is not learnt from any more. Correcting it again replaces the earlier correction.

        Args:
            features: (n, d), or (n, V, d) for V views per image, of which the first, the image itself, counts.
            classes: (n,) class indices; they may confirm what the adapter answers.
            ids: (n,) integers that name the images, those given to `step`; made from the features when not given.
            names: (n,) of the images for people, such as paths, to be listed with the corrections.

        Returns:
            The n ids.

        Examples:
            >>> import numpy as np
            >>> from acclimate import TDA, Head
            >>> adapter = TDA(Head(np.eye(3), logit_scale=10.0))
            >>> image = np.array([[0.9, 0.4, 0.1]])
            >>> adapter.correct(image, [1], ids=[7])
            [7]
            >>> adapter.step(image).argmax(axis=1), adapter.corrections[0].label
            (array([1]), '1')
        """
        unit = self.head.observe(features).original_view
        named = np.array([id_of(row) for row in to_host(unit)]) if ids is None else check_ids(ids, unit.shape[0])
        self.told.add(unit, np.asarray(classes), named, names)
        self._review()
        return [int(each) for each in named]

    def undo(self, ids: Ids) -> None:
        """Take back the corrections with these ids, as if they had never been made."""
        self.told.discard(check_ids(ids, len(ids)))
        self._review()

    @property
    def corrections(self) -> list[Correction]:
        """The images whose class was told, sorted by id."""
        return self.told.listed()

    def refined(self, features: Array) -> Iterator[Array]:
        """Answer a whole stream once more from everything learnt from it; the adapter does not change.

        Takes features (n, d) or (n, V, d), read in slices: a memory map will do. Yields logits (b, K) of b samples at
        a time where the head lives. Unless a method knows better, they are the answers of the frozen adapter.
        """
        final = deepcopy(self)
        final.settle()
        yield from final.answer_all(features)

    def answer_all(self, features: Array) -> Iterator[Array]:
        """Answer features (n, d) or (n, V, d) without learning, (b, K) logits of b samples at a time."""
        for start, evidence in self.observed(features):
            logits = self.respond(evidence, np.arange(start, start + len(evidence)), False).logits
            yield self.told.voted(logits, evidence)

    def observed(self, features: Array) -> Iterator[tuple[int, Evidence]]:
        """Evidence for features (n, d) or (n, V, d), block by block, each with the position of its first sample."""
        size = self._block_size(features)
        for start in range(0, features.shape[0], size):
            yield start, self.head.observe(features[start : start + size])

    def settle(self) -> None:
        """Let everything that was learnt count from now on."""
        for part in self.parts.values():
            part.settle()
        self.derive()

    def freeze(self) -> None:
        """Answer from what was learnt so far, and learn nothing more."""
        self.frozen = True

    def unfreeze(self) -> None:
        """Learn again."""
        self.frozen = False

    def reset(self) -> None:
        """Forget everything learnt; the adapter is as new."""
        for part in self.parts.values():
            part.clear()
        self.derive()
        self.seen = {}
        self.frozen = False

    def add_classes(self, class_vectors: Array, class_names: Sequence[str]) -> None:
        """Append classes: vectors (N, d) and names; what was learnt of the others stays."""
        self._follow(self.head.add(class_vectors, class_names))

    def remove_classes(self, class_names: Iterable[str]) -> None:
        """Remove classes and what was learnt of them; what was learnt of the others stays."""
        self._follow(self.head.remove(class_names))

    def to(self, like: Array) -> None:
        """Move to where `like` lives: array library, device and dtype."""
        self._follow(self.head.to(like))

    def dump(self) -> Dump:
        """The whole state as host arrays named "PART.ARRAY"."""
        return {f"{name}.{key}": values for name, part in self.parts.items() for key, values in part.dump().items()}

    def exports(self) -> Dump:
        """Arrays that a state file also holds, by name, for readers who do not know the method."""
        return {}

    def restore(self, arrays: Mapping[str, HostArray], seen: Mapping[str, int] | None = None) -> None:
        """Take over what `dump` gave; with `seen`, numbers of samples by origin, also what only a file can break.

        Raises:
            StateError: the arrays are not a state of this adapter; the message says which rule they break.
        """
        dumps = self.by_part(arrays)
        self.seen = self.seen if seen is None else dict(seen)
        for name, part in self.parts.items():
            part.restore(dumps[name])
            if seen is not None:
                part.check(dumps[name], self.samples_seen)
        self.derive()

    def by_part(self, arrays: Mapping[str, HostArray]) -> dict[str, Dump]:
        """The arrays of a dump by the parts of the state."""
        dumps: dict[str, Dump] = {name: {} for name in self.parts}
        for full_name, values in arrays.items():
            name, _, key = full_name.partition(".")
            State.require(name in dumps, f"{self.name!r} has no part named {name[:80]!r}")
            dumps[name][key] = values
        return dumps

    def _block_size(self, features: Array) -> int:
        """How many samples to answer at once."""
        views = 1 if features.ndim == 2 else features.shape[1]
        return max(1, min(1024, max(256, BLOCK_LOGITS // len(self.head))) // views)

    def _review(self) -> None:
        """Follow a change of the corrections."""
        for part in self.parts.values():
            part.review()
        self.derive()

    def _follow(self, head: Head) -> None:
        place = {name: i for i, name in enumerate(head.class_names)}
        position = np.array([place.get(name, -1) for name in self.head.class_names])
        for part in self.parts.values():
            part.move(head, position)
        self.head = head
        self.derive()

    def __repr__(self) -> str:
        state = f"classes={len(self.head)}, dim={self.head.dim}, samples_seen={self.samples_seen}"
        settings = "".join(f", {key}={value!r}" for key, value in self.settings.items())
        return f"{type(self).__name__}({state}{', frozen' if self.frozen else ''}{settings})"
