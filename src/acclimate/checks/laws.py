"""The laws, one function each, and the trial that they are checked on. A broken law raises AssertionError.

At the end stand the comparisons that the laws are made of.
"""

import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from acclimate.arrays import HostArray, to_host
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from acclimate.evidence import Head
from acclimate.methods import (
    Adapter,
    FewShot,
    Sums,
    Tensors,
    duplicate,
    merge_states,
    state_from_bytes,
    state_to_bytes,
)
from acclimate.stream import FeatureStream

CORRECTED = slice(90, 110)  # half of these samples were shown to `Trial.warm`


class Trial:
    """A method with its settings, and a small stream to try it on; with views for methods that need them."""

    def __init__(self, method: type[Adapter], **settings: Any) -> None:
        self.method = method
        self.settings = settings
        stream = self.stream(180)
        self.head = stream.head
        self.features = stream.features
        self.labels = np.asarray(stream.targets)

    def stream(self, samples: int) -> FeatureStream:
        """Return a stream of 6 classes with features (samples, 24) or (samples, 8, 24)."""
        stream = shifted_stream(samples=samples, classes=6, dim=24, seed=3)
        if "views" not in self.method.needs:
            return stream
        noise = np.random.default_rng(4).standard_normal((samples, 8, 24), dtype=np.float32)
        return replace(stream, features=stream.features[:, None] + 0.1 * noise)

    def adapter(self, classes: int = 6, **arguments: Any) -> Adapter:
        """Make an adapter for the first classes of the stream; a few-shot method is fitted to their first samples."""
        head = replace(self.head, class_vectors=self.head.class_vectors[:classes], class_names=())
        adapter = self.method(head, **self.settings, **arguments)
        self.fit(adapter)
        return adapter

    def fit(self, adapter: Adapter) -> None:
        """Fit a few-shot adapter to the first 60 samples of its classes; others learn from the stream alone."""
        if isinstance(adapter, FewShot):
            shots = np.flatnonzero(self.labels[:60] < len(adapter.head))
            adapter.fit(self.features[shots], self.labels[shots])

    def warm(self) -> Adapter:
        """Make an adapter that was shown the first 100 samples."""
        adapter = self.adapter()
        adapter.step(self.features[:100])
        return adapter


def answers_do_not_depend_on_batches(trial: Trial) -> None:
    """Check that any way to cut a stream into steps gives the same logits and leaves the same state."""
    _same_for_any_cut(trial, trial.features)


def ties_are_stable(trial: Trial) -> None:
    """Check that answers do not depend on batches even if the same samples repeat."""
    _same_for_any_cut(trial, np.concatenate([trial.features[:5]] * 12))


def same_stream_same_answers(trial: Trial) -> None:
    """Check that two adapters that see the same stream agree bit for bit."""
    _assert_same_from_here(trial, trial.adapter(), trial.adapter(), "logits")


def inputs_stay_untouched(trial: Trial) -> None:
    """Check that inputs are not written to, and that later changes to them do not reach the adapter."""
    features = trial.features.copy()
    vectors = 2.0 * trial.head.class_vectors
    adapter = trial.method(Head(vectors, trial.head.logit_scale), **trial.settings)
    trial.fit(adapter)
    first = adapter.step(features[:90])
    _assert_equal(features, trial.features, "features after a step")
    _assert_equal(vectors, 2.0 * trial.head.class_vectors, "class vectors after a step")
    features[:90] = 7.0
    vectors[:] = 7.0
    first[:] = 7.0
    untouched = trial.adapter()
    untouched.step(trial.features[:90])
    _assert_equal(
        adapter.step(trial.features[90:]),
        untouched.step(trial.features[90:]),
        "logits after the inputs were overwritten",
    )


def saved_state_continues_exactly(trial: Trial) -> None:
    """Check that a saved and loaded adapter continues bit for bit as if nothing had happened."""
    adapter = trial.warm()
    loaded = state_from_bytes(state_to_bytes(adapter), like=adapter)
    _assert_same_from_here(trial, adapter, loaded, "logits after loading")


