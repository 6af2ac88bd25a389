"""Learned prompts as the prompts of any method."""

import numpy as np
import pytest

from acclimate import TDA, Classifier, Head, build_head, create, save_state
from acclimate.encoders import load_encoder
from acclimate.errors import InputError, ModelError, StateError
from acclimate.files import read_snapshot, snapshot_bytes
from acclimate.prompts import LearnedPrompts, example_prompts
from drawn_images import COLOURS, draw

pytest.importorskip("torch")
NAMES = list(COLOURS)


@pytest.fixture(scope="module")
def encoder(tiny_clip):
    return load_encoder(f"local:{tiny_clip}", "cpu")


@pytest.fixture(scope="module")
def fitted(encoder, tmp_path_factory):
    """Files of fitted prompts by name, and the adapters they hold."""
    folder = tmp_path_factory.mktemp("prompts")
    labels = np.arange(30) % 3
    features = encoder.encode_images([encoder.prepare(draw(NAMES[label], i)) for i, label in enumerate(labels)])
    made = {}
    for name, method, settings in (
        ("unified", "coop", {"context_tokens": 4, "epochs": 5}),
        ("own", "coop", {"context_tokens": 4, "epochs": 5, "class_specific": True}),
        ("conditional", "cocoop", {"epochs": 1}),
    ):
        adapter = create(method, build_head(encoder, NAMES, cache=False), encoder=encoder, **settings)
        adapter.fit(features, labels)
        save_state(adapter, folder / name)
        made[name] = (folder / name, adapter)
    return made


@pytest.mark.parametrize("name", ["unified", "own"])
def test_zero_shot_on_learned_prompts_is_coop(encoder, fitted, name):
    path, adapter = fitted[name]
    prompts = LearnedPrompts.load(path)
    head = build_head(encoder, NAMES, prompts)
    np.testing.assert_allclose(head.class_vectors, adapter.prompted.class_vectors, atol=1e-5)
    turned = build_head(encoder, NAMES[::-1], prompts)
    np.testing.assert_allclose(turned.class_vectors, head.class_vectors[::-1], atol=1e-5)
    assert example_prompts(NAMES, prompts) == ["4 learned vectors, then 'red'"]


def test_a_conditional_prompt_is_that_of_the_mean_image(encoder, fitted):
    path, adapter = fitted["conditional"]
    shift = adapter.learned["context"] + adapter.learned["mean_shift"]
    tower = encoder.text_tower()
    expected = tower.prompts(NAMES, 4).vectors(adapter.tensor(shift))
    np.testing.assert_allclose(LearnedPrompts.load(path).vectors(encoder, NAMES), expected, atol=1e-5)


def test_every_method_runs_on_learned_prompts_and_other_labels(encoder, fitted):
    labels = [*NAMES, "orange"]
    classifier = Classifier(labels, encoder, method="tda", templates=LearnedPrompts.load(fitted["unified"][0]))
    assert isinstance(classifier.adapter, TDA)
    answers = classifier([draw(NAMES[i % 3], i) for i in range(6)])
    assert {each["label"] for each in answers[0]} == set(labels)
    classifier.add_labels(["violet"])
    assert len(classifier(draw("red", 1))) == 5


def test_a_method_fitted_on_learned_prompts_takes_no_labels_with_other_prompts(encoder, fitted, tmp_path):
    prompts = LearnedPrompts.load(fitted["unified"][0])
    images = [draw(name, 0) for name in NAMES]
    classifier = Classifier(NAMES, encoder, method="tip-adapter", templates=prompts)
    classifier.fit(images, NAMES)
    classifier.save(tmp_path / "tip")
    again = Classifier(encoder=encoder, fitted=tmp_path / "tip")
    assert again(images[0]) == classifier(images[0])
    assert example_prompts(NAMES, again.templates) == ["learned prompts"]
    with pytest.raises(InputError, match="only their name is known here"):
        again.add_labels(["orange"])


def test_unusable_prompts_are_reported(encoder, fitted, tmp_path, tiny_onnx, tiny_clip):
    with pytest.raises(InputError, match="has a context for each class it was fitted to, and none for 'orange'"):
        build_head(encoder, [*NAMES, "orange"], LearnedPrompts.load(fitted["own"][0]))
    other = load_encoder(f"local:{tiny_clip}", "cpu")
    other.fingerprint = "another"
    with pytest.raises(ModelError, match="were learned with another model; use that, or fit again"):
        build_head(other, NAMES, LearnedPrompts.load(fitted["unified"][0]))
    with pytest.raises(ModelError, match="takes embeddings, which OnnxEncoder does not have"):
        build_head(load_encoder(f"onnx:{tiny_onnx}"), NAMES, LearnedPrompts.load(fitted["unified"][0]))
    save_state(TDA(Head(np.eye(3), logit_scale=1.0)), tmp_path / "tda")
    with pytest.raises(StateError, match="holds no learned prompts; make some with `acclimate fit --method coop`"):
        LearnedPrompts.load(tmp_path / "tda")
    head = build_head(encoder, NAMES, cache=False)
    save_state(create("coop", head, encoder=encoder, context_tokens=4), tmp_path / "new")
    with pytest.raises(StateError, match="holds no learned prompts"):
        LearnedPrompts.load(tmp_path / "new")
    arrays, description = read_snapshot(fitted["conditional"][0])
    context = arrays["exports.context"]
    for changed in (
        {"exports.context": context * np.nan},
        {"exports.context": context[0]},
        {"exports.context": context.astype(np.int64)},
        {"exports.context": np.stack([context] * 2)},
        {"head": []},
        {"head": {"class_names": 5}},
    ):
        edited = {key: value for key, value in changed.items() if key == "head"}
        tensors = {key: value for key, value in changed.items() if key != "head"}
        (tmp_path / "edited").write_bytes(snapshot_bytes(arrays | tensors, description | edited))
        with pytest.raises(
            StateError, match=r"edited holds (learned prompts that break a rule|a head that cannot be used)"
        ):
            LearnedPrompts.load(tmp_path / "edited")
    (tmp_path / "junk").write_bytes(b"junk" * 10)
    with pytest.raises(StateError, match="truncated, damaged or foreign"):
        LearnedPrompts.load(tmp_path / "junk")
