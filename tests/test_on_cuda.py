"""What tensors need on a GPU, tested on the CPU as far as that goes, and on a GPU where there is one."""

import warnings
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import TDA, Accord, ZeroShot
from acclimate.arrays import directions, to_host, unit_rows
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from acclimate.methods import tda
from acclimate.methods.jagged import Diagonals, Rows, add_by_class, compact, lay_out
from acclimate.predict import Adapted, Prediction, best_of, predictions, top_classes

torch = pytest.importorskip("torch")
from acclimate import on_cuda  # noqa: E402 (it imports torch)

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")),
]
on_any_device = pytest.mark.parametrize("device", DEVICES)
on_gpu = pytest.mark.parametrize("device", DEVICES[1:])


@on_any_device
@pytest.mark.parametrize("factor", [1.0, -0.25])
def test_sums_by_class_are_those_of_the_diagonals(device, factor):
    rng = np.random.default_rng(0)
    for entries in (0, 1, 40):
        targets = compact(rng.random((entries, 9)) < 0.3)
        weights = rng.random((entries, 5)).astype(np.float32)
        sums = rng.random((9, 5)).astype(np.float32)
        there = torch.asarray(sums.copy(), device=device)
        like = torch.empty(0, device=device)
        layout = lay_out(targets, like)
        expected = lay_out(targets, sums)
        assert isinstance(layout, Rows)
        assert isinstance(expected, Diagonals)
        add_by_class(there, torch.asarray(weights.copy(), device=device), layout, factor)
        add_by_class(sums, weights, expected, factor)
        np.testing.assert_allclose(to_host(there), sums, atol=1e-6)


@on_any_device
def test_integers_go_up_in_one_copy(device):
    arrays = [np.arange(3), np.empty(0, np.int64), np.array([7], np.int32)]
    found = on_cuda.upload_integers(arrays, torch.device(device))
    assert [each.tolist() for each in found] == [[0, 1, 2], [], [7]]
    assert {(each.dtype, each.device.type) for each in found} == {(torch.int64, device)}


@on_any_device
def test_what_is_uploaded_and_transferred_is_a_copy(device):
    values = np.arange(4.0)
    there = on_cuda.upload(values, torch.device(device))
    values[:] = 9
    transfer = on_cuda.Transfer(there)
    there += 1
    assert deepcopy(transfer).wait().tolist() == transfer.wait().tolist() == [0, 1, 2, 3]
    assert transfer.done


@given(st.integers(0, 99), st.integers(1, 12), st.integers(1, 14))
def test_of_equal_scores_the_first_class_wins(seed, classes, count):
    scores = np.random.default_rng(seed).integers(0, 3, (6, classes)).astype(np.float32) / 4
    best = on_cuda.best_classes(torch.asarray(scores), count)
    np.testing.assert_array_equal(to_host(best), top_classes(scores, count))


@on_any_device
@pytest.mark.parametrize("count", [1, 3, 50])
def test_the_best_classes_are_those_that_the_host_finds(device, count):
    rng = np.random.default_rng(0)
    logits, probs = (10 * rng.standard_normal((20, 30)).astype(np.float32) for _ in range(2))
    logits[:, 7] = logits[:, 2]
    probs = np.exp(probs) / np.exp(probs).sum(axis=1, keepdims=True)
    there = [torch.asarray(each, device=device) for each in (logits, probs)]
    for given_probs in (False, True):
        found = best_of(there[0].T.contiguous().T, count, there[1] if given_probs else None)
        expected = best_of(logits, count, probs if given_probs else None)
        assert len(found) == len(expected) == (4 if given_probs else 2)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-12)
            assert one.dtype == other.dtype


@on_any_device
def test_directions_are_unit_rows_and_say_which_have_none(device):
    rows = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    rows[1] *= 1e-25
    rows[2] *= 1e25
    unit, peaks = directions(torch.asarray(rows, device=device))
    np.testing.assert_allclose(to_host(unit), unit_rows(rows, "rows"), rtol=1e-5)
    again, _ = directions(unit)
    assert torch.equal(again, unit)
    assert to_host(peaks)[[0, 3, 4]].tolist() == [1, 1, 1]
    rows[0] = 0
    rows[3, 2] = np.nan
    rows[4, 1] = np.inf
    _, peaks = directions(torch.asarray(rows, device=device))
    assert (np.isfinite(to_host(peaks)) & (to_host(peaks) > 0)).tolist() == [False, True, True, False, False]


@on_any_device
@pytest.mark.parametrize("method", [TDA, Accord, ZeroShot])
@pytest.mark.parametrize("learn", [True, False])
def test_rows_without_a_direction_are_refused_before_anything_is_learnt(device, method, learn):
    stream = shifted_stream(samples=60, classes=5, dim=8)
    features = stream.features.copy()
    features[57] = 0
    there = torch.asarray(features, device=device)
    adapter = method(stream.head.to(there))
    for views in (1, 2):
        with pytest.raises(InputError, match=r"row 57.* is all zeros"):
            adapter.step(there if views == 1 else torch.stack([there, there], dim=1), learn=learn)
        assert adapter.samples_seen == 0
        assert not any(adapter.entries().values())


@on_any_device
def test_parts_of_evidence_share_what_arrived(device):
    stream = shifted_stream(samples=50, classes=6, dim=8)
    there = torch.asarray(stream.features, device=device)
    evidence = stream.head.to(there).observe(there)
    expected = stream.head.observe(stream.features)
    for cut in (slice(0, 50), slice(10, 30), slice(40, None)):
        np.testing.assert_allclose(evidence[cut].host_entropy, expected[cut].host_entropy, rtol=1e-4)
        np.testing.assert_array_equal(evidence[cut].predicted, expected[cut].predicted)
    np.testing.assert_array_equal(evidence[10:30][5:8].predicted, expected.predicted[15:18])


