"""`benchmarks/gpu.py`: the script runs where there is no GPU, and its random encoders behave like trained ones."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from acclimate import Head
from acclimate.encoders import load_encoder
from acclimate.images.opening import open_image

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # last: some modules there and here have the same name

from gpu_parts.models import save_vit  # noqa: E402
from gpu_parts.photos import draw_photos, label_names  # noqa: E402
from gpu_parts.report import Report  # noqa: E402


def test_features_of_drawn_photos_and_labels_are_spread(tmp_path):
    photos = draw_photos(tmp_path / "photos", 48, workers=1)
    labels = label_names(50)
    sizes = {open_image(path).size for path in draw_photos(tmp_path / "mixed", 6, workers=1, mixed=True)}
    assert len(sizes) > 3
    encoder = load_encoder(f"local:{save_vit(tmp_path / 'vit', photos[:32], labels, 'cpu', tiny=True)}", "cpu")
    features = encoder.encode_images([encoder.prepare(open_image(path)) for path in photos])
    texts = encoder.encode_text([f"a photo of a {label}." for label in labels])
    for rows in (features, texts):
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        cosines = (unit @ unit.T)[np.triu_indices(len(rows), 1)]
        assert abs(cosines.mean()) < 0.1
        assert np.quantile(np.abs(cosines), 0.9) < 0.7
    evidence = Head(texts, encoder.logit_scale).observe(features)
    assert len(set(evidence.logits.argmax(axis=1).tolist())) > 12
    assert np.quantile(evidence.entropy, 0.9) - np.quantile(evidence.entropy, 0.1) > 0.3


def test_a_report_begins_with_a_summary(tmp_path, capsys):
    report = Report()
    report.table("Rates", ("", "images/s"), [["tower", "1,200"], ["whole", "900"]], "A note.")
    report.figure("images/s", 900)
    report.figure("share", 0.2, 2)
    report.bar("whole", "whole", 900.0)
    report.summary()
    report.write(tmp_path / "gpu.md", "python benchmarks/gpu.py", "cpu", "About.")
    page = (tmp_path / "gpu.md").read_text()
    assert page.startswith("# Speed on a GPU\n\n`python benchmarks/gpu.py`: ")
    assert page.index("## Summary") < page.index("![") < page.index("## Rates")
    assert "| images/s |      900 |" in page
    assert "| share    |     0.20 |" in page
    picture = (tmp_path / "gpu.png").read_bytes()
    Report.read(tmp_path / "gpu.csv").draw(tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == picture
    assert "## Summary" in capsys.readouterr().out


@pytest.mark.slow
def test_every_table_can_be_made_without_a_gpu(tmp_path):
    command = [sys.executable, BENCHMARKS / "gpu.py", "--device", "cpu", "--tiny", "--to", tmp_path / "gpu.md"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    assert "failed:" not in ran.stdout, ran.stdout
    page = (tmp_path / "gpu.md").read_text()
    titles = (
        "Each stage alone",
        "The whole",
        "The whole by batch size",
        "A step of the adapter",
        "Against the published way",
        "From files to answers",
        "Pixels resized on the device",
    )
    for title in (*titles, "What adapting adds", "4 views", "Same answers", "ResNet-50", "Out of memory"):
        assert f"## {title}" in page
