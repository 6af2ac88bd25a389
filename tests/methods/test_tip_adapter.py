"""Tip-Adapter and Tip-Adapter-F against a naive version, against PyTorch's gradients, and what both promise."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import Head, create, load_state, read_stream, save_state
from acclimate.arrays import to_host
from acclimate.bench.orders import stream_order
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from acclimate.methods.jagged import lay_out
from rivals_reference import NaiveTip, unit

STREAMS = Path(__file__).parents[3] / "shared" / "streams"
NAMES = ["tip-adapter", "tip-adapter-f"]


def task(classes=4, shots=3, dim=12, versions=None, seed=0, dtype=np.float64):
    """Return a head, shots with labels, and 60 other samples with labels."""
    stream = shifted_stream(samples=60 + 40 * classes, classes=classes, dim=dim, seed=seed)
    rest = np.arange(60, len(stream))
    drawn = np.concatenate([rest[stream.targets[60:] == label][:shots] for label in range(classes)])
    features = stream.features[drawn].astype(dtype)
    if versions:
        noise = np.random.default_rng(seed).standard_normal((len(drawn), versions, dim))
        features = (features[:, None] + 0.2 * noise).astype(dtype)
    head = Head(stream.head.class_vectors.astype(dtype), 10.0, -2.0)
    return head, features, stream.targets[drawn], stream.features[:60].astype(dtype), stream.targets[:60]


def unequal(features, labels, seed):
    """Return the shots of which every class but the first two loses some at random, and keeps one at least."""
    rng = np.random.default_rng(seed)
    kept = [
        rng.permutation(np.flatnonzero(labels == label))[: rng.integers(1, 5)] for label in range(2, labels.max() + 1)
    ]
    kept = np.sort(np.concatenate([np.flatnonzero(labels < 2), *kept]))
    return features[kept], labels[kept]


def naive(head, **settings):
    return NaiveTip(head.class_vectors, head.logit_scale, head.logit_bias, **settings)


@given(
    classes=st.integers(1, 6),
    shots=st.integers(1, 4),
    versions=st.sampled_from([None, 1, 3]),
    alpha=st.sampled_from([0.0, 1.17, 3.0]),
    beta=st.sampled_from([0.0, 1.0, 7.0]),
    seed=st.integers(0, 99),
)
def test_answers_are_the_formula(classes, shots, versions, alpha, beta, seed):
    head, features, labels, test, _ = task(classes, shots, versions=versions, seed=seed)
    adapter = create("tip-adapter", head, alpha=alpha, beta=beta)
    reference = naive(head, alpha=alpha, beta=beta)
    adapter.fit(features, labels)
    reference.fit(features, labels)
    np.testing.assert_allclose(adapter.step(test), reference.step(test), atol=1e-9)
    if alpha == 0:
        np.testing.assert_allclose(adapter.step(test), head.observe(test).logits, atol=1e-12)


@given(seed=st.integers(0, 99), classes=st.integers(3, 7), beta=st.sampled_from([1.0, 5.0]))
def test_with_unequal_shots_a_class_votes_with_the_mean_of_its_shots(seed, classes, beta):
    head, features, labels, test, _ = task(classes, shots=4, seed=seed)
    features, labels = unequal(features, labels, seed)
    adapter = create("tip-adapter", head, alpha=2.0, beta=beta)
    adapter.fit(features, labels)
    weights = 2.0 * np.exp(-beta * (1 - unit(test) @ unit(features).T))
    means = np.stack([weights[:, labels == label].mean(axis=1) for label in range(classes)], axis=1)
    expected = head.observe(test).logits + np.median(np.bincount(labels)) * means
    np.testing.assert_allclose(adapter.step(test), expected, atol=1e-9)


@given(seed=st.integers(0, 99), classes=st.integers(3, 6), copies=st.integers(1, 5))
def test_copies_of_the_shots_of_one_class_change_nothing(seed, classes, copies):
    head, features, labels, test, truth = task(classes, seed=seed)
    chosen = labels == seed % classes
    more = np.concatenate([features, *[features[chosen]] * copies])
    more_labels = np.concatenate([labels, *[labels[chosen]] * copies])
    for validation in (None, (test, truth)):
        one = create("tip-adapter", head)
        other = create("tip-adapter", head)
        one.fit(features, labels, validation=validation)
        other.fit(more, more_labels, validation=validation)
        assert one.chosen() == other.chosen()
        np.testing.assert_allclose(one.step(test), other.step(test), atol=1e-9)


def halve(stream, seed):
    """Return positions of the first half of every class, drawn by a seed, and of the other half in stream order."""
    rng = np.random.default_rng(seed)
    first = np.zeros(len(stream), bool)
    for label in np.unique(stream.targets):
        members = rng.permutation(np.flatnonzero(stream.targets == label))
        first[members[: (len(members) + 1) // 2]] = True
    order = stream_order(stream, "stored")
    return np.flatnonzero(first), order[~first[order]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stream", ["oxford_pets", "ucf101"])
def test_three_to_sixteen_shots_per_class_lose_nothing(stream, name):
    path = STREAMS / f"{stream}.safetensors"
    if not path.exists():
        pytest.skip(f"needs {path}, which is not part of the repository")
    stream = read_stream(path)
    first, scored = halve(stream, seed=0)
    scored = scored[:500]
    rng = np.random.default_rng(0)
    drawn = [
        rng.permutation(first[stream.targets[first] == label])[: rng.integers(3, 17)]
        for label in range(len(stream.head))
    ]
    drawn = np.concatenate(drawn)
    shots = stream.features[drawn]
    labels = stream.targets[drawn]
    test = stream.features[scored]
    adapter = create(name, stream.head)
    adapter.fit(shots, labels)
    zero_shot = stream.head.observe(test).logits
    published = zero_shot + 1.17 * np.exp(test @ shots.T - 1) @ np.eye(len(stream.head), dtype=np.float32)[labels]
    right = [
        np.mean(logits.argmax(axis=1) == stream.targets[scored])
        for logits in (zero_shot, published, adapter.step(test))
    ]
    assert right[1] < right[0] - 0.1
    assert right[2] > right[0] - 0.005


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 99))
def test_the_order_of_the_shots_does_not_matter(name, seed):
    head, features, labels, test, _ = task(versions=2, seed=seed)
    order = np.random.default_rng(seed).permutation(len(labels))
    one = create(name, head)
    other = create(name, head)
    one.fit(features, labels)
    other.fit(features[order], labels[order])
    np.testing.assert_allclose(one.step(test), other.step(test), atol=1e-9)


def test_the_search_takes_the_best_of_the_grid_and_of_equal_ones_the_nearest():
    head, features, labels, test, truth = task(classes=3, shots=2)
    adapter = create("tip-adapter", head)
    reference = naive(head)
    adapter.fit(features, labels, validation=(test, truth))
    reference.fit(features, labels)
    reference.search(test[:30], truth[:30])
    adapter.fit(features, labels, validation=(test[:30], truth[:30]))
    assert adapter.chosen() == pytest.approx({"alpha": reference.alpha, "beta": reference.beta})
    np.testing.assert_allclose(adapter.step(test), reference.step(test), atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_found_settings_are_saved_and_forgotten_by_the_next_fit(name, tmp_path):
    head, features, labels, test, truth = task()
    adapter = create(name, head, largest_alpha=20.0)
    adapter.fit(features, labels)
    given = adapter.step(test)
    adapter.fit(features, labels, validation=(test, truth))
    found = adapter.chosen()
    settings = {"alpha": 1.17, "beta": 1.0}
    assert found != settings
    save_state(adapter, tmp_path / "fitted")
    for loaded in (
        load_state(tmp_path / "fitted"),
        load_state(tmp_path / "fitted", like=create(name, head, largest_alpha=20.0)),
    ):
        assert loaded.chosen() == found
        np.testing.assert_array_equal(loaded.step(test), adapter.step(test))
    assert adapter.settings.items() >= settings.items()  # what was given stays what was given
    adapter.fit(features, labels)
    assert adapter.chosen() == settings
    np.testing.assert_array_equal(adapter.step(test), given)


def test_no_epochs_are_tip_adapter():
    head, features, labels, test, _ = task(versions=3)
    plain = create("tip-adapter", head)
    tuned = create("tip-adapter-f", head, epochs=0)
    plain.fit(features, labels)
    tuned.fit(features, labels)
    np.testing.assert_array_equal(plain.step(test), tuned.step(test))


@given(
    alpha=st.sampled_from([0.5, 1.17, 3.0]),
    beta=st.sampled_from([0.5, 1.0, 5.0]),
    classes=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_the_gradient_is_that_of_autograd(alpha, beta, classes, seed):
    torch = pytest.importorskip("torch")
    head, features, classes_of, test, truth = task(classes, shots=4, seed=seed)
    if classes > 2:
        features, classes_of = unequal(features, classes_of, seed)
    counts = np.bincount(classes_of)
    share = torch.tensor(np.median(counts) / counts)
    adapter = create("tip-adapter-f", head, alpha=alpha, beta=beta)
    keys = unit(features) * np.linspace(0.5, 1.5, len(features))[:, None]  # trained keys have any length
    test = unit(test)
    slope = adapter.gradient(keys, classes_of, lay_out(classes_of[:, None], keys), test, truth)
    weights = torch.tensor(keys, requires_grad=True)
    affinity = torch.tensor(test) @ weights.T
    values = share * torch.nn.functional.one_hot(torch.tensor(classes_of), classes)
    logits = torch.tensor(head.observe(test).logits) + alpha * (-beta * (1 - affinity)).exp() @ values
    torch.nn.functional.cross_entropy(logits, torch.tensor(truth), weight=share).backward()
    np.testing.assert_allclose(slope, weights.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_search_is_part_of_the_progress(name):
    head, features, labels, *_ = task(classes=3, shots=4)
    adapter = create(name, head)
    steps = []
    held_out = (np.concatenate([features] * 200), np.concatenate([labels] * 200))
    adapter.fit(features, labels, validation=held_out, progress=steps.append)
    assert sum(steps) == adapter.fit_steps(len(labels), len(held_out[1])) > adapter.fit_steps(len(labels)) + 1


def test_training_is_that_of_pytorch():
    """AdamW with the authors' settings, a cosine to zero over all steps, and another version in every epoch."""
    torch = pytest.importorskip("torch")
    head, features, labels, *_ = task(classes=3, shots=4, versions=2)
    adapter = create("tip-adapter-f", head, epochs=5, batch=5, learning_rate=0.01, seed=7)
    steps = []
    adapter.fit(features, labels, progress=steps.append)
    assert sum(steps) == adapter.fit_steps(len(labels)) == 5 * 3 + 1
    features = unit(features)
    weights = torch.tensor(unit(features.mean(axis=1)), requires_grad=True)
    values = torch.nn.functional.one_hot(torch.tensor(labels), 3).double()
    optimiser = torch.optim.AdamW([weights], lr=0.01, eps=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 15)
    for epoch in range(5):
        order = np.random.default_rng([7, epoch]).permutation(len(labels))
        for start in range(0, len(labels), 5):
            batch = order[start : start + 5]
            images = features[batch, epoch % 2]
            votes = (torch.tensor(images) @ weights.T - 1.0).exp() @ values
            logits = torch.tensor(head.observe(images).logits) + 1.17 * votes
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(logits, torch.tensor(labels[batch])).backward()
            optimiser.step()
            schedule.step()
    np.testing.assert_allclose(adapter.shots.keys, weights.detach().numpy(), atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_float32_on_any_library(to_backend, name):
    head, features, labels, test, truth = task(dtype=np.float32, versions=2)
    expected = create(name, head)
    expected.fit(features, labels, validation=(test, truth))
    adapter = create(name, head.to(to_backend(features)))
    adapter.fit(to_backend(features), labels, validation=(to_backend(test), truth))
    logits = adapter.step(to_backend(test))
    assert type(logits) is type(to_backend(test))
    np.testing.assert_allclose(to_host(logits), expected.step(test), atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_labels_help_and_a_new_class_is_answered_zero_shot(name):
    head, features, labels, test, truth = task(classes=6, shots=8, dim=24)
    adapter = create(name, head, alpha=3.0, beta=5.0)
    adapter.fit(features, labels)
    zero_shot = head.observe(test).logits
    assert np.mean(adapter.step(test).argmax(axis=1) == truth) > np.mean(zero_shot.argmax(axis=1) == truth)
    assert adapter.shots.capacity == 8
    assert [entry.class_index for entry in adapter.entries()["shots"]] == np.repeat(range(6), 8).tolist()
    adapter.add_classes(-head.class_vectors[:1], ["new"])
    np.testing.assert_allclose(adapter.step(test)[:, 6], adapter.head.observe(test).logits[:, 6])


def test_trained_keys_are_longer_than_features_but_not_without_bound():
    head, features, labels, *_ = task()
    adapter = create("tip-adapter-f", head, learning_rate=0.2, alpha=3.0, beta=5.0)
    adapter.fit(features, labels)
    arrays = adapter.dump()
    assert np.linalg.norm(arrays["shots.keys"], axis=1).max() > 1.01
    with pytest.raises(InputError, match="the training diverged"):
        create("tip-adapter-f", head, learning_rate=1e3).fit(features, labels)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -1.0}, "alpha and beta must not be negative"),
        ({"largest_beta": 0.1}, r"must be above 0\.1"),
        ({"epochs": -1}, "epochs and seed must not be negative"),
        ({"learning_rate": 0.0}, "learning_rate above 0"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(InputError, match=message):
        create("tip-adapter-f", Head(np.eye(2), logit_scale=1.0), **settings)
