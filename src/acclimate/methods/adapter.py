"""The adapter: the frame that every method fills in.

A method is one file: a dataclass whose fields are its settings. It declares the parts of its state in `setup` and
answers evidence in `respond`; saving, loading, merging, class changes, moves between devices and resets follow from the
declared parts. `acclimate.checks.check_adapter` checks that a method keeps the library's laws.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, replace
from types import UnionType
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints, overload

import numpy as np

from acclimate.arrays import (
    AnyArray,
    Array,
    HostArray,
    as_floats,
    check_integers,
    is_array_api_obj,
    move,
    namespace,
    ordinary_tensors,
    softmax_and_entropy,
)
from acclimate.errors import InputError, is_text, nearest
from acclimate.evidence import Evidence, Head
from acclimate.methods.corrections import Corrections
from acclimate.methods.exclusive import Turn, exclusive
from acclimate.methods.state import LARGEST_ID, Dump, Entry, Ids, MergeRule, State

# Logits computed at once, where that makes 256 to 1024 samples: enough to fill the matrix products and to hide the cost
# of each call on a GPU, few enough to stay in the CPU's cache and to bound memory at 20,000 classes.
BLOCK_LOGITS = 2**20
LARGEST_REAL = 1_000_000  # more than any method can use; single precision still holds the sum of their products
WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", type(None): "None"}
NEEDS = {
    "views": "several views per image; encode them with views=64, for instance",
    "text": "the text tower of a model, which stored features do not have",
    "labels": "to be fitted to labelled samples first: `acclimate fit`, or `fit(features, labels)`",
}
MethodKind = Literal["online", "collection", "episodic", "few-shot"]
ViewsKind = Literal["augmix", "crop", "large-crop", "diffusion"]
AnyState = TypeVar("AnyState", bound=State)
AnyAdapterClass = TypeVar("AnyAdapterClass", bound=type)
# Methods that read or change what was learnt, in the frame and where a method has its own: one thread at a time
READING = {
    "dump",
    "entries",
    "class_statistics",
    "advice",
    "second_pass_blocks",
    "frozen_logits",
    "__getstate__",
    "__deepcopy__",
}
CHANGING = {"step", "adapt", "flush", "fit", "reset", "restore", "replace_head", "to", "add_classes", "remove_classes"}


class Change(NamedTuple):
    """The effect of a batch on the entries of a part."""

    admitted: list[int]  # positions in the batch of the samples that entered, even if a later one pushed them out again
    dropped: list[int]  # ids of the entries that were pushed out


@dataclass(frozen=True)
class Step:
    """The result of one call.

    Attributes:
        logits: (B, K) adapted.
        changes: the effect on the entries of each part that keeps some; empty for methods without entries.

    Examples:
        >>> import numpy as np
        >>> from acclimate import TDA, Head
        >>> head = Head(np.eye(3), logit_scale=10.0)
        >>> step = TDA(head).adapt(head.observe(np.eye(3)))
        >>> step.logits.shape, step.changes["positive"].admitted
        ((3, 3), [0, 1, 2])
    """

    logits: Array
    changes: Mapping[str, Change] = field(default_factory=dict)


def _take_turns(adapter: AnyAdapterClass) -> AnyAdapterClass:
    """Make those methods wait for each other that a class of adapters does not inherit."""
    for name in (READING | CHANGING).intersection(vars(adapter)):
        setattr(adapter, name, exclusive(vars(adapter)[name]))
    return adapter


@_take_turns
@dataclass(eq=False, repr=False)
class Adapter(ABC):
    """A classifier that may learn from the samples it is shown. An adapter is one method at work on one stream.

    It lives where its head lives. Features from elsewhere are brought there, and answers go back to the caller's
    array library, device and dtype. Threads may share an adapter: they wait for each other, and samples are learnt in
    the order in which the threads come. Answers and state do not depend on PyTorch's inference mode and autocast, which
    an adapter leaves while it computes.

    Args:
        head: the zero-shot classifier to start from.
        origin: name of the stream this adapter sees. When adapters are merged, samples of different origins add up.

    Attributes:
        name: the name of the method, for `create` and the command line.
        summary: one line on what it does.
        published: where its default settings are published; "" if it does not say so.
        kind: "online" (learns from every sample), "collection" (answers a set of samples in its second pass, and single
            ones zero-shot), "episodic" (answers every sample by itself) or "few-shot" (is fitted to labelled samples).
        merges: how states merge: "union", "sum", or None if they cannot.
        self_taught: True if it learns from its own answers, so that what it learns depends on the order of samples.
        answers_batches: True if it learns from the samples of a batch before it answers them, so that answers depend
            on batches. Such a method has a setting `batch`, the largest batch; with 1 they do not.
        needs: things that it needs in addition to features: "views", "text" (a text tower: it has a field `encoder`
            without a default, so that it is no setting), "labels".
        views_kind: the views that its authors use: "augmix", "crop", "large-crop" or "diffusion".
        seen: number of samples learnt from, by origin.
        frozen: True if it answers without learning.
        parts: the declared parts of the state by name.
        corrections: the images that a person has corrected; a part of every adapter's state.
        turn: lock that a thread holds while it reads or changes the state; `with adapter.turn:` joins several calls.

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
    published: ClassVar[str] = ""
    kind: ClassVar[MethodKind] = "online"
    merges: ClassVar[MergeRule | None] = None
    self_taught: ClassVar[bool] = False
    answers_batches: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()
    views_kind: ClassVar[ViewsKind] = "augmix"

    head: Head
    _: KW_ONLY
    origin: str = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _take_turns(cls)

    @ordinary_tensors()
    def __post_init__(self) -> None:
        if not isinstance(self.head, Head):
            raise InputError(
                f"an adapter needs a Head, got {type(self.head).__name__}; write Head(class_vectors, logit_scale=...)."
            )
        for name, value in check_settings(type(self), self.settings).items():
            setattr(self, name, value)
        if getattr(self, "rounds", 0) < 0:
            raise InputError(f"rounds must be at least 0, got {self.settings['rounds']}.")
        self.turn = Turn()
        self.seen: dict[str, int] = {}
        self.frozen = False
        self.parts: dict[str, State] = {}
        self.corrections = Corrections(self.head)
        self.declare("corrections", self.corrections)
        self.setup()
        self.recompute()

    def setup(self) -> None:  # noqa: B027 (a method without state has nothing to declare)
        """Check the settings and declare the parts of the state."""

    def declare(self, name: str, part: AnyState) -> AnyState:
        """Declare a part of the state, to be cleared, saved, loaded, merged and moved with the adapter."""
        self.parts[name] = part
        part.turn = self.turn
        return part

    @abstractmethod
    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Answer evidence for B samples as if they came one by one.

        State may change only if `learn`, and only when nothing can fail any more.
        """

    def recompute(self) -> None:  # noqa: B027
        """Compute what follows from the state; called whenever the state was flushed, restored, moved or cleared."""

    def next_flush(self, seen: int) -> int:
        """Return the position of the stream, after `seen` samples, where the state is flushed next; 0 for nowhere.

        Batches are cut at these positions, so `respond` never sees samples before and after one at once. By default, a
        method with a setting `refresh` or `batch` is flushed every `refresh` or `batch` samples, and others never.
        """
        every: int = getattr(self, "batch" if self.answers_batches else "refresh", 0)
        return (seen // every + 1) * every if every else 0

    def learn_labels(self, evidence: Evidence, labels: Array) -> None:
        """Learn samples with soft labels (B, K) instead of the method's own; for methods with a setting `rounds`."""
        raise NotImplementedError

    def advice(self) -> str:
        """Return one line that a user should know of the stream; "" if there is nothing to say."""
        return ""

    def class_statistics(self) -> dict[str, HostArray]:
        """Return what was learnt of each class, as named columns (K,); by default, the number of entries."""
        classes = {name: [entry.class_index for entry in entries] for name, entries in self.entries().items()}
        return {name: np.bincount(held, minlength=len(self.head)) for name, held in classes.items()}

    @property
    def settings(self) -> dict[str, Any]:
        """The method's settings by name."""
        return {name: getattr(self, name) for name in self.default_settings()}

    @classmethod
    def default_settings(cls) -> dict[str, Any]:
        """Return the method's settings with their defaults."""
        return {each.name: each.default for each in fields(cls)[2:] if each.default is not MISSING}

    @property
    def given(self) -> dict[str, Any]:
        """Arguments of its class beside the head, the origin and the settings, by name; copies share them."""
        return {each.name: getattr(self, each.name) for each in fields(self)[1:] if each.default is MISSING}

    @property
    def counts_samples(self) -> bool:
        """True if the samples it is shown count as seen."""
        return not self.frozen and self.kind != "few-shot"

    @property
    def samples_seen(self) -> int:
        """Number of samples learnt from."""
        return sum(self.seen.values())

    @property
    def next_id(self) -> int:
        """An id above all that were given out."""
        return max([self.samples_seen, *(part.next_id for part in self.parts.values())])

    def entries(self) -> dict[str, list[Entry]]:
        """Return the samples that each part keeps, sorted by class and entropy; empty for methods that keep none."""
        return {name: part.entries() for name, part in self.parts.items() if part.capacity}

    @overload
    def step(self, features: Sequence[Any], ids: Ids | None = ..., learn: bool = ...) -> HostArray: ...
    @overload
    def step(self, features: AnyArray, ids: Ids | None = ..., learn: bool = ...) -> AnyArray: ...
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
        ids = None if ids is None else check_integers(ids, unit.shape[0], LARGEST_ID, "ids")
        size = block_size(self.head, unit)
        answers = []
        for start in range(0, unit.shape[0], size):
            evidence = self.head.observe_unit(unit[start : start + size])
            answers.append(self.adapt(evidence, None if ids is None else ids[start : start + size], learn).logits)
        return _as_given(answers, features)

    def adapt(self, evidence: Evidence, ids: Ids | None = None, learn: bool | HostArray = True) -> Step:
        """Answer evidence from the adapter's head, for B samples as if they came one by one.

        `ids` (B,) are those of `step`. `learn` is True to learn from the samples, or (B,) booleans.
        Images that were corrected are not learnt from: their class is known.
        """
        require(type(self), views=evidence.views is not None, text=True, labels=bool(self.seen))
        count = len(evidence)
        chosen = learn & self.counts_samples & ~self.corrections.is_corrected(evidence)
        ids = self.samples_seen + np.cumsum(chosen) - chosen if ids is None else np.asarray(ids, dtype=np.int64)
        if chosen.any() and len(self.parts) > 1 and not np.isfinite(evidence.host_entropy).all():
            raise InputError("the evidence holds NaN or infinity; check the features and class vectors it was made of.")
        runs = [*(np.flatnonzero(np.diff(chosen)) + 1).tolist(), count]  # ends of runs of samples of one kind
        steps = []
        start = 0
        while start < count:
            learning = bool(chosen[start])
            end = runs[bisect_right(runs, start)]
            due = self.next_flush(self.samples_seen) if learning else 0
            if due:
                end = min(end, start + due - self.samples_seen)
            steps.append(self.respond(evidence[start:end], ids[start:end], learning))
            if learning:
                self.seen[self.origin] = self.seen.get(self.origin, 0) + end - start
                if self.samples_seen == due:
                    self.flush()
            start = end
        step = steps[0] if len(steps) == 1 else _joined(steps)
        return replace(step, logits=self.corrections.vote(step.logits, evidence)) if len(self.corrections) else step

    @overload
    def second_pass(self, features: Sequence[Any]) -> HostArray: ...
    @overload
    def second_pass(self, features: AnyArray) -> AnyArray: ...
    def second_pass(self, features: Array) -> Array:
        """Answer a whole stream once more from everything that was learnt from it; the adapter does not change.

        The first samples of a stream are answered by an adapter that has seen little. Where a stream has an end, they
        can be answered again, and their order matters far less.

        Args:
            features: (n, d), or (n, V, d) for V views per sample, of the whole stream that the adapter was shown.

        Returns:
            (n, K) logits in the caller's array library, device and dtype.

        Examples:
            >>> import numpy as np
            >>> from acclimate import TDA, Head
            >>> adapter = TDA(Head(np.eye(3), logit_scale=10.0))
            >>> features = np.tile(np.eye(3), (5, 1))
            >>> online = adapter.step(features)
            >>> bool((adapter.second_pass(features)[0] > online[0]).any())
            True
        """
        return _as_given(list(self.second_pass_blocks(self.head.unit_features(features))), features)

    def second_pass_blocks(self, features: Array) -> Iterator[Array]:
        """Yield the logits (b, K) of the second pass, of b samples at a time, where the head lives.

        Features are read in slices: a memory map will do. Unless a method knows better, the answers are those of the
        frozen adapter. A method with a setting `rounds` first learns the stream anew `rounds` times, each time from
        nothing but the features and the answers of the adapter before.
        """
        final = self
        for _ in range(getattr(self, "rounds", 0)):
            taught = type(self)(self.head, **self.given, **self.settings)
            taught.corrections.restore(self.corrections.dump())
            for (_, evidence), logits in zip(observed(self.head, features), final.frozen_logits(features), strict=True):
                taught.learn_labels(evidence, softmax_and_entropy(logits)[0])
            final = taught
        yield from final.frozen_logits(features)

    def frozen_logits(self, features: Array) -> Iterator[Array]:
        """Yield the logits of the adapter, flushed and frozen, block by block; as every generator, of a copy of it."""
        self.flush()
        for start, evidence in observed(self.head, features):
            logits = self.respond(evidence, np.arange(start, start + len(evidence)), False).logits
            yield self.corrections.vote(logits, evidence)

    def flush(self) -> None:
        """Let everything that was learnt count from now on."""
        for part in self.parts.values():
            part.flush()
        self.recompute()

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
        self.recompute()
        self.seen = {}
        self.frozen = False

    def add_classes(self, class_vectors: Array, class_names: Sequence[str]) -> None:
        """Append classes: vectors (N, d) and names; what was learnt of the others stays."""
        self.replace_head(self.head.add(class_vectors, class_names))

    def remove_classes(self, class_names: Iterable[str]) -> None:
        """Remove classes and what was learnt of them; what was learnt of the others stays."""
        self.replace_head(self.head.remove(class_names))

    def to(self, like: Array) -> None:
        """Move to where `like` lives: array library, device and dtype."""
        self.replace_head(self.head.to(like))

    def dump(self) -> Dump:
        """Return the whole state as host arrays named "PART.ARRAY"."""
        return {f"{name}.{key}": values for name, part in self.parts.items() for key, values in part.dump().items()}

    def restore(self, arrays: Mapping[str, HostArray]) -> None:
        """Take over what `dump` gave.

        Raises:
            StateError: the arrays are not a state of this adapter; the message names the rule that they break.
        """
        dumps: dict[str, Dump] = {name: {} for name in self.parts}
        for full_name, values in arrays.items():
            name, _, key = full_name.partition(".")
            State.require(name in dumps, f"{self.name!r} has no part named {name[:80]!r}")
            dumps[name][key] = values
        for name, part in self.parts.items():
            part.restore(dumps[name])
        self.recompute()

    def replace_head(self, head: Head) -> None:
        """Follow another head; classes of the same name keep what was learnt of them."""
        found = {name: i for i, name in enumerate(head.class_names)}
        position = np.array([found.get(name, -1) for name in self.head.class_names])
        for part in self.parts.values():
            part.move(head, position)
        self.head = head
        self.recompute()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Adapter":
        twin = object.__new__(type(self))
        memo.update(self._shared() | {id(self): twin})
        vars(twin).update(deepcopy(vars(self), memo))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return deepcopy(vars(self), self._shared())  # another thread may learn while the copy is written

    @ordinary_tensors()
    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        vars(self).update(deepcopy(state, self._shared()))

    def _shared(self) -> dict[int, Any]:
        return {id(each): each for each in (self, self.head, *self.given.values())}

    def __repr__(self) -> str:
        state = f"classes={len(self.head)}, dim={self.head.dim}, samples_seen={self.samples_seen}"
        settings = "".join(f", {key}={value!r}" for key, value in self.settings.items())
        return f"{type(self).__name__}({state}{', frozen' if self.frozen else ''}{settings})"


