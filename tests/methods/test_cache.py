import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.arrays import to_host
from acclimate.errors import StateError
from acclimate.evidence import Head
from acclimate.methods.cache import Cache
from acclimate.methods.jagged import compact
from acclimate.methods.schedule import Schedule


def head_of(classes, dim, to_backend=np.asarray):
    return Head(to_backend(np.ones((classes, dim), np.float32)), logit_scale=1.0)


def filled(rng, classes=7, dim=5, entries=12, capacity=4, to_backend=np.asarray):
    """Return a cache with random entries and targets, and its mask as a dense matrix (entries, classes)."""
    mask = rng.random((entries, classes)) < 0.4
    labels = np.arange(entries) % classes
    cache = Cache(head_of(classes, dim, to_backend), capacity)
    keys = rng.uniform(-1, 1, (entries, dim))
    cache.restore(
        {
            "keys": (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float32),
            "classes": labels.astype(np.int32),
            "entropies": rng.random(entries).round(1),  # rounded, so that there are ties
            "ids": rng.permutation(entries),
            "targets": compact(mask),
        }
    )
    return cache, mask


@given(st.integers(0, 999))
def test_targets_are_a_compact_mask(seed):
    mask = np.random.default_rng(seed).random((5, 9)) < 0.3
    targets = compact(mask)
    assert [sorted(row[row >= 0]) for row in targets] == [list(np.flatnonzero(row)) for row in mask]
    assert targets.shape[1] == max(1, mask.sum(axis=1).max())


def test_votes_are_the_product_with_the_dense_mask(to_backend):
    rng = np.random.default_rng(0)
    cache, mask = filled(rng, to_backend=to_backend)
    features = rng.standard_normal((6, 5)).astype(np.float32)
    votes = to_backend(np.ones((7, 6), np.float32))
    cache.vote(votes, to_backend(features), Schedule(), alpha=-0.5, beta=2.0)
    affinity = np.exp(-2.0 * (1 - features @ cache.dump()["keys"].T))
    np.testing.assert_allclose(to_host(votes), 1 - 0.5 * (affinity @ mask).T, rtol=1e-5)


def test_an_empty_cache_and_an_empty_mask_vote_on_nothing():
    votes = np.ones((3, 1), np.float32)
    features = np.eye(3, dtype=np.float32)[:1]
    cache = Cache(Head(np.eye(3, dtype=np.float32), logit_scale=1.0), 2)
    plan = cache.plan(np.array([True]), np.array([1]), np.array([0.5]), np.array([0]))
    plan.targets = compact(np.zeros((1, 3), bool))
    for _ in range(2):
        cache.vote(votes, features, plan, alpha=1.0, beta=1.0)
        assert (votes == 1).all()
        cache.commit(plan, features)
        plan = Schedule()
    assert cache.size == 1


@given(st.integers(0, 999), st.booleans())
def test_merging_keeps_the_best_of_all_whatever_the_order(seed, highest):
    rng = np.random.default_rng(seed)
    caches = []
    for _ in range(3):
        cache, _ = filled(rng, classes=3, entries=6, capacity=2)
        cache.highest = highest
        cache.restore(cache.dump())
        caches.append(cache)

    def merged(*parts):
        result = Cache(head_of(3, 5), 2, highest)
        result.restore(result.merged([part.dump() for part in parts]))
        return result

    a, b, c = caches
    for one, other in [
        (merged(a, b), merged(b, a)),
        (merged(merged(a, b), c), merged(a, merged(b, c))),
        (merged(a, a), merged(a)),
        (merged(merged(a, b), a), merged(a, b)),
    ]:
        for name, values in one.dump().items():
            assert np.array_equal(values, other.dump()[name]), name
    together = merged(a, b, c).dump()
    sign = -1 if highest else 1
    for label in range(3):
        offered = np.concatenate(
            [sign * cache.dump()["entropies"][cache.dump()["classes"] == label] for cache in caches]
        )
        kept = sign * together["entropies"][together["classes"] == label]
        assert sorted(kept) == sorted(offered)[:2]


def shown(cache, classes, entropies, sizes):
    """Return the cache after samples in batches of these sizes; keys are those of `head_of`, by class."""
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        ids = np.arange(start, start + size)
        keys = np.eye(5, dtype=np.float32)[ids % 5]
        cache.commit(cache.plan(np.full(size, True), classes[part], entropies[part], ids), keys)
        start += size
    return cache.dump()


@given(st.integers(0, 999), st.booleans())
def test_a_cache_holds_the_same_in_batches_of_any_size(seed, highest):
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 3, 40)
    entropies = rng.random(40).round(1)
    found = [
        shown(Cache(head_of(3, 5), 2, highest), classes, entropies, sizes) for sizes in ([40], [1] * 40, [7, 13, 1, 19])
    ]
    for other in found[1:]:
        assert all(np.array_equal(values, other[name]) for name, values in found[0].items())


def test_memory_grows_with_the_classes_seen():
    cache = Cache(head_of(20_000, 768), 3)
    labels = np.arange(10)
    rows = np.eye(10, 768, dtype=np.float32)
    for start in range(20):
        plan = cache.plan(np.ones(10, bool), labels, np.full(10, 1.0 - start / 100), labels + 10 * start)
        cache.commit(plan, rows)
    assert cache.size == 30
    assert sum(values.nbytes for values in cache.dump().values()) < 200_000
    assert cache._keys.nbytes < 400_000  # room included


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("keys", np.zeros((12, 4), np.float32), "keys must have 5 columns"),
        ("keys", np.full((12, 5), np.nan, np.float32), "keys must be finite"),
        ("keys", np.zeros(12, np.float32), "keys must be real numbers of 2 axes"),
        ("classes", np.full(12, 7, np.int32), "classes must be from 0 to 6"),
        ("classes", np.full(12, -1, np.int32), "classes must be from 0 to 6"),
        ("classes", np.zeros(12, np.int32), "a class may hold at most 4 entries"),
        ("targets", np.full((12, 1), 9, np.int32), "targets must be from -1 to 6"),
        ("targets", np.full((12, 1), -2, np.int32), "targets must be from -1 to 6"),
        ("targets", np.zeros((12, 0), np.int32), "targets must have 1 to 7 columns"),
        ("entropies", np.full(12, np.nan), "entropies must be finite"),
        ("entropies", np.zeros(12, np.int32), "entropies must be real numbers"),
        ("ids", np.arange(11), "ids must have one row per entry"),
        ("ids", np.zeros(12), "ids must be whole numbers"),
    ],
)
def test_entries_that_break_a_rule_are_refused_and_nothing_changes(name, value, rule):
    cache, _ = filled(np.random.default_rng(0))
    before = cache.dump()
    with pytest.raises(StateError, match=f"the state breaks a rule: {rule}"):
        cache.restore(before | {name: value})
    assert all(np.array_equal(values, before[key]) for key, values in cache.dump().items())


def test_classes_that_go_take_their_entries_and_targets_along():
    cache, mask = filled(np.random.default_rng(1))
    position = np.array([0, -1, 1, 2, -1, 3, 4])
    before = cache.dump()
    cache.move(head_of(5, 5), position)
    after = cache.dump()
    kept = np.isin(before["classes"], [0, 2, 3, 5, 6])
    assert np.array_equal(after["keys"], before["keys"][kept])
    assert np.array_equal(after["classes"], position[before["classes"][kept]])
    remaining = mask[kept][:, position >= 0]
    assert [sorted(row[row >= 0]) for row in after["targets"]] == [list(np.flatnonzero(row)) for row in remaining]
