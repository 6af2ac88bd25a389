"""The laws of merging. Each takes a `Trial` and raises AssertionError with what was broken."""

from collections.abc import Callable

import numpy as np

from acclimate.checks.comparing import assert_finite, assert_same_learning, assert_similar_state
from acclimate.checks.trial import Trial
from acclimate.errors import InputError
from acclimate.methods import Adapter, duplicate, merge_states


def union_merge_is_exact(trial: Trial) -> None:
    """Merging is commutative, associative and idempotent to the bit."""
    a, b = _check_merge(trial, assert_same_learning)
    assert_same_learning(merge_states([a, a]), merge_states([a]), "merging is not idempotent")
    assert_same_learning(merge_states([merge_states([a, b]), b]), merge_states([a, b]), "merging twice counts twice")


def sum_merge_counts_once(trial: Trial) -> None:
    """Merging is a sum up to rounding, and an origin cannot count twice."""
    a, b = _check_merge(trial, assert_similar_state)
    for twice in ([a, a], [merge_states([a, b]), b]):
        try:
            merge_states(twice)
        except InputError:
            continue
        raise AssertionError("an origin that was merged twice counted twice")


def shards_merge_to_the_stream(trial: Trial) -> None:
    """The states of the parts of a stream merge to the state of the stream."""
    whole = trial.adapter()
    whole.step(trial.features, ids=np.arange(180))
    assert_similar_state(merge_states(_shards(trial)), merge_states([whole, trial.adapter()]), "merging shards")


def forks_merge_to_the_stream(trial: Trial) -> None:
    """Shards that go on from one state merge, round after round, to the state of the stream: that state counts once.

    Of a method that learns from its own answers, only that neither the grouping nor the order of the shards matters.
    """
    same = assert_same_learning if trial.method.merges == "union" else assert_similar_state
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
        same(merge_states(pairs, start), merged, "merging forks in pairs")
        same(merge_states(forks[::-1], start), merged, "merging forks in another order")
        start = merged
    assert start.seen == whole.seen, f"the samples of the forks do not add up: {start.seen} against {whole.seen}"
    if not trial.method.self_taught:
        same(start, merge_states([whole, trial.adapter()]), "merging forks")
    assert_finite(start.step(trial.features), (180, 6))


def corrections_unite(trial: Trial) -> None:
    """A merged state has the corrections of all, each once, in whatever order."""
    shards = _shards(trial)
    for place, shard in enumerate(shards):
        shard.correct(trial.features[place : place + 2], [place, place + 1], ids=[place, place + 1])
    merged = merge_states(shards)
    again = merge_states(shards[::-1])
    assert [each.id for each in merged.corrections] == [0, 1, 2, 3], "merging does not unite the corrections"
    assert merged.corrections == again.corrections, "merging corrections is not commutative"


def _check_merge(trial: Trial, same: Callable[[Adapter, Adapter, str], None]) -> tuple[Adapter, Adapter]:
    """What both merge rules promise of three shards of a stream; two of the shards."""
    merge, (a, b, c) = merge_states, _shards(trial)
    same(merge([a, b]), merge([b, a]), "merging is not commutative")
    same(merge([merge([a, b]), c]), merge([a, merge([b, c])]), "merging is not associative")
    merged = merge([a, b, c])
    assert merged.samples_seen == len(trial.features), "the samples of the shards do not add up"
    assert_finite(merged.step(trial.features), (180, 6))
    return a, b


def _shards(trial: Trial) -> list[Adapter]:
    """Adapters of three parts of the stream."""
    shards = []
    for name, part in (("a", slice(0, 50)), ("b", slice(50, 110)), ("c", slice(110, 180))):
        shards.append(trial.adapter(origin=name))
        shards[-1].step(trial.features[part], ids=np.arange(180)[part])
    return shards
