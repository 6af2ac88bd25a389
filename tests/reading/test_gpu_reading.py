"""The walk of a GPU, run on a CPU: the same images, errors and order as the walk in threads."""

import gc
import io
import multiprocessing
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import ImageError, InputError, RunError
from acclimate.images.opening import PreparedImage, limit_pixels, pixel_limit
from acclimate.reading import walk
from acclimate.reading.walk import Preparer, encode_ahead
from acclimate.sources.source import Sample, file_sample
from drawn_images import draw, encoded
from slow_preprocess import SIZES, Trouble

torch = pytest.importorskip("torch")
from acclimate.reading import gpu  # noqa: E402 (it needs torch)

SIDE = 32
TOLERANCE = {"pillow": 1e-5, "nvjpeg": 0.01}  # pixels that PyTorch resizes differ from Pillow's by at most 1


class MeanColours:
    """An encoder whose features are the means of the channels in the rows of a model's input."""

    dim = 3 * SIDE
    logit_scale = 1.0
    logit_bias = 0.0
    fingerprint = "means"
    device = "cpu"
    preprocess = Trouble(SIDE, SIDE, SIDE, "bicubic", (0.5, 0.4, 0.3), (0.2, 0.3, 0.25), "round")
    prepare = preprocess

    def encode_images(self, images):
        pixels = images if torch.is_tensor(images) else torch.stack([torch.as_tensor(each) for each in images])
        return pixels.mean(dim=3).flatten(1)

    def encode_text(self, texts):
        return np.ones((len(texts), self.dim), np.float32)


@pytest.fixture
def encoder():
    return MeanColours()


@pytest.fixture
def on_device(monkeypatch):
    """Take the walk of a GPU on the CPU, with Pillow instead of nvJPEG, which refuses images 49 pixels high."""

    def decode(contents, device):
        images = [np.array(Image.open(io.BytesIO(each.numpy().tobytes())).convert("RGB")) for each in contents]
        if any(len(image) == 49 for image in images):
            raise RuntimeError("nvjpeg: 5")
        counts.append(len(images))
        return [torch.from_numpy(image.transpose(2, 0, 1).copy()) for image in images]

    counts = []
    monkeypatch.setattr(walk, "gpu_of", lambda encoder: "cpu")
    monkeypatch.setattr(gpu, "decode_jpegs", decode)
    monkeypatch.setattr(gpu, "lacking_for_nvjpeg", lambda device: "")
    return counts


class Readable:
    """An object with a `read` that only this process can call."""

    def __init__(self, content, name="", label=None):
        self.content = content
        self.name = name
        self.label = label

    def read(self):
        if isinstance(self.content, Exception):
            raise self.content
        return self.content


def fail():
    raise OSError(5, "Input/output error")


@pytest.fixture
def images(tmp_path):
    """Return images of all kinds, some of which cannot be read."""
    files = {"text.jpg": b"hello", "empty.jpg": b"", "cut.jpg": encoded(draw("red", 1), "JPEG")[:900]}
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        files[f"turned{orientation}.jpg"] = encoded(draw("green", orientation), "JPEG", exif=exif)
    files["refused.jpg"] = encoded(draw("red", 9, (64, 49)), "JPEG")
    files["gray.jpg"], files["cmyk.jpg"] = (encoded(draw("blue", 2).convert(mode), "JPEG") for mode in ("L", "CMYK"))
    files["progressive.jpg"] = encoded(draw("blue", 3), "JPEG", progressive=True)
    files["long.jpg"] = encoded(draw("red", 4, (900, 20)), "JPEG")
    files["large.jpg"] = encoded(draw("red", 4, (300, 200)), "JPEG", quality=95)  # does not fit into a slot
    files["image.png"], files["image.webp"] = (encoded(draw("green", 4), kind) for kind in ("PNG", "WEBP"))
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    photo = draw("red", 7)
    return [
        *(str(tmp_path / name) for name in files),
        tmp_path / "missing.jpg",
        "https://example.org/a.jpg",
        encoded(photo, "JPEG"),
        bytearray(encoded(photo, "JPEG")),
        photo,
        np.asarray(photo),
        object(),
        file_sample(tmp_path / "image.png", "cat"),
        file_sample(tmp_path / "none.png"),
        Sample("failing", fail, "dog"),
        Readable(encoded(photo, "JPEG"), "read", "cat"),
        Readable(photo),
        Readable(b"x", 3, 4),
        Readable(OSError(2, "No such file")),
        Readable(MemoryError("too much")),
        *(str(tmp_path / f"turned{1 + i % 8}.jpg") for i in range(9)),
    ]


