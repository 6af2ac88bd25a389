"""Predictions: the best classes on any device, columns and rows, records."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import TDA, Accord, Head, ZeroShot
from acclimate.checks.synthetic import shifted_stream
from acclimate.predict import NONE, Prediction, Predictions, SecondAnswers, adapt_batch, best_of, top_classes
from acclimate.run import Batch

torch = pytest.importorskip("torch")

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@given(st.integers(0, 99), st.integers(1, 12), st.integers(1, 14))
def test_of_equal_scores_the_first_class_wins(seed, classes, count):
    scores = np.random.default_rng(seed).integers(0, 3, (6, classes)).astype(np.float32) / 4
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(top_classes(scores, count), expected)
    np.testing.assert_array_equal(best_of(torch.asarray(scores), count)[0], expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [1, 3, 50])
def test_a_device_finds_the_best_classes_that_the_host_finds(device, count):
    logits = np.random.default_rng(0).standard_normal((20, 30)).astype(np.float32)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for one, other in zip(best_of(torch.asarray(probs, device=device), count), best_of(probs, count), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", [TDA, Accord, ZeroShot])
def test_predictions_are_those_of_the_host(device, method):
    stream = shifted_stream(samples=400, classes=12, dim=32, seed=5)
    found = []
    for features in (stream.features, torch.asarray(stream.features, device=device)):
        head = stream.head.to(features)
        adapter = method(head)
        answers = []
        for start in range(0, 400, 50):
            evidence = head.observe(features[start : start + 50])
            answers += Predictions.of(head, evidence, adapter.adapt(evidence), top_k=3)
        found.append(answers)
    for one, other in zip(*found, strict=True):
        assert [each.label for each in one.top] == [each.label for each in other.top]
        assert one.zero_shot.label == other.zero_shot.label
        assert one.admitted == other.admitted
        assert one.score == pytest.approx(other.score, abs=1e-4)


def batch_of(stream, unreadable=()):
    """Return all samples of a stream as one batch that begins at position 7."""
    errors = ["bad" if row in unreadable else None for row in range(len(stream))]
    readable = [error is None for error in errors]
    names = [f"{row}.jpg" for row in range(len(stream))]
    return Batch(7, names, errors, stream.features[readable], [None] * len(stream))


def test_unreadable_images_have_a_row_and_no_answer():
    stream = shifted_stream(samples=9, classes=4, dim=8, seed=1)
    for unreadable in ((0, 4, 8), range(9)):
        found, evidence = adapt_batch(TDA(stream.head), batch_of(stream, unreadable), 2, unsure=1.0)
        assert (evidence is None) == (len(unreadable) == 9)
        assert len(found) == 9
        for row, prediction in enumerate(found):
            if row in unreadable:
                assert prediction == Prediction(7 + row, name=f"{row}.jpg", error="bad")
            else:
                assert len(prediction.top) == 2
                assert prediction.unsure
                assert prediction.online == prediction.top[0]


@given(st.integers(1, 30), st.integers(0, 99))
def test_a_second_pass_is_taken_in_any_blocks(size, seed):
    stream = shifted_stream(samples=60, classes=4, dim=8, seed=2)
    adapter = TDA(stream.head)
    found, _ = adapt_batch(adapter, batch_of(stream, range(3)), 2)
    whole = found.answered_again(SecondAnswers(adapter, stream.features[3:], 2), 2, unsure=0.9)
    logits = adapter.second_pass(stream.features[3:])
    assert [each.label for each in whole][3:] == [stream.head.class_names[best] for best in logits.argmax(axis=1)]
    assert all(one.online == other.online for one, other in zip(whole, found, strict=True))
    answers = SecondAnswers(adapter, stream.features[3:], 2)
    parts = [answers.take(min(size, 57 - first)) for first in range(0, 57, size)]
    np.testing.assert_array_equal(np.concatenate([classes for classes, _ in parts]), whole.classes[3:])


def test_none_of_these_is_one_more_class():
    head = Head(np.eye(3), logit_scale=2.0, class_names=["a", "b", "c"])
    evidence = head.observe(np.eye(3)[:2])
    step = ZeroShot(head).adapt(evidence)
    every = Predictions.of(head, evidence, step, top_k=4)
    found = Predictions.of(head, evidence, step, top_k=4, none=np.array([0.9, 0.3]))
    assert [each.label for each in found] == [NONE, "b"]
    assert [each.zero_shot.label for each in found] == [NONE, "b"]
    assert [answer.label for answer in found[1].top] == ["b", NONE, "a", "c"]
    np.testing.assert_allclose(found.probs[0], every.probs[0] * (1 - 0.9))  # it is the answer, with its score
    np.testing.assert_allclose(found[1].top[1].score / found[1].score, 0.3 / 0.7)  # its odds against the answer
    np.testing.assert_allclose(found.probs[1].sum() + found[1].top[1].score, 1.0)
    assert replace(every[0], none=None) == every[0]
