"""None of these: images that belong to no label."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from acclimate import Classifier, Head, Rejector, build_head, load_encoder
from acclimate.errors import InputError
from acclimate.methods.gates import GAP, LABELS, OFFSET
from acclimate.predict import NONE, with_none
from acclimate.prompts import negative_vectors, nouns
from drawn_images import draw

LABELS_OF = ["cat", "dog", "bird"]


def plain(colour):
    return Image.new("RGB", (64, 64), colour)


@pytest.fixture(scope="module")
def encoder():
    return load_encoder("bundled")


def drawn_head(rng, labels=3):
    return Head(rng.standard_normal((labels, 8)), logit_scale=20.0, logit_bias=rng.normal())


def naive_scores(head, negatives, features, left_out=0.05):
    """Return the formula, one image at a time."""
    unit = negatives / np.linalg.norm(negatives, axis=1, keepdims=True)
    nearness = (unit @ head.class_vectors.T).max(axis=1)
    unit = unit[np.argsort(nearness)[: int(np.ceil((1 - left_out) * len(unit)))]]
    scores = []
    for feature in features / np.linalg.norm(features, axis=1, keepdims=True):
        labels = head.logit_scale * head.class_vectors @ feature + head.logit_bias
        others = head.logit_scale * unit @ feature + head.logit_bias
        gap = (np.log(np.exp(labels).sum()) - np.log(np.exp(others).sum())) / others.std()
        scores.append(1 / (1 + np.exp(GAP * gap - LABELS * np.log(len(head)) + OFFSET)))
    return np.array(scores)


def test_scores_follow_the_formula():
    rng = np.random.default_rng(0)
    head = drawn_head(rng)
    negatives = rng.standard_normal((50, 8))
    features = rng.standard_normal((20, 8))
    found = Rejector(head, negatives).none_scores(head.observe(features))
    np.testing.assert_allclose(found, naive_scores(head, negatives, features), rtol=1e-9)
    assert 0 < found.min() < found.max() < 1


@given(st.integers(0, 999), st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_scores_are_probabilities_and_depend_on_each_image_alone(seed, cuts, labels):
    rng = np.random.default_rng(seed)
    head = drawn_head(rng, labels)
    features = rng.standard_normal((sum(cuts), 8))
    rejector = Rejector(head, rng.standard_normal((30, 8)))
    whole = rejector.none_scores(head.observe(features))
    order = rng.permutation(sum(cuts))
    parts = [rejector.none_scores(head.observe(part)) for part in np.split(features, np.cumsum(cuts)[:-1])]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-9)
    np.testing.assert_allclose(rejector.none_scores(head.observe(features[order])), whole[order], rtol=1e-9)
    assert ((whole >= 0) & (whole <= 1)).all()


def test_the_order_of_labels_and_negatives_does_not_matter():
    rng = np.random.default_rng(1)
    head = drawn_head(rng)
    negatives = rng.standard_normal((30, 8))
    turned = Head(head.class_vectors[::-1], head.logit_scale, head.logit_bias)
    features = rng.standard_normal((9, 8))
    first = Rejector(head, negatives).none_scores(head.observe(features))
    np.testing.assert_allclose(Rejector(turned, negatives[::-1]).none_scores(turned.observe(features)), first)


def test_torch_gives_the_same_scores():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    head = drawn_head(rng)
    negatives = rng.standard_normal((30, 8))
    features = rng.standard_normal((9, 8))
    there = head.to(torch.zeros(1, dtype=torch.float64))
    found = Rejector(there, negatives).none_scores(there.observe(torch.as_tensor(features)))
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(found.numpy(), Rejector(head, negatives).none_scores(head.observe(features)))


@pytest.mark.parametrize("negatives", [np.ones((5, 7)), np.ones((1, 8)), np.ones(8)])
def test_negatives_of_another_model_are_refused(negatives):
    with pytest.raises(InputError, match="same model"):
        Rejector(Head(np.eye(8), logit_scale=10.0), negatives)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.floats(0, 1))
def test_labels_and_none_of_these_are_one_distribution(weights, none):
    scores = sorted(np.array(weights) / sum(weights), reverse=True)
    count = len(scores)
    classes, found = with_none(np.arange(count)[None], np.array([scores]), np.array([none]), count, top_k=count + 1)
    assert found.sum() == pytest.approx(1)
    assert (classes[0, 0] == count) == (none >= 0.5)
    assert classes[classes < count].tolist() == list(range(count))
    assert (np.diff(found) <= 1e-12).all()  # the answer has the highest score


def test_the_list_of_nouns_is_sorted_and_plain():
    assert list(nouns()) == sorted(set(nouns()))
    assert 2500 <= len(nouns()) <= 4000
    assert all(noun == noun.strip() and noun.isascii() and noun for noun in nouns())


def test_the_shipped_vectors_are_those_of_the_model(encoder):
    sample = list(range(0, len(nouns()), 97))
    fresh = build_head(encoder, [nouns()[i] for i in sample], cache=False, expand=False).class_vectors
    shipped = negative_vectors(encoder)
    cosines = (shipped[sample] * fresh).sum(axis=1)
    assert cosines.min() > 0.9995
    np.testing.assert_allclose(np.linalg.norm(shipped, axis=1), 1, rtol=1e-5)


def test_other_models_encode_the_nouns_once(tiny_onnx, tmp_path):
    encoder = load_encoder(f"onnx:{tiny_onnx}")
    done = []
    first = negative_vectors(encoder, tmp_path, lambda step, total: done.append(step))
    assert sum(done) == len(first) == len(nouns())
    np.testing.assert_array_equal(negative_vectors(encoder, tmp_path, lambda *_: pytest.fail("encoded again")), first)


def test_pictures_of_nothing_belong_to_no_label(encoder):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    classifier = Classifier(LABELS_OF, encoder, reject=True)
    predictions = list(classifier.stream([plain("black"), plain("white"), noise, draw("red", 1)]))
    assert {each.label for each in predictions} == {NONE}
    for each in predictions:
        assert each.none == each.score == each.zero_shot.score >= 0.5
        assert (each.id, each.refused, each.changed) == (None, Rejector.reason, False)
    assert classifier.adapter.samples_seen == 0


def test_pictures_of_a_label_are_answered_and_learnt(encoder):
    images = [plain("red"), plain("green"), plain("blue")]
    classifier = Classifier(["red color", "green color", "blue color"], encoder, reject=True)
    predictions = classifier.classify(images)
    assert [each.label for each in predictions] == ["red color", "green color", "blue color"]
    assert all(each.none < 0.5 for each in predictions)
    assert classifier.adapter.samples_seen == 3
    for answers in classifier(images):
        assert {answer["label"] for answer in answers} == {*classifier.labels, NONE}
        assert sum(answer["score"] for answer in answers) == pytest.approx(1)


def test_without_it_nothing_changes(encoder):
    prediction = next(Classifier(LABELS_OF, encoder).stream([plain("black")]))
    assert prediction.none is None
    assert prediction.label in LABELS_OF


def test_the_rejector_follows_the_labels(encoder):
    classifier = Classifier(LABELS_OF, encoder, reject=True)
    red = plain("red")
    assert classifier.predict([red]).tolist() == [NONE]
    classifier.add_labels(["red color"])
    assert classifier.predict([red]).tolist() == ["red color"]
    assert classifier.predict_proba([red]).sum() > 0.5
    classifier.remove_labels(["red color"])
    assert classifier.predict([red]).tolist() == [NONE]
    assert classifier.predict_proba([red]).sum() < 0.5


def test_a_second_pass_keeps_the_scores(encoder):
    images = [plain("red"), plain("black"), plain("green"), draw("blue", 2)]
    labels = ["red color", "green color", "blue color"]
    online = list(Classifier(labels, encoder, reject=True).stream(images))
    again = Classifier(labels, encoder, reject=True).classify(images)
    assert [each.none for each in again] == pytest.approx([each.none for each in online], rel=1e-5)
    assert [each.label == NONE for each in again] == [each.none >= 0.5 for each in online]


def test_a_fitted_method_rejects_too(encoder, tmp_path):
    classifier = Classifier(["red color", "green color"], encoder, method="tip-adapter")
    classifier.fit([plain("red"), plain("green")], ["red color", "green color"])
    classifier.save(tmp_path / "fitted.safetensors")
    ready = Classifier(encoder="bundled", fitted=tmp_path / "fitted.safetensors", reject=True)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    assert ready.predict([plain("red"), noise]).tolist() == ["red color", NONE]


def test_nouns_that_a_broad_label_is_answered_through_are_not_foreign_to_it(encoder):
    negatives = negative_vectors(encoder)
    animals = ["cat", "dog", "horse", "sheep", "goat", "wolf", "fox", "lion", "tiger", "bear", "otter", "seal"]
    shown = negatives[[nouns().index(name) for name in animals * 10]]
    features = shown + 0.02 * np.random.default_rng(0).standard_normal(shown.shape)
    broad = build_head(encoder, ["animal", "building"])
    plain = build_head(encoder, ["animal", "building"], expand=False)
    scores = [Rejector(head, negatives).none_scores(head.observe(features)) for head in (plain, broad)]
    lost = [float((each >= 0.5).mean()) for each in scores]
    assert lost[0] > 0.3
    assert lost[1] < 0.1
    guitars = negatives[[nouns().index(name) for name in ("guitar", "banjo", "violin")]]
    assert (Rejector(broad, negatives).none_scores(broad.observe(guitars)) >= 0.5).all()
