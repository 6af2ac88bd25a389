import numpy as np
import pytest

from acclimate import observe, observe_views
from acclimate.arrays import to_host
from acclimate.errors import InputError
from reference import entropy


def test_observe_is_the_zero_shot_classifier(to_backend, stream):
    evidence = observe(to_backend(7 * stream.features), to_backend(stream.class_vectors), 10.0, -3.0)
    logits = 10.0 * stream.features.astype(np.float64) @ stream.class_vectors.T - 3.0
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(to_host(evidence.features), stream.features, atol=1e-6)
    np.testing.assert_allclose(to_host(evidence.logits), logits, atol=1e-4)
    np.testing.assert_allclose(to_host(evidence.probs), probs, atol=1e-5)
    np.testing.assert_allclose(to_host(evidence.entropy), [entropy(p) for p in probs], atol=1e-4)


@pytest.mark.parametrize(("views", "kept"), [(64, 6), (10, 1), (5, 1), (1, 1)])
def test_views_are_averaged_over_the_most_confident(to_backend, stream, views, kept):
    rng = np.random.default_rng(0)
    features = stream.features[:5, None] + 0.1 * rng.standard_normal((5, views, 32)).astype(np.float32)
    evidence = observe_views(to_backend(features), to_backend(stream.class_vectors), 10.0)
    for i, sample in enumerate(features.astype(np.float64)):
        sample = sample / np.linalg.norm(sample, axis=1, keepdims=True)
        logits = 10.0 * sample @ stream.class_vectors.T
        probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        best = np.argsort([entropy(p) for p in probs])[:kept]
        np.testing.assert_allclose(to_host(evidence.features)[i], sample[best].mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(to_host(evidence.logits)[i], logits[best].mean(axis=0), atol=1e-4)
        np.testing.assert_allclose(to_host(evidence.probs)[i], probs[best].mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(to_host(evidence.entropy)[i], entropy(probs[best].mean(axis=0)), atol=1e-4)


def test_one_view_is_no_views(stream):
    one = observe(stream.features[:9], stream.class_vectors, 10.0)
    many = observe_views(stream.features[:9, None], stream.class_vectors, 10.0)
    for name in ("features", "logits", "probs", "entropy"):
        np.testing.assert_allclose(getattr(many, name), getattr(one, name), atol=1e-6)


def test_views_must_have_three_axes(stream):
    with pytest.raises(InputError, match=r"views must be \(samples, views, dim\), got shape \(400, 32\)"):
        observe_views(stream.features, stream.class_vectors, 10.0)
