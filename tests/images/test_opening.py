"""Reading and preparing images, against Pillow's truth and transformers' own processors."""

import io
import sys
import tarfile
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

from acclimate import Classifier
from acclimate.cli.arguments import DEFAULT_MAX_PIXELS
from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import AcclimateError, ImageError, ModelError
from acclimate.images.opening import (
    MAX_PIXELS,
    examine_image,
    lacking_for_heif,
    limit_pixels,
    open_image,
    pixel_limit,
    thumbnail,
)
from drawn_images import draw, encoded


@pytest.fixture
def picture():
    return draw("red", 1)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK"])
def test_every_mode_becomes_rgb(picture, mode):
    image = open_image(encoded(picture.convert(mode), "TIFF" if mode == "CMYK" else "PNG"))
    assert (image.mode, image.size) == ("RGB", picture.size)
    expected = np.asarray(picture.convert(mode).convert("RGB"), int)
    assert np.abs(np.asarray(image, int) - expected).max() <= 1


def test_sixteen_bits_keep_their_shades():
    shades = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
    image = np.asarray(open_image(encoded(Image.fromarray(shades))))
    np.testing.assert_allclose(image[..., 0], shades / 257, atol=1)


def test_floats_are_taken_as_they_come():
    shades = np.linspace(0, 255, 64, dtype=np.float32).reshape(8, 8)
    np.testing.assert_allclose(np.asarray(open_image(encoded(Image.fromarray(shades), "TIFF")))[..., 0], shades, atol=1)


def test_photos_are_turned_upright(picture):
    exif = Image.Exif()
    exif[0x0112] = 6  # a rotation by 90 degrees
    image = open_image(encoded(picture, "JPEG", quality=100, subsampling=0, exif=exif))
    assert image.size == picture.size[::-1]
    expected = np.asarray(picture.transpose(Image.Transpose.ROTATE_270), int)
    assert np.abs(np.asarray(image, int) - expected).mean() < 8


def test_photos_can_be_read_as_they_are_stored(picture):
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(picture, "PNG", exif=exif)
    assert open_image(content).size == picture.size[::-1]
    np.testing.assert_array_equal(open_image(content, upright=False), picture)
    with Image.open(io.BytesIO(content)) as opened:
        np.testing.assert_array_equal(open_image(opened, upright=False), picture)


def test_of_an_animation_the_first_frame(picture):
    frames = [draw("blue", 2), draw("green", 3)]
    image = open_image(encoded(picture.quantize(64), "GIF", save_all=True, append_images=frames))
    assert image.size == picture.size
    assert np.abs(np.asarray(image, int) - np.asarray(picture, int)).mean() < 25


def test_paths_pictures_and_arrays(picture, tmp_path):
    picture.save(tmp_path / "x.png")
    for source in (
        tmp_path / "x.png",
        str(tmp_path / "x.png"),
        picture,
        np.asarray(picture),
        np.asarray(picture) / 255,
    ):
        assert np.array_equal(np.asarray(open_image(source)), np.asarray(picture))
    grey = np.asarray(picture.convert("L"))
    assert np.array_equal(np.asarray(open_image(grey[:, :, None]))[..., 0], grey)
    assert open_image(np.asarray(picture.convert("RGBA"))).mode == "RGB"


def test_tensors(picture):
    torch = pytest.importorskip("torch")
    rows = torch.asarray(np.array(picture))
    for tensor in (rows, rows.permute(2, 0, 1), (rows / 255).permute(2, 0, 1).requires_grad_()):
        assert np.array_equal(np.asarray(open_image(tensor)), np.asarray(picture))
    with pytest.raises(ImageError, match=r"between 0 and 1, before normalising, got -1\.5 to 2"):
        open_image(torch.tensor([[-1.5, 2.0]]))
    with pytest.raises(ImageError, match="got 0 to 255"):
        open_image(np.array([[0.0, 255.0]]))


def bomb():
    """Return a tiny PNG that claims to be 30,000 x 30,000."""
    content = bytearray(encoded(Image.new("1", (8, 8))))
    content[16:24] = (30_000).to_bytes(4, "big") * 2
    import zlib

    content[29:33] = zlib.crc32(bytes(content[12:29])).to_bytes(4, "big")
    return bytes(content)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "the file is empty"),
        (b"hello", r"not an image of a kind that can be read \(JPEG, PNG, WebP"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "not an image|damaged|truncated|broken"),
        (np.zeros((6, 4, 5), np.uint8), r"must be \(h, w\)"),
        (np.zeros((0, 4), np.uint8), r"must be \(h, w\)"),
        (np.zeros((3, 4), np.int64), "must hold bytes"),
        ("no/such/file.jpg", "No such file"),
        ("https://example.org/cat.jpg", "a URL is not downloaded; download the image"),
    ],
)
def test_files_that_are_no_images_say_why(source, message):
    with pytest.raises(ImageError, match=message):
        open_image(source)


