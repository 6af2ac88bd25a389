"""`acclimate embed`: runs, feature files made of them, and the paper's datasets."""

import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from acclimate import create, read_stream
from acclimate.run import Run
from acclimate.sources.datasets import DATASETS
from drawn_images import draw
from miniatures import draw_dataset, draw_training_images, few
from waiting import wait_until

LABELS = ("--labels", "red, green")


@pytest.fixture
def model(tiny_onnx):
    return ("--model", f"onnx:{tiny_onnx}")


@pytest.fixture
def mixed(here):
    """Return a folder with images of three colours, one of which cannot be read."""
    for index in range(12):
        colour = ("red", "green", "blue")[index % 3]
        (here / "mixed" / colour).mkdir(parents=True, exist_ok=True)
        draw(colour, index).save(here / "mixed" / colour / f"{index}.png")
    (here / "mixed" / "red" / "0.png").write_bytes(b"no image")
    return "mixed"


def test_a_run_says_what_it_was_made_with_and_what_it_holds(invoke, model, mixed, here):
    said = invoke("embed", mixed, *LABELS, *model, "--views", 3, "--out", "a.run").stderr
    assert "skipped mixed/red/0.png: " in said
    assert "a.run: 11 images, 7 of them with true labels; try `acclimate run a.run`." in said
    run = Run.open(here / "a.run")
    assert (run.images, run.complete, run.answer) == (12, True, {"labels": ["red", "green"], "templates": ["single"]})
    made = {"model": model[1], "views": 3, "views_kind": "augmix", "decoder": "pillow", "precision": "float32"}
    assert run.features.items() >= made.items()
    assert run.features["seconds"] > 0
    stream = read_stream(here / "a.run")
    assert (len(stream), stream.views, stream.skipped, stream.encoder) == (11, 3, 1, model[1])
    truth = [name.split("/")[1] for name in stream.files]
    assert stream.targets.tolist() == [{"red": 0, "green": 1}.get(colour, -1) for colour in truth]
    assert 0 < stream.encode_s == run.features["seconds"]


def test_a_feature_file_is_made_of_a_run(invoke, model, mixed, here):
    invoke("embed", mixed, *LABELS, *model, "--out", "a.run")
    invoke("embed", mixed, *LABELS, *model, "--out", "a.npz")
    run, file = (read_stream(here / name) for name in ("a.run", "a.npz"))
    np.testing.assert_array_equal(run.features[:], file.features)
    np.testing.assert_array_equal(run.features[np.array([3, 0, 9])], file.features[[3, 0, 9]])
    assert run.targets.tolist() == file.targets.tolist()
    np.testing.assert_array_equal(run.head.class_vectors, file.head.class_vectors)
    assert (run.encoder, run.files, run.prompts) == (file.encoder, file.files, file.prompts)


def test_images_of_no_label_are_learnt_from_and_not_scored(invoke, model, mixed, here):
    invoke("embed", mixed, *LABELS, *model, "--out", "a.run")
    stream = read_stream(here / "a.run")
    logits = create("tda", stream.head).step(stream.features[:])
    known = stream.targets >= 0
    right = np.mean(logits.argmax(axis=1)[known] == stream.targets[known])
    table = invoke("run", "a.run", "--method", "tda", "--per-class").stdout
    (line,) = [line for line in table.splitlines() if line.startswith("a ") and " tda " in line and "+" in line]
    assert line.split()[2:4] == ["7", f"{100 * right:.2f}"]
    assert invoke("run", "a.run", "--order", "class-sequential:1", "--orders", 2).stdout.count("  7 ") == 3


def test_an_unfinished_run_is_continued(invoke, model, mixed, here):
    command = ("embed", mixed, *LABELS, *model, "--encode", "batch_size=5")
    invoke(*command, "--out", "whole.run")
    shutil.move(here / "mixed" / "blue", here / "blue")
    invoke(*command, "--out", "part.run")
    shutil.move(here / "blue", here / "mixed" / "violet")
    assert "is there already; continue it with --resume" in invoke(*command, "--out", "part.run", exit_code=2).stderr
    said = invoke(*command, "--out", "part.run", "--resume").stderr
    assert "part.run: 11 images, " in said
    again = Run.open(here / "part.run")
    assert (again.images, again.complete) == (12, True)
    for refused, why in ((("--views", 2), "has the views 1, not 2"), (("--out", "f.npz"), "--resume continues a run")):
        assert why in invoke(*command, "--out", "part.run", "--resume", *refused, exit_code=2).stderr
    draw("red", 1).save(here / "mixed" / "a.png")
    assert "begins with other images" in invoke(*command, "--out", "part.run", "--resume", exit_code=2).stderr


