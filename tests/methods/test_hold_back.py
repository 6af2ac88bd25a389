"""Adapted answers are held back where the labels fit the images badly."""

from dataclasses import dataclass

import numpy as np
import pytest

from acclimate import TDA, Accord, Classifier, Rejector, ZeroShot, build_head, load_encoder
from acclimate.methods.gates import HoldBack, answer_held_back, noted_doubt
from acclimate.prompts import expand_head, negative_vectors, nouns

ANIMALS = ["cat", "dog", "horse", "sheep", "goat", "wolf", "fox", "lion", "tiger", "bear", "otter", "seal"]


@pytest.fixture(scope="module")
def encoder():
    return load_encoder("bundled")


@pytest.fixture(scope="module")
def negatives(encoder):
    return negative_vectors(encoder)


@pytest.fixture(scope="module")
def features(negatives):
    """Features that show one noun each, as clearly as photographs do."""
    rng = np.random.default_rng(0)
    shown = negatives[[nouns().index(name) for name in ANIMALS * 10]]
    return shown + 0.02 * rng.standard_normal(shown.shape)


def held_answers(gate, adapter, features, size):
    answers = []
    for start in range(0, len(features), size):
        evidence = adapter.head.observe(features[start : start + size])
        step = adapter.adapt(evidence)
        answers.append(gate.temper(adapter, evidence, step.logits, np.full(len(evidence), True)))
    return np.concatenate(answers)


def test_answers_are_the_models_own_where_other_words_fit_better(encoder, negatives, features):
    head = build_head(encoder, ["plant", "satellite photo", "insect"])
    gate = HoldBack(head, negatives)
    adapter = TDA(head)
    own = head.observe(features).logits
    np.testing.assert_allclose(held_answers(gate, adapter, features, 32), own)
    np.testing.assert_allclose(
        np.concatenate(list(answer_held_back(adapter, adapter.refined, features, gate.doubt))), own
    )
    assert np.abs(TDA(head).step(features) - own).max() > 0.01
    assert "adapted answers are not given" in gate.advice()


def test_nothing_is_held_back_where_the_labels_fit(encoder, negatives, features):
    head = build_head(encoder, ANIMALS)
    gate = HoldBack(head, negatives)
    adapter = TDA(head)
    np.testing.assert_array_equal(held_answers(gate, adapter, features, 120), TDA(head).step(features))
    assert not gate.advice()


def test_batches_and_a_restart_change_nothing(encoder, negatives, features):
    head = build_head(encoder, ["dog", "guitar", "house", "wolf", "cat", "plant"])
    whole = held_answers(HoldBack(head, negatives), TDA(head), features, 120)
    first, second = HoldBack(head, negatives), HoldBack(head, negatives)
    adapter = TDA(head)
    parts = [held_answers(first, adapter, features[:50], 7)]
    second.restore(first.dump())
    parts.append(held_answers(second, adapter, features[50:], 11))
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-4, atol=1e-4)
    second.restore("")
    assert second.dump() == ""


def test_corrected_images_keep_their_labels(encoder, negatives, features):
    head = build_head(encoder, ["plant", "satellite photo", "insect"])
    gate = HoldBack(head, negatives)
    adapter = Accord(head)
    held_answers(gate, adapter, features, 60)
    adapter.corrections.correct(features[:3], [1, 1, 2])
    evidence = head.observe(features[:3])
    answers = gate.temper(adapter, evidence, adapter.adapt(evidence, learn=False).logits, np.full(3, False))
    assert answers.argmax(axis=1).tolist() == [1, 1, 2]
    assert next(answer_held_back(adapter, adapter.refined, features, gate.doubt))[:3].argmax(axis=1).tolist() == [
        1,
        1,
        2,
    ]


@dataclass(eq=False, repr=False, kw_only=True)
class Contrary(ZeroShot):
    """A method whose second pass contradicts its first."""

    rounds: int = 1

    def refined(self, features):
        for logits in self.last_answers(features):
            yield -logits


def test_a_second_pass_that_contradicts_the_first_is_left_out(encoder, negatives, features):
    head = build_head(encoder, ANIMALS)
    gate = HoldBack(head, negatives)
    adapter = Contrary(head)
    again = np.concatenate(list(answer_held_back(adapter, adapter.refined, features, gate.doubt)))
    np.testing.assert_allclose(again, head.observe(features).logits)


def test_a_state_keeps_the_doubt(encoder, tmp_path):
    labels = ["plant", "insect"]
    classifier = Classifier(labels, encoder="bundled")
    classifier.gates[-1].restore("20 15.5")
    classifier.save(tmp_path / "state.safetensors")
    again = Classifier(labels, encoder="bundled")
    again.load(tmp_path / "state.safetensors")
    assert again.gates[-1].dump() == "20 15.5"
    assert noted_doubt(again.notes) == again.gates[-1].doubt == 15.5 / 20
    assert any("closer to other words" in note for note in again.advice)
    again.reset()
    assert again.gates[-1].dump() == ""


def test_nouns_that_a_broad_label_is_answered_through_are_not_foreign_to_it(encoder, negatives, features):
    plain = build_head(encoder, ["animal", "building"])
    broad = expand_head(encoder, plain)
    scores = [Rejector(head, negatives).none_scores(head.observe(features)) for head in (plain, broad)]
    lost = [float((each >= 0.5).mean()) for each in scores]
    assert lost[0] > 0.3
    assert lost[1] < 0.1
    guitars = negatives[[nouns().index(name) for name in ("guitar", "banjo", "violin")]]
    assert (Rejector(broad, negatives).none_scores(broad.observe(guitars)) >= 0.5).all()
