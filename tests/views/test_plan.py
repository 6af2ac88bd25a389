"""The choices behind views: repeatable, inside the image, and distributed as AugMix and random resized crops say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.views.augment import OPERATIONS, draw_plan

SIDES = st.integers(1, 2000)


def fields(plan):
    return list(vars(plan).values())


def amounts(plan, name):
    return plan.amounts[plan.operations == OPERATIONS.index(name)]


@pytest.fixture(scope="module")
def large():
    return draw_plan(5, 0, 20_000, (500, 375), (224, 224))


def test_the_same_seed_and_position_give_the_same_plan():
    plan, again = (draw_plan(1, 7, 63, (500, 375), (224, 224)) for _ in range(2))
    for left, right in zip(fields(plan), fields(again), strict=True):
        np.testing.assert_array_equal(left, right)


def test_another_seed_or_position_gives_another():
    boxes = [draw_plan(seed, index, 63, (500, 375), (224, 224)).boxes for seed, index in ((1, 7), (7, 1), (1, 8))]
    assert not any(np.array_equal(boxes[i], boxes[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_few_views_are_the_first_of_many():
    few, many = (draw_plan(0, 0, count, (60, 48), (32, 32)) for count in (7, 63))
    for left, right in zip(fields(few), fields(many), strict=True):
        np.testing.assert_array_equal(left, right[:7])


def test_crops_alone_are_those_of_augmix():
    crops, augmix = (draw_plan(1, 7, 63, (500, 375), (224, 224), augmix) for augmix in (False, True))
    np.testing.assert_array_equal(crops.boxes, augmix.boxes)
    np.testing.assert_array_equal(crops.flips, augmix.flips)
    assert (crops.depths.shape, crops.operations.shape, crops.amounts.shape) == ((63, 0), (63, 0, 3), (63, 0, 3))
    np.testing.assert_array_equal(crops.weights, np.ones((63, 1)))


@given(width=SIDES, height=SIDES, seed=st.integers(0, 2**40))
def test_every_crop_lies_inside_the_image(width, height, seed):
    left, top, right, bottom = draw_plan(seed, 0, 63, (width, height), (32, 32)).boxes.T
    assert (left >= 0).all()
    assert (left < right).all()
    assert (right <= width).all()
    assert (top >= 0).all()
    assert (top < bottom).all()
    assert (bottom <= height).all()


def naive_crop(rng, width, height):
    """Draw a random resized crop as usual: ten attempts, then the largest centred box of an allowed ratio."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w = round(math.sqrt(area * ratio))
        h = round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left = rng.integers(0, width - w + 1)
            top = rng.integers(0, height - h + 1)
            return left, top, left + w, top + h
    w = width
    h = height
    if width / height < 3 / 4:
        h = round(width / (3 / 4))
    elif width / height > 4 / 3:
        w = round(height * (4 / 3))
    return (width - w) // 2, (height - h) // 2, (width - w) // 2 + w, (height - h) // 2 + h


@pytest.mark.parametrize("size", [(500, 375), (224, 224), (100, 400), (900, 60)])
def test_crops_are_distributed_as_random_resized_crops(size):
    rng = np.random.default_rng(0)
    ours = draw_plan(3, 0, 20_000, size, (224, 224)).boxes / np.tile(size, 2)
    naive = np.array([naive_crop(rng, *size) for _ in range(20_000)]) / np.tile(size, 2)
    np.testing.assert_allclose(ours.mean(axis=0), naive.mean(axis=0), atol=0.012)
    np.testing.assert_allclose(np.cov(ours.T), np.cov(naive.T), atol=0.004)


def test_a_strip_is_cropped_in_its_middle():
    assert draw_plan(0, 0, 3, (10, 400), (32, 32)).boxes.tolist() == [[0, 193, 10, 206]] * 3
    assert draw_plan(0, 0, 3, (400, 10), (32, 32)).boxes.tolist() == [[193, 0, 206, 10]] * 3


def test_flips_depths_and_operations_are_uniform(large):
    assert large.flips.mean() == pytest.approx(0.5, abs=0.02)
    for depth in (1, 2, 3):
        assert (large.depths == depth).mean() == pytest.approx(1 / 3, abs=0.01)
    shares = np.bincount(large.operations.ravel(), minlength=9) / large.operations.size
    np.testing.assert_allclose(shares, 1 / 9, atol=0.004)


def test_weights_are_a_uniform_blend_of_a_flat_mixture(large):
    weights = large.weights.astype(float)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights[:, 0].mean(), 1 / 2, atol=0.01)
    np.testing.assert_allclose(weights[:, 0].var(), 1 / 12, atol=0.004)
    mixture = weights[:, 1:] / weights[:, 1:].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(mixture.mean(axis=0), 1 / 3, atol=0.01)
    # Dirichlet(1, 1, 1) has variances 1/18 and covariances -1/36.
    np.testing.assert_allclose(np.cov(mixture.T), np.eye(3) / 12 - 1 / 36, atol=0.003)


def test_amounts_are_those_of_severity_one(large):
    assert set(amounts(large, "rotate")) == {-3 + i for i in range(1, 6)}
    assert set(amounts(large, "translate_x")) == set(amounts(large, "translate_y")) == set(range(-7, 8))
    assert set(amounts(large, "solarize")) == set(range(231, 255))
    for name in ("shear_x", "shear_y"):
        slopes = amounts(large, name)
        assert np.abs(slopes).min() == pytest.approx(0.003, abs=1e-4)
        assert np.abs(slopes).max() == pytest.approx(0.03, abs=1e-4)
        assert (slopes > 0).mean() == pytest.approx(0.5, abs=0.02)
    wide = draw_plan(0, 0, 2000, (100, 100), (384, 96))
    assert (amounts(wide, "translate_x").max(), amounts(wide, "translate_y").max()) == (12, 3)