def reset_is_new(trial: Trial) -> None:
    """Check that a reset adapter is indistinguishable from a new one."""
    adapter = trial.adapter()
    adapter.step(trial.features[::-1])
    adapter.freeze()
    adapter.reset()
    trial.fit(adapter)
    _assert_same_from_here(trial, adapter, trial.adapter(), "logits after reset")


def pickled_adapter_continues_exactly(trial: Trial) -> None:
    """Check that a pickled and unpickled adapter continues bit for bit as if nothing had happened."""
    adapter = trial.warm()
    _assert_same_from_here(trial, adapter, pickle.loads(pickle.dumps(adapter)), "logits after pickling")


def a_move_keeps_what_was_learnt(trial: Trial) -> None:
    """Check that an adapter that moves to another precision (or device) keeps what it has learnt."""
    adapter = trial.warm()
    adapter.to(np.empty(0, np.float64))
    _assert_close(adapter.step(trial.features[100:]), trial.warm().step(trial.features[100:]), "logits after a move")


def tensors_give_the_same_answers(trial: Trial) -> None:
    """Check that on PyTorch's tensors it steps, is saved, changes its classes and answers again as on NumPy arrays."""
    torch = import_module("torch")
    expected = _walked(trial.adapter(), trial.features)
    adapter = trial.adapter()
    try:
        adapter.to(torch.asarray(trial.head.class_vectors))
        trial.fit(adapter)
        found = [to_host(each) for each in _walked(adapter, torch.asarray(trial.features))]
    except Exception as error:
        raise AssertionError(
            f"it works on NumPy arrays and fails on PyTorch's tensors: {error!r}. Take functions from "
            "xp = acclimate.arrays.namespace(x), such as xp.exp(x), xp.astype(x, dtype) and xp.stack(rows), not from "
            "NumPy; to_host(x) copies to NumPy, and move(x, like) brings back"
        ) from error
    for one, other in zip(found, expected, strict=True):
        _assert_close(one, other, "logits on tensors and on arrays")


def entries_follow_the_changes(trial: Trial) -> None:
    """Check that a method that keeps entries reports which samples each batch added and which it removed."""
    adapter = trial.adapter()
    held = {name: {entry.id for entry in entries} for name, entries in adapter.entries().items()}
    for start in range(0, 180, 20):
        changes = adapter.adapt(adapter.head.observe(trial.features[start : start + 20])).changes
        for name, entries in adapter.entries().items():
            assert name in changes, f"the step's changes do not name {name!r}"
            admitted, dropped = changes[name]
            held[name] = (held[name] | {start + row for row in admitted}) - set(dropped)
            assert held[name] == {entry.id for entry in entries}, f"the changes of {name!r} are wrong"


def memory_is_bounded(trial: Trial) -> None:
    """Check that the state does not grow with the stream."""
    adapter = trial.adapter()
    sizes = []
    for half in np.split(trial.stream(4000).features, 2):
        adapter.step(half)
        sizes.append(sum(values.nbytes for values in adapter.dump().values()))
    assert sizes[1] <= 1.1 * sizes[0], f"the state grew from {sizes[0]} to {sizes[1]} bytes over half of a stream"


def first_sample_works(trial: Trial) -> None:
    """Check that a single first sample gets finite logits."""
    _assert_finite(trial.adapter().step(trial.features[:1]), (1, 6))


def one_class_works(trial: Trial) -> None:
    """Check that with a single class there is nothing to choose, and nothing breaks."""
    _assert_finite(trial.adapter(classes=1).step(trial.features), (180, 1))


def frozen_never_changes(trial: Trial) -> None:
    """Check that an adapter that is frozen, or asked not to learn, keeps its answers and its state."""
    adapter = trial.warm()
    first = adapter.step(trial.features[100:], learn=False)
    adapter.freeze()
    _assert_equal(adapter.step(trial.features[100:]), first, "the answers of a frozen adapter")
    adapter.unfreeze()
    _assert_same_state(adapter, trial.warm())


def learning_changes_answers(trial: Trial) -> None:
    """Check that a method that learns from the stream answers otherwise once it has seen one."""
    adapter = trial.adapter()
    before = adapter.step(trial.features, learn=False)
    adapter.step(trial.stream(2000).features)
    # What all classes share changes no answer.
    changes = np.ptp(adapter.step(trial.features, learn=False) - before, axis=1)
    if changes.max() <= 1e-4 * np.abs(before).max():
        raise AssertionError(f"it learnt from 2000 samples, and no answer changed; {_why_nothing_counts(adapter)}")


