"""Fixtures of all tests."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from acclimate.bench.synthetic import shifted_stream
from acclimate.sources.features import write_stream

settings.register_profile("acclimate", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("acclimate")


@pytest.fixture
def shared():
    """The folder of real data that may lie beside the project."""
    return Path(__file__).parents[2] / "shared"


@pytest.fixture(params=["numpy", "torch", "cuda"])
def to_backend(request):
    """A function that brings NumPy arrays to the array library and device under test."""
    if request.param == "numpy":
        return np.asarray
    torch = pytest.importorskip("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return partial(torch.asarray, device="cuda" if request.param == "cuda" else "cpu")


@pytest.fixture
def stream():
    return shifted_stream(samples=400, classes=8, dim=32, seed=1)


@pytest.fixture
def stream_file(stream, tmp_path):
    path = tmp_path / "shifted.safetensors"
    write_stream(stream, path)
    return path