def flat(batches):
    """Return the starts, the names, errors and truths, and the features of all batches."""
    batches = list(batches)
    features = np.concatenate([np.asarray(batch.features) for batch in batches])
    lists = (batch[field] for field in (1, 2, 4) for batch in batches)
    return [batch.start for batch in batches], [each for part in lists for each in part], features


@pytest.fixture
def in_threads(encoder):
    """Return the walk in threads."""
    return lambda images, **options: flat(encode_ahead(images, Preparer(encoder), **options))


@pytest.mark.parametrize("count", [None, 20, 1, 0])
@pytest.mark.parametrize("decoder", ["pillow", "nvjpeg"])
def test_the_walk_of_a_gpu_gives_what_threads_give(request, encoder, images, in_threads, decoder, count):
    # Few images are read without worker processes.
    chosen = images[:count]
    expected = in_threads(chosen, batch_size=7) if chosen else None
    decoded = request.getfixturevalue("on_device")
    batches = list(encode_ahead(chosen, Preparer(encoder, decoder=decoder), batch_size=7, workers=2))
    assert (sum(decoded) > 0) == (decoder == "nvjpeg" and count in (None, 20))
    if not chosen:
        assert not batches
        return
    starts, said, features = flat(batches)
    assert (starts, said) == expected[:2]
    np.testing.assert_allclose(features, expected[2], atol=TOLERANCE[decoder])


@pytest.mark.parametrize("upright", [True, False])
def test_images_are_turned_if_asked(request, encoder, images, upright):
    turned = [image for image in images if "turned" in str(image)]
    make = partial(Preparer, encoder, upright=upright)
    expected = flat(encode_ahead(turned, make()))
    request.getfixturevalue("on_device")
    found = flat(encode_ahead(turned, make(decoder="nvjpeg")))
    np.testing.assert_allclose(found[2], expected[2], atol=TOLERANCE["nvjpeg"])


@pytest.mark.parametrize(("size", "chunk"), [(1, 4), (5, 2), (12, 5), (100, 16)])
def test_batches_do_not_depend_on_their_chunks(request, encoder, images, in_threads, monkeypatch, size, chunk):
    expected = in_threads(images, batch_size=size)
    decoded = request.getfixturevalue("on_device")
    monkeypatch.setattr(gpu, "CHUNK_IMAGES", chunk)
    monkeypatch.setattr(gpu, "DECODED_PIXELS", 9_000)
    found = flat(encode_ahead(images, Preparer(encoder, decoder="nvjpeg"), batch_size=size, workers=3))
    assert found[:2] == expected[:2]
    assert max(decoded) <= 3
    np.testing.assert_allclose(found[2], expected[2], atol=TOLERANCE["nvjpeg"])


@pytest.mark.parametrize("decoder", ["pillow", "nvjpeg"])
@pytest.mark.parametrize("count", [12, None])
def test_views_are_those_that_threads_make_with_pytorch(request, encoder, images, decoder, count):
    images = images[3:count]
    expected = flat(encode_ahead(images, Preparer(encoder, 5, 3, "cpu"), batch_size=20, start=4))
    request.getfixturevalue("on_device")
    found = flat(encode_ahead(images, Preparer(encoder, 5, 3, decoder=decoder), batch_size=20, start=4, workers=2))
    assert found[:2] == expected[:2]
    np.testing.assert_allclose(found[2][:, 1:], expected[2][:, 1:], atol=1e-4)
    np.testing.assert_allclose(found[2][:, 0], expected[2][:, 0], atol=TOLERANCE[decoder])


def test_errors_are_raised_when_the_batches_before_were_given(encoder, images, on_device):
    good = images[3:9]
    bad = images[0]
    walk = encode_ahead([*good, bad, *good], Preparer(encoder), batch_size=3, on_error="raise", start=10)
    assert [next(walk).start, next(walk).start] == [10, 13]
    with pytest.raises(ImageError, match=r"text.jpg cannot be read: not an image"):
        next(walk)
    with pytest.raises(ImageError, match="image 11 cannot be read"):
        list(encode_ahead([good[0], b"x"], Preparer(encoder), on_error="raise", start=10))


def test_an_error_of_the_source_reaches_the_caller(encoder, images, on_device):
    def some():
        yield from images[3:50]
        raise KeyError("no more")

    with pytest.raises(KeyError):
        list(encode_ahead(some(), Preparer(encoder), batch_size=4, workers=2))
    _nothing_runs()


