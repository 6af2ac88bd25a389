"""Views with Pillow, compared with a naive implementation of the paper's procedure."""

import numpy as np
import pytest
from PIL import Image

from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import ModelError
from acclimate.views.augment import OPERATE, OPERATIONS, ModelInput, draw_plan, make_views
from drawn_images import draw
from tiny_models import MEANS, STDS

CLIP = Preprocess(32, 32, 32, "bicubic", tuple(MEANS["clip"]), tuple(STDS["clip"]))


def test_the_model_input_is_measured():
    for preprocess in (CLIP, Preprocess(24, 40, None, "bilinear", CLIP.mean, CLIP.std)):
        target = ModelInput.of(preprocess)
        assert (target.height, target.width) == (preprocess.height, preprocess.width)
        np.testing.assert_allclose(target.offset, -np.array(CLIP.mean) / CLIP.std, rtol=1e-5)
        np.testing.assert_allclose(target.gain, 1 / (255 * np.array(CLIP.std)), rtol=1e-5)


@pytest.mark.parametrize("short_side", [16, 48])
def test_a_frame_or_a_margin_of_the_preparation_does_not_matter(short_side):
    target = ModelInput.of(Preprocess(32, 32, short_side, "bicubic", CLIP.mean, CLIP.std))
    np.testing.assert_allclose(target.gain, 1 / (255 * np.array(CLIP.std)), rtol=1e-5)


def test_views_need_an_encoder_that_takes_pixels():
    with pytest.raises(ModelError, match=r"prepares pixels \(3, h, w\), got \(64, 64, 3\); use one view"):
        ModelInput.of(np.asarray)


def paper_views(image, plan, prepare, size):
    """Make views as the paper says: every layer prepared on its own, mixed afterwards."""
    for i in range(len(plan.flips)):
        crop = image.crop(plan.boxes[i].tolist()).resize((size, size), Image.Resampling.BILINEAR)
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if plan.flips[i] else crop
        view = plan.weights[i, 0] * prepare(crop)
        for chain in range(3):
            layer = crop.copy()
            for step in range(plan.depths[i, chain]):
                operate = OPERATE[OPERATIONS[plan.operations[i, chain, step]]]
                layer = operate(layer, plan.amounts[i, chain, step])
            view = view + plan.weights[i, 1 + chain] * prepare(layer)
        yield view


def test_views_are_mixtures_of_prepared_layers():
    image = draw("green", 4, (90, 70))
    plan = draw_plan(2, 11, 63, image.size, (32, 32))
    views = make_views(image, plan, ModelInput.of(CLIP))
    assert (views.shape, views.dtype) == ((63, 3, 32, 32), np.float32)
    np.testing.assert_allclose(views, np.stack(list(paper_views(image, plan, CLIP, 32))), atol=2e-5)


def test_a_view_of_the_crop_alone_is_the_prepared_crop():
    image = draw("green", 4, (90, 70))
    plan = draw_plan(2, 11, 9, image.size, (32, 32), augmix=False)
    for view, box, flip in zip(
        make_views(image, plan, ModelInput.of(CLIP)), plan.boxes.tolist(), plan.flips, strict=True
    ):
        crop = image.crop(box).resize((32, 32), Image.Resampling.BILINEAR)
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else crop
        np.testing.assert_allclose(view, CLIP(crop), atol=2e-5)


def test_views_differ_from_each_other():
    image = draw("red", 1)
    views = make_views(image, draw_plan(0, 0, 63, image.size, (32, 32)), ModelInput.of(CLIP))
    assert len(np.unique(views.reshape(63, -1), axis=0)) == 63


@pytest.mark.parametrize("pixels", [-7.0, -1.0, 0.0, 3.0])
@pytest.mark.parametrize(("name", "position"), [("translate_x", 2), ("translate_y", 5)])
def test_translation_equals_the_affine_map(name, position, pixels):
    image = draw("blue", 3)
    matrix = [1, 0, 0, 0, 1, 0]
    matrix[position] = pixels
    mapped = image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(OPERATE[name](image, pixels), mapped)


def test_the_other_operations():
    image = draw("blue", 3)
    pixels = np.asarray(image, int)
    np.testing.assert_array_equal(OPERATE["posterize"](image, 0.0), pixels // 16 * 16)
    np.testing.assert_array_equal(OPERATE["solarize"](image, 90.0), np.where(pixels < 90, pixels, 255 - pixels))
    stretched = np.asarray(OPERATE["autocontrast"](image, 0.0))
    assert (stretched.min(axis=(0, 1)).tolist(), stretched.max(axis=(0, 1)).tolist()) == ([0] * 3, [255] * 3)
    flat = np.sort(np.asarray(OPERATE["equalize"](image, 0.0)).reshape(-1, 3), axis=0) / 255
    assert (
        np.abs(flat - np.linspace(0, 1, len(flat))[:, None]).mean()
        < np.abs(np.sort(pixels.reshape(-1, 3), axis=0) / 255 - np.linspace(0, 1, len(flat))[:, None]).mean()
    )
    corners = {name: np.asarray(OPERATE[name](image, 0.3))[-1, 0].sum() for name in ("shear_x", "shear_y")}
    assert corners["shear_y"] != 0
    assert np.asarray(OPERATE["shear_x"](image, -0.3))[-1, 0].sum() == 0
    assert np.asarray(OPERATE["shear_y"](image, -0.3))[0, -1].sum() == 0
    np.testing.assert_array_equal(OPERATE["rotate"](image, 0.0), pixels)
    assert np.asarray(OPERATE["rotate"](image, 30.0))[0, 0].sum() == 0
