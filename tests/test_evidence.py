import numpy as np
import pytest

from acclimate import TDA, Accord, Head, ZeroShot
from acclimate.arrays import to_host
from acclimate.errors import InputError
from reference import entropy


def test_observe_is_the_zero_shot_classifier(to_backend, stream):
    vectors = stream.head.class_vectors
    evidence = Head(to_backend(5 * vectors), 10.0, -3.0).observe(to_backend(7 * stream.features))
    logits = 10.0 * stream.features.astype(np.float64) @ vectors.T - 3.0
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(to_host(evidence.features), stream.features, atol=1e-6)
    np.testing.assert_allclose(to_host(evidence.logits), logits, atol=1e-4)
    np.testing.assert_allclose(to_host(evidence.probs), probs, atol=1e-5)
    np.testing.assert_allclose(to_host(evidence.entropy), [entropy(p) for p in probs], atol=1e-4)


@pytest.mark.parametrize(("views", "kept"), [(64, 6), (10, 1), (5, 1), (1, 1)])
def test_views_are_averaged_over_the_most_confident(to_backend, stream, views, kept):
    rng = np.random.default_rng(0)
    features = stream.features[:5, None] + 0.1 * rng.standard_normal((5, views, 32)).astype(np.float32)
    evidence = stream.head.to(to_backend(features)).observe(to_backend(features))
    for i, sample in enumerate(features.astype(np.float64)):
        sample = sample / np.linalg.norm(sample, axis=1, keepdims=True)
        logits = 10.0 * sample @ stream.head.class_vectors.T
        probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        best = np.argsort([entropy(p) for p in probs])[:kept]
        np.testing.assert_allclose(to_host(evidence.features)[i], sample[best].mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(to_host(evidence.logits)[i], logits[best].mean(axis=0), atol=1e-4)
        np.testing.assert_allclose(to_host(evidence.probs)[i], probs[best].mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(to_host(evidence.entropy)[i], entropy(probs[best].mean(axis=0)), atol=1e-4)


def test_one_view_is_no_views(stream):
    one = stream.head.observe(stream.features[:9])
    many = stream.head.observe(stream.features[:9, None])
    for name in ("features", "logits", "probs", "entropy"):
        np.testing.assert_allclose(getattr(many, name), getattr(one, name), atol=1e-6)


def test_views_are_kept_for_methods_that_want_them(stream):
    rng = np.random.default_rng(0)
    features = stream.features[:5, None] + 0.1 * rng.standard_normal((5, 7, 32)).astype(np.float32)
    evidence = stream.head.observe(3 * features)
    assert stream.head.observe(stream.features).views is None
    assert evidence.views.shape == (5, 7, 32)
    np.testing.assert_allclose(np.linalg.norm(evidence.views, axis=-1), 1, atol=1e-6)
    part = evidence[1:3]
    assert (len(evidence), len(part)) == (5, 2)
    assert np.array_equal(part.views, evidence.views[1:3])


def test_parts_of_evidence_are_the_evidence_of_their_samples(to_backend, stream):
    features = to_backend(stream.features[:50])
    evidence = stream.head.to(features).observe(features)
    expected = stream.head.observe(stream.features[:50])
    for cut in (slice(0, 50), slice(10, 30), slice(40, None)):
        np.testing.assert_allclose(evidence[cut].host_entropy, expected.host_entropy[cut], rtol=1e-4)
        np.testing.assert_array_equal(evidence[cut].predicted, expected.predicted[cut])
    np.testing.assert_array_equal(evidence[10:30][5:8].predicted, expected.predicted[15:18])


@pytest.mark.parametrize("method", [TDA, Accord, ZeroShot])
@pytest.mark.parametrize("learn", [True, False])
def test_rows_without_a_direction_are_refused_before_anything_is_learnt(to_backend, stream, method, learn):
    features = stream.features[:60].copy()
    features[57] = 0
    adapter = method(stream.head.to(to_backend(features)))
    for rows in (features, np.stack([features, features], axis=1)):
        with pytest.raises(InputError, match=r"row 57.* is all zeros"):
            adapter.step(to_backend(rows), learn=learn)
        assert adapter.samples_seen == 0
        assert not any(adapter.entries().values())


def test_a_head_is_normalised_once(to_backend):
    rows = np.random.default_rng(0).standard_normal((500, 300)).astype(np.float32)
    head = Head(to_backend(rows), logit_scale=100.0)
    again = Head(head.class_vectors, logit_scale=100.0)
    assert np.array_equal(to_host(again.class_vectors), to_host(head.class_vectors))
    assert np.array_equal(
        to_host(head.add(head.class_vectors[:2], ["a", "b"]).class_vectors[:500]), to_host(head.class_vectors)
    )
    assert head.fingerprint == again.fingerprint


def test_a_head_cannot_be_changed(stream):
    with pytest.raises(AttributeError):
        stream.head.logit_scale = 3.0
    vectors = stream.head.class_vectors.copy()
    head = Head(vectors, logit_scale=10.0)
    vectors[:] = 7.0
    np.testing.assert_array_equal(head.class_vectors, stream.head.class_vectors)


def test_heads_that_differ_say_in_what(stream):
    head = stream.head
    assert head.differences(Head(head.class_vectors, 10.0, class_names=head.class_names)) == []
    assert head.differences(head.remove(["class 0"])) == ["8 classes against 7"]
    others = {
        Head(head.class_vectors, 20.0, class_names=head.class_names): "logit scale 10 (bias 0) against 20 (bias 0)",
        Head(head.class_vectors, 10.0): "class 0 is 'class 0' against '0'",
        Head(head.class_vectors[::-1], 10.0, class_names=head.class_names): "the class vectors differ (another model",
    }
    for other, message in others.items():
        assert head.differences(other)[0].startswith(message)
        assert other.fingerprint != head.fingerprint


def test_the_repr_of_a_head_is_one_line():
    head = Head(np.ones((1000, 4)), logit_scale=100.0)
    assert repr(head) == "Head(classes=1000, dim=4, logit_scale=100.0, logit_bias=0.0)"


def test_a_logarithm_in_place_of_a_scale_is_warned_of():
    with pytest.warns(
        UserWarning, match=r"logit_scale=4.6052 looks like a logarithm; pass model.logit_scale.exp()"
    ) as said:
        Head(np.eye(3), logit_scale=4.6052)
    assert said[0].filename == __file__
    for scale in (1.0, 2.0, 10.0, 14.3, 100.0, 117.3):
        Head(np.eye(3), logit_scale=scale)


def test_the_parameters_of_a_model_are_taken_as_they_are():
    torch = pytest.importorskip("torch")
    scale = torch.nn.Parameter(torch.tensor(100.0).log())
    bias = torch.nn.Parameter(torch.tensor([-10.0]))
    head = Head(torch.eye(3, requires_grad=True), logit_scale=scale.exp(), logit_bias=bias)
    assert (round(head.logit_scale, 3), head.logit_bias) == (100.0, -10.0)
    assert not head.class_vectors.requires_grad


def test_an_output_of_transformers_is_refused_by_the_name_of_its_tensor():
    pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    output = BaseModelOutputWithPooling(last_hidden_state=torch.eye(3)[None], pooler_output=torch.eye(3))
    with pytest.raises(InputError, match=r"class vectors cannot be read .*; pass its \.pooler_output\."):
        Head(output, logit_scale=100.0)
    head = Head(output.pooler_output, logit_scale=100.0)
    with pytest.raises(InputError, match=r"features cannot be read .*; pass its \.pooler_output\."):
        ZeroShot(head).step(output)
