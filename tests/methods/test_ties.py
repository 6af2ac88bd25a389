"""Classes whose vectors are equal up to rounding have logits that are equal to the bit: ties fall by index."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import TDA, Head
from acclimate.arrays import first_equal_rows, to_host


def repeated_head(seed, sources, dim=512):
    """Return a head whose class i has vector `sources[i]` up to rounding, and the generator that made them."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((max(sources) + 1, dim))[sources]
    return Head((vectors + 1e-7 * rng.standard_normal(vectors.shape)).astype(np.float32), 100.0), rng


def assert_ties(columns, sources):
    for source in set(sources):
        same = columns[:, [i for i, each in enumerate(sources) if each == source]]
        assert (same == same[:, :1]).all()


sources = st.lists(st.integers(0, 20), min_size=2, max_size=40)


@given(st.integers(0, 99), sources, st.integers(1, 70))
def test_equal_vectors_have_equal_logits_and_probabilities(seed, sources, samples):
    head, rng = repeated_head(seed, sources)
    evidence = head.observe(rng.standard_normal((samples, 512)).astype(np.float32))
    assert_ties(evidence.logits, sources)
    assert_ties(evidence.probs, sources)


@given(st.integers(0, 99), sources, st.lists(st.integers(1, 119), max_size=6))
def test_any_cut_gives_the_same_entries_where_vectors_are_equal(seed, sources, cuts):
    head, rng = repeated_head(seed, sources)
    near = head.class_vectors[rng.integers(len(sources), size=120)]
    features = near + 0.05 * rng.standard_normal((120, 512)).astype(np.float32)
    ones = TDA(head)
    blocks = TDA(head)
    logits = np.concatenate([ones.step(feature[None]) for feature in features])
    others = np.concatenate([blocks.step(part) for part in np.split(features, sorted(set(cuts)))])
    np.testing.assert_allclose(logits, others, atol=1e-3)
    for name, entries in ones.entries().items():
        same = blocks.entries()[name]
        assert [entry.class_index for entry in entries] == [entry.class_index for entry in same]
        # Not their ids: of two equal classes all entropies are about ln 2, and rounding decides which are held.
        entropies = [entry.entropy for entry in entries]
        np.testing.assert_allclose(entropies, [entry.entropy for entry in same], atol=1e-4)
    assert {entry.class_index for entry in ones.entries()["positive"]} <= {sources.index(each) for each in sources}


@pytest.mark.parametrize("views", [1, 30])
def test_on_any_library_and_with_views(to_backend, views):
    sources = [0, 1, 2, 1, 3, 0, *range(4, 30), 1]
    head, rng = repeated_head(0, sources)
    features = to_backend(rng.standard_normal((40, views, 512)).astype(np.float32))
    evidence = head.to(features).observe(features if views > 1 else features[:, 0])
    assert_ties(to_host(evidence.logits), sources)
    assert_ties(to_host(evidence.probs), sources)


def test_heads_that_grow_and_shrink():
    head, rng = repeated_head(1, [0, 1, 2])
    features = rng.standard_normal((33, 512)).astype(np.float32)
    head = head.add(head.class_vectors[1:2], ["again"])
    assert_ties(head.observe(features).logits, [0, 1, 2, 1])
    head = head.remove(["1"]).add(head.class_vectors[:1], ["twin"])
    assert_ties(head.observe(features).logits, [0, 2, 1, 0])


@given(st.integers(0, 99), sources, st.sampled_from([1, 2, 512]))
def test_first_equal_rows(seed, sources, dim):
    head, _ = repeated_head(seed, sources, dim)
    distances = np.linalg.norm(head.class_vectors[:, None] - head.class_vectors, axis=2)
    expected = (distances <= 32 * np.finfo(np.float32).eps).argmax(axis=1)
    assert first_equal_rows(head.class_vectors).tolist() == expected.tolist()


def test_vectors_that_differ_by_more_than_rounding_are_kept_apart():
    vectors = np.random.default_rng(0).standard_normal((2, 512))
    vectors[1] = vectors[0] + 1e-4 * vectors[1]
    assert first_equal_rows(Head(vectors.astype(np.float32), 100.0).class_vectors).tolist() == [0, 1]


def test_twenty_thousand_equal_vectors_take_no_longer_than_others():
    vectors = np.ones((20_000, 64), np.float32) / 8
    assert not first_equal_rows(vectors).any()