def answers_stand_alone(trial: Trial) -> None:
    """Check that a method that does not learn from the stream answers a sample the same whatever came before it."""
    _assert_close(trial.warm().step(trial.features[100:]), trial.adapter().step(trial.features[100:]), "logits")


def a_set_has_no_order(trial: Trial) -> None:
    """Check that a method that answers a set answers it the same in whatever order its samples come."""
    order = np.random.default_rng(5).permutation(len(trial.features))
    expected = trial.adapter().second_pass(trial.features)
    _assert_finite(expected, (180, 6))
    _assert_close(
        trial.adapter().second_pass(trial.features[order]), expected[order], "logits of a set in another order"
    )


def answers_keep_the_callers_type(trial: Trial) -> None:
    """Check that logits come back in the dtype of the features."""
    for dtype in (np.float16, np.float32, np.float64):
        logits = trial.adapter().step(trial.features.astype(dtype))
        assert logits.dtype == dtype, f"features of {np.dtype(dtype)} gave logits of {logits.dtype}"


def bad_input_changes_nothing(trial: Trial) -> None:
    """Check that a refused step leaves the state as it was, even when only the last row is bad."""
    adapter = trial.warm()
    for value in (np.nan, np.inf, 0.0):
        bad = np.concatenate([trial.features] * 3)
        bad[-1] = value
        try:
            adapter.step(bad)
        except InputError:
            _assert_same_state(adapter, trial.warm())
        else:
            raise AssertionError(f"a row of {value} was accepted")


def classes_come_and_go(trial: Trial) -> None:
    """Check that classes can be added and removed during a stream; adding and then removing a class changes nothing."""
    adapter = trial.warm()
    adapter.add_classes(-trial.head.class_vectors[:2], ["new", "newer"])
    _assert_finite(adapter.step(trial.features[:1]), (1, 8))
    adapter = trial.warm()
    adapter.add_classes(-trial.head.class_vectors[:2], ["new", "newer"])
    adapter.remove_classes(["new", "newer"])
    _assert_same_state(adapter, trial.warm())
    adapter.remove_classes(["0", "3"])
    _assert_finite(adapter.step(trial.features[100:]), (80, 4))


def corrections_can_be_taken_back(trial: Trial) -> None:
    """Check that a corrected sample gets its class when it is shown again, and that undoing leaves no trace."""
    adapter = trial.warm()
    ids = _correct(trial, adapter)
    answers = adapter.step(trial.features[CORRECTED]).argmax(axis=1)
    assert np.array_equal(answers, np.arange(20) % 6), "corrected samples do not get their classes"
    adapter.corrections.undo(ids)
    _assert_same_from_here(trial, adapter, trial.warm(), "logits after undoing")


def corrections_are_saved(trial: Trial) -> None:
    """Check that a saved and loaded adapter has the corrections, and answers with them."""
    adapter = trial.warm()
    _correct(trial, adapter)
    loaded = state_from_bytes(state_to_bytes(adapter), like=adapter)
    _assert_same_from_here(trial, adapter, loaded, "logits after loading")


def corrections_do_not_depend_on_batches(trial: Trial) -> None:
    """Check that with corrections, too, any way to cut a stream into steps gives the same answers and state."""
    adapters = [trial.warm() for _ in range(2)]
    answers = []
    for adapter, cuts in zip(adapters, ([], [1, 2, 15, 40]), strict=True):
        _correct(trial, adapter)
        answers.append(np.concatenate([adapter.step(part) for part in np.split(trial.features[100:], cuts)]))
    _assert_close(answers[1], answers[0], "logits with corrections, of a stream cut into batches")
    _assert_same_learning(adapters[1], adapters[0], "corrections, and a stream cut into batches", exact=False)


def union_merge_is_exact(trial: Trial) -> None:
    """Check that merging is commutative, associative and idempotent to the bit."""
    a, b = _check_merge(trial, exact=True)
    _assert_same_learning(merge_states([a, a]), merge_states([a]), "merging is not idempotent")
    _assert_same_learning(merge_states([merge_states([a, b]), b]), merge_states([a, b]), "merging twice counts twice")


