"""The corruptions of the bundled model's streams."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image, ImageFilter

from acclimate import load_encoder
from corrupt import CORRUPTIONS, STREAMS, corrupt, make_stream


@pytest.fixture
def image():
    """Return a grey picture with a white square."""
    pixels = np.full((60, 60, 3), 100, np.uint8)
    pixels[20:40, 20:40] = 255
    return Image.fromarray(pixels)


def difference(image, corruption, name="a.webp"):
    return np.asarray(corrupt(image, corruption, name), float) - np.asarray(image, float)


def test_there_are_twenty_streams():
    assert len(set(STREAMS)) == 20
    assert {corruption for _, corruption in STREAMS} == set(CORRUPTIONS)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_corruption_depends_on_the_name_of_the_image_alone(image, corruption):
    first, again, other = (difference(image, corruption, name) for name in ("a.webp", "a.webp", "b.webp"))
    assert np.array_equal(first, again)
    assert np.array_equal(first, other) == (corruption in ("clean", "blur", "lowres"))


def test_each_corruption_does_what_its_name_says(image):
    grey = np.ones((60, 60), bool)
    grey[20:40, 20:40] = False  # the square is white, so half of the noise would be cut off there
    assert not difference(image, "clean").any()
    noise = difference(image, "noise")[grey]
    assert noise.mean() == pytest.approx(0, abs=2)
    assert noise.std() == pytest.approx(45, rel=0.05)
    dark = np.asarray(corrupt(image, "dark", "a.webp"), float)
    assert dark[grey].mean() == pytest.approx(25, abs=1)
    assert dark[grey].std() == pytest.approx(4, rel=0.1)
    assert dark[~grey].mean() == pytest.approx(64, abs=1)
    assert corrupt(image, "blur", "a.webp") == image.filter(ImageFilter.GaussianBlur(1.2))
    small = corrupt(image, "lowres", "a.webp").resize((10, 10), Image.Resampling.BOX)
    assert np.abs(np.asarray(small, float) - np.asarray(image.resize((10, 10), Image.Resampling.BOX), float)).max() < 40
    assert len(np.unique(np.asarray(corrupt(image, "lowres", "a.webp")))) > 2  # edges are no longer sharp


def test_a_stream_of_a_pack(image, tmp_path):
    lines = ["member,dataset,domain,class_name"]
    with tarfile.open(tmp_path / "images.tar", "w") as tar:
        for i, of in enumerate(("pacs,domain 0,dog", "eurosat,,sea", "pacs,domain 2,big_cat", "pacs,domain 3,dog")):
            buffer = io.BytesIO()
            image.save(buffer, "PNG")
            member = tarfile.TarInfo(f"{i}.png")
            member.size = buffer.tell()
            buffer.seek(0)
            tar.addfile(member, buffer)
            lines.append(f"{i}.png,{of}")
    (tmp_path / "index.csv").write_text("\n".join(lines))
    stream = make_stream(tmp_path, "pacs", "noise", load_encoder())
    assert stream.targets.tolist() == [1, 0, 1]
    assert stream.head.class_names == ("big cat", "dog")
    assert stream.domains == ("domain 0", "domain 2", "domain 3")
    assert stream.features.dtype == np.float16
    assert not np.array_equal(stream.features[0], stream.features[2])  # two images, two noises
    assert len(make_stream(tmp_path, "pacs", "clean", load_encoder(), limit=2)) == 2
