"""Broad labels, and the classes that are answered through their kinds."""

import numpy as np
import pytest

from acclimate import Classifier, FeatureStream, Head, build_head, create, load_encoder, read_stream, write_stream
from acclimate.errors import StateError
from acclimate.methods import load_state, save_state
from acclimate.prompts import kinds_of, nouns
from acclimate.sources.datasets import DATASETS

LABELS = ["mammal", "birds", "satellite photo", "guitar"]


@pytest.fixture(scope="module")
def encoder():
    return load_encoder("bundled")


@pytest.fixture(scope="module")
def head(encoder):
    return build_head(encoder, LABELS)


def test_broad_labels_are_those_above_many_nouns():
    kinds = kinds_of(["Mammals", "plant", "human beings", "vehicle", "dog", "guitar", "a mammal of the sea"])
    assert list(kinds) == ["Mammals", "plant", "human beings", "vehicle"]
    assert {"cat", "whale"} <= set(kinds["Mammals"])
    assert "sunflower" in kinds["plant"]
    assert all(set(found) <= set(nouns()) for found in kinds.values())


def test_a_noun_belongs_to_the_narrowest_label():
    kinds = kinds_of(["animal", "bird", "dogs", "cat"])
    assert "penguin" in kinds["bird"]
    assert not {"penguin", "bird", "dog", "poodle", "cat", "kitten"} & set(kinds["animal"])
    assert "horse" in kinds["animal"]


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
def test_the_names_of_published_classes_are_not_broad(dataset):
    assert kinds_of(dataset.class_names) == {}


def test_the_logit_of_a_broad_class_is_of_its_name_and_its_kinds(head):
    features = np.random.default_rng(0).standard_normal((7, head.dim))
    kinds = np.asarray(head.kinds[: head.kind_counts[0]], np.float64)
    each = head.logit_scale * features / np.linalg.norm(features, axis=1, keepdims=True) @ kinds.T
    together = np.log(np.exp(each).sum(axis=1)) - 0.5 * np.log(len(kinds))
    np.testing.assert_allclose(head.observe(features).logits[:, 0], each[:, 0] / 3 + 2 / 3 * together, rtol=1e-4)


def test_kinds_follow_their_classes(head):
    features = np.random.default_rng(0).standard_normal((7, head.dim)).astype(np.float32)
    logits = head.observe(features).logits
    other = head.add(head.class_vectors[:1], ["new"]).remove(["mammal", "guitar"])
    np.testing.assert_allclose(other.observe(features).logits[:, :2], logits[:, 1:3], rtol=1e-5)
    assert other.expanded == {label: head.expanded[label] for label in ("birds", "satellite photo")}
    assert other.remove(["birds", "satellite photo"]).kinds is None
    assert head.to(np.zeros(1)).observe(features).logits.dtype == np.float64
    assert (
        head.fingerprint
        != head.remove(["guitar"]).add(head.class_vectors[3:], ["guitar"]).remove(["birds"]).fingerprint
    )


@pytest.mark.parametrize("method", ["accord", "tda", "zlap"])
def test_states_and_feature_files_keep_the_kinds(head, method, tmp_path):
    features = np.random.default_rng(0).standard_normal((40, head.dim)).astype(np.float32)
    adapter = create(method, head)
    adapter.step(features)
    save_state(adapter, tmp_path / "state.safetensors")
    again = load_state(tmp_path / "state.safetensors", like=adapter)
    np.testing.assert_array_equal(again.step(features), adapter.step(features))
    for name in ("stream.safetensors", "stream.npz"):
        write_stream(FeatureStream(features, head), tmp_path / name)
        assert read_stream(tmp_path / name).head.fingerprint == head.fingerprint
    own = Head(head.class_vectors, head.logit_scale, class_names=head.class_names)
    with pytest.raises(StateError, match="labels are expanded in it, so leave out --no-expand"):
        load_state(tmp_path / "state.safetensors", like=create(method, own))
    save_state(create(method, own), tmp_path / "own.safetensors")
    with pytest.raises(StateError, match="labels are as they are in it, so pass --no-expand"):
        load_state(tmp_path / "own.safetensors", like=adapter)


def test_a_state_of_labels_that_are_not_broad_goes_on_under_either_choice(encoder, tmp_path):
    whole, plain = (Classifier(["cat", "guitar"], encoder, cache=False, expand=expand) for expand in (True, False))
    plain.save(tmp_path / "state.safetensors")
    whole.load(tmp_path / "state.safetensors")
    assert whole.head.fingerprint == plain.head.fingerprint


def test_known_labels_are_not_encoded_again(encoder):
    asked = []

    class Counting:
        fingerprint, logit_scale, logit_bias = "", encoder.logit_scale, encoder.logit_bias

        def encode_text(self, texts):
            asked.extend(texts)
            return encoder.encode_text(texts)

    known = build_head(encoder, ["animal", "guitar"])
    head = build_head(Counting(), ["animal", "guitar", "dog"], known=known, expand=False)
    assert asked == ["a photo of a dog."]
    whole = build_head(encoder, ["animal", "guitar", "dog"])
    np.testing.assert_allclose(head.class_vectors, whole.name_vectors, atol=1e-6)
    assert (
        build_head(encoder, ["animal", "dog"], known=whole).expanded == build_head(encoder, ["animal", "dog"]).expanded
    )


def test_labels_that_come_and_go_change_what_is_below_the_others(encoder):
    classifier = Classifier(["animal", "guitar"], encoder, cache=False)
    assert Classifier(["animal", "guitar"], encoder, cache=False, expand=False).head.kinds is None
    before = classifier.head.expanded["animal"]
    classifier.add_labels(["bird"])
    assert classifier.head.expanded["animal"] + classifier.head.expanded["bird"] < before
    classifier.remove_labels(["bird"])
    assert classifier.head.expanded == {"animal": before}


def test_kinds_are_encoded_in_the_prompts_of_the_labels(encoder, tmp_path):
    prompts = "a sketch of a {}."
    head = build_head(encoder, ["amphibian", "guitar"], prompts, tmp_path)
    frog = build_head(encoder, ["frog"], prompts, tmp_path).class_vectors
    assert (head.kinds @ frog.T).max() > 0.999
    whole = {"amphibian": "a photo of a frog.", "guitar": "a photo of a guitar."}
    assert build_head(encoder, list(whole), whole, tmp_path).kinds is None
