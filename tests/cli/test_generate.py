"""`acclimate generate`, with a generator that draws instead of a diffusion model."""

from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image, ImageOps

from acclimate import read_stream
from acclimate.views import generated
from acclimate.views.generated import GeneratedFolder


class Tinted:
    """The image itself, tinted in as many ways as are asked for."""

    source = "tinted"

    def __init__(self):
        self.calls = []

    def generate(self, image, name, count, seed):
        self.calls.append(name)
        grey = ImageOps.grayscale(image)
        return [ImageOps.colorize(grey, "black", (255 - 20 * i, seed, 20 * i)) for i in range(count)]


@pytest.fixture
def tinted(monkeypatch):
    generator = Tinted()
    by_name = generated.open_generator
    monkeypatch.setattr(
        generated, "open_generator", lambda name, device: generator if name == "tinted" else by_name(name, device)
    )
    return generator


def test_images_are_generated_once_and_used(invoke, tinted, photos, tiny_onnx, tmp_path):
    command = ("generate", photos, "--out", "made", "--generator", "tinted", "--count", 3)
    assert "made: 40 images done, 0 were there already, 0 could not be read" in invoke(*command).stderr
    folder = GeneratedFolder(tmp_path / "made")
    name = sorted(map(str, photos.rglob("*.png")))[0]
    assert [path.name for path in folder.files(name)] == ["0.png", "1.png", "2.png"]
    folder.files(name)[1].unlink()
    tinted.calls.clear()
    assert "made: 1 image done, 39 were there already" in invoke(*command).stderr
    assert (tinted.calls, len(folder.files(name))) == ([name], 3)
    model = ("--labels", "red,green,blue", "--model", f"onnx:{tiny_onnx}")
    diffusion = ("--views", 7, "--encode", "views_kind=diffusion", "--encode", "generated=made")
    invoke("embed", photos, *model, *diffusion, "--out", "f.safetensors")
    stream = read_stream(tmp_path / "f.safetensors")
    assert (stream.views, stream.views_kind, len(stream)) == (7, "diffusion", 40)
    too_many = invoke("classify", photos, *model, "--views", 9, *diffusion[2:], "--passes", 1, exit_code=1)
    assert "3 generated images, 4 are needed" in too_many.stdout
    assert "no image could be read. The first is" in too_many.stderr
    assert "3 generated images, 4 are needed" in too_many.stderr


def test_unreadable_and_turned_images(invoke, tinted, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bad.png").write_bytes(b"junk")
    assert (
        "no image could be read"
        in invoke("generate", "in", "--out", "made", "--generator", "tinted", exit_code=1).stderr
    )
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20)).save(tmp_path / "in" / "turned.png", exif=exif)
    for option, size in (("--upright", (20, 30)), ("--no-upright", (30, 20))):
        said = invoke("generate", "in", "--out", option[2:], "--generator", "tinted", "--count", 1, option).stderr
        assert "skipped in/bad.png: not an image" in said
        (path,) = GeneratedFolder(tmp_path / option[2:]).files("in/turned.png")
        with Image.open(path) as image:
            assert image.size == size


def test_images_that_would_share_a_folder(invoke, tinted, tmp_path):
    for name in ("a/x", "b/x"):
        (tmp_path / name).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / name / "1.png")
    (tmp_path / "list.txt").write_text("a/x/1.png\nb/x/1.png\n")
    said = invoke("generate", "list.txt", "--out", "made", "--generator", "tinted", exit_code=2).stderr
    assert "a/x/1.png and b/x/1.png would share a folder below made" in said
    assert not (tmp_path / "made").exists()


def test_without_diffusers(invoke, photos):
    if find_spec("diffusers") is not None:
        pytest.skip("diffusers is installed")
    said = invoke("generate", photos, "--out", "made", "--generator", "diffusers:some/model", exit_code=2).stderr
    assert said.startswith("error: generating images needs diffusers")