def sum_merge_counts_once(trial: Trial) -> None:
    """Check that merging is a sum up to rounding, and an origin cannot count twice."""
    a, b = _check_merge(trial, exact=False)
    for twice in ([a, a], [merge_states([a, b]), b]):
        try:
            merge_states(twice)
        except InputError:
            continue
        raise AssertionError("an origin that was merged twice counted twice")


def shards_merge_to_the_stream(trial: Trial) -> None:
    """Check that the states of the parts of a stream merge to the state of the stream."""
    whole = trial.adapter()
    whole.step(trial.features, ids=np.arange(180))
    expected = merge_states([whole, trial.adapter()])
    _assert_same_learning(merge_states(_shards(trial)), expected, "merging shards", exact=False)


def forks_merge_to_the_stream(trial: Trial) -> None:
    """Check that shards that go on from one state merge to the state of the stream, in which that state counts once.

    For a method that learns from its own answers, check only that the grouping and order of the shards do not matter.
    """
    exact = trial.method.merges == "union"
    start = trial.adapter()
    whole = trial.adapter()
    for positions in np.split(np.arange(180), 3):
        forks = []
        for part in np.split(positions, 4):
            forks.append(duplicate(start))
            for adapter in (forks[-1], whole):
                adapter.step(trial.features[part], ids=part)
        merged = merge_states(forks, start)
        pairs = [merge_states(forks[:2], start), merge_states(forks[2:], start)]
        _assert_same_learning(merge_states(pairs, start), merged, "merging forks in pairs", exact)
        _assert_same_learning(merge_states(forks[::-1], start), merged, "merging forks in another order", exact)
        start = merged
    assert start.seen == whole.seen, f"the samples of the forks do not add up: {start.seen} against {whole.seen}"
    if not trial.method.self_taught:
        _assert_same_learning(start, merge_states([whole, trial.adapter()]), "merging forks", exact)
    _assert_finite(start.step(trial.features), (180, 6))


def corrections_unite(trial: Trial) -> None:
    """Check that a merged state has the corrections of all, each once, in whatever order."""
    shards = _shards(trial)
    for first, shard in enumerate(shards):
        shard.corrections.correct(trial.features[first : first + 2], [first, first + 1], ids=[first, first + 1])
    merged, reverse = (list(merge_states(each).corrections) for each in (shards, shards[::-1]))
    assert [each.id for each in merged] == [0, 1, 2, 3], "merging does not unite the corrections"
    assert merged == reverse, "merging corrections is not commutative"


LAWS: tuple[Callable[[Trial], None], ...] = (
    answers_do_not_depend_on_batches,
    ties_are_stable,
    same_stream_same_answers,
    inputs_stay_untouched,
    saved_state_continues_exactly,
    pickled_adapter_continues_exactly,
    a_move_keeps_what_was_learnt,
    tensors_give_the_same_answers,
    reset_is_new,
    entries_follow_the_changes,
    memory_is_bounded,
    union_merge_is_exact,
    sum_merge_counts_once,
    shards_merge_to_the_stream,
    forks_merge_to_the_stream,
    first_sample_works,
    one_class_works,
    frozen_never_changes,
    learning_changes_answers,
    answers_stand_alone,
    a_set_has_no_order,
    answers_keep_the_callers_type,
    bad_input_changes_nothing,
    classes_come_and_go,
    corrections_can_be_taken_back,
    corrections_are_saved,
    corrections_do_not_depend_on_batches,
    corrections_unite,
)


