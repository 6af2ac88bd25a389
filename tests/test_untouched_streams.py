"""The streams that nothing was chosen on: their conditions, and that they can be made again."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import load_encoder, read_stream, write_stream

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
sys.path.insert(0, str(ROOT / "benchmarks"))

import untouched_streams as made  # noqa: E402

sys.path.remove(str(ROOT / "benchmarks"))  # its modules must not hide others

needs_images = pytest.mark.skipif(
    not (SHARED / "train" / "index.csv").exists(), reason=f"needs the images in {SHARED}, not part of the repository"
)


@pytest.fixture(scope="module")
def pixels():
    """Return a picture (64, 64, 3) with a white square on a grey ground."""
    picture = np.full((64, 64, 3), 100, np.uint8)
    picture[20:44, 20:44] = 240
    return picture


@pytest.mark.parametrize("condition", made.CONDITIONS)
def test_a_condition_depends_on_the_name_of_the_image_alone(pixels, condition):
    before = pixels.copy()
    first, again = (made.corrupt(pixels, condition, "a.webp") for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(pixels, before)
    assert first.shape == pixels.shape
    assert first.dtype == np.uint8
    assert np.array_equal(first, pixels) == (condition == "clean")


def test_each_condition_does_what_its_name_says(pixels):
    shown = {condition: made.corrupt(pixels, condition, "a.webp").astype(float) for condition in made.CONDITIONS}
    assert np.ptp(shown["contrast"]) == pytest.approx(made.CONTRAST * np.ptp(pixels), abs=1)
    assert shown["contrast"].mean() == pytest.approx(pixels.mean(), abs=0.5)
    changed = shown["impulses"] != pixels
    assert set(np.unique(shown["impulses"][changed])) == {0, 255}
    assert changed.mean() == pytest.approx(made.IMPULSES, abs=0.01)
    assert shown["motion"].mean() == pytest.approx(pixels.mean(), abs=0.5)
    edges = [np.abs(np.diff(shown["motion"], axis=axis)).max() for axis in (0, 1)]
    assert min(edges) < 0.5 * max(edges)  # it is blurred along one axis only
    assert 0 < np.abs(shown["jpeg"] - pixels).mean() < 20


@given(seed=st.integers(0, 99), dim=st.integers(2, 20), length=st.floats(0.0, 0.9))
def test_centring_is_undone(seed, dim, length):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((8, dim))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    mean = rng.standard_normal(dim)
    mean *= length / np.linalg.norm(mean)
    np.testing.assert_allclose(made.undo_centring(3.0 * (rows - mean), mean), rows, atol=1e-9)


@needs_images
def test_conditions_are_even_in_every_class():
    for recipe, samples in zip(made.RECIPES, (1372, 2121, 1311, 1400), strict=True):
        shown = recipe.samples(made.read_index(SHARED))
        assert len(shown) == samples
        assert len(set(shown_keys(shown))) == samples
        counts = Counter((row["class_name"], condition) for row, condition in shown)
        for name in {row["class_name"] for row, _ in shown}:
            each = [counts[name, condition] for condition in recipe.conditions]
            assert max(each) - min(each) <= recipe.versions


def shown_keys(shown):
    return [(row["member"], condition) for row, condition in shown]


@needs_images
def test_the_same_bytes_are_written_again_and_read(tmp_path):
    encoder = load_encoder()
    for recipe in made.RECIPES:
        for name in ("first", "again"):
            write_stream(made.make_stream(recipe, SHARED, encoder, limit=10), tmp_path / f"{name}.safetensors")
        assert (tmp_path / "first.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()
        stream = read_stream(tmp_path / "first.safetensors")
        assert "No constant" in stream.notes["untouched"]
        assert len(stream) == 10
        assert (stream.domains is None) == (len(recipe.conditions) == 1)
        assert sorted(stream.order) == list(range(10))


@needs_images
def test_features_are_those_of_the_tower_that_is_not_centred():
    torch = pytest.importorskip("torch")
    from PIL import Image

    from images import normalise
    from tower_model import Tower

    stream = made.make_stream(made.RECIPES[0], SHARED, load_encoder(), limit=4)
    shards = {row["member"]: row["shard"] for row in made.read_index(SHARED) if row["member"] in stream.files}
    images = made.read_images(SHARED / "train", shards)
    resized = [Image.fromarray(images[name]).resize((128, 128), Image.Resampling.BICUBIC) for name in stream.files]
    pixels = normalise(np.stack([np.asarray(image) for image in resized]).transpose(0, 3, 1, 2))
    with np.load(SHARED / "model" / "tower-int4.npz") as arrays:
        tower = Tower({**arrays, "mu": np.zeros_like(arrays["mu"])})
    with torch.inference_mode():
        expected = tower(torch.from_numpy(pixels))[0].numpy()
    # The bundled model has the same weights with 8-bit products.
    assert np.sum(stream.features * expected, axis=1).min() > 0.99
