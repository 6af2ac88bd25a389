"""JPEGs for a GPU: which of them are given to it, and what becomes of those that it refuses."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from acclimate.errors import InputError
from acclimate.images.opening import TURNINGS, examine_image
from acclimate.reading import jpeg as jpeg
from acclimate.reading.jpeg import choose_decoder, decode_each, lacking_for_nvjpeg, turn
from drawn_images import draw

torch = pytest.importorskip("torch")
PHOTO = draw("red", 1)


def encoded(image=PHOTO, **options):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def oriented(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(exif=exif)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_jpeg_says_how_it_must_be_turned(orientation):
    examined = examine_image(oriented(orientation))
    assert examined.baseline_jpeg() == (60, 48, TURNINGS.get(orientation))
    assert examined.baseline_jpeg(upright=False) == (60, 48, None)


XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="6"/></x:xmpmeta>'
TAKEN = {
    "quality": encoded(quality=30),
    "no subsampling": encoded(subsampling=0),
    "gray": encoded(PHOTO.convert("L")),
    "optimized": encoded(optimize=True),
    "as long as is read whole": encoded(draw("red", 1, (640, 40))),
}
LEFT = {
    "progressive": encoded(progressive=True),
    "CMYK": encoded(PHOTO.convert("CMYK")),
    "RGB": encoded(keep_rgb=True),
    "cut off": encoded()[:-2],
    "with more at its end": encoded() + b"\0",
    "longer": encoded(draw("red", 1, (641, 40))),
}


@pytest.mark.parametrize("content", TAKEN.values(), ids=TAKEN)
def test_baseline_jpegs_are_for_the_gpu(content):
    assert examine_image(content).baseline_jpeg() is not None


@pytest.mark.parametrize("content", LEFT.values(), ids=LEFT)
def test_other_jpegs_are_left_to_pillow(content):
    assert examine_image(content).baseline_jpeg() is None


def test_other_images_are_left_to_pillow():
    buffer = io.BytesIO()
    PHOTO.save(buffer, "PNG")
    assert examine_image(buffer.getvalue()).baseline_jpeg() is None


def test_orientation_may_be_in_xmp():
    content = encoded(xmp=XMP)
    assert examine_image(content).baseline_jpeg() == (60, 48, Image.Transpose.ROTATE_270)
    assert examine_image(content).decode().size == (48, 60)


@pytest.mark.parametrize("how", [None, *Image.Transpose])
def test_tensors_are_turned_as_pillow_turns_images(how):
    pixels = torch.from_numpy(np.array(PHOTO).transpose(2, 0, 1))
    turned = PHOTO if how is None else PHOTO.transpose(how)
    found = turn(pixels, how)
    np.testing.assert_array_equal(found.numpy().transpose(1, 2, 0), np.asarray(turned))


def test_what_a_batch_cannot_decode_is_decoded_one_by_one(monkeypatch):
    def decode(contents, device):
        if any(int(each[0]) == 7 for each in contents):
            raise RuntimeError("Error while decoding JPEG images")
        return [each + 1 for each in contents]

    monkeypatch.setattr(jpeg, "decode_batch", decode)
    contents = [torch.tensor([value]) for value in (1, 7, 3)]
    assert decode_each(contents, "cuda") == [torch.tensor([2]), None, torch.tensor([4])]
    assert decode_each(contents[:1], "cuda") == [torch.tensor([2])]


@pytest.fixture
def _unknown():
    lacking_for_nvjpeg.cache_clear()
    yield
    lacking_for_nvjpeg.cache_clear()


@pytest.mark.usefixtures("_unknown")
def test_the_decoder_is_chosen(monkeypatch):
    assert choose_decoder("auto", None) == choose_decoder("pillow", "cuda") == "pillow"
    with pytest.raises(InputError, match="unknown decoder 'jpeg'; choose from auto, pillow, nvjpeg"):
        choose_decoder("jpeg", None)
    with pytest.raises(
        InputError, match=r"the decoder nvjpeg needs a model on a CUDA GPU .* choose the decoder pillow"
    ):
        choose_decoder("nvjpeg", None)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert choose_decoder("auto", "cuda") == "pillow"
    with pytest.raises(InputError, match=r"the decoder nvjpeg needs torchvision.*; or choose the decoder pillow"):
        choose_decoder("nvjpeg", "cuda")


@pytest.mark.usefixtures("_unknown")
def test_a_torchvision_without_nvjpeg_is_found_out(monkeypatch):
    def refuse(contents, device):
        raise RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support\nat ...")

    monkeypatch.setitem(sys.modules, "torchvision", object())
    monkeypatch.setattr(jpeg, "decode_batch", refuse)
    assert choose_decoder("auto", "cuda:0") == "pillow"
    with pytest.raises(InputError, match=r"fails here \(decode_jpegs_cuda: torchvision not compiled with nvJPEG supp"):
        choose_decoder("nvjpeg", "cuda:0")
    monkeypatch.setattr(jpeg, "decode_batch", lambda contents, device: contents)
    assert choose_decoder("auto", "cuda:1") == choose_decoder("nvjpeg", "cuda:1") == "nvjpeg"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("content", TAKEN.values(), ids=TAKEN)
def test_nvjpeg_gives_nearly_the_pixels_of_pillow(content):
    if why := lacking_for_nvjpeg("cuda"):
        pytest.skip(f"nvjpeg {why}")
    [found] = decode_each([torch.frombuffer(bytearray(content), dtype=torch.uint8)], "cuda")
    difference = np.abs(
        found.cpu().numpy().transpose(1, 2, 0).astype(int) - np.asarray(examine_image(content).decode()).astype(int)
    )
    assert difference.mean() < 3  # noise, of which libjpeg smoothes the colours, is the hardest case
