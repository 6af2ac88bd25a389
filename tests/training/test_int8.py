"""The image tower in 8 bits: its arithmetic and its calibration, on a tiny random tower."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as drawn

torch = pytest.importorskip("torch", reason="the training scripts use PyTorch")

from calibrate import calibrated, normalise, sample_inputs  # noqa: E402
from tower_model import Tower, linears, round_rows, unpack_weight  # noqa: E402


@pytest.fixture(scope="module")
def images():
    """Random smooth images (64, 3, 32, 32) as bytes."""
    coarse = torch.rand(64, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    return (255 * torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bilinear")).byte()


@pytest.fixture(scope="module")
def eight_bit(packed, images):
    """Return the tiny tower, calibrated."""
    with torch.inference_mode():
        return calibrated(packed, sample_inputs(packed, images))[0]


@given(drawn(np.float32, (3, 8), elements=st.floats(-100, 100, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)))
def test_pairs_of_products_with_rounded_weights_fit_into_16_bits(weight):
    weight[:, 0] += weight.sum(axis=1) == 0  # no row of zeros
    codes, scale = round_rows(torch.from_numpy(weight))
    assert (codes == codes.round()).all()
    assert ((codes * scale - torch.from_numpy(weight)).abs() <= 0.501 * scale).all()
    pairs = codes.view(3, 4, 2)
    assert 255 * pairs.clamp(min=0).sum(2).max() < 2**15
    assert 255 * pairs.clamp(max=0).sum(2).min() >= -(2**15)
    assert codes.abs().max() <= 127


def test_an_eight_bit_layer_is_computed_with_integers(eight_bit):
    """The emulation equals the formula with 32-bit integers."""
    x = 2 * torch.randn(300, eight_bit["blocks.0.f2.m"].size, generator=torch.Generator().manual_seed(0))
    given = Tower(eight_bit)._linear(x, "blocks.0.f2").numpy()
    weight = unpack_weight(eight_bit, "blocks.0.f2").numpy() * eight_bit["blocks.0.f2.m"].astype(np.float32)
    pairs = weight.reshape(len(weight), -1, 2)
    largest = np.maximum(pairs.clip(min=0).sum(axis=2), -pairs.clip(max=0).sum(axis=2)).max(axis=1, keepdims=True)
    row = largest / np.float32(127)
    codes = np.rint(weight / row).astype(np.int8)
    zero = int(eight_bit["blocks.0.f2.xz"])
    scale = eight_bit["blocks.0.f2.xs"]
    factors = eight_bit["blocks.0.f2.m"].astype(np.float32)
    inputs = np.clip(np.rint(x.numpy() / factors / scale) + np.float32(zero), 0, 255).astype(np.uint8)
    sums = (inputs.astype(np.int32) - zero) @ codes.T.astype(np.int32)
    expected = sums.astype(np.float32) * (scale * row[:, 0]) + eight_bit["blocks.0.f2.b"].astype(np.float32)
    assert np.array_equal(given, expected)


def test_a_calibrated_tower_is_close_to_the_tower_it_was_made_from(packed, eight_bit, images):
    eight = [key for key in linears(packed) if f"{key}.xs" in eight_bit]
    assert eight == [f"blocks.0.{name}" for name in ("qkv", "o", "f1", "f2")] + ["blocks.1.qkv"]
    for key in eight:
        assert eight_bit[f"{key}.m"].dtype == np.float16
        assert eight_bit[f"{key}.xs"].dtype == np.float32
        assert eight_bit[f"{key}.xz"].dtype == np.uint8
    with torch.inference_mode():
        expected, given = (Tower(arrays)(normalise(images)) for arrays in (packed, eight_bit))
    for one, other in zip(expected, given, strict=True):
        assert torch.nn.functional.cosine_similarity(one, other).min() > 0.99


def test_features_do_not_depend_on_the_batch(eight_bit, images):
    tower = Tower(eight_bit)
    pixels = normalise(images[:8])
    with torch.inference_mode():
        together = tower(pixels)[0]
        alone = torch.cat([tower(each[None])[0] for each in pixels])
    gaps = (together - alone).abs().amax(dim=1)
    assert gaps.median() < 1e-5
    assert gaps.max() < 0.02  # rounding in front of a layer may bring an input to the next of its 256 steps
