"""`acclimate classify --none-of-these`."""

import csv

import numpy as np
from PIL import Image

from acclimate.predict import NONE


def draw_colours_and_noise(folder):
    for colour in ("red", "green"):
        Image.new("RGB", (64, 64), colour).save(folder / f"{colour}.png")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "noise.png")


def test_the_command_writes_labels_and_scores(invoke, tmp_path):
    draw_colours_and_noise(tmp_path)
    out = tmp_path / "results.csv"
    invoke("classify", tmp_path, "--labels", "red color, green color", "--none-of-these", "--out", out)
    with out.open(encoding="utf-8") as file:
        rows = {row["file"].rsplit("/", 1)[-1]: row for row in csv.DictReader(file)}
    assert {name: row["label"] for name, row in rows.items()} == {
        "red.png": "red color",
        "green.png": "green color",
        "noise.png": NONE,
    }
    assert all((float(row["none_score"]) >= 0.5) == (row["label"] == NONE) for row in rows.values())


def test_one_label_is_enough(invoke, tmp_path):
    draw_colours_and_noise(tmp_path)
    out = tmp_path / "results.csv"
    report = tmp_path / "report.html"
    invoke("classify", tmp_path, "--labels", "red color", "--none-of-these", "--out", out, "--report", report)
    with out.open(encoding="utf-8") as file:
        labels = {row["file"].rsplit("/", 1)[-1]: row["label"] for row in csv.DictReader(file)}
    assert (labels["red.png"], labels["noise.png"]) == ("red color", NONE)
    assert "3 images sorted into 1 label." in report.read_text("utf-8")


def test_the_negatives_of_any_model_are_encoded(invoke, tiny_onnx, photos, tmp_path):
    out = tmp_path / "results.csv"
    model = ("--model", f"onnx:{tiny_onnx}")
    invoke("classify", photos, "--labels", "red circle, cat", "--none-of-these", *model, "--out", out)
    with out.open(encoding="utf-8") as file:
        assert all(row["none_score"] for row in csv.DictReader(file))
    stderr = invoke("classify", photos, "--labels", "cat, None_of these", "--none-of-these", exit_code=2).stderr
    assert "'None_of these' is the answer for images that belong to no label; leave this label out" in stderr
