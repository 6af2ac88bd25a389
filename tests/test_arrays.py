import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.arrays import (
    STANDARD,
    as_floats,
    entropy_of,
    index,
    move,
    namespace,
    softmax_and_entropy,
    to_host,
    unit_rows,
)
from acclimate.errors import InputError


def exact_softmax_and_entropy(logits):
    """Return both, row by row with Python's own floats; ln of the largest probability p is taken as log1p(p - 1)."""
    probs = []
    entropies = []
    for row in logits.tolist():
        weights = sorted(math.exp(z - max(row)) for z in row)
        rest = math.fsum(weights[:-1])
        others = [w / (1 + rest) for w in weights[:-1]]
        entropies.append(math.log1p(rest) / (1 + rest) - math.fsum(p * math.log(p) for p in others if p > 0))
        probs.append([math.exp(z - max(row)) / (1 + rest) for z in row])
    return np.array(probs), np.array(entropies)


@given(st.integers(1, 40), st.sampled_from([0.01, 1.0, 10.0, 60.0]), st.integers(0, 99))
def test_softmax_and_entropy_keep_their_digits_at_all_scales(classes, scale, seed):
    logits = (scale * np.random.default_rng(seed).standard_normal((5, classes))).astype(np.float32)
    probs, entropy = softmax_and_entropy(logits)
    exact_probs, exact_entropy = exact_softmax_and_entropy(logits)
    np.testing.assert_allclose(probs, exact_probs, rtol=1e-4, atol=1e-30)
    # Relative accuracy also for entropies far below float32's resolution of 1 - p.
    np.testing.assert_allclose(entropy, exact_entropy, rtol=1e-4, atol=1e-30)
    np.testing.assert_allclose(entropy_of(probs), exact_entropy, rtol=1e-4, atol=1e-30)


def test_tiny_entropies_are_told_apart():
    logits = np.array([[0.0, -20.0], [0.0, -25.0], [0.0, -30.0]], np.float32)
    _, entropy = softmax_and_entropy(logits)
    assert entropy[0] > entropy[1] > entropy[2] > 0


def test_the_maths_stays_where_the_array_lives(to_backend):
    logits = to_backend(np.array([[1.0, 2.0, 4.0], [0.0, 0.0, 0.0]], np.float32))
    probs, entropy = softmax_and_entropy(logits)
    assert type(probs) is type(entropy) is type(logits)
    assert probs.dtype == entropy.dtype == logits.dtype
    np.testing.assert_allclose(to_host(entropy)[1], np.log(3), rtol=1e-6)
    np.testing.assert_allclose(to_host(entropy_of(probs)), to_host(entropy), rtol=1e-5)


def test_unit_rows_survive_extreme_lengths(to_backend):
    rows = np.array([[3.0, 4.0], [3e-30, 4e-30], [3e30, 4e30]], np.float32)
    np.testing.assert_allclose(to_host(unit_rows(to_backend(rows), "rows")), [[0.6, 0.8]] * 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("value", "message"), [(0.0, "row 1 is all zeros"), (np.nan, "row 1 holds NaN"), (np.inf, "row 1 holds NaN or inf")]
)
def test_rows_without_direction_are_refused(to_backend, value, message):
    rows = np.ones((3, 4), np.float32)
    rows[1] = value
    with pytest.raises(InputError, match=message):
        unit_rows(to_backend(rows), "rows")


def test_a_bad_view_is_named_by_sample_and_view():
    views = np.ones((2, 3, 4), np.float32)
    views[1, 2] = 0
    with pytest.raises(InputError, match="row 1, 2 is all zeros"):
        unit_rows(views, "views")


def test_half_precision_is_widened():
    torch = pytest.importorskip("torch")
    assert as_floats(np.ones(3, np.float16), "x").dtype == np.float32
    assert as_floats(torch.ones(3, dtype=torch.bfloat16), "x").dtype == torch.float32
    assert as_floats([[1, 2], [3, 4]], "x").dtype == np.float64
    assert to_host(torch.ones(3, dtype=torch.bfloat16)).dtype == np.float32


def test_arrays_that_are_no_tables_of_floats_are_refused():
    with pytest.raises(InputError, match="must be floating point, got int64; convert"):
        as_floats(np.ones(3, np.int64), "features")
    with pytest.raises(InputError, match="features cannot be read as an array"):
        as_floats([[1.0], [1.0, 2.0]], "features")
    with pytest.raises(InputError, match="features cannot be read as an array"):
        as_floats("cat.jpg", "features")


def test_autograd_ends_at_the_door():
    torch = pytest.importorskip("torch")
    assert not as_floats(torch.ones(3, requires_grad=True), "x").requires_grad


def test_move_brings_arrays_across_libraries():
    torch = pytest.importorskip("torch")
    host = np.ones(3, np.float64)
    tensor = torch.zeros(2, dtype=torch.float32)
    assert move(host, tensor).dtype == torch.float32
    assert isinstance(move(tensor, host), np.ndarray)
    assert move(tensor, tensor) is tensor
    assert index(np.array([1, 0]), tensor).dtype == torch.int64
    host[:] = 7.0
    there = move(host, torch.zeros(3, dtype=torch.float64))
    host[:] = 9.0
    assert there.tolist() == [7.0, 7.0, 7.0]  # a copy
    meta = torch.empty(2, device="meta")
    assert move(tensor, meta).device.type == "meta"


def test_numpy_needs_no_wrapper_and_other_arrays_have_theirs():
    torch = pytest.importorskip("torch")
    assert namespace(np.ones(2), np.float32(1)).isdtype(np.ones(2).dtype, "real floating")
    if STANDARD:
        assert namespace(np.ones(2)) is np
    assert hasattr(namespace(torch.ones(2)), "isdtype")
    with pytest.raises(TypeError):
        namespace(np.ones(2), torch.ones(2))
