"""Bounds on the cost of an image, checked before it is decoded."""

import json
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import PIL
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from acclimate.errors import ImageError
from acclimate.images import opening as images
from acclimate.images.decode_cost import EXAMINERS
from acclimate.images.opening import FORMATS, MAX_ASPECT, examine_image, open_image
from acclimate.reading.walk import Preparer, encode_ahead
from drawn_images import draw
from hostile_images import CASES, encoded, gif, jpeg, png, scans, segment

LIMIT = 40_000_000
SIZE = (3000, 2000)
MAX_MEMORY_BYTES = 128 * 2**20  # hostile images took 3 GB before they were bounded
MPF_MEMORY_BYTES = 350 * 2**20  # older versions of Pillow copy 64 kB for each of 5,000 tags
MAX_SECONDS = 10.0  # processor time; a quick machine takes 0.6
KINDS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "DIB", "TGA")
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F")


def peak():
    """Return the most memory that this process has had at a time since it was last reset, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def reset_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return peak()


def hostile():
    """Open and prepare every case as a model does, in a child process; print its cost."""
    from acclimate.encoders.preprocess import Preprocess

    prepare = Preprocess(224, 224, 224, "bicubic", (0.5,) * 3, (0.5,) * 3)
    outcomes = {}
    for name, make in CASES.items():
        content = make()
        before = reset_peak()
        began = time.process_time()
        try:
            outcome = prepare(open_image(content, LIMIT)).shape
        except ImageError as error:
            outcome = str(error)
        outcomes[name] = outcome, peak() - before, time.process_time() - began
    sys.stdout.write(json.dumps(outcomes))


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30,) * 2)
    signal.alarm(600)


def in_child(function):
    """Run a function of this file in its own process, with limits of memory and time; return its output."""
    paths = [str(Path(__file__).parent), *sys.path]
    command = f"import sys; sys.path[:0] = {paths!r}; import test_decode_cost as test; test.{function}()"
    child = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, preexec_fn=limited)
    assert child.returncode == 0, child.stderr[-2000:]
    return json.loads(child.stdout)


@pytest.fixture(scope="module")
def outcomes():
    return in_child("hostile")


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory from /proc")
@pytest.mark.parametrize("name", CASES)
def test_a_hostile_image_costs_little(outcomes, name):
    outcome, memory, seconds = outcomes[name]
    assert memory < (MPF_MEMORY_BYTES if "MPF" in name else MAX_MEMORY_BYTES)
    assert seconds < MAX_SECONDS
    if (" x " not in name or "scans" in name) and "overlapping" not in name:  # Pillow 13 leaves such tags out
        assert isinstance(outcome, str)
        assert "\n" not in outcome


@pytest.mark.parametrize("kind", KINDS)
def test_the_pixels_are_known_without_decoding(kind):
    image = draw("red", 1, (61, 47))
    examined = examine_image(encoded(image, kind))
    assert examined.kind == kind
    assert examined.pixels >= 61 * 47
    assert examined.pixels == 61 * 47 or kind in ("WEBP", "TIFF")
    assert examined.decode().size == image.size
    with pytest.raises(ImageError, match=r"^61 x 47 pixels.*: more than .* million; make it smaller, or start with a"):
        examine_image(encoded(image, kind), 61 * 47 - 1)


@pytest.mark.parametrize("content", [encoded(draw("red", 1), kind) for kind in KINDS], ids=KINDS)
def test_a_file_that_is_cut_off_or_damaged_ends_in_an_image_error(content):
    generator = np.random.default_rng(1)
    for length in range(min(len(content), 200)):
        with pytest.raises(ImageError):
            open_image(content[:length])
    for _ in range(200):
        damaged = bytearray(content)
        for place in generator.integers(0, min(len(content), 400), 3):
            damaged[place] = generator.integers(256)
        with suppress(ImageError):
            assert open_image(bytes(damaged), LIMIT).mode == "RGB"


def test_only_kinds_that_are_bounded_are_opened():
    postscript = CASES["EPS"]()
    for formats in (None, ("EPS",), ("JPEG", "EPS")):
        with pytest.raises(ImageError, match="not an image of a kind that can be read"):
            open_image(postscript, formats=formats)
    with pytest.raises(ImageError, match=r"can be read \(PNG\)"):
        open_image(encoded(draw("red", 1), "JPEG"), formats=("PNG",))
    assert set(EXAMINERS) < set(FORMATS)


def test_ordinary_files_with_much_metadata_are_read():
    comments = [segment(0xFE, bytes(60_000))] * 20 + [segment(0xE1, b"Exif\0\0" + Image.Exif().tobytes())]
    assert open_image(jpeg(*comments)).size == (32, 24)
    assert open_image(gif(b"!\xfe" + (b"\xff" + bytes(255)) * 1000 + b"\0", screen=(1, 1), frame=(1, 1))).size == (1, 1)
    assert open_image(scans(20, (64, 48)), LIMIT).size == (64, 48)
    assert open_image(encoded(draw("red", 1), "JPEG", progressive=True, comment=b"\xff\xda" * 200)).size == (60, 48)
    assert open_image(encoded(draw("red", 1), "JPEG") + b"\xff\xda" * 200).size == (60, 48)


def test_a_larger_limit_raises_the_bound_on_scans():
    content = scans(30, (1000, 1000))
    with pytest.raises(ImageError, match=r"take too long.*, or start with a larger --max-pixels"):
        examine_image(content, 2_000_000)
    assert examine_image(content, 80_000_000)


def reference(image, upright):
    """Return an image in RGB as it was made before images were converted strip by strip."""
    if upright:
        image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        values = np.asarray(image, np.float32)
        top = 65535.0 if image.mode != "F" or values.max(initial=0) > 255 else 255.0
        return Image.fromarray(np.clip(values * (255.0 / top), 0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


@st.composite
def pictures(draw_from):
    width = draw_from(st.integers(1, 40))
    height = draw_from(st.integers(1, 40))
    seed = draw_from(st.integers(0, 99))
    mode = draw_from(st.sampled_from(MODES))
    shades = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    if mode in ("I;16", "I", "F"):
        dtype = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
        return Image.fromarray((shades[..., 0].astype(np.float64) * draw_from(st.sampled_from([1, 257]))).astype(dtype))
    return Image.fromarray(shades).convert(mode)


@given(image=pictures(), orientation=st.integers(0, 9), upright=st.booleans(), strip=st.sampled_from([1, 50, 2**20]))
def test_ordinary_images_have_the_same_pixels_as_before(image, orientation, upright, strip):
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless = "PNG" if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16") else "TIFF"
    more = {"transparency": 0} if image.mode == "P" else {}
    content = encoded(image, lossless, exif=exif, **more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "STRIP_PIXELS", strip)
        if max(image.size) <= MAX_ASPECT * min(image.size):
            with Image.open(images.io.BytesIO(content)) as opened:
                expected = np.asarray(reference(opened, upright))
            np.testing.assert_array_equal(open_image(content, upright=upright), expected)
            with Image.open(images.io.BytesIO(content)) as opened:
                np.testing.assert_array_equal(open_image(opened, upright=upright), expected)
            np.testing.assert_array_equal(open_image(image), reference(image, True))


@given(st.integers(1, 30), st.integers(1, 1000), st.booleans())
def test_of_a_very_long_image_the_centre_is_taken(short, long, tall):
    shape = (long, short) if tall else (short, long)
    shades = np.random.default_rng(long).integers(0, 256, (*shape, 3), dtype=np.uint8)
    for source in (shades, Image.fromarray(shades), encoded(Image.fromarray(shades), "PNG"), shades.transpose(2, 0, 1)):
        if source.__class__ is np.ndarray and 3 in source.shape[:2]:
            continue
        pixels = np.asarray(open_image(source))
        kept = [min(side, MAX_ASPECT * min(shape)) for side in shape]
        top, left = ((side - part) // 2 for side, part in zip(shape, kept, strict=True))
        np.testing.assert_array_equal(pixels, shades[top : top + kept[0], left : left + kept[1]])


class Recorder:
    """An encoder of somebody else, which notes the sizes of the images that it is given to prepare."""

    dim = 2
    logit_scale = 1.0
    logit_bias = 0.0
    fingerprint = ""

    def __init__(self):
        self.sizes = []

    def prepare(self, image):
        self.sizes.append(image.size)
        if image.size == (13, 13):
            raise MemoryError
        if image.size == (17, 17):
            raise OverflowError("signed integer is greater than maximum")
        return np.zeros((3, 8, 8), np.float32)

    def encode_images(self, prepared):
        return np.ones((len(prepared), 2), np.float32)

    def encode_text(self, texts):
        return np.ones((len(texts), 2), np.float32)


@pytest.mark.parametrize("views", [1, 3])
def test_every_encoder_and_every_view_is_given_an_image_of_a_bounded_shape(views):
    encoder = Recorder()
    long = [png(20_000, 1), Image.new("RGB", (1, 5000)), np.zeros((2, 900, 3), np.uint8)]
    sources = [*long, np.zeros((13, 13), np.uint8), Image.new("L", (17, 17))]
    (batch,) = encode_ahead(sources, Preparer(encoder, views), workers=1)
    assert max(max(size) / min(size) for size in encoder.sizes) <= MAX_ASPECT
    assert [error is None for error in batch.errors] == [True, True, True, False, False]
    assert "not enough memory to prepare it" in batch.errors[3]


def decoding():
    """Print the expected and the measured memory of decoding for each mode, in a child process."""
    taken = {}
    for mode in MODES:
        if mode == "YCbCr" and int(PIL.__version__.split(".")[0]) < 13:
            continue  # older versions cannot read the TIFF that they write
        kind = "PNG" if mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16") else "TIFF"
        examined = examine_image(encoded(Image.new(mode, SIZE), kind))
        before = reset_peak()
        examined.decode()
        taken[mode] = examined.pixels, peak() - before
    sys.stdout.write(json.dumps(taken))


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory from /proc")
def test_decoding_takes_eight_bytes_per_pixel():
    for mode, (pixels, memory) in in_child("decoding").items():
        assert pixels == SIZE[0] * SIZE[1], mode
        assert memory <= 8.8 * pixels, mode  # the strip that is being converted comes on top
