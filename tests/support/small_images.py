"""Tiny images whose red channel tells them apart, and what the tests of sources ask of samples."""

import io
import tarfile

from PIL import Image


def encoded(shade=0, kind="PNG"):
    buffer = io.BytesIO()
    Image.new("RGB", (4, 3), (shade % 256, 10, 20)).save(buffer, kind)
    return buffer.getvalue()


def draw(path, shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), (shade, 10, 20)).save(path)
    return path


def names(samples):
    return [sample.name for sample in samples]


def labels(samples):
    return [sample.label for sample in samples]


def shade(sample):
    return Image.open(io.BytesIO(sample.read())).convert("RGB").getpixel((0, 0))[0]


def write_tar(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