@pytest.mark.slow
def test_a_stopped_command_keeps_what_it_has_encoded(tiny_onnx, here):
    (here / "many").mkdir()
    for index in range(400):
        draw("red", index).save(here / "many" / f"{index:03d}.png")
    command = ["embed", "many", *LABELS, "--model", f"onnx:{tiny_onnx}", "--encode", "batch_size=1", "--out", "a.run"]
    process = subprocess.Popen([sys.executable, "-m", "acclimate", *command], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (here / "a.run" / "owner").is_file() or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    if process.returncode:  # it may have been faster
        assert process.returncode == 130, errors
        assert "stopped; what was encoded is in a.run; --resume continues." in errors
    run = [sys.executable, "-m", "acclimate", *command, "--resume"]
    assert subprocess.run(run, check=True, capture_output=True).returncode == 0
    assert Run.open(here / "a.run").names == [f"many/{index:03d}.png" for index in range(400)]


def test_a_dataset_has_its_names_prompts_and_splits(invoke, model, here):
    draw_dataset(here / "data", DATASETS["imagenet"], {744: 2, 657: 2, 1: 1})
    draw_training_images(here / "data", few(1000, 1) | few(2, 3))
    single = ("--data", "data", *model, "--template", "single")
    said = invoke("embed", "dataset:imagenet", *single, "--out", "a.run").stderr
    assert "warning: imagenet: 5 test images instead of 50,000. The figures are not those of the benchmark." in said
    stream = read_stream(here / "a.run")
    assert stream.head.class_names == DATASETS["imagenet"].labels
    assert stream.targets.tolist() == [1, 657, 657, 744, 744]
    assert (stream.prompts, stream.notes["dataset"], stream.notes["split"]) == ("single", "imagenet", "test")
    first, second = (stream.head.class_vectors[index] for index in (657, 744))  # missile, and missile
    np.testing.assert_array_equal(first, second)
    invoke("embed", "dataset:imagenet#train:2", *single, "--out", "train.npz")
    train = read_stream(here / "train.npz")
    assert (len(train), train.notes["split"]) == (1002, "train")
    assert (
        "needs --data, the folder of the datasets"
        in invoke("embed", "dataset:dtd", "--out", "x.run", exit_code=2).stderr
    )


def test_the_domains_of_renditions_are_in_their_names(invoke, model, here):
    dataset = DATASETS["imagenet-r"]
    folder = draw_dataset(here / "data", dataset, few(classes=2, per_class=4)) / "imagenet-r"
    for wnid in dataset.wnids[:2]:
        for i in (2, 3):
            (folder / wnid / f"art_{i}.jpg").rename(folder / wnid / f"toy_{i}.jpg")
    invoke("embed", "dataset:imagenet-r", "--data", "data", *model, "--template", "single", "--out", "r.run")
    assert read_stream(here / "r.run").domains == ("art", "art", "toy", "toy") * 2
    assert "r " in invoke("run", "r.run", "--order", "domain-shift:0").stdout


def test_a_run_without_class_vectors_says_what_to_do(invoke, model, mixed, here):
    invoke("embed", mixed, *LABELS, *model, "--out", "a.run")
    (here / "a.run" / "head.safetensors").unlink()
    assert "a.run has no class vectors; answer it with" in invoke("run", "a.run", exit_code=2).stderr
    (here / "a.run" / "000000.safetensors").write_bytes(b"damaged")
    assert "000000.safetensors" in invoke("run", "a.run", exit_code=1).stderr


def test_a_leaderboard_of_runs(invoke, model, mixed, here):
    invoke("embed", mixed, *LABELS, *model, "--out", "a.run")
    options = ("--orders", 1, "--shape", "shuffled", "--jobs", 1, "--out", "board")
    assert "tda" in invoke("leaderboard", "a.run", "--method", "tda", *options).stdout
    assert "prior" in invoke("leaderboard", "a.run", "--method", "prior", *options, "--add").stdout
    shutil.rmtree(here / "a.run")
    invoke("embed", mixed, *LABELS, *model, "--out", "a.run")  # another run of the same images
    assert "is not as on the board" in invoke("leaderboard", "a.run", *options, "--add", exit_code=2).stderr
