"""The walk of a GPU, run on a CPU: the same images, errors and order as the walk in threads."""

import io
import multiprocessing
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from acclimate.encoders.preprocess import Bytes
from acclimate.errors import ImageError, InputError, RunError
from acclimate.images.opening import limit_pixels, pixel_limit
from acclimate.reading import jpeg, processes
from acclimate.reading.walk import Preparer, default_workers, encode_ahead
from acclimate.sources.source import Sample, file_sample
from drawn_images import draw
from slow_preprocess import SIZES, Trouble

torch = pytest.importorskip("torch")
from acclimate import gpu_reading  # noqa: E402 (it needs torch)

SIDE = 32


class Means:
    """An encoder whose features are the means of the channels in the rows of a model's input."""

    dim = 3 * SIDE
    logit_scale = 1.0
    logit_bias = 0.0
    fingerprint = "means"
    device = "cpu"
    preprocess = Trouble(SIDE, SIDE, SIDE, "bicubic", (0.5, 0.4, 0.3), (0.2, 0.3, 0.25), "round")
    prepare = Bytes(preprocess)
    most = 0

    def encode_images(self, images):
        pixels = images if torch.is_tensor(images) else torch.stack([torch.as_tensor(each) for each in images])
        if pixels.dtype == torch.uint8:
            how = self.preprocess
            pixels = pixels * torch.tensor(how.gain)[:, None, None] + torch.tensor(how.offset)[:, None, None]
        self.most = max(self.most, len(pixels))
        return pixels.mean(dim=3).flatten(1)

    def encode_text(self, texts):
        return np.ones((len(texts), self.dim), np.float32)


@pytest.fixture
def encoder():
    return Means()


@pytest.fixture
def on_device(monkeypatch):
    """Takes the walk of a GPU on the CPU, with Pillow in the place of nvJPEG: which refuses images 49 pixels high."""

    def decode(contents, device):
        images = [np.array(Image.open(io.BytesIO(each.numpy().tobytes())).convert("RGB")) for each in contents]
        if any(len(image) == 49 for image in images):
            raise RuntimeError("nvjpeg: 5")
        counts.append(len(images))
        return [torch.from_numpy(image.transpose(2, 0, 1).copy()) for image in images]

    counts = []
    monkeypatch.setattr(Preparer, "gpu", "cpu")
    monkeypatch.setattr(jpeg, "decode_batch", decode)
    monkeypatch.setattr(jpeg, "lacking_for_nvjpeg", lambda device: "")
    return counts


