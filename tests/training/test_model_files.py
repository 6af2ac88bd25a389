"""The scripts that made the bundled model, on tiny random models."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the training scripts use PyTorch")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx", reason="the training scripts write ONNX")

from fit_keys import whiten  # noqa: E402
from names import lemmas  # noqa: E402
from text_model import TextModel, TextSize  # noqa: E402
from tower_graph import FLOAT32, ROUNDED, write_graph  # noqa: E402
from tower_model import Tower, with_keys  # noqa: E402

SCRIPTS = Path(__file__).parents[2] / "training"
WIDTH = 384
DIM = 16
SIZE = 32


@pytest.mark.parametrize(("level", "least"), [(FLOAT32, 0.99999), (ROUNDED, 0.99)])
def test_the_graph_computes_what_the_formula_says(packed, tmp_path, level, least):
    pixels = np.random.default_rng(1).standard_normal((3, 3, SIZE, SIZE)).astype(np.float32)
    with torch.inference_mode():
        features, summary = Tower(packed)(torch.from_numpy(pixels))
    write_graph(tmp_path / "tower.onnx", packed, None, level)
    outputs = onnxruntime.InferenceSession(tmp_path / "tower.onnx").run(["features", "summary"], {"pixels": pixels})
    assert (outputs[0] * features.numpy()).sum(axis=1).min() > least
    assert np.allclose(outputs[1], summary.numpy(), atol=1e-3 if level == FLOAT32 else 0.3)

    keys = {**whiten(np.random.default_rng(2).standard_normal((500, 2 * WIDTH)), 8), "share": np.float64(0.5)}
    write_graph(tmp_path / "keyed.onnx", packed, keys, level)
    keyed = onnxruntime.InferenceSession(tmp_path / "keyed.onnx").run(["features"], {"pixels": pixels})[0]
    assert keyed.shape == (3, DIM + 8)
    assert (keyed * with_keys(features, summary, keys).numpy()).sum(axis=1).min() > least


def test_whitened_keys_have_no_common_direction():
    rng = np.random.default_rng(0)
    alike = 5 + rng.standard_normal((2000, 3)) @ np.array([[3.0, 0, 0, 1], [0, 0.2, 0, 1], [0, 0, 0.1, 1]])
    keys = whiten(alike, 3)
    white = alike @ keys["w"].astype(np.float64).T + keys["b"]
    covariance = np.cov(white.T)
    assert np.allclose(white.mean(axis=0), 0, atol=0.05)
    assert np.allclose(covariance / covariance[0, 0], np.eye(3) * np.diag(covariance) / covariance[0, 0], atol=0.05)


def test_words_of_a_wordnet_index(tmp_path):
    index = tmp_path / "index.noun"
    index.write_text(
        "  1 a licence line\n"
        "cat n 2 1 @ 2 1 02121620 10161622  \n"
        "lap_of_the_gods n 1 1 @ 1 0 07412310  \n"
        "sea_cow n 1 1 @ 1 0 02074726  \n"
        "3d n 1 1 @ 1 1 00000001  \n"
    )
    assert lemmas(index) == ["cat", "sea cow"]
    assert lemmas(index, common=True) == ["cat"]


@pytest.mark.slow
def test_the_text_side_as_onnx(tmp_path):
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models

    torch.manual_seed(0)
    size = TextSize(vocabulary=512, context=8, width=64, layers=1, heads=2, dim=24)
    (tmp_path / "student").mkdir()
    save_file(TextModel(size).state_dict(), tmp_path / "student" / "text.safetensors")
    (tmp_path / "student" / "text.json").write_text(json.dumps(vars(size)))
    Tokenizer(models.WordLevel({"[PAD]": 0, "cat": 1}, "[PAD]")).save(str(tmp_path / "student" / "tokenizer.json"))
    np.savez(tmp_path / "keys.npz", b=np.zeros(5))
    command = [sys.executable, SCRIPTS / "export_text.py", "student", "--keys", "keys.npz", "--to", "model"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    session = onnxruntime.InferenceSession(tmp_path / "model" / "text.onnx")
    features = session.run(None, {"ids": np.array([[1, 2, 0, 0, 0, 0, 0, 0]] * 2)})[0]
    assert features.shape == (2, 29)
    assert np.allclose(np.linalg.norm(features, axis=1), 1, atol=1e-3)
    assert not features[:, 24:].any()
