"""Loading of a model: the image side beside other work, the text side when a text is encoded."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from acclimate import build_head
from acclimate.encoders import load_encoder, onnx
from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import ModelError
from drawn_images import draw
from tiny_models import MEANS, STDS

WORDS = ["a photo of a cat.", "dog"]


@pytest.fixture
def loaded(monkeypatch):
    """Return a list to which the names of loaded graphs are added."""
    names = []
    real = onnx._session

    def session(path, *arguments):
        names.append(path.name)
        return real(path, *arguments)

    monkeypatch.setattr(onnx, "_session", session)
    return names


def test_the_text_side_is_loaded_for_the_first_text(tiny_onnx, loaded, tmp_path):
    encoder = load_encoder(f"onnx:{tiny_onnx}")
    encoder.encode_images([encoder.prepare(draw("red", 0))])
    assert loaded == ["image.onnx"]
    head = build_head(encoder, ["cat", "dog"], cache=tmp_path)
    encoder.encode_text(WORDS)
    assert loaded == ["image.onnx", "text.onnx"]
    again = load_encoder(f"onnx:{tiny_onnx}")
    assert np.array_equal(build_head(again, ["cat", "dog"], cache=tmp_path).class_vectors, head.class_vectors)
    assert loaded == ["image.onnx", "text.onnx", "image.onnx"]


def test_threads_that_encode_their_first_texts_load_the_text_side_once(tiny_onnx, loaded):
    encoder = load_encoder(f"onnx:{tiny_onnx}")
    with ThreadPoolExecutor(8) as pool:
        vectors = list(pool.map(encoder.encode_text, [WORDS] * 16))
    assert loaded == ["image.onnx", "text.onnx"]
    assert all(np.array_equal(each, vectors[0]) for each in vectors)


@pytest.mark.parametrize(
    ("name", "message"), [("text.onnx", "text.onnx cannot be loaded"), ("tokenizer.json", "cannot be read")]
)
def test_a_damaged_text_side_is_refused_whenever_a_text_is_encoded(tiny_onnx, tmp_path, name, message):
    shutil.copytree(tiny_onnx, tmp_path / "model")
    (tmp_path / "model" / name).write_bytes(b"{")
    encoder = load_encoder(f"onnx:{tmp_path / 'model'}")
    for _ in range(2):
        with pytest.raises(ModelError, match=message):
            encoder.encode_text(WORDS)


def test_a_short_run_loads_only_what_it_needs(tiny_onnx, photos, tmp_path):
    heavy = ["matplotlib", "pyarrow", "rich", "tokenizers", "torch", "transformers"]
    if hasattr(np, "__array_api_version__"):  # NumPy 1 needs it
        heavy.append("array_api_compat.numpy")
    command = ["acclimate", "classify", str(photos), "--labels", "red, green", "--model", f"onnx:{tiny_onnx}"]
    code = f"""
import os, sys
os.environ["ACCLIMATE_CACHE"] = {str(tmp_path)!r}
sys.argv = {command}
from acclimate.cli import app
app(standalone_mode=False)
print([name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""
    for seen in ("['tokenizers']", "[]"):  # the texts are cached then
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert ended.stderr.splitlines()[-1] == seen


def test_prepared_pixels_are_normalised_as_by_arithmetic():
    size = 64
    mean = np.float32(MEANS["clip"])
    std = np.float32(STDS["clip"])
    prepare = Preprocess(size, size, size, "bicubic", tuple(MEANS["clip"]), tuple(STDS["clip"]))
    values = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    values[:16, :16] = np.arange(256).reshape(16, 16, 1)  # every value in every channel
    expected = ((values.astype(np.float32) / np.float32(255.0) - mean) / std).transpose(2, 0, 1)
    prepared = prepare(Image.fromarray(values))
    assert np.array_equal(prepared, expected)
    assert prepared.flags.c_contiguous