def check_settings(method: type[Adapter], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with NumPy scalars made plain; an unknown name or a value of the wrong type is an error."""
    known = method.default_settings()
    hints = get_type_hints(method)
    checked = {}
    for name, value in settings.items():
        if name not in known:
            raise InputError(f"{method.name!r} has no setting {name[:80]!r}; {nearest(name[:80], known)}")
        checked[name] = value.item() if isinstance(value, np.generic) else value
        choices = _choices(hints[name])
        if not any(_fits(checked[name], choice) for choice in choices):
            words = " or ".join(WORDS.get(choice) or repr(choice) for choice in choices)
            large = isinstance(value, (int, float)) and abs(value) > LARGEST_REAL
            bounds = f" from -{LARGEST_REAL} to {LARGEST_REAL}" if large else ""
            raise InputError(f"{name} must be {words}{bounds}, got {value!r:.80}.")
    return checked


def _choices(hint: Any) -> list[Any]:
    """Return the types and the literal values that a type hint allows."""
    if get_origin(hint) in (Union, UnionType, Literal):
        return [choice for each in get_args(hint) for choice in _choices(each)]
    return [hint]


def _fits(value: Any, choice: Any) -> bool:
    if choice in (int, float):
        kinds = (int, float) if choice is float else int
        largest = LARGEST_REAL if choice is float else 2**63
        return isinstance(value, kinds) and not isinstance(value, bool) and abs(value) <= largest
    if choice in WORDS:
        return isinstance(value, choice) and (choice is not str or is_text(value))
    return value == choice or not isinstance(choice, (str, int))  # a type that is not checked


def require(method: type[Adapter], views: bool = False, text: bool = False, labels: bool = False) -> None:
    """Refuse a method that needs what is not there."""
    there = {"views": views, "text": text, "labels": labels}
    for need in sorted(method.needs):
        if not there[need]:
            raise InputError(f"the method {method.name!r} needs {NEEDS[need]}.")


def block_size(head: Head, features: Array) -> int:
    """Return how many samples with features (n, d) or (n, V, d) to answer at once."""
    views = 1 if features.ndim == 2 else features.shape[1]
    return max(1, min(1024, max(256, BLOCK_LOGITS // len(head))) // views)


def observed(head: Head, features: Array) -> Iterator[tuple[int, Evidence]]:
    """Yield evidence for features (n, d) or (n, V, d), block by block, each with the position of its first sample."""
    size = block_size(head, features)
    for start in range(0, features.shape[0], size):
        yield start, head.observe(features[start : start + size])


def _as_given(answers: Sequence[Array], features: Array) -> Array:
    like = features if is_array_api_obj(features) else as_floats(features, "features")
    return move(namespace(answers[0]).concat(answers), like)


def _joined(steps: Sequence[Step]) -> Step:
    logits = namespace(steps[0].logits).concat([step.logits for step in steps])
    changes = {name: Change([], []) for name in steps[0].changes}
    start = 0
    for step in steps:
        for name, change in step.changes.items():
            changes[name].admitted.extend(start + position for position in change.admitted)
            changes[name].dropped.extend(change.dropped)
        start += step.logits.shape[0]
    return Step(logits, changes)