@pytest.mark.parametrize(
    ("size", "message"), [("crash", "DataLoader worker .* exited unexpectedly"), ("fail", "no processor")]
)
def test_a_reader_that_crashes_ends_the_run_with_a_reason(encoder, images, on_device, tmp_path, size, message):
    draw("red", 1, SIZES[size]).save(tmp_path / "bad.png")
    good = [*images[3:11]] * 5
    with pytest.raises(RunError, match=rf"(?s)images could not be read: .*{message}.*fewer --workers"):
        list(encode_ahead([*good, tmp_path / "bad.png"], Preparer(encoder), workers=2))


def test_few_images_start_no_process(encoder, images, on_device, monkeypatch):
    monkeypatch.setattr(torch.utils.data.dataloader, "_MultiProcessingDataLoaderIter", None)
    assert len(flat(encode_ahead(images[3:12], Preparer(encoder), workers=16))[2]) == 9


def test_a_process_that_may_start_none_reads_by_itself(encoder, images, on_device, monkeypatch):
    monkeypatch.setattr(gpu, "current_process", lambda: SimpleNamespace(daemon=True))
    monkeypatch.setattr(torch.utils.data.dataloader, "_MultiProcessingDataLoaderIter", None)
    assert len(flat(encode_ahead(images[3:9] * 7, Preparer(encoder), batch_size=20, workers=2))[2]) == 42


def test_reading_leaves_the_random_numbers_of_pytorch_alone(encoder, images, on_device):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    list(encode_ahead(images[3:9] * 7, Preparer(encoder), workers=2))
    assert torch.rand(1) == expected


def test_nothing_outlives_a_walk_that_is_broken_off(encoder, images, on_device):
    walk = encode_ahead(images * 20, Preparer(encoder), batch_size=4, workers=3)
    next(walk)
    assert multiprocessing.active_children()
    walk.close()
    _nothing_runs()


def _nothing_runs():
    gc.collect()
    assert not multiprocessing.active_children()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("acclimate-read")]


def test_the_limit_of_pixels_holds_in_processes(encoder, images, on_device):
    before = pixel_limit()
    try:
        limit_pixels(50_000)
        found = flat(encode_ahead(images, Preparer(encoder), batch_size=64, workers=2))
        limit_pixels(None)
        again = flat(encode_ahead(images[:40], Preparer(encoder), batch_size=64, workers=2))
    finally:
        limit_pixels(before)
    large = [Path(str(name)).name for name in found[1][: len(images)]].index("large.jpg")
    assert "pixels: more than" in found[1][len(images) + large]
    assert again[1][40 + large] is None


@pytest.mark.parametrize("resample", ["bicubic", "bilinear"])
@pytest.mark.parametrize("short_side", [24, 40, None])
def test_images_are_resized_nearly_as_by_pillow(resample, short_side):
    preprocess = Preprocess(32, 28, short_side, resample, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), "round")
    photos = [draw("red", i, size) for i, size in enumerate([(60, 48), (33, 90), (20, 21), (60, 48), (400, 300)])]
    tensors = [torch.from_numpy(np.array(photo).transpose(2, 0, 1).copy()) for photo in photos]
    found = gpu.resize_and_crop(tensors, preprocess).numpy().transpose(0, 2, 3, 1)
    expected = np.stack([preprocess.pixels(photo).astype(int) for photo in photos])
    difference = np.abs(found - expected)
    assert difference.max() <= 2
    assert difference.mean() < 0.1
    black = (expected == 0).all(axis=3)
    assert (found[black] == 0).all()


def test_what_a_batch_cannot_decode_is_decoded_one_by_one(monkeypatch):
    def decode(contents, device):
        if any(int(each[0]) == 7 for each in contents):
            raise RuntimeError("Error while decoding JPEG images")
        return [each + 1 for each in contents]

    monkeypatch.setattr(gpu, "decode_jpegs", decode)
    contents = [torch.tensor([value]) for value in (1, 7, 3)]
    assert gpu.decode_each(contents, "cuda") == [torch.tensor([2]), None, torch.tensor([4])]
    assert gpu.decode_each(contents[:1], "cuda") == [torch.tensor([2])]


@pytest.fixture
def _unknown():
    gpu.lacking_for_nvjpeg.cache_clear()
    yield
    gpu.lacking_for_nvjpeg.cache_clear()


