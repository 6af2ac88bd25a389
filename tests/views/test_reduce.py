"""View reducers against their formulas, told one sample at a time."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import create, observe_views
from acclimate.arrays import to_host
from acclimate.views import REDUCERS
from reference import entropy

SCALE, BIAS = 12.0, -2.0


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def softmax(z):
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def samples(seed, count=6, views=64, classes=9, dim=16, noise=0.6):
    """Views scattered around a feature, and class vectors."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((count, 1, dim))
    features = unit(centres + noise * rng.standard_normal((count, views, dim)))
    return features, unit(rng.standard_normal((classes, dim)))


def naive_vote(views, W):
    logits = SCALE * views @ W.T + BIAS
    order = np.argsort([entropy(p) for p in softmax(logits)], kind="stable")
    voters, others = np.split(order, [max(1, int(0.3 * len(views)))])
    votes = Counter(int(logits[i].argmax()) for i in voters)
    tied = {c for c, n in votes.items() if n == max(votes.values())}
    winner = next(int(logits[i].argmax()) for i in [*others, *voters] if int(logits[i].argmax()) in tied)
    if len(tied) > 1:
        votes[winner] += 1
    followers = [i for i in voters if logits[i].argmax() == winner]
    shares = np.array([votes[c] for c in range(len(W))]) / votes.total()
    return winner, views[followers].mean(axis=0), logits[followers].mean(axis=0), shares, len(tied) > 1


def check_vote(evidence, features, W):
    """Compare with the naive way; return how many samples were tied."""
    ties = 0
    for i, views in enumerate(features):
        winner, mean, logits, shares, tied = naive_vote(views, W)
        ties += tied
        assert to_host(evidence.logits)[i].argmax() == to_host(evidence.probs)[i].argmax() == winner
        np.testing.assert_allclose(to_host(evidence.features)[i], mean, atol=1e-5)
        np.testing.assert_allclose(to_host(evidence.logits)[i], logits, atol=1e-4)
        np.testing.assert_allclose(to_host(evidence.probs)[i], shares, atol=1e-6)
        np.testing.assert_allclose(to_host(evidence.entropy)[i], entropy(shares), atol=1e-5)
    return ties


def test_votes_are_counted_as_told(to_backend):
    features, W = samples(0, count=40)
    check_vote(REDUCERS["vote"](to_backend(features), to_backend(W), SCALE, BIAS), features, W)


def test_ties_are_decided_by_the_next_in_confidence(to_backend):
    features, W = samples(1, count=200, views=14, noise=2.0)  # four votes, often two against two
    evidence = REDUCERS["vote"](to_backend(features), to_backend(W), SCALE, BIAS)
    assert check_vote(evidence, features, W) > 20


def test_a_tie_that_nobody_can_decide_goes_to_the_most_confident():
    W = np.eye(4)
    features = unit(np.array([[[5.0, 1, 0, 0], [0, 9, 1, 0], [0, 0, 1, 1.1], *[[0, 0, 1, 1.01]] * 4]]))
    assert int(0.3 * features.shape[1]) == 2
    evidence = REDUCERS["vote"](features, W, SCALE, 0.0)
    assert evidence.logits.argmax() == 1
    np.testing.assert_allclose(evidence.probs, [[1 / 3, 2 / 3, 0, 0]])


def naive_mean_shift(views, W):
    count = len(views)
    squares = ((views[:, None] - views) ** 2).sum(axis=-1)
    near = max(1, int(0.3 * (count - 1)))
    bandwidth2 = np.array([0.5 * np.sort(row)[1 : 1 + near].mean() for row in squares])
    P = softmax(SCALE * views @ W.T + BIAS)
    A = P @ P.T
    y, m = np.full(count, 1 / count), views[0]
    for _ in range(5):
        k = np.exp(-((views - m) ** 2).sum(axis=1) / (2 * bandwidth2))
        for _ in range(5):
            y = softmax((k + 4 * A @ y) / 0.2)
        for _ in range(5):
            k = np.exp(-((views - m) ** 2).sum(axis=1) / (2 * bandwidth2))
            m = unit(((y * k)[:, None] * views).sum(axis=0) / (y * k).sum())
    return m


def test_the_mode_is_found_as_told(to_backend):
    features, W = samples(2, count=12)
    evidence = REDUCERS["mean-shift"](to_backend(features), to_backend(W), SCALE, BIAS)
    for i, views in enumerate(features):
        m = naive_mean_shift(views, W)
        np.testing.assert_allclose(to_host(evidence.features)[i], m, atol=1e-5)
        np.testing.assert_allclose(to_host(evidence.logits)[i], SCALE * W @ m + BIAS, atol=1e-4)
        np.testing.assert_allclose(to_host(evidence.probs)[i], softmax(SCALE * W @ m + BIAS), atol=1e-5)


def test_the_mode_leaves_outliers_alone():
    """Most views in one place, a fifth of them in another: the mode is nearer to the place than the mean is."""
    rng = np.random.default_rng(3)
    place, other = unit(rng.standard_normal((2, 32)))
    views = np.concatenate([place + 0.05 * rng.standard_normal((51, 32)), other + 0.05 * rng.standard_normal((13, 32))])
    W = unit(rng.standard_normal((5, 32)))
    mode = REDUCERS["mean-shift"](unit(views)[None], W, SCALE, 0.0).features[0]
    assert mode @ place > 0.98 > unit(views.mean(axis=0)) @ place


def test_views_without_spread_have_their_common_mode(to_backend):
    features, W = samples(4, count=3, views=1)
    for views in (1, 2, 64):
        same = np.repeat(features, views, axis=1).astype(np.float32)
        evidence = REDUCERS["mean-shift"](to_backend(same), to_backend(W.astype(np.float32)), SCALE, BIAS)
        np.testing.assert_allclose(to_host(evidence.features), features[:, 0], atol=1e-5)


def test_confident_mean_is_the_papers():
    features, W = samples(5)
    ours, paper = REDUCERS["confident-mean"](features, W, SCALE, BIAS), observe_views(features, W, SCALE, BIAS)
    for name in ("features", "logits", "probs", "entropy"):
        np.testing.assert_allclose(getattr(ours, name), getattr(paper, name), atol=1e-12)


@pytest.mark.parametrize("name", REDUCERS)
@given(cut=st.integers(1, 11), views=st.sampled_from([1, 2, 5, 64]), seed=st.integers(0, 100))
def test_an_answer_does_not_depend_on_the_rest_of_the_batch(name, cut, views, seed):
    features, W = samples(seed, count=12, views=views)
    whole = REDUCERS[name](features, W, SCALE, BIAS)
    parts = [REDUCERS[name](part, W, SCALE, BIAS) for part in (features[:cut], features[cut:])]
    for field in ("features", "logits", "probs", "entropy"):
        joined = np.concatenate([getattr(part, field) for part in parts])
        assert np.isfinite(joined).all()
        np.testing.assert_allclose(joined, getattr(whole, field), atol=1e-9)
    np.testing.assert_allclose(whole.probs.sum(axis=1), 1, atol=1e-9)


@pytest.mark.parametrize("name", REDUCERS)
def test_any_adapter_takes_the_evidence(name, to_backend):
    features, W = (x.astype(np.float32) for x in samples(6, count=30))
    for method in ("zero-shot", "tda"):
        adapter = create(method, to_backend(W), logit_scale=SCALE)
        evidence = REDUCERS[name](to_backend(features), adapter.class_vectors, SCALE, 0.0)
        answers = to_host(adapter.adapt(evidence))
        assert answers.shape == (30, 9)
        assert answers.dtype == np.float32
    assert adapter.samples_seen == 30
