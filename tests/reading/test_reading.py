"""Encoding images with their views: the same features whatever the workers, batches and restarts."""

import threading

import numpy as np
import pytest
from PIL import Image

from acclimate.arrays import unit_rows
from acclimate.encoders import load_encoder
from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import ImageError, InputError
from acclimate.images.opening import open_image
from acclimate.reading.walk import Preparer, encode_ahead
from acclimate.views.generated import GeneratedFolder
from drawn_images import draw
from tiny_models import MEANS, STDS

VIEWS = 8


@pytest.fixture(scope="module")
def encoder(tiny_clip):
    return load_encoder(f"local:{tiny_clip}", "cpu")


@pytest.fixture
def paths(photos):
    return sorted(photos.rglob("*.png"))[:10]


def encode(paths, encoder, **options):
    preparing = {"views": VIEWS, "seed": 3, "device": None, "kind": "augmix", "generator": None, "upright": True}
    preparing |= {name: options.pop(name) for name in preparing if name in options}
    parts = list(encode_ahead(paths, Preparer(encoder, **preparing), **options))
    return np.concatenate([part.features for part in parts]), [error for part in parts for error in part.errors]


@pytest.fixture
def features(paths, encoder):
    return encode(paths, encoder)[0]


@pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 5}, {"batch_size": 1}, {"batch_size": 7 * VIEWS}])
def test_workers_and_batches_change_nothing(paths, encoder, features, options):
    again, errors = encode(paths, encoder, **options)
    assert (again.shape, errors) == ((10, VIEWS, encoder.dim), [None] * 10)
    np.testing.assert_allclose(again, features, rtol=1e-4, atol=1e-4)


def test_a_restart_goes_on_with_the_same_views(paths, encoder, features):
    np.testing.assert_allclose(encode(paths[6:], encoder, start=6)[0], features[6:], rtol=1e-4, atol=1e-4)
    assert not np.allclose(encode(paths[6:], encoder)[0][:, 1:], features[6:, 1:], atol=1e-2)


def test_the_seed_moves_the_views_but_not_the_image(paths, encoder, features):
    other = encode(paths, encoder, seed=4)[0]
    np.testing.assert_allclose(other[:, 0], features[:, 0], rtol=1e-4, atol=1e-4)
    assert (np.abs(other[:, 1:] - features[:, 1:]).max(axis=-1) > 1e-2).mean() > 0.9


def test_the_first_view_is_the_image_as_the_model_prepares_it(paths, encoder, features):
    plain = unit_rows(encoder.encode_images([encoder.prepare(open_image(path)) for path in paths]), "features")
    np.testing.assert_allclose(features[:, 0], plain, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(encode(paths, encoder, views=1)[0], plain, rtol=1e-4, atol=1e-4)


def test_unreadable_images_are_named_and_left_out(paths, encoder, features, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"hello")
    mixed = [*paths[:2], tmp_path / "bad.png", tmp_path / "missing.png", paths[4]]
    found, errors = encode(mixed, encoder, batch_size=2 * VIEWS)
    assert [error is None for error in errors] == [True, True, False, False, True]
    assert "not an image" in errors[2]
    assert "No such file" in errors[3]
    np.testing.assert_allclose(found, features[[0, 1, 4]], rtol=1e-4, atol=1e-4)
    batches = list(encode_ahead(mixed, Preparer(encoder, VIEWS), batch_size=2 * VIEWS))
    shapes = [batch.features.shape for batch in batches]
    assert shapes == [(2, VIEWS, encoder.dim), (0, VIEWS, encoder.dim), (1, VIEWS, encoder.dim)]
    assert [batch.start for batch in batches] == [0, 2, 4]
    assert [name for batch in batches for name in batch.names] == [str(path) for path in mixed]
    assert [batch.readable for batch in batches] == [[0, 1], [], [4]]


def test_no_thread_outlives_a_run_that_is_broken_off(paths, encoder):
    run = encode_ahead(paths, Preparer(encoder, VIEWS), workers=3, batch_size=1)
    next(run)
    run.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("acclimate-read")]


def test_views_made_with_pytorch_are_nearly_those_of_pillow(paths, encoder, tiny_onnx, features):
    # A PyTorch encoder takes tensors, an ONNX encoder arrays alone.
    for model in (encoder, load_encoder(f"onnx:{tiny_onnx}", "cpu")):
        tensors = encode(paths, model, device="cpu")[0]
        cosines = (tensors * features).sum(axis=-1) / np.linalg.norm(tensors, axis=-1)
        cosines /= np.linalg.norm(features, axis=-1)
        assert cosines[:, 0].min() > 0.9999
        assert np.median(cosines) > 0.999


