"""The tiny model, and images for it."""

import io

import pytest

from acclimate.encoders import load_encoder
from drawn_images import draw


@pytest.fixture(scope="session")
def encoder(tiny_onnx):
    return load_encoder(f"onnx:{tiny_onnx}", "cpu")


@pytest.fixture(scope="session")
def pictures():
    """Return twelve drawn images as PNG files."""
    files = [io.BytesIO() for _ in range(12)]
    for seed, file in enumerate(files):
        draw(("red", "green", "blue")[seed % 3], seed).save(file, "PNG")
    return [file.getvalue() for file in files]
