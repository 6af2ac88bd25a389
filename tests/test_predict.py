import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.arrays import to_host
from acclimate.predict import best_of, top_classes


@given(st.integers(0, 99), st.integers(1, 12), st.integers(1, 14))
def test_of_equal_scores_the_first_class_wins(seed, classes, count):
    torch = pytest.importorskip("torch")
    scores = np.random.default_rng(seed).integers(0, 3, (6, classes)).astype(np.float32) / 4
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(top_classes(scores, count), expected)
    np.testing.assert_array_equal(to_host(top_classes(torch.asarray(scores), count)), expected)


@pytest.mark.parametrize("count", [1, 3, 50])
def test_the_best_classes_are_those_that_the_host_finds(to_backend, count):
    rng = np.random.default_rng(0)
    logits = 10 * rng.standard_normal((20, 30)).astype(np.float32)
    logits[:, 7] = logits[:, 2]
    probs = rng.dirichlet(np.ones(30), 20).astype(np.float32)
    for given_probs, there in ((None, None), (probs, to_backend(probs))):
        found = best_of(to_backend(logits.T.copy()).T, count, there)
        expected = best_of(logits, count, given_probs)
        assert len(found) == len(expected) == (2 if given_probs is None else 4)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-12)
            assert one.dtype == other.dtype
