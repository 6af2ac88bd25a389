import io
import random
from base64 import b64encode
from dataclasses import asdict
from threading import Event
from time import sleep

import numpy as np
import pytest
from PIL import Image

from acclimate.errors import BusyError, ImageError, ModelError
from acclimate.images.opening import open_image
from acclimate.reading import batcher as module
from acclimate.reading.batcher import MIN_CLIENT_IMAGES, Batcher
from acclimate.reading.walk import Preparer
from drawn_images import draw, encoded
from slow_preprocess import SIZES, Trouble
from waiting import wait_until

SLOW_SIZE = (64, 50)


class WatchedEncoder:
    """The tiny encoder behind a gate; remembers the sizes of the batches that went through."""

    def __init__(self, encoder):
        self.encoder = encoder
        self.sizes = []
        self.gate = Event()
        self.fail = False
        self.entered = Event()
        self.slow = Event()
        self.gate.set()
        self.slow.set()

    def __getattr__(self, name):
        return getattr(self.encoder, name)

    def prepare(self, image):
        if image.size == SLOW_SIZE:
            self.slow.wait(180)
        return self.encoder.prepare(image)

    def encode_images(self, images):
        self.entered.set()
        self.gate.wait(180)
        self.sizes.append(len(images))
        if self.fail:
            raise RuntimeError("out of memory")
        return self.encoder.encode_images(images)


@pytest.fixture
def watched(encoder):
    return WatchedEncoder(encoder)


@pytest.fixture
def start(watched, monkeypatch):
    """Return a function that starts batchers that take the encoder to be fast, however long it is held."""
    monkeypatch.setattr(module, "TARGET_BATCH_S", 1e6)
    started = []

    def batcher(**limits):
        started.append(Batcher(watched, **{"decode_s": 60.0} | limits))
        return started[-1]

    yield batcher
    watched.gate.set()
    for each in started:
        each.close()


def test_features_are_the_encoders_however_requests_are_cut(start, encoder, pictures):
    batcher = start(batch=5)
    rng = random.Random(1)
    requests = [rng.choices(pictures, k=rng.randint(1, 9)) for _ in range(30)]
    for images, future in [(images, batcher.submit(images)) for images in requests]:
        expected = encoder.encode_images([encoder.prepare(open_image(image)) for image in images])
        found = future.result(180)
        np.testing.assert_allclose(found.features, expected, atol=1e-4)
        assert found.features.dtype == np.float32
        assert found.thumbnails == ()
    assert batcher.waiting == 0


def test_requests_share_batches_of_bounded_size(start, watched, pictures):
    batcher = start(batch=8)
    watched.gate.clear()
    first = batcher.submit(pictures[:1])
    assert watched.entered.wait(180)
    futures = [batcher.submit([picture]) for picture in pictures]
    wait_until(lambda: len(batcher._ready) == len(pictures))
    watched.gate.set()
    for future in [first, *futures]:
        future.result(180)
    assert watched.sizes == [1, 8, 4]


def test_a_batch_does_not_wait_for_images_that_cannot_come(start, watched, pictures):
    batcher = start(wait_s=3600.0)
    batcher.submit(pictures[:1]).result(180)
    batcher.submit(pictures[:3]).result(180)
    assert watched.sizes == [1, 3]


def test_a_batch_waits_for_images_under_way_up_to_a_bound(start, watched, pictures):
    batcher = start(wait_s=0.01, workers=3)
    watched.slow.clear()
    slow = batcher.submit([encoded(draw("red", 1, SLOW_SIZE))])
    batcher.submit(pictures[:1]).result(180)
    assert not slow.done()
    watched.slow.set()
    slow.result(180)
    assert watched.sizes == [1, 1]


def test_a_full_queue_is_refused_and_empties_again(start, watched, pictures):
    batcher = start(queue=6, batch=2)
    watched.gate.clear()
    first = batcher.submit(pictures[:1])
    assert watched.entered.wait(180)
    futures = [batcher.submit(pictures[:3]), batcher.submit(pictures[:2])]
    with pytest.raises(BusyError, match="6 images are already waiting, 6 of them yours; try again in a moment"):
        batcher.submit(pictures[:1])
    watched.gate.set()
    for future in [first, *futures]:
        future.result(180)
    assert batcher.submit(pictures[:6]).result(180).features.shape == (6, watched.dim)


