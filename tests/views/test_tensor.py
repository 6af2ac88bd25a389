"""Views as tensor operations, against Pillow."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from acclimate.views.augment import GEOMETRIC, OPERATE, OPERATIONS, ModelInput, draw_plan, make_views
from drawn_images import draw

torch = pytest.importorskip("torch")
from acclimate.views import tensor  # noqa: E402 (it needs torch)

PLAIN = ModelInput(48, 32, np.ones(3, np.float32), np.zeros(3, np.float32))


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return request.param


def photo(seed, size=(90, 70)):
    """Draw smooth shades with some noise and a shape."""
    rng = np.random.default_rng(seed)
    smooth = Image.fromarray(rng.integers(30, 220, (5, 6, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    pixels = np.asarray(smooth, int) + rng.integers(-9, 9, (size[1], size[0], 3))
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    image.paste(draw("green", seed).resize((size[0] // 2, size[1] // 2)), (3, 2))
    return image


def pixels(image, device):
    return torch.as_tensor(np.array(image).transpose(2, 0, 1), device=device)


def run(name, images, amounts, device):
    """Apply an operation to images of one size, by an amount for each: (n, h, w, 3)."""
    batch = torch.stack([pixels(image, device) for image in images])
    done = tensor.operate(name, batch, np.asarray(amounts))
    assert done.dtype == torch.uint8
    return done.cpu().numpy().transpose(0, 2, 3, 1)


SHEARS = [0.029876543, -0.017123457]  # Pillow rounds many pixels half-way at 0.03
AMOUNTS = {
    "solarize": [231.0, 254.0, 100.0],
    "rotate": [-2.0, 0.0, 1.0, 30.0],
    "shear_x": SHEARS,
    "shear_y": SHEARS,
    "translate_x": [-7.0, 3.0],
    "translate_y": [-7.0, 3.0],
}
CASES = [(name, amount) for name in OPERATIONS for amount in AMOUNTS.get(name, [0.0])]


def check(name, ours, expected):
    gap = np.abs(ours - np.asarray(expected, int))
    assert gap.max() <= (name in GEOMETRIC)  # interpolated in float32 here, in float64 by Pillow
    assert gap.mean() < 0.02


@pytest.mark.parametrize(("name", "amount"), CASES)
def test_each_operation_gives_the_pixels_of_pillow(name, amount, device):
    images = [photo(0), photo(1), Image.new("RGB", (90, 70), (7, 128, 250)), draw("red", 1, (90, 70))]
    expected = np.stack([np.asarray(OPERATE[name](image, amount), int) for image in images])
    check(name, run(name, images, [amount] * 4, device), expected)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_images_of_any_size_and_contrast_are_operated_on(data):
    size = data.draw(st.tuples(st.integers(1, 40), st.integers(1, 40)))
    name = data.draw(st.sampled_from(OPERATIONS))
    amounts = data.draw(st.lists(st.sampled_from(AMOUNTS.get(name, [0.0])), min_size=1, max_size=4))
    levels = data.draw(st.sampled_from([2, 20, 256]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    images = [Image.fromarray(rng.integers(0, levels, (*size, 3), dtype=np.uint8)) for _ in amounts]
    for ours, image, amount in zip(run(name, images, amounts, "cpu"), images, amounts, strict=True):
        gap = np.abs(ours - np.asarray(OPERATE[name](image, amount), int))
        assert gap.max() <= (name in GEOMETRIC)


SIZES = [(90, 70), (20, 16), (48, 32), (700, 500), (33, 400), (90, 70)]


def test_crops_have_nearly_the_pixels_of_pillow(device):
    size = (PLAIN.width, PLAIN.height)
    for index, image in enumerate(photo(3, size) for size in SIZES):
        plan = draw_plan(0, index, 40, image.size, size)
        crops = tensor.resized_crops(pixels(image, device), plan, PLAIN).cpu().numpy()
        for ours, box, flip in zip(crops, plan.boxes.tolist(), plan.flips, strict=True):
            crop = image.crop(box).resize(size, Image.Resampling.BILINEAR)
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else crop
            gap = np.abs(ours.transpose(1, 2, 0) - np.asarray(crop, int))
            assert gap.max() <= 1
            assert gap.mean() < 0.3


TARGET = ModelInput(48, 32, np.float32([0.02, 0.03, 0.01]), np.float32([-2, -1, 0.5]))


@pytest.mark.parametrize("augmix", [True, False])
@pytest.mark.parametrize("budget", [2**31, 2**20])
def test_the_same_plans_give_nearly_the_same_views(augmix, budget, device, monkeypatch):
    monkeypatch.setattr(tensor, "BUDGET_BYTES", budget)
    images = [photo(5, size) for size in SIZES]
    plans = [draw_plan(4, index, 21, image.size, (48, 32), augmix) for index, image in enumerate(images)]
    views = tensor.make_views([pixels(image, device) for image in images], plans, TARGET)
    assert (tuple(views.shape), views.dtype, views.device.type) == ((6, 21, 3, 32, 48), torch.float32, device)
    for ours, image, plan in zip(views.cpu().numpy(), images, plans, strict=True):
        shades = np.abs(ours - make_views(image, plan, TARGET)) / TARGET.gain[:, None, None]
        # A pixel that was rounded the other way can fall on the other side of a step of posterize or equalize.
        assert shades.mean() < 0.3
        assert (shades > 2).mean() < 0.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_views_come_in_the_precision_of_the_model(dtype, device):
    batch = [pixels(photo(5), device)]
    plans = [draw_plan(4, 9, 7, (90, 70), (48, 32))]
    views = tensor.make_views(batch, plans, TARGET, dtype)
    assert views.dtype == dtype
    torch.testing.assert_close(views.float(), tensor.make_views(batch, plans, TARGET), atol=0, rtol=2**-8)


def test_an_image_has_the_same_views_in_any_batch(device):
    batch = [pixels(photo(5, size), device) for size in SIZES]
    plans = [draw_plan(4, index, 9, size, (48, 32)) for index, size in enumerate(SIZES)]
    together = tensor.make_views(batch, plans, TARGET)
    for image, plan, views in zip(batch, plans, together, strict=True):
        assert torch.equal(tensor.make_views([image], [plan], TARGET)[0], views)


def test_a_view_of_the_crop_alone_is_the_crop(device):
    image = photo(6)
    plan = draw_plan(0, 1, 5, image.size, (48, 32), augmix=False)
    (views,) = tensor.make_views([pixels(image, device)], [plan], PLAIN)
    assert torch.equal(views, tensor.resized_crops(pixels(image, device), plan, PLAIN).float())


def test_views_match_in_distribution(device):
    # With other draws on either side, brightness and contrast agree within sampling error.
    count = 1200
    image = photo(7)
    size = (PLAIN.width, PLAIN.height)
    plan = draw_plan(1, 0, count, image.size, size)
    ours = tensor.make_views([pixels(image, device)], [plan], PLAIN)[0].cpu().numpy()
    theirs = make_views(image, draw_plan(2, 0, count, image.size, size), PLAIN)
    for statistic in (np.mean, np.std):
        left, right = (statistic(views, axis=(2, 3)) for views in (ours, theirs))
        error = np.sqrt((left.var(axis=0) + right.var(axis=0)) / count)
        assert (np.abs(left.mean(axis=0) - right.mean(axis=0)) < 4 * error).all()
        np.testing.assert_allclose(left.std(axis=0), right.std(axis=0), rtol=0.2)
    # Pixel by pixel: where the shapes lie.
    np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=6 * (ours.std(axis=0).max() / count**0.5))
