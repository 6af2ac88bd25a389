"""Features that are tensors, as those of a model on a GPU are: every command gives what it gives for NumPy arrays."""

import csv

import numpy as np
import pytest

from acclimate import Classifier, load_encoder, read_stream
from acclimate.encoders.onnx import OnnxEncoder
from drawn_images import draw

torch = pytest.importorskip("torch")
LABELS = ["red circle", "green square", "blue stripes"]
PICTURES = [draw(("red", "green", "blue")[i % 3], i) for i in range(24)]


@pytest.fixture
def on_tensors(monkeypatch):
    """From then on, encoders give tensors, and classifiers keep their adapters there."""
    encode = OnnxEncoder.encode_images

    def switch():
        monkeypatch.setattr(OnnxEncoder, "encode_images", lambda *given: torch.as_tensor(encode(*given)))
        monkeypatch.setattr("acclimate.classifier.gpu_of", lambda encoder: "cpu")

    return switch


@pytest.fixture
def both(on_tensors):
    """Return the results of some work for arrays and for tensors."""

    def run(work):
        first = work("arrays")
        on_tensors()
        return first, work("tensors")

    return run


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def close(one, other):
    """Return True if two tables are equal, numbers up to rounding."""

    def value(cell):
        try:
            return round(float(cell), 3)
        except ValueError:
            return cell

    return [{k: value(v) for k, v in row.items()} for row in one] == [
        {k: value(v) for k, v in row.items()} for row in other
    ]


@pytest.mark.parametrize("method", ["accord", "tda", "dota", "zero-shot"])
def test_classifying_and_correcting(invoke, both, tiny_onnx, photos, method):
    model = ["--model", f"onnx:{tiny_onnx}"]

    def work(name):
        out = f"{name}.csv"
        state = f"{name}.safetensors"
        options = ["--out", out, "--state", state, "--none-of-these", "--skip-duplicates", "--encode", "batch_size=8"]
        invoke("classify", photos, *model, "--labels", ",".join(LABELS), "--method", method, *options)
        classified = rows(out)
        with open("fixes.csv", "w", encoding="utf-8") as file:
            file.write(f"file,label\n{classified[0]['file']},{LABELS[0]}\n{classified[1]['file']},{LABELS[1]}\n")
        invoke("correct", out, "fixes.csv", "--state", state, *model)
        frozen = ["--out", f"{name}-again.csv", "--state", state, "--freeze"]
        invoke("classify", photos, *model, "--labels", ",".join(LABELS), "--method", method, *frozen)
        return classified, rows(out), rows(f"{name}-again.csv")

    for one, other in zip(*both(work), strict=True):
        assert close(one, other)


def test_embedding_and_fitting(invoke, both, tiny_onnx, photos):
    model = ["--model", f"onnx:{tiny_onnx}"]

    def work(name):
        invoke("embed", photos, *model, "--labels", ",".join(LABELS), "--out", f"{name}.safetensors", "--views", "3")
        fit = ["--method", "tip-adapter", "--shots", "3", "--views", "2", "--out", f"{name}-fit.safetensors"]
        invoke("fit", photos, *model, *fit)
        invoke("classify", photos, *model, "--state", f"{name}-fit.safetensors", "--out", f"{name}.csv")
        return read_stream(f"{name}.safetensors").features, rows(f"{name}.csv")

    (features, table), (same, other) = both(work)
    np.testing.assert_allclose(features, same, atol=1e-5)
    assert close(table, other)


def test_a_classifier(both, tiny_onnx, tmp_path):
    def work(name):
        classifier = Classifier(LABELS, f"onnx:{tiny_onnx}", reject=True, cache=False)
        found = [[each.score for each in classifier.classify(PICTURES)]]
        found.append(classifier.predict_proba(PICTURES[:7]))
        [first] = classifier.stream(PICTURES[:1])
        if first.id is not None:
            classifier.correct(first.id, LABELS[2])
        classifier.correct(PICTURES[5], LABELS[1])
        found.append(classifier.predict_proba(PICTURES[:7]))
        classifier.add_labels(["yellow dots"])
        classifier.remove_labels(LABELS[:1])
        found.append(classifier.predict_proba(PICTURES))
        path = tmp_path / f"{name}.safetensors"
        classifier.save(path)
        classifier.reset()
        classifier.continue_from(path)
        assert torch.is_tensor(classifier.head.class_vectors) == (name == "tensors")
        found.append(classifier.predict_proba(PICTURES, adapt=False))
        return found

    for one, other in zip(*both(work), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_options_reach_the_model_and_the_reader(invoke, tiny_clip, tiny_onnx, photos, monkeypatch):
    labels = ["--labels", ",".join(LABELS)]
    out = ["--out", "results.csv", "--overwrite"]
    given = {}

    def load(name, *how):
        given[name] = how
        return load_encoder(f"onnx:{tiny_onnx}")

    monkeypatch.setattr("acclimate.encoders.loading.load_encoder", load)
    monkeypatch.setattr("acclimate.encoders.load_encoder", load)
    monkeypatch.setattr("acclimate.load_encoder", load)
    encode = ["--encode", "precision=bfloat16", "--encode", "compile=true", "--encode", "decoder=pillow"]
    invoke("classify", photos, "--model", "one", *labels, *out, "--device", "cpu", *encode)
    invoke("embed", photos, "--model", "two", *labels, "--out", "features.npz", "--device", "cpu", *encode)
    assert given == {"one": ("cpu", "bfloat16", True), "two": ("cpu", "bfloat16", True)}
    error = invoke(
        "classify", photos, "--model", "one", *labels, *out, "--encode", "decoder=nvjpeg", exit_code=2
    ).stderr
    assert "the decoder nvjpeg needs a model on a CUDA GPU" in error
    monkeypatch.undo()
    command = ("classify", photos, "--model", f"onnx:{tiny_onnx}", *labels, *out)
    assert "ONNX models run as they are" in invoke(*command, "--encode", "precision=float16", exit_code=2).stderr