def test_an_unreadable_image_fails_its_own_request_only(start, watched, pictures):
    batcher = start()
    bad = batcher.submit([pictures[0], b"GIF89a no", pictures[1]])
    good = batcher.submit(pictures)
    with pytest.raises(ImageError, match="image 1 cannot be read: "):
        bad.result(180)
    assert len(good.result(180).features) == len(pictures)
    batcher.close()  # what nobody wants any more may still be on its way through the threads
    assert batcher.waiting == 0


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (lambda: encoded(Image.new("1", (300, 300))), "300 x 300 pixels: more than"),
        (lambda: encoded(Image.new("RGB", (8, 8)), "EPS"), "not an image of a kind that can be read"),
        (lambda: encoded(Image.new("RGB", (8, 8)), "ICO"), "not an image of a kind that can be read"),
        (lambda: b"", "the file is empty"),
    ],
)
def test_bombs_and_rare_kinds_are_refused(start, image, message):
    with pytest.raises(ImageError, match=message):
        start(pixels=89_999).submit([image()]).result(180)


def test_cancelled_requests_are_not_encoded(start, watched, pictures):
    batcher = start(batch=4)
    watched.gate.clear()
    first = batcher.submit(pictures[:1])
    assert watched.entered.wait(180)
    unwanted = batcher.submit(pictures[:6])
    wanted = batcher.submit(pictures[:2])
    assert unwanted.cancel()
    watched.gate.set()
    assert len(first.result(180).features) + len(wanted.result(180).features) == 3
    batcher.close()  # what nobody wants any more may still be on its way through the threads
    assert batcher.waiting == 0
    assert sum(watched.sizes) == 3


def test_a_failing_model_is_reported_and_the_next_batch_is_tried(start, watched, pictures):
    batcher = start()
    watched.fail = True
    with pytest.raises(ModelError, match="the model failed on a batch of 1 images: out of memory"):
        batcher.submit(pictures[:1]).result(180)
    watched.fail = False
    assert len(batcher.submit(pictures[:1]).result(180).features) == 1


def test_a_model_that_cannot_prepare_an_image_fails_its_request(start, watched, pictures, monkeypatch):
    def fail(image):
        raise RuntimeError("no processor")

    batcher = start()
    monkeypatch.setattr(watched, "prepare", fail)
    with pytest.raises(RuntimeError, match="no processor"):
        batcher.submit(pictures[:2]).result(180)
    monkeypatch.undo()
    assert len(batcher.submit(pictures[:2]).result(180).features) == 2


def test_closing_finishes_accepted_requests(watched, pictures):
    batcher = Batcher(watched, batch=2)
    futures = [batcher.submit(pictures) for _ in range(3)]
    batcher.close()
    assert all(len(future.result(0).features) == len(pictures) for future in futures)
    with pytest.raises(BusyError, match="shutting down"):
        batcher.submit(pictures[:1])


def test_thumbnails_are_small_pictures(start, pictures):
    batcher = start()
    thumbnails = batcher.submit(pictures[:2], thumbnail=32).result(180).thumbnails
    assert [Image.open(io.BytesIO(each)).size for each in thumbnails] == [(32, 26), (32, 26)]


def test_views_count_in_the_queue_and_share_batches(start, watched, encoder, pictures):
    batcher = start(batch=12, queue=20)
    watched.gate.clear()
    first = batcher.submit(pictures[:1])
    assert watched.entered.wait(180)
    plain = batcher.submit(pictures[:2])
    many = batcher.submit(pictures[:5], views=3, start=7)
    wait_until(lambda: len(batcher._ready) == 7)
    more = batcher.submit(pictures[:2])
    with pytest.raises(BusyError, match="20 images are already waiting, 20 of them yours"):
        batcher.submit(pictures[:1])
    wait_until(lambda: len(batcher._ready) == 9)
    watched.gate.set()
    prepare = Preparer(encoder, views=3)
    expected = prepare.encode([prepare(7 + i, open_image(image)) for i, image in enumerate(pictures[:5])])
    np.testing.assert_allclose(many.result(180).features, expected, atol=1e-4)
    assert [len(each.result(180).features) for each in (first, plain, more)] == [1, 2, 2]
    batcher.close()
    assert sum(watched.sizes) == 20
    assert max(watched.sizes) <= 12


