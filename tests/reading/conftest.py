"""The tiny model, and images for it."""

import pytest

from acclimate.encoders import load_encoder
from drawn_images import draw, encoded


@pytest.fixture(scope="session")
def encoder(tiny_onnx):
    return load_encoder(f"onnx:{tiny_onnx}", "cpu")


@pytest.fixture(scope="session")
def pictures():
    """Return twelve drawn images as PNG files."""
    return [encoded(draw(("red", "green", "blue")[seed % 3], seed)) for seed in range(12)]
