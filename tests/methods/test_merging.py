"""Adapters that go on from one state and merge, round after round: what they started from counts once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import Accord, Head, Tensors, create, list_methods, merge_states, state_from_bytes, state_to_bytes
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from acclimate.methods import CLASSES, MergeTree, Sums, duplicate, merge_files
from acclimate.methods.corrections import Corrections

MERGING = [name for name, method in list_methods().items() if method.merges and "text" not in method.needs]
UNION = [name for name in MERGING if list_methods()[name].merges == "union"]
# what accord learns that does not depend on its answers, which are those of a shard
SEEN_BY_ACCORD = ["sums.features", "sums.outer_0", "sums.outer_1", "counted.samples", "counted.predicted"]


def streamed(method, samples, seed):
    """Return a head, and the features of a stream; with views for methods that need them."""
    stream = shifted_stream(samples=samples, classes=5, dim=12, seed=seed)
    features = stream.features
    if "views" in list_methods()[method].needs:
        noise = np.random.default_rng(seed).standard_normal((samples, 4, 12), dtype=np.float32)
        features = features[:, None] + 0.1 * noise
    return stream.head, features


def in_rounds(start, features, lengths, shards, merge=merge_states):
    """Return the adapter after rounds of `shards` blocks of the stream, which has blocks of these lengths."""
    blocks = np.split(np.arange(len(features)), np.cumsum(lengths))
    for first in range(0, len(blocks), shards):
        forks = []
        for block in blocks[first : first + shards]:
            if len(block):
                forks.append(duplicate(start))
                forks[-1].step(features[block], ids=block)
        start = merge(forks, start) if forks else start
    return start


def in_order(adapter, features, lengths):
    for block in np.split(np.arange(len(features)), np.cumsum(lengths)):
        if len(block):
            adapter.step(features[block], ids=block)
    return adapter


def by_pairs(adapters, start):
    """Merge states as a tree."""
    while len(adapters) > 1:
        adapters = [merge_states(adapters[i : i + 2], start) for i in range(0, len(adapters), 2)]
    return adapters[0]


def in_reverse(adapters, start):
    return merge_states(adapters[::-1], start)


def flushed(adapter):
    """Return the state with everything counted, and without what a merge forgets."""
    return merge_states([adapter, type(adapter)(adapter.head, **adapter.settings)])


def assert_same(one, other, names=None, **tolerance):
    ours = one.dump()
    theirs = other.dump()
    assert ours.keys() == theirs.keys()
    for name in names or ours:
        if tolerance:
            np.testing.assert_allclose(ours[name], theirs[name], err_msg=name, **tolerance)
        else:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


lengths = st.lists(st.integers(0, 30), min_size=1, max_size=12)


@pytest.mark.parametrize("method", MERGING)
@settings(max_examples=12)
@given(lengths=lengths, shards=st.integers(2, 5), seed=st.integers(0, 99))
def test_rounds_of_forks_end_with_what_the_whole_stream_teaches(method, lengths, shards, seed):
    head, features = streamed(method, sum(lengths) + 7, seed)
    merged = in_rounds(create(method, head), features, lengths, shards)
    whole = in_order(create(method, head), features, lengths)
    assert merged.seen == whole.seen == {"": len(features)}
    if method in UNION:
        assert_same(flushed(merged), flushed(whole))
    else:
        exact = SEEN_BY_ACCORD if method == "accord" else None
        assert_same(flushed(merged), flushed(whole), exact, rtol=1e-4, atol=1e-4)
    for merge in (by_pairs, in_reverse):
        other = flushed(in_rounds(create(method, head), features, lengths, shards, merge))
        if method in UNION:
            assert_same(flushed(merged), other)
        elif method != "accord":  # rounding may tip an answer that it learns from
            assert_same(flushed(merged), other, rtol=1e-4, atol=1e-4)


def test_accord_stays_finite_and_bounded_over_many_rounds():
    stream = shifted_stream(samples=50 * 8 * 4, classes=5, dim=12, seed=1)
    merged = in_rounds(Accord(stream.head), stream.features, [4] * (50 * 8 - 1), 8)
    assert merged.samples_seen == 1600
    assert 0 <= merged.counted["equal"][0] <= 1600
    whole = in_order(Accord(stream.head), stream.features, [4] * (50 * 8 - 1))
    assert_same(flushed(merged), flushed(whole), SEEN_BY_ACCORD, rtol=1e-4, atol=1e-3)
    assert np.isfinite(merged.step(stream.features, learn=False)).all()
    loaded = state_from_bytes(state_to_bytes(merged), like=merged)  # within the bounds of what a stream leads to
    assert np.array_equal(loaded.step(stream.features), merged.step(stream.features))


@pytest.mark.parametrize("method", [*MERGING, "bca"])
def test_one_that_went_on_alone_is_taken_as_it_is(method):
    head, features = streamed(method, 100, 0)
    start = create(method, head)
    start.step(features[:41])
    after = duplicate(start)
    after.step(features[41:70])
    merged = merge_states([after], start)
    assert_same(merged, after)
    assert np.array_equal(merged.step(features[70:]), after.step(features[70:]))
    assert start.samples_seen == 41


def test_pending_samples_of_the_start_count_once():
    def forked(values, flush):
        sums = Sums(head, counts=(CLASSES,))
        sums.restore({name: each.copy() for name, each in start.items()})
        sums.flush() if flush else None
        sums.add(counts=np.array(values))
        return sums.dump()

    head = Head(np.eye(2), logit_scale=1.0)
    sums = Sums(head, counts=(CLASSES,))
    sums.add(counts=np.array([1.0, 2.0]))
    start = sums.dump()
    assert "waiting.counts" in start
    merged = sums.merged([forked([10.0, 0.0], True), forked([0.0, 100.0], False)], start)
    assert merged["counts"].tolist() == [11.0, 102.0]


def test_tensors_without_a_rule_stay_if_they_are_alone():
    tensors = Tensors(Head(np.eye(2), logit_scale=1.0), shift=(CLASSES,))
    tensors["shift"][...] = 3.0
    dump = tensors.dump()
    assert tensors.merged([dump])["shift"].tolist() == [3.0, 3.0]
    assert tensors.merged([dump, dump])["shift"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("order", [1, -1])
def test_a_correction_that_one_of_them_took_back_is_gone(order):
    head, features = streamed("tda", 40, 0)
    start = create("tda", head)
    start.step(features)
    start.corrections.correct(features[:3], [0, 1, 2], ids=[0, 1, 2])
    forks = [duplicate(start) for _ in range(3)]
    forks[0].corrections.undo([1])
    forks[1].corrections.correct(features[2:3], [4], ids=[2])  # another class than before
    forks[2].corrections.correct(features[3:4], [3], ids=[3])
    merged = merge_states(forks[::order], start)
    assert [(each.id, each.class_index) for each in merged.corrections] == [(0, 0), (2, 4), (3, 3)]
    assert len(merge_states(forks).corrections) == 4  # nobody knows what was taken back
    forks[0].corrections.undo([0, 2])
    pairs = [merge_states(forks[:2], start), merge_states(forks[2:], start)]
    for each in (pairs, forks):
        assert list(merge_states(each, start).corrections) == list(merged.corrections)[1:]


def test_corrections_that_all_took_back_leave_nothing():
    corrections = Corrections(Head(np.eye(3), logit_scale=10.0))
    corrections.correct(np.eye(3)[:1], [2], [7])
    start = corrections.dump()
    assert corrections.merged([start, {}], start) == {}
    assert corrections.merged([{}, {}], start) == {}


def test_forks_of_one_origin_add_up_and_leave_their_inputs_alone():
    head, features = streamed("dota", 100, 0)
    start = create("dota", head, origin="yard")
    start.step(features[:40])
    forks = [duplicate(start), duplicate(start)]
    forks[0].step(features[40:60])
    forks[1].origin = "road"
    forks[1].step(features[60:])
    before = [state_to_bytes(each) for each in (start, *forks)]
    merged = merge_states(forks, start)
    assert merged.seen == {"yard": 60, "road": 40}
    assert merged.origin == "yard"
    assert [state_to_bytes(each) for each in (start, *forks)] == before
    assert not merged.frozen
    for each in forks:
        each.freeze()
    assert merge_states(forks, start).frozen


def test_states_that_did_not_continue_from_the_start_are_refused():
    head, features = streamed("dota", 100, 0)
    start = create("dota", head)
    new = create("dota", head)
    start.step(features[:40])
    with pytest.raises(InputError, match=r"40 samples of the origin '' fewer than `start`.*or none"):
        merge_states([start, new], start)
    with pytest.raises(InputError, match="did not continue from `start`: refresh 7 against"):
        merge_states([create("dota", head, refresh=7)], start)
    with pytest.raises(InputError, match="states of 'bca' cannot be merged"):
        merge_states([create("bca", head)] * 2, create("bca", head))


@pytest.mark.parametrize("method", ["tda", "dota"])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 70])
def test_a_tree_holds_few_states_and_gives_what_one_merge_gives(method, count):
    head, features = streamed(method, 2 * count, 0)
    tree = MergeTree()
    adapters = []
    for i in range(count):
        adapters.append(create(method, head, origin=str(i)))
        adapters[-1].step(features[2 * i : 2 * i + 2], ids=[2 * i, 2 * i + 1])
        tree.add(adapters[-1])
        assert sum(map(len, tree._levels)) < 8 * np.log2(i + 2)
    tolerance = {} if method == "tda" else {"rtol": 1e-9, "atol": 1e-9}
    assert_same(tree.merged(), merge_states(adapters), **tolerance)
    assert tree.merged().seen == {str(i): 2 for i in sorted(range(count), key=str)}


def test_files_of_more_streams_than_a_state_counts_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("acclimate.methods.merging.MAX_ORIGINS", 10)
    head, features = streamed("tda", 12, 0)
    for i in range(12):
        adapter = create("tda", head, origin=f"site {i}")
        adapter.step(features[i : i + 1])
        (tmp_path / f"{i:02}").write_bytes(state_to_bytes(adapter))
    with pytest.raises(InputError, match="10, these are samples of more than 10 streams; merge fewer"):
        merge_files(sorted(tmp_path.iterdir()))
