"""Adapters in PyTorch's inference mode and under autocast: the same answers and the same state as without."""

import copy
import pickle

import numpy as np
import pytest

from acclimate import Head, create, list_methods, load_state, save_state, state_to_bytes
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import ModelError

torch = pytest.importorskip("torch")
METHODS = [name for name, method in list_methods().items() if method.kind == "online" and not method.needs]


@pytest.fixture(scope="module")
def stream():
    return shifted_stream(samples=300, classes=6, dim=24, seed=3)


@pytest.fixture(scope="module")
def features(stream):
    return torch.asarray(stream.features)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("inside", [60, 150])
def test_samples_seen_in_inference_mode_do_not_matter(name, inside, stream, features):
    plain = create(name, stream.head.to(features))
    expected = torch.cat([plain.step(part) for part in (features[:inside], features[inside:-1], features[-1:])])
    with torch.inference_mode():
        adapter = create(name, stream.head.to(features))
        first = adapter.step(features[:inside].clone())  # the clone is an inference tensor
        evidence = adapter.head.observe(features[inside:-1].clone())
    found = torch.cat([first, adapter.adapt(evidence).logits, adapter.step(features[-1:])])
    assert not first.is_inference()
    assert torch.equal(found, expected)
    assert torch.equal(adapter.second_pass(features), plain.second_pass(features))


def test_a_copy_that_is_made_in_inference_mode_goes_on_outside(stream, features, tmp_path):
    adapter = create("tda", stream.head.to(features))
    adapter.step(features[:100])
    save_state(adapter, tmp_path / "state.safetensors")
    with torch.inference_mode():
        twins = [copy.deepcopy(adapter), load_state(tmp_path / "state.safetensors", like=adapter)]
        twins.append(pickle.loads(pickle.dumps(adapter)))
        moved = copy.deepcopy(adapter)
        moved.to(features.double())
        moved.to(features)
    with torch.inference_mode():
        for each in (adapter, moved, *twins):
            each.corrections.correct(features[:2], [0, 1])
    expected = adapter.step(features[100:])
    for twin in twins:
        assert torch.equal(twin.step(features[100:]), expected)
    assert torch.allclose(moved.step(features[100:]), expected, atol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_autocast_changes_no_logits(name, stream, features):
    plain = create(name, stream.head.to(features))
    other = create(name, stream.head.to(features))
    for each in (plain, other):
        each.corrections.correct(features[:2], [0, 1])
    expected = plain.step(features)
    second = plain.second_pass(features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(other.step(features), expected)
        assert torch.equal(other.head.observe(features).logits, plain.head.observe(features).logits)
        assert torch.equal(other.second_pass(features), second)
    assert state_to_bytes(other) == state_to_bytes(plain)


def test_a_fit_in_inference_mode_and_under_autocast(stream, features):
    for name in ("tip-adapter", "tip-adapter-f"):
        plain, other = (create(name, stream.head.to(features)) for _ in range(2))
        plain.fit(features[:60], stream.targets[:60])
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            other.fit(features[:60], stream.targets[:60])
        assert torch.equal(other.step(features), plain.step(features))


@pytest.mark.parametrize(
    ("name", "settings"),
    [("coop", {"context_tokens": 4, "epochs": 3}), ("cocoop", {"epochs": 2}), ("tpt", {}), ("difftpt", {})],
)
def test_methods_that_need_gradients_take_them_in_inference_mode(name, settings, tiny_clip):
    from acclimate import build_head, load_encoder

    with torch.inference_mode():
        loaded_inside = load_encoder(f"local:{tiny_clip}", "cpu")
    answers = []
    for encoder in (load_encoder(f"local:{tiny_clip}", "cpu"), loaded_inside):
        head = build_head(encoder, ["red", "green", "blue"], cache=False)
        rng = np.random.default_rng(0)
        views = rng.standard_normal((6, 8, head.dim), dtype=np.float32)
        with torch.inference_mode(encoder is loaded_inside):
            adapter = create(name, head, encoder=encoder, **settings)
            if adapter.kind == "few-shot":
                adapter.fit(views[:, 0], [0, 1, 2, 0, 1, 2])
            answers.append(adapter.step(views if "views" in adapter.needs else views[:, 0]))
    np.testing.assert_allclose(answers[1], answers[0], atol=1e-4)


def test_a_model_that_was_made_in_inference_mode_is_refused_where_gradients_are_needed(tiny_clip):
    from acclimate import load_encoder

    encoder = load_encoder(f"local:{tiny_clip}", "cpu")
    with torch.inference_mode():
        encoder.model = copy.deepcopy(encoder.model)
    with pytest.raises(ModelError, match=r"it was made under torch.inference_mode\(\), so make it outside"):
        create("coop", Head(np.eye(3, encoder.dim), logit_scale=100.0), encoder=encoder)
