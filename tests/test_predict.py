"""Encoding images with their views: the same features whatever the workers, batches and restarts."""

import threading

import numpy as np
import pytest

from acclimate.encoders import load_encoder
from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import InputError
from acclimate.images import open_image
from acclimate.predict import Preparer, encode_ahead
from tiny_models import MEANS, STDS

VIEWS = 8


@pytest.fixture(scope="module")
def encoder(tiny_clip):
    return load_encoder(f"local:{tiny_clip}", "cpu")


@pytest.fixture
def paths(photos):
    return sorted(photos.rglob("*.png"))[:10]


def encode(paths, encoder, **options):
    preparing = {"views": VIEWS, "seed": 3, "device": None}
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
    plain = encoder.encode_images([encoder.prepare(open_image(path)) for path in paths])
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
    """By a PyTorch encoder, which takes tensors, and by one that takes arrays alone."""
    for model in (encoder, load_encoder(f"onnx:{tiny_onnx}", "cpu")):
        tensors = encode(paths, model, device="cpu")[0]
        cosines = (tensors * features).sum(axis=-1) / np.linalg.norm(tensors, axis=-1)
        cosines /= np.linalg.norm(features, axis=-1)
        assert cosines[:, 0].min() > 0.9999
        assert np.median(cosines) > 0.999


def test_an_encoder_that_prepares_tensors_gets_tensors(paths):
    """Objects of open_clip's shape, with `preprocess` giving tensors."""
    torch = pytest.importorskip("torch")
    from acclimate.encoders.open_clip import OpenClipEncoder

    class Means(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.logit_scale = torch.nn.Parameter(torch.tensor(1.0))

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
    np.testing.assert_allclose(encode(paths, encoder, device="cpu")[0], pillow, atol=0.02)


def test_what_cannot_be_asked(paths, encoder):
    with pytest.raises(InputError, match="views must be at least 1"):
        encode(paths, encoder, views=0)