def why_not(
    law: Callable[[Trial], None], method: type[Adapter], text: bool = False, batch: int | None = None
) -> str | None:
    """Return why a law does not apply to a method, by what the method says it is; None if it applies.

    `text` is True if the trial has an encoder for methods that need its text tower. `batch` is the setting of that name
    if it is not the default one: a method that learns batches before it answers them keeps all laws with batches of 1.
    """
    batch = batch or getattr(method, "batch", None)
    pickled = getattr(sys.modules.get(method.__module__), method.__name__, None) is method
    cutting = (answers_do_not_depend_on_batches, ties_are_stable, corrections_do_not_depend_on_batches)
    merging = (shards_merge_to_the_stream, forks_merge_to_the_stream, corrections_unite)
    exceptions: list[tuple[bool, bool, str]] = [
        (law is union_merge_is_exact, method.merges != "union", f"its merge rule is {method.merges}"),
        (law is sum_merge_counts_once, method.merges != "sum", f"its merge rule is {method.merges}"),
        (law in merging, method.merges is None, "it cannot merge"),
        (
            law is shards_merge_to_the_stream,
            method.self_taught,
            "it learns from its own answers, which are those of a shard",
        ),
        (law in cutting, method.answers_batches and batch != 1, "it learns from a batch before it answers it"),
        (law is answers_stand_alone, method.kind == "online", "it learns from the stream"),
        (law is a_set_has_no_order, method.kind != "collection", "it does not answer sets"),
        (law is learning_changes_answers, method.kind != "online", "it does not learn from the stream"),
        (law is pickled_adapter_continues_exactly, not pickled, "pickle finds only classes at the top of a module"),
        (law is pickled_adapter_continues_exactly, "text" in method.needs, "an encoder need not be picklable"),
        (law is tensors_give_the_same_answers, find_spec("torch") is None, "PyTorch is not installed"),
        (not text, "text" in method.needs, "it needs a text tower, which the trial does not have"),
    ]
    return next((reason for concerned, excepted, reason in exceptions if concerned and excepted), None)


def check_adapter(method: type[Adapter], *, skip: Mapping[str, str] | None = None, **settings: Any) -> None:
    """Check every law that applies to a method, and print those that were skipped.

    Args:
        method: a subclass of `Adapter`.
        skip: laws to skip by name, each with a reason.
        **settings: settings of the method; `encoder`, of dimension 24, is for methods that need its text tower.

    Raises:
        AssertionError: naming the law that was broken and how.

    Examples:
        >>> from acclimate import ZeroShot
        >>> from acclimate.checks import check_adapter
        >>> check_adapter(ZeroShot, skip={"memory_is_bounded": "it has no state"})
        skipped 'memory_is_bounded': it has no state
        skipped 'sum_merge_counts_once': its merge rule is union
        skipped 'learning_changes_answers': it does not learn from the stream
        skipped 'a_set_has_no_order': it does not answer sets
    """
    skip = dict(skip or {})
    unknown = set(skip) - {law.__name__ for law in LAWS}
    if unknown or not all(skip.values()):
        raise InputError(f"cannot skip {sorted(unknown) or 'a law without a reason'}; name a law of LAWS and say why.")
    for law in LAWS:
        if reason := skip.get(law.__name__) or why_not(law, method, "encoder" in settings, settings.get("batch")):
            print(f"skipped {law.__name__!r}: {reason}")  # noqa: T201 (a skipped law must not look like a kept one)
            continue
        try:
            law(Trial(method, **settings))
        except Exception as error:
            what = error if isinstance(error, AssertionError) else repr(error)
            raise AssertionError(f"{method.__name__} breaks the law {law.__name__!r}: {what}") from error


def _correct(trial: Trial, adapter: Adapter) -> list[int]:
    return adapter.corrections.correct(trial.features[CORRECTED], np.arange(20) % 6, ids=np.arange(180)[CORRECTED])


def _walked(adapter: Adapter, features: Any) -> list[Any]:
    """Return the logits of a stream in batches, of a loaded state, without a class, and of a second pass."""
    first = adapter.step(features[:100])
    adapter = state_from_bytes(state_to_bytes(adapter), like=adapter)
    second = adapter.step(features[100:])
    again = adapter.second_pass(features)
    adapter.remove_classes(["3"])
    return [first, second, adapter.step(features), again]