def test_an_encoder_that_prepares_tensors_gets_tensors(paths):
    torch = pytest.importorskip("torch")
    from acclimate.encoders.open_clip import OpenClipEncoder

    class Means(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.logit_scale = torch.nn.Parameter(torch.tensor(3.0))

        def encode_image(self, images):
            return images.mean(dim=(2, 3))

        def encode_text(self, ids):
            return torch.ones(len(ids), 3)

    pixels = Preprocess(32, 32, 32, "bicubic", tuple(MEANS["clip"]), tuple(STDS["clip"]))
    encoder = OpenClipEncoder(
        Means(), lambda image: torch.from_numpy(pixels(image)), lambda texts: torch.ones(len(texts))
    )
    pillow = encode(paths, encoder)[0]
    assert pillow.shape == (10, VIEWS, 3)
    difference = np.abs(encode(paths, encoder, device="cpu")[0] - pillow)
    assert np.quantile(difference, 0.98) < 0.02  # equalising a view enlarges what is rounded differently
    assert difference.max() < 0.1


@pytest.fixture
def generated(paths, tmp_path):
    """Store four generated images for each of the first six."""
    folder = GeneratedFolder(tmp_path / "generated")
    for path in paths[:6]:
        folder.store(str(path), [draw("blue", seed) for seed in range(4)])
    return folder


@pytest.mark.parametrize("device", [None, "cpu"])
def test_crops_have_no_augmix(paths, encoder, device):
    prepared = Preparer(encoder, VIEWS, 3, device, kind="crop")(0, draw("red", 1))
    mixed = Preparer(encoder, VIEWS, 3, device)(0, draw("red", 1))
    assert len(prepared) == len(mixed) == VIEWS
    np.testing.assert_array_equal(prepared[0], mixed[0])
    assert all(not np.allclose(ours, theirs, atol=1e-3) for ours, theirs in zip(prepared[1:], mixed[1:], strict=True))
    crops = encode(paths, encoder, kind="crop", device=device)[0]
    np.testing.assert_allclose(crops[4:], encode(paths[4:], encoder, kind="crop", device=device, start=4)[0], atol=1e-4)


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize(("views", "made"), [(3, 1), (8, 3), (9, 4)])
def test_diffusion_views_are_crops_then_generated_images(paths, encoder, generated, views, made, device):
    # DiffTPT's proportion: of 2 b views, the image, b crops and b - 1 generated images.
    options = {"views": views, "device": device}
    found, errors = encode(paths[:6], encoder, kind="diffusion", generator=generated, **options)
    assert errors == [None] * 6
    crops = encode(paths[:6], encoder, kind="crop", **options)[0]
    np.testing.assert_allclose(found[:, : views - made], crops[:, : views - made], rtol=1e-4, atol=1e-4)
    images = unit_rows(encoder.encode_images([encoder.prepare(draw("blue", seed)) for seed in range(made)]), "features")
    np.testing.assert_allclose(found[:, views - made :], np.stack([images] * 6), rtol=1e-4, atol=1e-4)


def test_images_without_enough_generated_ones_are_unreadable(paths, encoder, generated):
    found, errors = encode(paths, encoder, kind="diffusion", generator=generated)
    assert len(found) == 6
    assert errors[:6] == [None] * 6
    folder = generated.folder / paths[6].parent.name / paths[6].name
    message = f"{folder} has 0 generated images, 3 are needed; make them with `acclimate generate --count 3`"
    assert errors[6] == message
    assert encode(paths[:1], encoder, kind="diffusion", generator=generated, views=11)[1][0].startswith(
        f"{generated.folder_of(str(paths[0]))} has 4 generated images, 5 are needed"
    )
    with pytest.raises(ImageError, match="this image has none"):
        Preparer(encoder, 4, kind="diffusion", generator=generated)(0, draw("red", 1))


def test_images_can_be_read_as_they_are_stored(encoder, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    draw("red", 1).save(tmp_path / "turned.png", exif=exif)
    found = [encode([tmp_path / "turned.png"], encoder, views=1, upright=upright)[0] for upright in (True, False)]
    turned = draw("red", 1).transpose(Image.Transpose.ROTATE_270)
    expected = unit_rows(encoder.encode_images([encoder.prepare(turned), encoder.prepare(draw("red", 1))]), "features")
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-4, atol=1e-4)


def test_invalid_arguments_are_refused(paths, encoder, generated):
    with pytest.raises(InputError, match="views must be at least 1"):
        encode(paths, encoder, views=0)
    with pytest.raises(InputError, match="unknown kind of views 'crops'; choose from augmix, crop, large-crop"):
        Preparer(encoder, 4, kind="crops")
    with pytest.raises(InputError, match="diffusion views need generated images; pass a folder made by"):
        Preparer(encoder, 4, kind="diffusion")
    with pytest.raises(InputError, match="need at least 3"):
        Preparer(encoder, 2, kind="diffusion", generator=generated)
    with pytest.raises(InputError, match="crop views have no generated images"):
        Preparer(encoder, 4, kind="crop", generator=generated)