def test_truncated_files_and_bombs_are_refused(picture):
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "JPEG2000", "PPM"):
        content = encoded(picture, kind)
        with pytest.raises(ImageError, match="cut off or damaged; copy it again"):
            open_image(content[: len(content) // 2])
    assert MAX_PIXELS < 30_000**2
    with pytest.raises(ImageError, match=r"900,000,000 pixels: more than 179 million; .* a larger --max-pixels"):
        open_image(bomb())


def test_the_limit_of_pixels(picture, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # restores it
    content = encoded(picture)
    pixels = picture.width * picture.height
    assert pixel_limit() == MAX_PIXELS
    with pytest.raises(ImageError, match=f"^{picture.width} x {picture.height} pixels: more than .* million; make it"):
        open_image(content, max_pixels=pixels - 1)
    limit_pixels(pixels)
    assert open_image(content).size == picture.size
    limit_pixels(pixels - 2)
    with pytest.raises(ImageError, match="pixels: more than"):
        open_image(content)
    limit_pixels(1_000_000_000)
    with pytest.raises(ImageError, match=r"truncated|damaged|broken"):  # no longer for its pixels
        open_image(bomb())
    assert DEFAULT_MAX_PIXELS == MAX_PIXELS


def test_heic(picture, monkeypatch):
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(picture, "HEIF", quality=90, exif=exif.tobytes())
    image = open_image(content)
    assert (image.mode, image.size) == ("RGB", picture.size[::-1])
    turned = picture.transpose(Image.Transpose.ROTATE_270)
    assert np.abs(np.asarray(image, int) - np.asarray(turned, int)).mean() < 25
    with pytest.raises(ImageError, match=r"48 x 60 pixels.*: more than"):
        open_image(content, max_pixels=100)
    with pytest.raises(ImageError):
        open_image(content[: len(content) // 2])
    with pytest.raises(ImageError, match=r"can be read \(JPEG, PNG\)"):
        open_image(content, formats=("JPEG", "PNG"))
    monkeypatch.setattr("acclimate.images.opening.lacking_for_heif", lambda: "needs pillow-heif: pip install it")
    with pytest.raises(ImageError, match=r"a HEIC image, which needs pillow-heif: pip install it"):
        open_image(content)


def test_heic_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    assert lacking_for_heif.__wrapped__().startswith("needs pillow-heif: ")


def check_against_reference(kind, images):
    transformers = pytest.importorskip("transformers")
    from tiny_models import MEANS, STDS

    if kind == "clip":
        config = {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}, "do_center_crop": True}
    else:
        config = {"size": {"height": 224, "width": 224}}
    config |= {"resample": 3, "image_mean": MEANS[kind], "image_std": STDS[kind]}
    name = {"clip": "CLIPImageProcessor", "siglip": "SiglipImageProcessor"}[kind]
    # With torchvision the default processor resizes differently; Pillow's is the reference of the published models.
    reference = getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)
    for image in images:
        expected = reference(**config)(images=image, return_tensors="np")["pixel_values"][0]
        np.testing.assert_allclose(Preprocess.from_processor(config)(image), expected, atol=1e-3)


SIZES = [(60, 48), (48, 60), (500, 333), (224, 224), (31, 400), (20, 20)]


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_pixels_equal_the_reference_processors(kind):
    check_against_reference(kind, [draw("green", 5, size) for size in SIZES])


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_pixels_equal_the_reference_processors_on_real_photos(kind, shared):
    archive = shared / "eval" / "images.tar"
    if not archive.is_file():
        pytest.skip("the real images are not on this machine")
    with tarfile.open(archive) as tar:
        members = [member for member in tar if member.isfile()][::200]
        check_against_reference(kind, [open_image(tar.extractfile(member).read()) for member in members])


def test_older_configs_and_strange_ones():
    flat = {
        "size": 224,
        "crop_size": 224,
        "do_center_crop": True,
        "resample": 2,
        "image_mean": [0] * 3,
        "image_std": [1] * 3,
    }
    transformers = pytest.importorskip("transformers")
    processor = getattr(transformers, "CLIPImageProcessorPil", None) or transformers.CLIPImageProcessor
    preprocess = Preprocess.from_processor(processor(**flat).to_dict())
    assert (preprocess.height, preprocess.width, preprocess.short_side, preprocess.resample) == (
        224,
        224,
        224,
        "bilinear",
    )
    assert Preprocess.from_json(asdict(preprocess)) == preprocess
    with pytest.raises(ModelError, match="any shape"):
        Preprocess.from_processor(flat | {"size": {"shortest_edge": 256}, "do_center_crop": False})


def test_an_image_smaller_than_the_crop_is_padded_with_black():
    preprocess = Preprocess(8, 8, 4, "bicubic", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    pixels = preprocess(Image.new("RGB", (10, 10), (255, 255, 255)))
    assert pixels.shape == (3, 8, 8)
    assert pixels.sum() == 3 * 16


def torchvision_crop(pixels, size):
    """Crop as `torchvision.transforms.functional.center_crop` does: pixels (h, w) to a square, in NumPy."""
    height, width = pixels.shape
    if size > width or size > height:
        left = max(0, (size - width) // 2)
        top = max(0, (size - height) // 2)
        right = max(0, (size - width + 1) // 2)
        bottom = max(0, (size - height + 1) // 2)
        pixels = np.pad(pixels, ((top, bottom), (left, right)))
        height, width = pixels.shape
    top = round((height - size) / 2.0)
    left = round((width - size) / 2.0)
    return pixels[top : top + size, left : left + size]


@pytest.mark.parametrize("size", range(1, 21))
def test_the_centre_is_that_of_torchvision(size):
    for short, long in ((7, 7), (8, 13), (8, 14), (9, 16), (9, 18), (20, 31)):
        shades = np.random.default_rng(long).integers(1, 256, (short, long), dtype=np.uint8)
        for pixels in (shades, shades.T):
            plain = Preprocess(size, size, short, "nearest", (0.0,) * 3, (1.0,) * 3, crop="round")
            cropped = plain(Image.fromarray(pixels).convert("RGB"))[0] * 255
            np.testing.assert_allclose(cropped, torchvision_crop(pixels, size), atol=1e-3)


def test_a_crop_of_an_odd_excess_is_a_pixel_from_that_of_transformers():
    # Models of transformers are cropped as CLIP was trained; folders converted earlier stay as they are.
    config = {"size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8}}
    config |= {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    ours = Preprocess.from_processor(config)
    earlier = Preprocess.from_json({key: value for key, value in asdict(ours).items() if key != "crop"})
    assert (ours.crop, earlier.crop) == ("round", "floor")
    starts = []
    for width in range(8, 20):
        stripes = Image.fromarray(np.tile(np.arange(width, dtype=np.uint8), (8, 1))).convert("RGB")
        starts.append([round(float(each(stripes)[0, 0, 0]) * 255) for each in (ours, earlier)])
    cut = np.arange(12)
    np.testing.assert_array_equal(np.array(starts).T, [cut // 2 + (cut % 4 == 3), cut // 2])


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F", "HSV"])
def test_thumbnails_of_every_mode(mode):
    with Image.open(io.BytesIO(thumbnail(Image.new(mode, (500, 3)), 112))) as small:
        assert (small.format, small.mode, small.size) == ("JPEG", "RGB", (112, 1))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF"])
def test_thumbnails_carry_no_metadata(kind):
    exif = Image.Exif()
    exif[0x010E] = "private " * 1000
    more = {"icc_profile": b"private " * 1000, "exif": exif}
    more |= {"comment": b"private " * 1000} if kind in ("JPEG", "GIF") else {}
    content = encoded(draw("red", 1, (300, 200)), kind, **more)
    assert b"private" in content
    with Image.open(io.BytesIO(content)) as opened:
        for image in (opened, open_image(content), open_image(opened)):
            small = thumbnail(image, 96)
            assert len(small) < 5000
            assert b"private" not in small
            assert set(Image.open(io.BytesIO(small)).info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (5, "pass an image .* or several of them, got int"),
        (None, "got NoneType"),
        ({"a": 1}, "none of 'a' in a dict is an image"),
        ([5], "an image is a path, encoded bytes, .* got int"),
        ("a" * 5000, "^a{200} cannot be read: File name too long$"),
        ("a\0b", "embedded null byte"),
    ],
)
def test_a_classifier_refuses_files_that_are_no_images(images, message):
    with pytest.raises(AcclimateError, match=message):
        Classifier(["cat", "dog"])(images)


PHOTO = draw("red", 1)
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="6"/></x:xmpmeta>'
PLAIN_JPEGS = {
    "quality": encoded(PHOTO, "JPEG", quality=30),
    "no subsampling": encoded(PHOTO, "JPEG", subsampling=0),
    "optimized": encoded(PHOTO, "JPEG", optimize=True),
    "as long as is read whole": encoded(draw("red", 1, (640, 40)), "JPEG"),
}
OTHERS = {
    "gray": encoded(PHOTO.convert("L"), "JPEG"),
    "progressive": encoded(PHOTO, "JPEG", progressive=True),
    "CMYK": encoded(PHOTO.convert("CMYK"), "JPEG"),
    "RGB": encoded(PHOTO, "JPEG", keep_rgb=True),
    "cut off": encoded(PHOTO, "JPEG")[:-2],
    "with more at its end": encoded(PHOTO, "JPEG") + b"\0",
    "longer": encoded(draw("red", 1, (641, 40)), "JPEG"),
    "turned by XMP": encoded(PHOTO, "JPEG", xmp=XMP),
    "PNG": encoded(PHOTO),
}


@pytest.mark.parametrize("content", PLAIN_JPEGS.values(), ids=PLAIN_JPEGS)
def test_plain_jpegs_are_for_a_gpu(content):
    assert examine_image(content).is_plain_jpeg()


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS)
def test_other_images_are_left_to_pillow(content):
    assert not examine_image(content).is_plain_jpeg()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_jpegs_that_must_be_turned_are_left_to_pillow(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    examined = examine_image(encoded(PHOTO, "JPEG", exif=exif))
    assert examined.is_plain_jpeg() == (orientation == 1)
    assert examined.is_plain_jpeg(upright=False)
