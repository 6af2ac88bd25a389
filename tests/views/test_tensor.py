"""Views as tensor operations, against Pillow."""

import numpy as np
import pytest
from PIL import Image

from acclimate.views.augment import OPERATE, ModelInput, make_views
from acclimate.views.plan import OPERATIONS, draw_plan
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
    """Smooth shades with some noise and a shape."""
    rng = np.random.default_rng(seed)
    smooth = Image.fromarray(rng.integers(30, 220, (5, 6, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    pixels = np.asarray(smooth, int) + rng.integers(-9, 9, (size[1], size[0], 3))
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    image.paste(draw("green", seed).resize((size[0] // 2, size[1] // 2)), (3, 2))
    return image


def pixels(image, device, dtype=torch.uint8):
    return torch.as_tensor(np.array(image).transpose(2, 0, 1), dtype=dtype, device=device)


def run(name, images, amount, device):
    (operate,) = (operate for names, operate in tensor.GROUPS.items() if name in names)
    batch = torch.stack([pixels(image, device, torch.float32) for image in images])
    count = len(images)
    done = operate(batch, np.full(count, OPERATIONS.index(name)), np.full(count, amount))
    return done.cpu().numpy().transpose(0, 2, 3, 1)


AMOUNTS = {
    "solarize": [231.0, 254.0, 100.0],
    "rotate": [-2.0, 0.0, 1.0, 30.0],
    "shear_x": [0.03, -0.0171],
    "shear_y": [0.03, -0.0171],
    "translate_x": [-7.0, 3.0],
    "translate_y": [-7.0, 3.0],
}
CASES = [(name, amount) for name in OPERATIONS for amount in AMOUNTS.get(name, [0.0])]


@pytest.mark.parametrize(("name", "amount"), CASES)
def test_each_operation_agrees_with_pillow(name, amount, device):
    images = [photo(0), photo(1), Image.new("RGB", (90, 70), (7, 128, 250)), draw("red", 1, (90, 70))]
    expected = np.stack([np.asarray(OPERATE[name](image, amount), int) for image in images])
    gap = np.abs(run(name, images, amount, device) - expected)
    if name in ("rotate", "shear_x", "shear_y"):  # interpolated: float32 here, float64 in Pillow
        assert gap.max() <= 1
        assert gap.mean() < 0.01
    else:
        assert gap.max() == 0


@pytest.mark.parametrize("size", [(90, 70), (20, 16), (48, 32), (700, 500), (33, 400)])
def test_crops_agree_with_pillow(size, device):
    image = photo(3, size)
    plan = draw_plan(0, 0, 40, size, (PLAIN.width, PLAIN.height))
    crops = tensor.resized_crops(pixels(image, device), plan, PLAIN).cpu().numpy()
    for crop, box, flip in zip(crops, plan.boxes.tolist(), plan.flips, strict=True):
        expected = image.crop(box).resize((PLAIN.width, PLAIN.height), Image.Resampling.BILINEAR)
        expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else expected
        gap = np.abs(crop.transpose(1, 2, 0) - np.asarray(expected, int))
        assert gap.max() <= 1
        # Where an axis grows, Pillow's versions differ in the order of the axes, and so in their rounding.
        assert gap.mean() < (0.3 if min(size) < 500 else 0.01)


def test_the_same_plan_gives_the_same_views(device):
    image = photo(5)
    target = ModelInput(48, 32, np.float32([0.02, 0.03, 0.01]), np.float32([-2, -1, 0.5]))
    plan = draw_plan(4, 9, 63, image.size, (48, 32))
    views = tensor.make_views(pixels(image, device), plan, target)
    assert (tuple(views.shape), views.dtype, views.device.type) == ((63, 3, 32, 48), torch.float32, device)
    shades = np.abs(views.cpu().numpy() - make_views(image, plan, target)) / target.gain[:, None, None]
    # A pixel that was rounded the other way can fall on the other side of a step of posterize, solarize or equalize.
    assert shades.mean() < 0.2
    assert (shades > 2).mean() < 0.02


def test_a_view_of_the_crop_alone_is_the_crop(device):
    image = photo(6)
    plan = draw_plan(0, 1, 5, image.size, (48, 32), augmix=False)
    views = tensor.make_views(pixels(image, device), plan, PLAIN)
    assert torch.equal(views, tensor.resized_crops(pixels(image, device), plan, PLAIN))
    assert np.abs(views.cpu().numpy() - make_views(image, plan, PLAIN)).max() <= 1


def test_views_match_in_distribution(device):
    """Other draws on either side: moments of the views' brightness and contrast agree within sampling error."""
    count, image = 1200, photo(7)
    size = (PLAIN.width, PLAIN.height)
    ours = tensor.make_views(pixels(image, device), draw_plan(1, 0, count, image.size, size), PLAIN).cpu().numpy()
    theirs = make_views(image, draw_plan(2, 0, count, image.size, size), PLAIN)
    for statistic in (np.mean, np.std):
        left, right = (statistic(views, axis=(2, 3)) for views in (ours, theirs))
        error = np.sqrt((left.var(axis=0) + right.var(axis=0)) / count)
        assert (np.abs(left.mean(axis=0) - right.mean(axis=0)) < 4 * error).all()
        np.testing.assert_allclose(left.std(axis=0), right.std(axis=0), rtol=0.2)
    # Pixel by pixel: where the shapes lie.
    np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=6 * (ours.std(axis=0).max() / count**0.5))
