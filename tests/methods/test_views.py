"""ZERO and MTA against their formulas, written for one sample at a time."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import Head, create
from acclimate.arrays import to_host
from acclimate.errors import InputError
from acclimate.methods import find_method
from reference import entropy

SCALE = 12.0
BIAS = -2.0


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def softmax(z):
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def samples(seed, count=6, views=64, classes=9, dim=16, noise=0.6):
    """Return views scattered around a feature, and class vectors."""
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


def answer(method, features, W, to_backend=np.asarray, bias=BIAS, **settings):
    head = Head(to_backend(W), SCALE, bias)
    return to_host(create(method, head, **settings).step(to_backend(features)))


def check_votes(logits, features, W):
    """Compare with the naive way; return how many samples were tied."""
    ties = 0
    for i, views in enumerate(features):
        winner, _, expected, _, tied = naive_vote(views, W)
        ties += tied
        assert logits[i].argmax() == winner
        np.testing.assert_allclose(logits[i], expected, atol=1e-4)
    return ties


def test_votes_are_counted(to_backend):
    features, W = samples(0, count=40)
    check_votes(answer("zero", features, W, to_backend), features, W)


def test_ties_are_decided_by_the_next_in_confidence(to_backend):
    features, W = samples(1, count=200, views=14, noise=2.0)  # four votes, often two against two
    assert check_votes(answer("zero", features, W, to_backend), features, W) > 20


def test_a_tie_that_nobody_can_decide_goes_to_the_most_confident():
    W = np.eye(4)
    features = unit(np.array([[[5.0, 1, 0, 0], [0, 9, 1, 0], [0, 0, 1, 1.1], *[[0, 0, 1, 1.01]] * 4]]))
    assert int(0.3 * features.shape[1]) == 2
    assert answer("zero", features, W, bias=0.0).argmax() == 1


def naive_mean_shift(views, W):
    count = len(views)
    squares = ((views[:, None] - views) ** 2).sum(axis=-1)
    near = max(1, int(0.3 * (count - 1)))
    bandwidth2 = np.array([0.5 * np.sort(row)[1 : 1 + near].mean() for row in squares])
    P = softmax(SCALE * views @ W.T + BIAS)
    A = P @ P.T
    y = np.full(count, 1 / count)
    m = views[0]
    for _ in range(5):
        k = np.exp(-((views - m) ** 2).sum(axis=1) / (2 * bandwidth2))
        for _ in range(5):
            y = softmax((k + 4 * A @ y) / 0.2)
        for _ in range(5):
            k = np.exp(-((views - m) ** 2).sum(axis=1) / (2 * bandwidth2))
            m = unit(((y * k)[:, None] * views).sum(axis=0) / (y * k).sum())
    return m


def test_the_mode_is_found(to_backend):
    features, W = samples(2, count=12)
    logits = answer("mta", features, W, to_backend)
    for i, views in enumerate(features):
        np.testing.assert_allclose(logits[i], SCALE * W @ naive_mean_shift(views, W) + BIAS, atol=1e-4)


def test_the_mode_leaves_outliers_alone():
    # Most views are near one point, a fifth of them near another: the mode is nearer to the first than the mean is.
    rng = np.random.default_rng(3)
    mode, other = unit(rng.standard_normal((2, 32)))
    views = np.concatenate([mode + 0.05 * rng.standard_normal((51, 32)), other + 0.05 * rng.standard_normal((13, 32))])
    W = np.stack([mode, other])
    to_mode = answer("mta", unit(views)[None], W, bias=0.0)[0, 0] / SCALE
    assert to_mode > 0.98 > unit(unit(views).mean(axis=0)) @ mode


def test_views_without_spread_have_their_common_mode(to_backend):
    features, W = samples(4, count=3, views=1)
    for views in (1, 2, 64):
        same = np.repeat(features, views, axis=1).astype(np.float32)
        logits = answer("mta", same, W.astype(np.float32), to_backend)
        np.testing.assert_allclose(logits, SCALE * features[:, 0] @ W.T + BIAS, atol=1e-4)


@pytest.mark.parametrize(
    "method", ["zero", "mta", "tda", "zero-shot", "onzeta", "oga", "bca", "sca", "dmn", "free-tta", "boost"]
)
@given(cut=st.integers(1, 11), views=st.sampled_from([1, 2, 5, 64]), seed=st.integers(0, 100))
def test_answers_with_views_do_not_depend_on_the_batch(method, cut, views, seed):
    features, W = samples(seed, count=12, views=views)
    settings = {"batch": 1} if find_method(method).answers_batches else {}
    adapter = create(method, Head(W, SCALE, BIAS), **settings)
    parts = np.concatenate([adapter.step(features[:cut]), adapter.step(features[cut:])])
    assert np.isfinite(parts).all()
    np.testing.assert_allclose(parts, answer(method, features, W, **settings), atol=1e-9)


@pytest.mark.parametrize("method", ["zero", "mta"])
def test_without_views_they_say_what_they_need(method, stream):
    with pytest.raises(InputError, match=f"the method '{method}' needs several views per image"):
        create(method, stream.head).step(stream.features)
