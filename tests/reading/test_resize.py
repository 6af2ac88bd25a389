"""Resizing as tensor operations, against Pillow."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from acclimate.encoders.preprocess import Preprocess

torch = pytest.importorskip("torch")
from acclimate.reading import resize  # noqa: E402 (it needs torch)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SIDES = st.one_of(st.integers(1, 90), st.integers(90, 400))
PREPROCESSES = st.builds(
    Preprocess,
    height=st.integers(1, 48),
    width=st.integers(1, 48),
    short_side=st.one_of(st.none(), st.integers(1, 64)),
    resample=st.sampled_from(sorted(resize.FILTERS)),
    mean=st.just((0.0, 0.0, 0.0)),
    std=st.just((1.0, 1.0, 1.0)),
    crop=st.sampled_from(["floor", "round"]),
)


def noise(seed, width, height):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def tensors(images, device="cpu"):
    return [torch.as_tensor(np.array(image).transpose(2, 0, 1), device=device) for image in images]


def by_axes(image, preprocess):
    """The pixels that Pillow makes, one axis after the other: some of its versions take the vertical axis first."""
    width, height, left, top = preprocess.window(*image.size)
    resample = Image.Resampling[preprocess.resample.upper()]
    image = image.resize((width, image.height), resample).resize((width, height), resample)
    return image.crop((left, top, left + preprocess.width, top + preprocess.height))


@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=6), PREPROCESSES, st.sampled_from([2**30, 2**18]))
@settings(max_examples=150, deadline=None)
def test_batches_have_the_pixels_of_pillow(sizes, preprocess, budget):
    images = [noise(seed, *size) for seed, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resize, "BUDGET", budget)
        for device in DEVICES:
            prepared = resize.prepare_batch(tensors(images, device), preprocess)
            assert (prepared.dtype, prepared.device.type) == (torch.uint8, device)
            for ours, image in zip(prepared.cpu().numpy(), images, strict=True):
                np.testing.assert_array_equal(ours.transpose(1, 2, 0), by_axes(image, preprocess))


@pytest.mark.parametrize("resample", sorted(resize.FILTERS))
@pytest.mark.parametrize("size", [(500, 375), (375, 500), (640, 480), (100, 80), (224, 224)])
def test_pillow_in_one_call_differs_by_one(size, resample):
    preprocess = Preprocess(224, 224, 224, resample, (0, 0, 0), (1, 1, 1), "round")
    smooth = noise(0, 9, 7).resize(size, Image.Resampling.BICUBIC)
    expected = smooth.resize(preprocess.window(*size)[:2], Image.Resampling[resample.upper()])
    left, top = preprocess.window(*size)[2:]
    expected = np.asarray(expected.crop((left, top, left + 224, top + 224)), int)
    (ours,) = resize.prepare_batch(tensors([smooth]), preprocess).numpy()
    assert np.abs(ours.transpose(1, 2, 0) - expected).max() <= 1


def test_no_images_are_no_pixels():
    preprocess = Preprocess(8, 6, 8, "bicubic", (0, 0, 0), (1, 1, 1))
    assert tuple(resize.prepare_batch([], preprocess).shape) == (0, 3, 8, 6)


def test_images_of_one_size_share_a_chunk_and_small_budgets_split_them(monkeypatch):
    used = np.tile([0, 0, 500, 375], (6, 1))
    assert [len(chunk) for chunk in resize._chunks(np.arange(6), used, 224, 224)] == [6]
    monkeypatch.setattr(resize, "BUDGET", 2**25)
    chunks = list(resize._chunks(np.arange(6), used, 224, 224))
    assert len(chunks) > 1
    np.testing.assert_array_equal(np.concatenate(chunks), np.arange(6))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_nothing_waits_for_the_device():
    images = tensors([noise(0, 90, 70), noise(1, 30, 300), noise(2, 90, 70)], "cuda")
    preprocess = Preprocess(24, 24, 24, "bicubic", (0, 0, 0), (1, 1, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        resize.prepare_batch(images, preprocess)
    finally:
        torch.cuda.set_sync_debug_mode("default")