def encoded(image, kind="JPEG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


class Readable:
    """What has a `read` that only this process can call."""

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
    """Images of all kinds, some of which cannot be read."""
    files = {"text.jpg": b"hello", "empty.jpg": b"", "cut.jpg": encoded(draw("red", 1))[:900]}
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        files[f"turned{orientation}.jpg"] = encoded(draw("green", orientation), exif=exif)
    files["refused.jpg"] = encoded(draw("red", 9, (64, 49)))
    files["gray.jpg"], files["cmyk.jpg"] = (encoded(draw("blue", 2).convert(mode)) for mode in ("L", "CMYK"))
    files["progressive.jpg"] = encoded(draw("blue", 3), progressive=True)
    files["long.jpg"] = encoded(draw("red", 4, (900, 20)))
    files["large.jpg"] = encoded(draw("red", 4, (300, 200)), quality=95)  # does not fit into a slot
    files["image.png"], files["image.webp"] = (encoded(draw("green", 4), kind) for kind in ("PNG", "WEBP"))
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    photo = draw("red", 7)
    return [
        *(str(tmp_path / name) for name in files),
        tmp_path / "missing.jpg",
        "https://example.org/a.jpg",
        encoded(photo),
        bytearray(encoded(photo)),
        photo,
        np.asarray(photo),
        object(),
        file_sample(tmp_path / "image.png", "cat"),
        file_sample(tmp_path / "none.png"),
        Sample("failing", fail, "dog"),
        Readable(encoded(photo), "read", "cat"),
        Readable(photo),
        Readable(b"x", 3, 4),
        Readable(OSError(2, "No such file")),
        Readable(MemoryError("too much")),
        *(str(tmp_path / f"turned{1 + i % 8}.jpg") for i in range(9)),
    ]


def flat(batches):
    """Everything that batches say, in a row."""
    batches = list(batches)
    features = np.concatenate([np.asarray(batch.features) for batch in batches])
    lists = (batch[field] for field in (1, 2, 4) for batch in batches)
    return [batch.start for batch in batches], [each for part in lists for each in part], features


@pytest.fixture
def in_threads(encoder):
    """The walk in threads."""
    return lambda images, **options: flat(encode_ahead(images, Preparer(encoder), **options))


@pytest.mark.parametrize("count", [None, 20, 1, 0])
@pytest.mark.parametrize("decoder", ["pillow", "nvjpeg"])
def test_the_walk_of_a_gpu_gives_what_threads_give(request, encoder, images, in_threads, decoder, count):
    """In processes, and for a few images without any."""
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
    np.testing.assert_allclose(features, expected[2], atol=1e-5)


@pytest.mark.parametrize("upright", [True, False])
def test_images_are_turned_if_asked(request, encoder, images, upright):
    turned = [image for image in images if "turned" in str(image)]
    make = partial(Preparer, encoder, upright=upright)
    expected = flat(encode_ahead(turned, make()))
    request.getfixturevalue("on_device")
    found = flat(encode_ahead(turned, make(decoder="nvjpeg")))
    np.testing.assert_allclose(found[2], expected[2], atol=1e-5)


@pytest.mark.parametrize(("size", "piece", "chunk"), [(1, 4, 4), (5, 2, 2), (12, 4, 3), (100, 100, 16)])
def test_batches_do_not_depend_on_their_pieces(request, encoder, images, in_threads, monkeypatch, size, piece, chunk):
    expected = in_threads(images, batch_size=size)
    request.getfixturevalue("on_device")
    monkeypatch.setattr(gpu_reading, "PIECE", piece)
    monkeypatch.setattr(gpu_reading, "CHUNK", chunk)
    monkeypatch.setattr(gpu_reading, "ROOM", 30_000)
    found = flat(encode_ahead(images, Preparer(encoder, decoder="nvjpeg"), batch_size=size, workers=3))
    assert found[:2] == expected[:2]
    np.testing.assert_allclose(found[2], expected[2], atol=1e-5)


@pytest.mark.parametrize("decoder", ["pillow", "nvjpeg"])
@pytest.mark.parametrize("count", [12, None])
def test_views_are_those_that_threads_make_with_pytorch(request, encoder, images, decoder, count):
    images = images[3:count]
    expected = flat(encode_ahead(images, Preparer(encoder, 5, 3, "cpu"), batch_size=20, start=4))
    request.getfixturevalue("on_device")
    encoder.most = 0
    found = flat(encode_ahead(images, Preparer(encoder, 5, 3, decoder=decoder), batch_size=20, start=4, workers=2))
    assert found[:2] == expected[:2]
    np.testing.assert_allclose(found[2], expected[2], atol=1e-4)
    assert encoder.most <= 20


def test_the_encoder_gets_no_more_than_a_batch_of_views(encoder, images, on_device):
    found = flat(encode_ahead(images[3:6], Preparer(encoder, 7), batch_size=3))
    assert found[2].shape == (3, 7, encoder.dim)
    assert encoder.most == 3


def test_errors_are_raised_when_the_batches_before_were_given(encoder, images, on_device):
    good = images[3:9]
    bad = images[0]
    walk = encode_ahead([*good, bad, *good], Preparer(encoder), batch_size=3, on_error="raise", start=10)
    assert [next(walk).start, next(walk).start] == [10, 13]
    with pytest.raises(ImageError, match=r"text.jpg cannot be read: not an image"):
        next(walk)
    with pytest.raises(ImageError, match="image 11 cannot be read"):
        list(encode_ahead([good[0], b"x"], Preparer(encoder), on_error="raise", start=10))


def test_what_the_images_raise_is_raised_in_the_thread_of_the_caller(encoder, images, on_device):
    def some():
        threads.add(threading.current_thread())
        yield from images[3:50]
        threads.add(threading.current_thread())
        raise KeyError("no more")

    threads = set()
    with pytest.raises(KeyError):
        list(encode_ahead(some(), Preparer(encoder), batch_size=4, workers=2))
    assert threads == {threading.current_thread()}
    _nothing_runs()


def test_an_image_that_ends_its_reader_is_unreadable(encoder, images, on_device, tmp_path):
    for size in ("crash", "fail"):
        draw("red", 1, SIZES[size]).save(tmp_path / f"{size}.png")
    good = [*images[3:11]] * 5
    found = flat(encode_ahead([*good, tmp_path / "crash.png", *good], Preparer(encoder), batch_size=16, workers=2))
    errors = found[1][81:162]
    assert [place for place, error in enumerate(errors) if error] == [40]
    assert errors[40].startswith("its reader ended unexpectedly")
    with pytest.raises(RunError, match="could not be prepared: RuntimeError: no processor"):
        list(encode_ahead([*good, tmp_path / "fail.png"], Preparer(encoder), workers=2))
    _nothing_runs()


def test_few_images_start_no_process(encoder, images, on_device, monkeypatch):
    started = []
    monkeypatch.setattr(processes, "_Process", lambda *arguments: started.append(arguments))
    assert len(flat(encode_ahead(images[3:12], Preparer(encoder), workers=16))[2]) == 9
    assert not started


def test_a_process_that_may_start_none_reads_in_threads(encoder, images, on_device, monkeypatch):
    monkeypatch.setattr(gpu_reading, "current_process", lambda: SimpleNamespace(daemon=True))
    monkeypatch.setattr(processes, "_Process", None)
    assert len(flat(encode_ahead(images[3:9] * 7, Preparer(encoder), batch_size=20, workers=2))[2]) == 42


def test_processes_are_started_on_demand(encoder, images, on_device, monkeypatch):
    started = []
    real = processes._Process

    def start(*arguments):
        started.append(real(*arguments))
        return started[-1]

    monkeypatch.setattr(processes, "_Process", start)
    list(encode_ahead(images[3:9] * 7, Preparer(encoder), batch_size=256, workers=16))
    assert 1 <= len(started) <= 6  # of the 16 that there may be: 42 images make 6 chunks
    _nothing_runs()


def test_nothing_outlives_a_walk_that_is_broken_off(encoder, images, on_device):
    walk = encode_ahead(images * 20, Preparer(encoder), batch_size=4, workers=3)
    next(walk)
    assert multiprocessing.active_children()
    walk.close()
    _nothing_runs()


def _nothing_runs():
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
    assert "60,000" in found[1][len(images) + large] or "300 x 200 pixels" in found[1][len(images) + large]
    assert again[1][40 + large] is None


@pytest.mark.parametrize(("count", "most"), [(1, 4), (4, 4), (5, 4), (600, 256), (1024, 256)])
def test_parts_are_few_and_about_equal(count, most):
    parts = gpu_reading.split(count, most)
    assert sum(parts) == count
    assert max(parts) <= most
    assert max(parts) - min(parts) <= 1
    assert (len(parts) - 1) * most < count


def test_a_decoder_that_cannot_be_used_is_refused_at_once(encoder, monkeypatch):
    assert Preparer(encoder).decoder == Preparer(encoder, decoder="pillow").decoder == "pillow"
    with pytest.raises(InputError, match="the decoder nvjpeg needs a model on a CUDA GPU"):
        Preparer(encoder, decoder="nvjpeg")
    with pytest.raises(InputError, match="unknown decoder"):
        Preparer(encoder, decoder="cuda")
    encoder.device = "cuda"
    monkeypatch.setattr(jpeg, "lacking_for_nvjpeg", lambda device: "")
    assert Preparer(encoder).decoder == "nvjpeg"
    encoder.prepare = Bytes(Trouble(SIDE, SIDE, SIDE, "nearest", (0, 0, 0), (1, 1, 1)))
    assert Preparer(encoder).decoder == "pillow"  # which resizes in ways that the GPU does not
    encoder.prepare = encoder.preprocess
    assert Preparer(encoder).decoder == "pillow"


def test_there_are_as_many_processes_as_cores(monkeypatch):
    assert default_workers() <= 8
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(12), raising=False)
    assert default_workers(processes=True) == 12
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(99), raising=False)
    assert default_workers(processes=True) == 32


@pytest.mark.parametrize("views", [1, 3])
def test_a_gpu_without_room_gets_fewer_images(request, encoder, images, monkeypatch, views):
    def little(images, *rest, **options):
        if len(images) > 2:
            raise torch.cuda.OutOfMemoryError("out of memory")
        return real(images, *rest, **options)

    images = images[3:11] * 5
    expected = flat(encode_ahead(images, Preparer(encoder, views, device="cpu" if views > 1 else None)))
    request.getfixturevalue("on_device")
    real = gpu_reading.prepare_batch
    monkeypatch.setattr(gpu_reading, "prepare_batch", little)
    with pytest.warns(UserWarning, match="ran out of memory"):
        found = flat(encode_ahead(images, Preparer(encoder, views, decoder="nvjpeg"), batch_size=32))
    np.testing.assert_allclose(found[2], expected[2], atol=1e-4)


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