def _same_for_any_cut(trial: Trial, features: HostArray) -> None:
    reference = trial.adapter()
    expected = reference.step(features)
    for cuts in (range(1, len(features)), [1, 2, 40], [len(features) // 2]):
        adapter = trial.adapter()
        parts = [adapter.step(part) for part in np.split(features, list(cuts))]
        what = f"a stream cut into {len(parts)} batches"
        try:
            _assert_close(np.concatenate(parts), expected, f"logits of {what}")
            _assert_same_learning(adapter, reference, f"the state after {what}", exact=False)
        except AssertionError as error:
            tensors = [name for name, part in adapter.parts.items() if isinstance(part, Tensors) and part.rule is None]
            if not tensors:
                raise
            raise AssertionError(
                f"{error}. The Tensors in {', '.join(map(repr, tensors))} must change after every sample, not once per "
                "batch: loop over the samples in respond(). Or add what is learnt to Sums and define next_flush(): the "
                "frame cuts every stream at the same positions and lets the sums count from there."
            ) from error


def _why_nothing_counts(adapter: Adapter) -> str:
    for name, part in adapter.parts.items():
        if isinstance(part, Sums) and part.pending:
            if period := adapter.next_flush(0):
                return f"the Sums in {name!r} count only after {period} samples. Check it with a shorter period."
            return (
                f"what was added to the Sums in {name!r} is still pending. Define next_flush(), the position of the "
                "stream where the state is flushed next, or call flush() on the sums in respond()."
            )
    return (
        "respond() must change the state where `learn` is true, and answer from it. A method that answers every "
        'sample by itself says kind = "episodic"; one that learns only from samples of another kind skips this law.'
    )


def _check_merge(trial: Trial, exact: bool) -> tuple[Adapter, Adapter]:
    """Check what both merge rules promise of three shards of a stream, and return two of the shards."""
    a, b, c = _shards(trial)
    left = merge_states([merge_states([a, b]), c])
    right = merge_states([a, merge_states([b, c])])
    _assert_same_learning(merge_states([a, b]), merge_states([b, a]), "merging is not commutative", exact)
    _assert_same_learning(left, right, "merging is not associative", exact)
    merged = merge_states([a, b, c])
    assert merged.samples_seen == len(trial.features), "the samples of the shards do not add up"
    _assert_finite(merged.step(trial.features), (180, 6))
    return a, b


def _shards(trial: Trial) -> list[Adapter]:
    shards = []
    for name, part in (("a", slice(0, 50)), ("b", slice(50, 110)), ("c", slice(110, 180))):
        shards.append(trial.adapter(origin=name))
        shards[-1].step(trial.features[part], ids=np.arange(180)[part])
    return shards


def _assert_finite(logits: HostArray, shape: tuple[int, int]) -> None:
    assert logits.shape == shape, f"logits of {shape[0]} samples and {shape[1]} classes have the shape {logits.shape}"
    assert np.isfinite(logits).all(), f"logits of {shape[0]} samples and {shape[1]} classes are not finite"


def _assert_equal(got: HostArray, expected: HostArray, what: str) -> None:
    assert np.array_equal(got, expected), f"{what} differ by up to {np.abs(got - expected).max()}"


def _assert_close(got: HostArray, expected: HostArray, what: str) -> None:
    assert got.shape == expected.shape, f"{what}: shape {got.shape} instead of {expected.shape}"
    gap = np.abs(got - expected).max(initial=0.0)
    assert gap <= 1e-4 * max(1.0, np.abs(expected).max(initial=0.0)), f"{what} differ by up to {gap}"


def _assert_same_from_here(trial: Trial, one: Adapter, other: Adapter, what: str) -> None:
    _assert_same_state(one, other)
    _assert_equal(one.step(trial.features), other.step(trial.features), what)
    _assert_same_state(one, other)


def _assert_same_state(one: Adapter, other: Adapter) -> None:
    assert one.seen == other.seen, f"samples seen: {one.seen} against {other.seen}"
    assert one.frozen == other.frozen, f"frozen: {one.frozen} against {other.frozen}"
    assert not (differences := one.head.differences(other.head)), f"heads: {differences}"
    _assert_same_learning(one, other, "the states differ")


def _assert_same_learning(one: Adapter, other: Adapter, what: str, exact: bool = True) -> None:
    ours = one.dump()
    theirs = other.dump()
    assert ours.keys() == theirs.keys(), f"{what}: tensors {sorted(ours)} against {sorted(theirs)}"
    for name, values in ours.items():
        if exact:
            assert np.array_equal(values, theirs[name]), f"{what}: tensor {name!r}"
        # Equal samples may have swapped slots in a tie decided by rounding; ids alone would tell.
        elif not name.endswith("ids"):
            _assert_close(values, theirs[name], f"{what}: {name}")