def in_order(futures):
    """Return a list to which each of the futures is appended when it ends."""
    ended = []
    for future in futures:
        future.add_done_callback(ended.append)
    return ended


def test_few_images_are_prepared_before_they_are_encoded(start, watched, pictures):
    batcher = start(batch=2, workers=2)
    watched.gate.clear()
    backlog = [batcher.submit(pictures, client="a") for _ in range(3)]
    assert watched.entered.wait(180)
    single = batcher.submit(pictures[:1], client="b")
    ended = in_order([single, *backlog])
    wait_until(lambda: len(batcher._ready) >= 2 * module.READY_BATCHES and not batcher._received.decoding)
    assert len(batcher._ready) <= 2 * module.READY_BATCHES + 1
    watched.gate.set()
    for future in (single, *backlog):
        future.result(180)
    assert ended[0] is single


def test_batches_of_a_slow_encoder_are_small(watched, monkeypatch, pictures):
    def encode(images):
        sleep(0.1 * len(images))
        return np.ones((len(images), 2))

    monkeypatch.setattr(watched.encoder, "encode_images", encode)
    batcher = Batcher(watched)
    batcher.submit(pictures[:1]).result(180)
    batcher.submit(pictures).result(180)
    batcher.close()
    assert max(watched.sizes) <= 2


def test_a_queue_per_client_and_room_for_all(start, watched, pictures):
    """Each leaves as much as it has, and has room for a little however many send all they can."""
    batcher = start(queue=12, batch=1, workers=1)
    watched.gate.clear()
    futures = [batcher.submit(pictures, client=client) for client in "abc"]
    with pytest.raises(BusyError, match="36 images are already waiting, 12 of them yours"):
        batcher.submit(pictures[:1], client="a")
    for client, most in (("d", 6), ("e", MIN_CLIENT_IMAGES), ("f", MIN_CLIENT_IMAGES), ("g", MIN_CLIENT_IMAGES)):
        waiting = batcher.waiting
        assert batcher.full == (client == "g")
        with pytest.raises(BusyError, match=f"^{waiting} images are already waiting, 0 of them yours"):
            batcher.submit(pictures[: most + 1], client=client)
        futures.append(batcher.submit(pictures[:most], client=client))
    watched.gate.set()
    for future in futures:
        future.result(180)
    assert not batcher.waiting


def test_base64_is_decoded(start, pictures):
    batcher = start()
    expected = batcher.submit(pictures[:2]).result(180).features
    texts = [b64encode(picture).decode() for picture in pictures[:2]]
    np.testing.assert_allclose(batcher.submit(texts).result(180).features, expected, atol=1e-4)
    with pytest.raises(
        ImageError, match=r"^image 1 \(a\.png\) cannot be read: it is not base64; URLs are not fetched, send the image"
    ):
        batcher.submit([texts[0], "https://example.org"], names=["", "a.png"]).result(180)


def test_closing_waits_no_longer_than_a_request_may_take(encoder, pictures):
    encoder = WatchedEncoder(encoder)
    encoder.prepare = Trouble(**asdict(encoder.encoder.prepare))
    batcher = Batcher(encoder, decode_s=60.0)
    futures = [batcher.submit([encoded(draw("red", 1, SIZES["sleep"]))] * 5), batcher.submit(pictures[:2], client="b")]
    wait_until(lambda: len(batcher._received.decoding) == 2)
    batcher.close(0.5)
    with pytest.raises(TimeoutError):
        futures[0].result(0)
    assert futures[1].done()
    assert not batcher.waiting


def test_features_on_another_device_are_brought_to_the_host(encoder, pictures, monkeypatch):
    torch = pytest.importorskip("torch")
    expected = encoder.encode_images([encoder.prepare(open_image(image)) for image in pictures[:3]])
    monkeypatch.setattr(
        encoder, "encode_images", lambda images: torch.as_tensor(type(encoder).encode_images(encoder, images))
    )
    batcher = Batcher(encoder)
    try:
        features = batcher.submit(pictures[:3]).result(180).features
    finally:
        batcher.close()
    assert isinstance(features, np.ndarray)
    np.testing.assert_allclose(features, expected, atol=1e-4)