@pytest.mark.usefixtures("_unknown")
def test_the_decoder_is_chosen(encoder, monkeypatch):
    choose = walk.choose_decoder
    assert choose("auto", None) == choose("pillow", "cuda") == "pillow"
    with pytest.raises(InputError, match="unknown decoder 'jpeg'; choose from auto, pillow, nvjpeg"):
        choose("jpeg", None)
    with pytest.raises(InputError, match=r"the decoder nvjpeg needs a model on a CUDA GPU .* the decoder pillow"):
        choose("nvjpeg", None)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert choose("auto", "cuda") == "pillow"
    with pytest.raises(InputError, match=r"the decoder nvjpeg needs torchvision.*; or choose the decoder pillow"):
        choose("nvjpeg", "cuda")


@pytest.mark.usefixtures("_unknown")
def test_a_torchvision_without_nvjpeg_is_found_out(monkeypatch):
    def refuse(contents, device):
        raise RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support\nat ...")

    monkeypatch.setitem(sys.modules, "torchvision", object())
    monkeypatch.setitem(sys.modules, "torchvision.io", SimpleNamespace(encode_jpeg=lambda pixels: pixels))
    monkeypatch.setattr(gpu, "decode_jpegs", refuse)
    assert walk.choose_decoder("auto", "cuda:0") == "pillow"
    with pytest.raises(InputError, match=r"fails here \(decode_jpegs_cuda: torchvision not compiled with nvJPEG supp"):
        walk.choose_decoder("nvjpeg", "cuda:0")
    monkeypatch.setattr(gpu, "decode_jpegs", lambda contents, device: contents)
    assert walk.choose_decoder("auto", "cuda:1") == walk.choose_decoder("nvjpeg", "cuda:1") == "nvjpeg"


def test_a_decoder_that_cannot_be_used_is_refused_at_once(encoder, monkeypatch):
    assert Preparer(encoder).decoder == Preparer(encoder, decoder="pillow").decoder == "pillow"
    with pytest.raises(InputError, match="the decoder nvjpeg needs a model on a CUDA GPU"):
        Preparer(encoder, decoder="nvjpeg")
    encoder.device = "cuda"
    monkeypatch.setattr(gpu, "lacking_for_nvjpeg", lambda device: "")
    assert Preparer(encoder).decoder == "nvjpeg"
    encoder.prepare = Trouble(SIDE, SIDE, SIDE, "lanczos", (0, 0, 0), (1, 1, 1))
    assert Preparer(encoder).decoder == "pillow"  # PyTorch does not resize with this filter
    encoder.prepare = lambda image: np.zeros((3, SIDE, SIDE))
    assert Preparer(encoder).decoder == "pillow"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("views", [1, 4])
@pytest.mark.parametrize("decoder", ["pillow", "auto"])
def test_a_gpu_gives_what_the_cpu_gives(tiny_clip, images, decoder, views):
    from acclimate.encoders import load_encoder

    on_cpu, on_gpu = (load_encoder(f"local:{tiny_clip}", device) for device in ("cpu", "cuda"))
    expected = flat(encode_ahead(images, Preparer(on_cpu, views), batch_size=8))
    batches = list(encode_ahead(images * 5, Preparer(on_gpu, views, decoder=decoder), batch_size=8 * views))
    assert all(batch.features.is_cuda for batch in batches)
    errors = [error for batch in batches for error in batch.errors]
    assert errors == [error for _ in range(5) for error in expected[1][len(images) : 2 * len(images)]]
    found = torch.cat([batch.features for batch in batches]).cpu().numpy()[: len(expected[2])]
    cosines = (found * expected[2]).sum(-1) / np.linalg.norm(found, axis=-1) / np.linalg.norm(expected[2], axis=-1)
    assert np.median(cosines) > 0.998  # equalising a view enlarges what nvJPEG rounds differently
    assert cosines.reshape(len(found), -1)[:, 0].min() > 0.98


@pytest.mark.usefixtures("on_device")
def test_prepared_images_are_encoded_as_they_are(encoder):
    pictures = [draw("red", seed) for seed in range(4)]
    prepared = [PreparedImage(encoder.prepare(each)) for each in pictures]
    mixed = [prepared[0], pictures[1], PreparedImage(torch.as_tensor(prepared[2].pixels)), pictures[3]]
    preparer = Preparer(encoder, decoder="pillow")
    assert preparer.gpu
    (batch,) = encode_ahead(mixed, preparer)
    expected = encoder.encode_images([each.pixels for each in prepared])
    np.testing.assert_allclose(batch.features, expected / expected.norm(dim=1, keepdim=True), atol=1e-4)
    (refused,) = encode_ahead([PreparedImage(np.zeros((3, 5, 5), np.float32))], preparer)
    assert "its pixel_values have the shape (3, 5, 5), and the model takes (3, 32, 32)" in refused.errors[0]