class Slow(on_cuda.Transfer):
    """A transfer that is never there before somebody waits for it."""

    done = False

    def wait(self):
        return self.host.numpy()


@on_any_device
@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("size", [1, 40, 300])
def test_the_state_is_that_of_the_host_also_while_masks_arrive(device, slow, size, monkeypatch):
    if slow and device == "cpu":
        monkeypatch.setattr(on_cuda, "Transfer", Slow)
    stream = shifted_stream(samples=300, classes=12, dim=32, seed=5)
    there = torch.asarray(stream.features, device=device)
    settings = {"entropy_low": -1.0, "entropy_high": 1.0}  # all samples are offered to the negative cache
    ours = TDA(stream.head.to(there), **settings)
    expected = TDA(stream.head, **settings)
    for start in range(0, 300, size):
        batch = slice(start, start + size)
        logits = to_host(ours.step(there[batch]))
        np.testing.assert_allclose(logits, expected.step(stream.features[batch]), atol=1e-3)
        copy = deepcopy(ours)
        if start % 7 == 0:
            for name, values in expected.dump().items():
                np.testing.assert_allclose(copy.dump()[name], values, atol=1e-5)


@on_any_device
@pytest.mark.parametrize("frozen", [False, True])
def test_caches_that_have_long_been_steady_are_read_in_one_go(device, frozen, monkeypatch):
    monkeypatch.setattr(tda, "STEADY", 3)
    stream = shifted_stream(samples=300, classes=12, dim=32, seed=5)
    there = torch.asarray(stream.features, device=device)
    ours = TDA(stream.head.to(there))
    expected = TDA(stream.head)
    for adapter, features in ((ours, there), (expected, stream.features)):
        adapter.step(features[:200])
        if frozen:
            adapter.freeze()
    for _ in range(4):  # the second half changes the caches once, and then they are steady again
        for rows in [slice(0, 5)] * 10 + [slice(200, 205), slice(205, 300)]:
            logits = ours.step(there[rows])
            kept = logits.clone()
            np.testing.assert_allclose(to_host(logits), expected.step(stream.features[rows]), atol=1e-3)
            ours.step(there[rows], learn=False)
            assert torch.equal(logits, kept)  # answers are never overwritten
    assert min(ours.negative_cache.steady, ours.positive_cache.steady) > 3


@on_any_device
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
            adapted = Adapted(evidence, adapter.adapt(evidence))
            answers += predictions(head, adapted, 3, range(start, start + 50))
        found.append(answers)
    for one, other in zip(*found, strict=True):
        assert vars(one).keys() == {field.name for field in fields(Prediction)}
        assert replace(one) == one
        assert [each.label for each in one.top] == [each.label for each in other.top]
        assert one.zero_shot.label == other.zero_shot.label
        assert one.admitted == other.admitted
        assert one.score == pytest.approx(other.score, abs=1e-4)


@contextmanager
def count_waits(monkeypatch):
    """A list that grows with every wait for the device: those that we ask for, and those that PyTorch makes."""
    waits = []
    synchronize = torch.cuda.Event.synchronize
    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        patch.setattr(torch.cuda.Event, "synchronize", lambda event: (waits.append("event"), synchronize(event)))
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode("default")
            waits += [str(each.message) for each in found]


@on_gpu
@pytest.mark.parametrize("method", [TDA, Accord, ZeroShot])
@pytest.mark.parametrize("size", [1, 64, 256])
def test_a_step_waits_once_at_most(device, method, size, monkeypatch):
    stream = shifted_stream(samples=3000, classes=50, dim=64)
    there = torch.asarray(stream.features, device=device)
    adapter = method(stream.head.to(there))
    for start in range(0, 2000, 250):
        adapter.step(there[start : start + 250])
    batches = [there[2000 + i * size :][:size] for i in range(3)]
    for batch in batches:
        with count_waits(monkeypatch) as waits:
            seen = adapter.samples_seen
            adapter.step(batch)
        settled = method is Accord and adapter.settles_at(seen) <= seen + size  # parameters are computed on the host
        assert len(waits) <= 1 or settled, waits


@on_gpu
def test_evidence_is_replayed_and_never_overwritten(device):
    stream = shifted_stream(samples=600, classes=20, dim=32)
    there = torch.asarray(stream.features, device=device)
    head = stream.head.to(there)
    found = [(batch, head.observe(batch)) for batch in there.split(100)]
    assert any(isinstance(each, on_cuda._Graph) for each in on_cuda._graphs[head].values())
    for batch, evidence in found:
        expected = stream.head.observe(to_host(batch))
        for name in ("features", "logits", "probs", "entropy"):
            np.testing.assert_allclose(to_host(getattr(evidence, name)), getattr(expected, name), atol=1e-4)
        np.testing.assert_array_equal(evidence.predicted, expected.predicted)


@on_gpu
def test_what_cannot_be_captured_runs_as_it_is(device):
    class Owner:
        pass

    def work(x):
        return {"scaled": x * float(x.sum())}  # looks at the device, which a graph cannot

    owner = Owner()
    x = torch.ones(3, device=device)
    for _ in range(5):
        assert on_cuda.replayed(owner, "scale", work, [x], 3, ["scaled"])["scaled"].tolist() == [3, 3, 3]
