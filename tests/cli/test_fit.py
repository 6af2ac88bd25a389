"""`acclimate fit`, and what takes its files: classify, run and state."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from acclimate import create, load_state, read_stream
from acclimate.files import read_snapshot
from acclimate.sources.source import draw_shots
from drawn_images import draw, draw_folder, draw_shapes


@pytest.fixture
def model(tiny_onnx):
    return ["--model", f"onnx:{tiny_onnx}"]


@pytest.fixture
def fitted(invoke, model, photos):
    """Return a file fitted to 4 of the 13 or 14 photos of each colour."""
    invoke("fit", photos, "--out", "fitted.safetensors", "--shots", 4, "--views", 2, *model)
    return "fitted.safetensors"


@pytest.mark.slow
def test_labelled_images_beat_zero_shot_with_the_bundled_model(invoke, tmp_path):
    """Ellipses and rectangles of any colour: zero-shot can only guess."""
    train = draw_shapes(tmp_path / "train", range(32))
    new = draw_shapes(tmp_path / "new", range(100, 124))
    result = invoke("fit", train, "--out", "shapes.safetensors", "--shots", 16, "--views", 1)
    assert "tip-adapter-f fitted to 32 images of 2 classes; no validation images" in result.stderr
    assert "Next: acclimate classify PHOTOS --state shapes.safetensors" in result.stderr
    rows = list(csv.DictReader(invoke("classify", new, "--state", "shapes.safetensors").stdout.splitlines()))
    right = {
        column: np.mean([row["file"].split("/")[-2] == row[column] for row in rows])
        for column in ("zero_shot_label", "label")
    }
    assert right["label"] > 0.8
    assert right["zero_shot_label"] < 0.7


def test_content_of_a_fitted_file(invoke, model, photos, fitted):
    adapter = load_state(fitted)
    assert (adapter.name, adapter.head.class_names) == ("tip-adapter-f", ("blue", "green", "red"))
    assert adapter.class_statistics()["shots"].tolist() == [4, 4, 4]
    about = read_snapshot(fitted)[1]["notes"]["fitted"]
    assert about.pop("fingerprint")
    assert about == {
        "model": model[1],
        "shots": 4,
        "most_shots": 4,
        "seed": 1,
        "source": str(photos),
        "templates": ["single"],
    }
    shown = invoke("state", "inspect", fitted).stdout
    assert f"fitted to 4 shots per class of {photos}, drawn with seed 1, encoded with {model[1]}" in shown


def test_the_seed_decides_and_nothing_else(invoke, model, photos, fitted, tmp_path):
    options = ["fit", photos, "--shots", 4, "--views", 2, *model]
    invoke(*options, "--out", "again.safetensors")
    again = load_state("again.safetensors")
    first = load_state(fitted)
    np.testing.assert_allclose(again.dump()["shots.keys"], first.dump()["shots.keys"], atol=1e-5)
    invoke(*options, "--out", "other.safetensors", "--seed", 2)
    other = load_state("other.safetensors").dump()["shots.keys"]
    assert np.abs(other - first.dump()["shots.keys"]).max() > 1e-3


def test_validation(invoke, model, photos, tmp_path):
    options = ["fit", photos, "--shots", 2, "--views", 1, "--method", "tip-adapter", *model]
    held_out = invoke(*options, "--out", "a.safetensors").stderr
    assert "tip-adapter fitted to 6 images of 3 classes; accuracy on 6 validation images: " in held_out
    assert "model alone " in held_out
    more = draw_folder(tmp_path, 9)
    assert "accuracy on 9 validation images" in invoke(
        *options, "--out", "b.safetensors", "--validation", more
    ).stderr  # fmt: skip
    assert "no validation images" in invoke(*options, "--out", "c.safetensors", "--no-validation").stderr
    assert load_state("c.safetensors").chosen() == {"alpha": 1.17, "beta": 1.0}


def test_classes_give_what_they_have(invoke, model, photos, tmp_path):
    for colour, images in {"red": 1, "green": 3, "blue": 12}.items():
        (tmp_path / "few" / colour).mkdir(parents=True)
        for path in sorted((photos / colour).iterdir())[:images]:
            (tmp_path / "few" / colour / path.name).symlink_to(path)
    options = ["fit", "few", "--shots", 8, "--views", 1, "--method", "tip-adapter", *model, "--out"]
    said = invoke(*options, "f.safetensors").stderr
    assert "note: not every class has 8 images to fit to; it is fitted to 1 to 8 shots per class." in said
    assert "accuracy on 5 validation images" in said
    assert load_state("f.safetensors").class_statistics()["shots"].tolist() == [8, 2, 1]
    assert "fitted to 1 to 8 shots per class of few" in invoke("state", "inspect", "f.safetensors").stdout
    assert "note: not every" not in invoke(*options, "g.safetensors", "--shots", 1).stderr


def test_labels_choose_classes_of_the_source(invoke, model, photos, tmp_path):
    (tmp_path / "train").mkdir()
    for colour in ("red", "blue"):
        (tmp_path / "train" / f"{colour}_thing").symlink_to(photos / colour)
    (tmp_path / "train" / "green").symlink_to(photos / "green")
    options = ["--labels", "red thing, blue thing", "--shots", 2, "--views", 1, "--no-validation"]
    result = invoke("fit", "train", "--out", "f.safetensors", *options, *model)
    assert "note: images of other classes are left out: green." in result.stderr
    assert load_state("f.safetensors").head.class_names == ("red thing", "blue thing")


def test_a_split_of_coop(invoke, model, photos, tmp_path):
    rows = [[f"{colour}/img{i}.png", i % 3, colour] for i, colour in enumerate(["red", "green", "blue"] * 4)]
    (tmp_path / "images").symlink_to(photos)
    (tmp_path / "split.json").write_text(json.dumps({"train": rows, "val": rows[:3], "test": rows[:3]}))
    options = ["--validation", "coop:split.json#val", "--shots", 4, "--views", 1]
    invoke("fit", "coop:split.json#train", "--out", "f.safetensors", *options, *model)
    assert load_state("f.safetensors").samples_seen == 12


def test_unreadable_images_are_left_out(invoke, model, tmp_path):
    train = draw_folder(tmp_path, 9)
    (train / "red" / "img0.png").write_bytes(b"not an image")
    options = ["fit", train, "--shots", 3, "--views", 1, *model, "--out"]
    said = invoke(*options, "f.safetensors").stderr
    assert "skipped" in said
    assert "fitted to 8 images of 3 classes" in said
    assert load_state("f.safetensors").class_statistics()["shots"].tolist() == [3, 3, 2]
    assert "fitted to 2 to 3 shots per class" in invoke("state", "inspect", "f.safetensors").stdout
    rest = invoke("fit", train, "--shots", 2, "--views", 1, *model, "--validation", train, "--out", "v.safetensors")
    assert "accuracy on 8 validation images" in rest.stderr
    for path in (train / "red").iterdir():
        path.write_bytes(b"not an image")
    failed = invoke(*options, "g.safetensors", exit_code=2)
    assert "none of the images of 'red' can be read. The first of 3 unreadable images is" in failed.stderr
    assert not (tmp_path / "g.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "tip-adaptor"], "unknown method 'tip-adaptor'; did you mean 'tip-adapter'"),
        (["--method", "tda"], "'tda' learns without labels; use it with `acclimate classify`"),
        (["--set", "gamma=1"], "gamma"),
        (["--labels", "red,violet"], "class 'violet' has 0 labelled samples"),
        (["--out", "nowhere/f.safetensors"], "cannot write nowhere/f.safetensors"),
        (["--out", "f" * 300], "File name too long"),
        (["--template", f"learned:{'f' * 300}"], "File name too long"),
        (["--validation", "photos", "--no-validation"], "choose one of --validation and --no-validation"),
        (["--validation", "others", "--shots", "2"], "no image of others is labelled with one of the classes"),
        (["--template", "a photo"], "has no {} for the class name"),
    ],
)
def test_errors_come_before_any_work(invoke, photos, tmp_path, options, message):
    """There is no such model: it was not yet looked for."""
    draw_shapes(tmp_path / "others", range(2))
    failed = invoke("fit", photos, "--model", "onnx:missing", "--out", "f.safetensors", *options, exit_code=2)
    assert message in failed.stderr
    assert not list(tmp_path.glob("*.safetensors"))


def test_ctrl_c_writes_nothing(invoke, model, photos, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("acclimate.methods.paper.tip_adapter_f.TipAdapterF.learn", interrupted)
    said = invoke("fit", photos, "--shots", 2, "--views", 1, *model, "--out", "f.safetensors", exit_code=130).stderr
    assert "stopped; nothing was written" in said
    assert not list(tmp_path.glob("*f.safetensors*"))


def test_settings_of_the_training(invoke, model, photos):
    options = ["--shots", 2, "--views", 1, "--set", "batch=4", "--set", "learning_rate=0.01"]
    invoke("fit", photos, *options, *model, "--out", "f.safetensors")
    assert load_state("f.safetensors").settings["batch"] == 4


def test_a_source_without_labels(invoke, photos):
    failed = invoke("fit", f"{photos}/red/*.png", "--out", "f.safetensors", exit_code=2)
    assert "14 of the 14 images" in failed.stderr
    assert "put the images of each class into a folder named after it" in failed.stderr


def test_classify_with_a_fitted_file(invoke, model, photos, fitted):
    plain = invoke("classify", photos, "--state", fitted, *model)
    same = invoke("classify", photos, "--state", fitted, "--labels", "red, green, blue", *model)
    assert plain.stdout == same.stdout
    invoke("classify", photos, "--state", fitted, *model, "--report", "report.html", "--out", "r.csv")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "tda"], "was fitted by `acclimate fit`, which decides this; leave out --method"),
        (["--set", "rounds=2"], "leave out --set"),
        (["--prompts", "a photo of a {}."], "leave out --template"),
        (["--prompts", "a {}.", "--labels", "red, green, blue"], "leave out --template"),
        (["--labels", "cat, dog"], "'tip-adapter-f' was fitted to 3 classes and cannot answer for others"),
    ],
)
def test_options_that_a_fitted_file_decides_are_refused(invoke, model, photos, fitted, options, message):
    assert message in invoke("classify", photos, "--state", fitted, *model, *options, exit_code=2).stderr


def test_a_fitted_file_of_another_model(invoke, model, photos, fitted):
    said = invoke("classify", photos, "--state", fitted, exit_code=2).stderr
    assert (
        f"{fitted} was fitted with the model {model[1]!r} (24 dimensions), not with 'bundled' (768 dimensions)" in said
    )


def test_files_that_are_not_fitted(invoke, model, photos, tmp_path):
    said = invoke("classify", photos, "--state", "missing.safetensors", *model, exit_code=2).stderr
    assert "needs labels, or a fitted file" in said
    said = invoke("classify", photos, "--method", "tip-adapter", "--labels", "a, b", *model, exit_code=2).stderr
    assert "needs to be fitted to labelled samples first: `acclimate fit`" in said
    invoke("classify", photos, "--method", "tda", "--labels", "a, b", *model, "--state", "tda.safetensors")
    said = invoke("classify", photos, "--state", "tda.safetensors", *model, exit_code=2).stderr
    assert "needs labels, or a fitted file" in said


def test_a_run_goes_on_with_the_file_that_it_began_with(invoke, model, photos, fitted, tmp_path):
    shutil.copytree(photos, "mine")
    invoke("classify", "mine", "--state", fitted, *model, "--out", "r.csv")
    other = ["--shots", 4, "--views", 2, "--seed", 2, "--no-validation"]
    content = Path(fitted).read_bytes()
    invoke("fit", photos, "--out", fitted, *other, *model)
    draw("red", 100).save(tmp_path / "mine" / "red" / "new.png")
    invoke("classify", "--resume", "--out", "r.csv")
    Path(fitted).write_bytes(content)
    invoke("classify", "mine", "--state", fitted, *model, "--out", "whole.csv")
    scores = [
        {row["file"]: row["score"] for row in csv.DictReader(Path(name).read_text().splitlines())}
        for name in ("r.csv", "whole.csv")
    ]
    assert scores[0] == scores[1]


def test_run_with_a_fitted_file(invoke, model, photos, fitted):
    invoke("embed", photos, "--labels", "blue, green, red", "--out", "photos.safetensors", *model)
    table = invoke("run", "photos.safetensors", "--fitted", fitted, "--out", "r.json").stdout
    assert [line.split()[1] for line in table.splitlines()[1:]] == ["zero-shot", "tip-adapter-f"]
    result = json.loads(Path("r.json").read_text())
    assert result["method"] == "tip-adapter-f"
    rows = list(csv.DictReader(invoke("classify", photos, "--state", fitted, *model).stdout.splitlines()))
    right = np.mean([row["file"].split("/")[-2] == row["label"] for row in rows])
    assert result["metrics"]["acc1"] == pytest.approx(right)
    invoke("embed", photos, "--labels", "red, green, blue", "--out", "others.safetensors", *model)
    said = invoke("run", "photos.safetensors", "--fitted", fitted, "--set", "alpha=3", exit_code=2).stderr
    assert "a fitted file has its settings" in said
    said = invoke("run", "others.safetensors", "--fitted", fitted, exit_code=2).stderr
    assert "'tip-adapter-f' was not fitted for these features: class 0 is 'blue' against 'red'" in said


def test_learned_prompts_take_other_labels(invoke, tiny_clip, tiny_onnx, photos):
    model = ["--model", f"local:{tiny_clip}", "--device", "cpu"]
    options = ["fit", photos, "--method", "coop", "--shots", 1, "--views", 1, "--set", "epochs=1", "--set"]
    options.append("context_tokens=2")
    invoke(*options, "--out", "coop.safetensors", *model)
    shown = invoke("state", "inspect", "coop.safetensors").stdout
    assert "coop, 3 classes" in shown
    assert "fitted to 1 shot per class" in shown
    rows = invoke("classify", f"{photos}/red", "--state", "coop.safetensors", "--labels", "cat, dog", *model).stdout
    assert {row["label"] for row in csv.DictReader(rows.splitlines())} <= {"cat", "dog"}
    said = invoke("classify", photos, "--state", "coop.safetensors", "--model", f"onnx:{tiny_onnx}", exit_code=2)
    assert f"was fitted with the model 'local:{tiny_clip}'" in said.stderr
    invoke("embed", photos, "--labels", "blue, green, red", "--out", "photos.safetensors", *model)
    said = invoke("run", "photos.safetensors", "--fitted", "coop.safetensors", exit_code=2).stderr
    assert "'coop' needs the text tower of a model, which stored features do not have" in said
    invoke(*options, "--out", "own.safetensors", "--set", "class_specific=true", *model)
    said = invoke("classify", photos, "--state", "own.safetensors", "--labels", "cat, dog", *model, exit_code=2)
    assert "'coop' was fitted to 3 classes and cannot answer for others" in said.stderr
    said = invoke(*options, "--out", "onnx.safetensors", "--model", f"onnx:{tiny_onnx}", exit_code=2).stderr
    assert "needs a text tower that takes embeddings" in said
    said = invoke(*options, "--out", "long.safetensors", "--set", "context_tokens=14", *model, exit_code=2).stderr
    assert "a context of 14 tokens does not fit; the model reads 13 at most" in said


def test_a_run_is_fitted_to_without_a_model(invoke, model, photos, tmp_path, monkeypatch):
    """The shots are those that are drawn of the images, and the versions those of the run."""
    views = ("--views", 3, "--encode", "views_kind=large-crop")
    invoke("embed", photos, "--labels", "blue, green, red", *model, *views, "--out", "photos.run")
    invoke("embed", photos, "--labels", "blue, green", *model, "--out", "two.run")
    monkeypatch.setattr("acclimate.encoders.load_encoder", None)
    said = invoke("fit", "photos.run", "--shots", 4, "--method", "tip-adapter", "--out", "f.safetensors").stderr
    assert "tip-adapter fitted to 12 images of 3 classes; accuracy on 12 validation images: model alone " in said
    stream = read_stream("photos.run")
    drawn, rest = draw_shots(stream.targets, stream.head.class_names, 4, 1, 4)
    adapter = create("tip-adapter", stream.head)
    held = stream.features[rest][:, 0], stream.targets[rest]
    adapter.fit(stream.features[drawn], stream.targets[drawn], validation=held)
    fitted = load_state("f.safetensors")
    np.testing.assert_array_equal(fitted.dump()["shots.keys"], adapter.dump()["shots.keys"])
    assert fitted.chosen() == adapter.chosen()
    assert "tip-adapter" in invoke("run", "photos.run", "--fitted", "f.safetensors").stdout
    two = ("fit", "two.run", "--shots", 30, "--no-validation", "--out", "g.safetensors")
    assert "fitted to 26 images of 2 classes; no validation images" in invoke(*two).stderr  # the others are left out
    refused = invoke("fit", "photos.run", "--labels", "blue", "--out", "h.safetensors", exit_code=2).stderr
    assert "photos.run has classes and prompts of its own" in refused
    other = ("fit", "photos.run", "--validation", "two.run", "--out", "h.safetensors")
    assert "two.run must have labels, and the classes of photos.run" in invoke(*other, exit_code=2).stderr
