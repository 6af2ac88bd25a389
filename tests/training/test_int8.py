"""The image tower in 8 bits: its arithmetic, its calibration and its tuning, on a tiny random tower."""

import argparse

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as drawn

torch = pytest.importorskip("torch", reason="the training scripts use PyTorch")

from augment import augment  # noqa: E402
from calibrate import calibrated, normalise, sample_inputs  # noqa: E402
from tower_model import Tower, linears, pack, round_rows, unpack, unpack_weight, with_keys  # noqa: E402
from tune_int8 import RATES, Rounded, Student, disagreement, tune  # noqa: E402


@pytest.fixture(scope="module")
def images():
    """Random smooth images (64, 3, 32, 32) as bytes."""
    coarse = torch.rand(64, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    return (255 * torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bilinear")).byte()


@pytest.fixture(scope="module")
def eight_bit(packed, images):
    """The tiny tower, calibrated."""
    with torch.inference_mode():
        return calibrated(packed, sample_inputs(packed, images))[0]


@pytest.fixture(scope="module")
def keys(packed):
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((8, 2 * packed["cls"].shape[-1])).astype(np.float16)
    return {"w": weight, "b": np.zeros(8), "share": np.float64(0.5)}


@given(drawn(np.uint8, st.integers(1, 40).map(lambda n: 2 * n), elements=st.integers(0, 15)))
def test_packed_codes_are_unpacked_again(codes):
    packed = pack(codes)
    assert packed.dtype == np.uint8
    assert len(packed) == len(codes) // 2
    assert np.array_equal(unpack(packed).ravel(), codes)


def test_rounded_weights_have_seven_bits_and_are_close():
    weight = torch.randn(50, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 50)[:, None]
    codes, scale = round_rows(weight)
    assert (codes == codes.round()).all()
    assert codes.abs().amax(1).eq(63).all()
    assert ((codes * scale - weight).abs() <= 0.501 * scale).all()


def test_an_eight_bit_layer_is_computed_with_integers(eight_bit):
    """The emulation equals the formula with 32-bit integers, and pairs of products fit into 16 bits."""
    x = 2 * torch.randn(300, eight_bit["blocks.0.f2.m"].size, generator=torch.Generator().manual_seed(0))
    given = Tower(eight_bit)._linear(x, "blocks.0.f2").numpy()
    weight = unpack_weight(eight_bit, "blocks.0.f2").numpy() * eight_bit["blocks.0.f2.m"].astype(np.float32)
    row = np.abs(weight).max(axis=1, keepdims=True) / np.float32(63)
    codes = np.rint(weight / row).astype(np.int8)
    zero, scale = int(eight_bit["blocks.0.f2.xz"]), eight_bit["blocks.0.f2.xs"]
    factors = eight_bit["blocks.0.f2.m"].astype(np.float32)
    inputs = np.clip(np.rint(x.numpy() / factors / scale) + np.float32(zero), 0, 255).astype(np.uint8)
    sums = (inputs.astype(np.int32) - zero) @ codes.T.astype(np.int32)
    expected = sums.astype(np.float32) * (scale * row[:, 0]) + eight_bit["blocks.0.f2.b"].astype(np.float32)
    assert np.array_equal(given, expected)
    assert 255 * 2 * np.abs(codes.astype(int)).max() < 2**15


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
    tower, pixels = Tower(eight_bit), normalise(images[:8])
    with torch.inference_mode():
        together, alone = tower(pixels)[0], torch.cat([tower(each[None])[0] for each in pixels])
    assert torch.allclose(together, alone, atol=1e-5)


def test_a_student_begins_as_the_tower_it_is_made_from(eight_bit, images):
    student = Student(eight_bit, "cpu")
    student.refresh()
    made = student.packed()
    assert made.keys() == eight_bit.keys()
    for name, value in eight_bit.items():
        assert made[name].dtype == value.dtype, name
        assert np.allclose(made[name], value, rtol=1e-6, atol=0), name
    with torch.no_grad():
        given, expected = (tower(normalise(images[:8]))[0] for tower in (student, Tower(eight_bit)))
    assert torch.nn.functional.cosine_similarity(given, expected).min() > 0.9999


def test_tuning_brings_a_student_closer_to_its_teacher(packed, eight_bit, images, keys, monkeypatch):
    monkeypatch.setattr("tune_int8.RATES", {**dict.fromkeys(RATES, 1e-2), "b": 1.0})
    shift = np.random.default_rng(1).standard_normal(eight_bit["blocks.0.o.b"].shape)
    shifted = {**eight_bit, "blocks.0.o.b": (eight_bit["blocks.0.o.b"] + 0.2 * shift).astype(np.float16)}
    student, teacher = Student(shifted, "cpu"), Tower(packed)
    texts = torch.nn.functional.normalize(torch.randn(5, 16, generator=torch.Generator().manual_seed(0)), dim=1)

    def loss(arrays):
        with torch.no_grad():
            return float(sum(disagreement(teacher, Tower(arrays), normalise(images), keys, texts).values()))

    tune(student, teacher, images, keys, texts, argparse.Namespace(seed=0, rate=1e-2, steps=40, batch=16))
    tuned = student.packed()
    assert loss(tuned) < 0.7 * loss(shifted)
    assert with_keys(*Tower(tuned)(normalise(images[:2])), keys).shape == (2, 24)


def test_gradients_of_rounded_inputs():
    x = torch.tensor([-3.0, 0.2, 0.8, 300.0], requires_grad=True)
    scale, zero = torch.tensor(1.0, requires_grad=True), torch.tensor(2.0)
    rounded = Rounded.apply(x, scale, zero)
    assert rounded.tolist() == [-2.0, 0.0, 1.0, 253.0]
    rounded.sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 0.0]
    assert scale.grad.item() == pytest.approx(-2 - 0.2 + 0.2 + 253)


def test_changed_images_are_images(images):
    first, again = (augment(images, torch.Generator().manual_seed(7)) for _ in range(2))
    assert first.shape == images.shape
    assert first.min() >= 0
    assert first.max() <= 255
    assert torch.equal(first, again)
    assert (first - images).abs().flatten(1).mean(1).min() > 1
