"""`acclimate classify` and its neighbours, as a person would run them."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from acclimate import Accord, load_state, read_stream
from acclimate.classify.table import read_results, write_results
from acclimate.errors import count
from drawn_images import draw
from own_methods import WAITING
from waiting import wait_until

LABELS = "red circle, green square, blue stripes"


@pytest.fixture
def model(tiny_onnx):
    return ["--model", f"onnx:{tiny_onnx}", "--labels", LABELS]


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_piped_it_is_csv_and_nothing_else(invoke, model, photos):
    result = invoke("classify", photos, *model)
    rows = rows_of(result.stdout)
    assert len(rows) == 40
    assert list(rows[0]) == [
        "file",
        "label",
        "score",
        "label_2",
        "score_2",
        "label_3",
        "score_3",
        "taken",
        "folder",
        "group",
        "group_score",
        "unsure",
        "true_label",
        "correct_label",
        "none_score",
        "online_label",
        "online_score",
        "zero_shot_label",
        "zero_shot_score",
        "changed",
        "entropy",
        "index",
        "error",
        "sorted_to",
    ]
    assert [int(row["index"]) for row in rows] == list(range(40))
    assert rows[0]["file"] == f"{photos}/blue/img2.png"
    changed = sum(row["changed"] == "true" for row in rows)
    again = sum(row["label"] != row["online_label"] for row in rows)
    final = f"at the end, from everything seen, {count(again, 'answer')} changed once more"
    assert result.stderr == f"40 images classified, {count(changed, 'answer')} changed by adapting ({final}).\n"
    assert (count(1, "answer"), count(1200, "image")) == ("1 answer", "1,200 images")


def test_passes(invoke, model, photos, tmp_path):
    two = rows_of(invoke("classify", photos, *model).stdout)
    one = invoke("classify", photos, *model, "--passes", 1)
    assert one.stderr.endswith(" changed by adapting.\n")
    for online, final in zip(rows_of(one.stdout), two, strict=True):
        assert list(online) == list(final)
        assert (online["label"], online["score"]) == (online["online_label"], online["online_score"])
        assert (final["online_label"], final["online_score"]) == (online["label"], online["score"])
        assert final["zero_shot_label"] == online["zero_shot_label"]
    assert [row["score"] for row in two] != [row["online_score"] for row in two]
    invoke("classify", photos, *model, "--out", "r.csv")
    assert [dict(row) for row in rows_of((tmp_path / "r.csv").read_text())] == two
    assert sorted(path.name for path in tmp_path.glob("r.*")) == ["r.csv", "r.run"]
    frozen = invoke("classify", photos, *model, "--freeze", "--state", "r.run/state.safetensors")
    assert "at the end" not in frozen.stderr
    assert "--passes" in invoke("classify", photos, *model, "--passes", 3, exit_code=2).stderr


def test_results_state_and_report(invoke, model, photos, tmp_path):
    options = ["--out", "r.jsonl", "--state", "site.safetensors", "--report", "report.html", "--top-k", 2]
    result = invoke("classify", photos, *model, *options)
    assert result.stdout == ""
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [len(row["predictions"]) for row in rows] == [2] * 40
    assert load_state(tmp_path / "site.safetensors").samples_seen == 40
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/jpeg") >= 9
    assert "green square" in page
    invoke("classify", photos, *model, "--state", "site.safetensors", "--report", "again.html")
    assert load_state(tmp_path / "site.safetensors").samples_seen == 80
    before = (tmp_path / "site.safetensors").read_bytes()
    frozen = invoke("classify", photos, *model, "--state", "site.safetensors", "--freeze")
    assert len(rows_of(frozen.stdout)) == 40
    assert "State" not in frozen.stderr
    assert (tmp_path / "site.safetensors").read_bytes() == before


def test_it_says_what_is_right_and_what_is_unsure(invoke, tiny_onnx, photos, tmp_path):
    labels = ["--model", f"onnx:{tiny_onnx}", "--labels", "red, green, blue"]
    options = ["--out", "r.csv", "--unsure", 0.98, "--report", "report.html"]
    said = invoke("classify", photos, *labels, *options).stderr
    rows = rows_of((tmp_path / "r.csv").read_text())
    assert {row["true_label"] for row in rows} == {"red", "green", "blue"}
    unsure = sum(float(row["score"]) < 0.98 for row in rows)
    assert unsure > 1
    assert f"\n{unsure} of 40 answers are unsure (score below 0.98).\n" in said
    right = {who: sum(row[f"{who}label"] == row["true_label"] for row in rows) for who in ("zero_shot_", "")}
    assert f"\nAccuracy on 40 images: model alone {100 * right['zero_shot_'] / 40:.1f} % (95 % interval " in said
    assert f", adapted {100 * right[''] / 40:.1f} % (" in said
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"{unsure} of 40 answers are unsure" in page
    assert "What was taken for what" in page
    assert "a photo of a red." in page

    (tmp_path / "truth.csv").write_text("red/img0.png,green\nred/img3.png,none of these\nred/img6.png,\n")
    said = invoke("classify", photos, *labels, "--truth", "truth.csv")
    truths = {row["file"].split("/")[-1]: row["true_label"] for row in rows_of(said.stdout) if row["true_label"]}
    assert truths == {"img0.png": "green", "img3.png": "none of these"}
    assert "Accuracy on 2 images: " in said.stderr
    assert " So few images say little.\n" in said.stderr
    assert "unsure" not in said.stderr


def test_lists_stdin_and_order(invoke, model, photos, tmp_path):
    paths = sorted(map(str, photos.rglob("*.png")))
    (tmp_path / "list.txt").write_text("\n".join(paths[:7]))
    assert len(rows_of(invoke("classify", "list.txt", *model).stdout)) == 7
    piped = invoke("classify", "-", *model, stdin="\n".join(paths[:5])).stdout
    assert [row["file"] for row in rows_of(piped)] == paths[:5]
    shuffled = rows_of(invoke("classify", photos, *model, "--order", "shuffled:1").stdout)
    assert sorted(row["file"] for row in shuffled) == sorted(
        row["file"] for row in rows_of(invoke("classify", photos, *model).stdout)
    )
    assert [row["file"] for row in shuffled] != sorted(row["file"] for row in shuffled)


def test_methods_settings_and_templates(invoke, model, photos):
    plain = rows_of(invoke("classify", photos, *model, "--method", "zero-shot").stdout)
    assert {row["changed"] for row in plain} == {"false"}
    settings = ["--method", "tda", "--set", "positive_alpha=0", "--set", "negative=false"]
    off = invoke("classify", photos, *model, *settings).stdout
    assert [row["label"] for row in rows_of(off)] == [row["zero_shot_label"] for row in plain]
    other = rows_of(invoke("classify", photos, *model, "--template", "a large {}", "--template", "small {c}").stdout)
    assert [row["score"] for row in other] != [row["score"] for row in plain]


def test_advice_of_the_method_is_printed_at_the_end(invoke, model, photos, tmp_path, monkeypatch):
    assert "note: " not in invoke("classify", photos, *model, "--method", "tda").stderr
    monkeypatch.setattr(Accord, "advice", lambda self: "look at this.")
    said = invoke("classify", photos, *model, "--report", "report.html")
    assert said.stderr.endswith("note: look at this.\n")
    assert "Note: look at this." in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_bad_images_are_listed_and_skipped(invoke, model, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "mixed")
    (tmp_path / "mixed" / "empty.jpg").touch()
    whole = (photos / "red" / "img0.png").read_bytes()
    (tmp_path / "mixed" / "half.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "mixed" / "text.gif").write_text("not an image")
    Image.new("CMYK", (20, 20)).save(tmp_path / "mixed" / "cmyk.tiff")
    Image.fromarray(np.zeros((9, 9), np.uint16)).save(tmp_path / "mixed" / "deep.png")
    result = invoke("classify", "mixed", *model)
    rows = {row["file"]: row for row in rows_of(result.stdout)}
    assert len(rows) == 45
    failed = {name: row["error"] for name, row in rows.items() if row["error"]}
    assert set(failed) == {"mixed/empty.jpg", "mixed/half.png", "mixed/text.gif"}
    assert "42 images classified, 3 could not be read" in result.stderr


def test_nothing_readable_is_a_failed_run(invoke, model, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.jpg").touch()
    assert "no image could be read" in invoke("classify", "bad", *model, exit_code=1).stderr
    embedding = invoke("embed", "bad", *model, "--out", "f.safetensors", exit_code=1)
    assert "skipped bad/a.jpg: the file is empty" in embedding.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": "nowhere"}, "nowhere"),
        ({"source": "empty"}, "no images in"),
        ({"--labels": "cat"}, "one label ('cat') leaves nothing to choose"),
        ({"--labels": "cat, cat"}, "cat"),
        ({"--labels": " , "}, "label"),
        ({"--labels": "labels/none.txt"}, "no label file at"),
        ({"--model": "hf-openai/clip-vit-base-patch16"}, "did you mean hf:openai/clip-vit-base-patch16"),
        ({"--model": "onnx:empty"}, "no ONNX model in empty"),
        ({"--model": "local:empty"}, "holds no config.json"),
        ({"--template": "a photo"}, "a photo"),
        ({"--out": "no/such/folder/r.csv"}, "cannot write"),
        ({"--out": "r.ods"}, "results end in .csv"),
        ({"--out": "there.csv"}, "there.csv exists; pass --overwrite to replace it"),
        ({"--resume": None}, "--resume and --counts work from results"),
        ({"--order": "random"}, "random"),
        ({"--state": "broken.safetensors"}, "truncated, damaged or foreign"),
        ({"--set": "alpa=1"}, "has no setting 'alpa'"),
        ({"--truth": "none.csv"}, "cannot read the labels in none.csv: No such file"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_and_changes_nothing(invoke, tiny_onnx, photos, tmp_path, change, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "there.csv").write_text("precious")
    (tmp_path / "broken.safetensors").write_text("junk")
    options = {"--model": f"onnx:{tiny_onnx}", "--labels": LABELS} | change
    source = options.pop("source", photos)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    arguments = [part for pair in options.items() for part in pair if part is not None]
    result = invoke("classify", source, *arguments, exit_code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_resume_and_overwrite(invoke, model, photos, tmp_path):
    invoke("classify", photos, *model, "--out", "r.csv", "--resume")  # nothing there yet: a plain run
    content = (tmp_path / "r.csv").read_bytes()
    invoke("classify", photos, *model, "--out", "r.csv", "--resume")
    invoke("classify", "--out", "r.csv", "--resume")
    assert (tmp_path / "r.csv").read_bytes() == content
    said = invoke("classify", photos, *model, "--out", "r.csv", "--overwrite", "--method", "zero-shot").stderr
    assert "note: 40 images of r.run are encoded again. To answer them without: acclimate classify r.run " in said
    assert (tmp_path / "r.csv").read_bytes() != content
    assert sorted(path.name for path in tmp_path.glob("r.*")) == ["r.csv", "r.run"]


def test_other_labels_for_a_run_are_answered_without_its_images(invoke, model, photos, tmp_path, monkeypatch):
    """The bytes of a run from the photos, though these are gone; the labels of the first table are of no account."""
    shutil.copytree(photos, "mine")
    other = ["--labels", "red, green, blue, yellow", "--method", "tda", "--none-of-these", "--top-k", 2]
    invoke("classify", "mine", *model[:2], *other, "--order", "path", "--out", "photos.csv")
    invoke("classify", "mine", *model, "--out", "r.csv")
    shutil.rmtree("mine")
    assert "the features of r.run were made by onnx:" in invoke("classify", "r.run", *other, exit_code=2).stderr
    printed = invoke("classify", "r.run", *model[:2], *other).stdout
    invoke("classify", "r.run", *model[:2], *other, "--out", "other.csv", "--report", "report.html")
    assert (tmp_path / "other.csv").read_bytes() == (tmp_path / "photos.csv").read_bytes()
    assert printed == (tmp_path / "other.csv").read_text()
    assert [path.name for path in (tmp_path / "other.run").glob("0*")] == []
    invoke("classify", "r.run", *model[:2], *other, "--out", "r.csv", "--overwrite")
    assert (tmp_path / "r.csv").read_bytes() == (tmp_path / "photos.csv").read_bytes()


def test_photos_that_were_moved_come_back_whatever_followed(invoke, model, photos, tmp_path):
    """Sorted by moving, corrected, continued with a new photo and answered for other labels: no column is lost."""
    shutil.copytree(photos, "mine")
    before = {path: path.read_bytes() for path in tmp_path.glob("mine/*/*.png")}
    invoke("classify", "mine", *model, "--out", "r.csv")
    rows = read_results(tmp_path / "r.csv")
    write_results(tmp_path / "r.csv", [row | {"my notes": f"seen {row['file']}"} for row in rows])
    invoke("sort", "r.csv", "sorted", "--how", "move")
    assert not any(path.exists() for path in before)
    (tmp_path / "fixes.csv").write_text(f"file,label\n{rows[0]['file']},blue stripes\n{rows[1]['file']},red circle\n")
    invoke("correct", "r.csv", "fixes.csv")
    draw("red", 100).save(tmp_path / "mine" / "red" / "new.png")
    invoke("classify", "--resume", "--out", "r.csv")
    other = ["--labels", "red circle, yellow", "--model", model[1]]
    said = invoke("classify", "r.run", *other, "--out", "r.csv", "--overwrite").stderr
    assert "1 correction left out: there is no such label" in said
    after = read_results(tmp_path / "r.csv")
    assert [row["my notes"] for row in after] == [*(f"seen {row['file']}" for row in rows), ""]
    assert [bool(row["sorted_to"]) for row in after] == [*[True] * 40, False]
    assert [row["correct_label"] for row in after[:3]] == ["blue stripes", "red circle", ""]
    invoke("sort", "r.csv", "--undo")
    assert {path: path.read_bytes() for path in before} == before


def test_photos_that_are_gone_are_in_the_run(invoke, model, photos, tmp_path):
    shutil.copytree(photos, "mine")
    invoke("classify", "mine", *model, "--out", "r.csv")
    before = (tmp_path / "r.csv").read_bytes()
    shutil.rmtree("mine")
    said = invoke("classify", "--resume", "--out", "r.csv", "--report", "report.html").stderr
    assert "note: there are no new images: " in said
    assert (tmp_path / "r.csv").read_bytes() == before
    shutil.rmtree("r.run")
    said = invoke("classify", "--resume", "--out", "r.csv", exit_code=2).stderr
    assert "r.csv has no run beside it (r.run), so there is nothing to continue" in said
    assert (tmp_path / "r.csv").read_bytes() == before


def test_embed_then_run(invoke, model, photos, tmp_path):
    invoke("embed", photos, *model, "--out", "f.safetensors")
    stream = read_stream(tmp_path / "f.safetensors")
    assert stream.targets is None  # the folders are named otherwise than the labels
    assert stream.files[0] == f"{photos}/blue/img2.png"
    assert (stream.encoder, stream.prompts, stream.skipped) == (model[1], "single", 0)
    labels = ["--labels", "red, green, blue", "--model", model[1]]
    invoke("embed", photos, *labels, "--out", "g.safetensors")
    labelled = read_stream(tmp_path / "g.safetensors")
    assert [labelled.head.class_names[i] for i in labelled.targets[:3]] == ["blue"] * 3
    zero_shot = rows_of(invoke("classify", photos, *labels, "--method", "zero-shot").stdout)
    accuracy = np.mean([row["file"].split("/")[-2] == row["label"] for row in zero_shot])
    assert f"{100 * accuracy:.2f}" in invoke("run", "g.safetensors", "--method", "zero-shot").stdout


def test_views(invoke, model, photos, tmp_path):
    few = "few.txt"
    (tmp_path / few).write_text("\n".join(sorted(map(str, photos.rglob("*.png")))[:6]))
    one = rows_of(invoke("classify", few, *model).stdout)
    many = rows_of(invoke("classify", few, *model, "--views", 8, "--report", "report.html").stdout)
    assert [row["file"] for row in many] == [row["file"] for row in one]
    assert [row["zero_shot_score"] for row in many] != [row["zero_shot_score"] for row in one]
    report = (tmp_path / "report.html").read_text()
    assert all(f">{row}<" in report for row in ("views", "decoder", "pillow", "precision", "float32"))
    refused = invoke("classify", few, *model, "--method", "zero", exit_code=2)
    assert refused.stderr.startswith("error: the method 'zero' needs several views per image")
    voted = rows_of(invoke("classify", few, *model, "--method", "zero", "--views", 8).stdout)
    assert len(voted) == 6
    invoke("embed", few, *model, "--views", 8, "--out", "f.safetensors")
    stream = read_stream(tmp_path / "f.safetensors")
    assert (stream.views, stream.features.shape[:2]) == (8, (6, 8))
    zero_shot = stream.head.observe(stream.features).probs.max(axis=1)
    assert np.allclose(zero_shot, [float(row["zero_shot_score"]) for row in many], atol=1e-4)
    assert stream.views_kind == "augmix"
    assert "zero " in invoke("run", "f.safetensors", "--method", "zero").stdout


def test_kinds_of_views(invoke, model, photos, tmp_path):
    (tmp_path / "few.txt").write_text("\n".join(sorted(map(str, photos.rglob("*.png")))[:6]))
    run = ("classify", "few.txt", *model, "--views", 8)

    def scores(*options):
        return [row["zero_shot_score"] for row in rows_of(invoke(*run, *options).stdout)]

    def kind(name):
        return ("--encode", f"views_kind={name}")

    assert scores("--method", "zero") == scores("--method", "zero", *kind("crop"))
    assert scores("--method", "zero") != scores("--method", "zero", *kind("augmix")) == scores()
    refused = invoke(*run, *kind("diffusion"), exit_code=2).stderr
    assert refused.startswith("error: diffusion views need generated images")
    refused = invoke(*run, *kind("diffusion"), "--encode", "generated=none", exit_code=2).stderr
    assert refused.startswith("error: no folder of generated images at none")
    assert "augmix views have no generated images" in invoke(*run, "--encode", "generated=.", exit_code=2).stderr
    invoke("embed", *run[1:], "--encode", "views_kind=crop", "--out", "f.safetensors")
    assert read_stream(tmp_path / "f.safetensors").views_kind == "crop"


@pytest.mark.parametrize("method", ["dota", "prior"])
def test_sites_that_learn_sums_can_be_merged_once(invoke, model, photos, tmp_path, method):
    options = [*model, "--method", method]
    for site in ("north", "south"):
        invoke("classify", photos, *options, "--state", f"{site}.safetensors", "--report", f"{site}.html")
        assert load_state(tmp_path / f"{site}.safetensors").seen == {site: 40}
        assert "It has learnt from 40 images." in (tmp_path / f"{site}.html").read_text()
    said = invoke("state", "merge", "north.safetensors", "south.safetensors", "--out", "all.safetensors").stdout
    assert said == "all.safetensors: 2 states merged, 80 samples of 2 streams\n"
    inspected = invoke("state", "inspect", "all.safetensors").stdout
    assert "40 samples of north" in inspected
    assert all(column in inspected for column in load_state(tmp_path / "all.safetensors").class_statistics())
    twice = invoke("state", "merge", "north.safetensors", "all.safetensors", "--out", "x", exit_code=2).stderr
    assert "hold samples of the origin 'north', which would count twice" in twice
    assert (
        "counts: differs by up to"
        in invoke("state", "diff", "north.safetensors", "all.safetensors", exit_code=1).stdout
    )
    invoke("classify", photos, *options, "--state", "all.safetensors")
    assert load_state(tmp_path / "all.safetensors").seen == {"north": 40, "south": 40, "all": 40}


@pytest.mark.slow
def test_convert(invoke, tiny_clip, tmp_path):
    pytest.importorskip("onnxscript")
    output = invoke("convert", f"local:{tiny_clip}", "--to", "made/clip").stdout
    assert "Use it as onnx:made/clip" in output
    assert "exists" in invoke("convert", f"local:{tiny_clip}", "--to", "made/clip", exit_code=2).stderr


def test_models_and_methods_are_listed(invoke):
    assert "open_clip:ViT-B-16/openai" in invoke("models").stdout
    listed = invoke("methods").stdout
    assert "positive_capacity: int = 3\n                entries per class (the paper's shot capacity)." in listed
    assert "negative_keep: Literal['lowest', 'highest'] = 'lowest'" in listed
    assert "episodic; states merge by union; needs views" in listed
    assert "online; states merge by sum; needs features only" in listed


@pytest.mark.slow  # it imports all optional packages
def test_doctor_lists_what_is_installed(invoke):
    output = invoke("doctor").stdout
    assert f"numpy            {np.__version__}" in output
    assert "text cache" in output
    assert all(re.search(rf"^  {name} +\S+ +\w", output, re.MULTILINE) for name in ("av", "pillow-heif", "pandas"))


def command(tiny_onnx, photos, out):
    options = ["--labels", LABELS, "--encode", "batch_size=2", "--state", f"{out}.state"]
    return [
        sys.executable,
        "-m",
        "acclimate",
        "classify",
        str(photos),
        "--model",
        f"onnx:{tiny_onnx}",
        "--out",
        str(out),
        *options,
    ]


def stopped(options, folder, number):
    """Run a command with a method that waits in the middle, and send it a signal there; return what it prints."""
    (folder / "own.py").write_text(WAITING)
    options = [*options, "--plugin", str(folder / "own.py"), "--method", "waiting", "--set", f"folder={folder}"]
    child = subprocess.Popen(options, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (folder / "begun").exists() or child.poll() is not None)
    child.send_signal(number)
    (folder / "go").touch()
    printed = child.communicate()
    assert child.returncode == 130, printed
    return printed


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_leaves_a_valid_file_and_says_how_to_go_on(tiny_onnx, photos, tmp_path, number):
    out = tmp_path / "r.csv"
    _, said = stopped(command(tiny_onnx, photos, out), tmp_path, number)
    done = len(rows_of(out.read_text()))
    assert said == f"stopped after {done} of 40 images; run the command again with --resume to continue.\n"
    assert 0 < done < 40


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_asked_to_stop_a_pipe_gets_the_answers_for_what_was_seen(tiny_onnx, photos, tmp_path):
    options = command(tiny_onnx, photos, tmp_path / "r.csv")
    place = options.index("--out")
    del options[place : place + 2]
    printed, said = stopped(options, tmp_path, signal.SIGINT)
    done = len(rows_of(printed))
    assert said == f"stopped after {done} of 40 images.\n"
    assert 0 < done < 40


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("to_file", [True, False])
def test_on_a_terminal_people_see_progress_or_rows(tiny_onnx, photos, tmp_path, to_file):
    import pty

    mine, theirs = pty.openpty()
    out = ["--out", str(tmp_path / "r.csv")] if to_file else []
    options = ["--model", f"onnx:{tiny_onnx}", "--labels", LABELS, "--encode", "batch_size=4", *out]
    child = subprocess.Popen(
        [sys.executable, "-m", "acclimate", "classify", str(photos), *options],
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120", "ACCLIMATE_CACHE": str(tmp_path)},
    )
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(mine, 65536):
            seen += part
    except OSError:  # the other end is closed
        pass
    os.close(mine)
    assert child.wait() == 0
    text = seen.decode()
    assert "a photo of a red circle." in text
    assert ("40/40" in text) is to_file
    assert ("img2.png  " in text) is not to_file
    assert "40 images classified" in text
    if not to_file:
        lines = [line for line in text.splitlines() if ".png  " in line]
        changed = int(re.search(r"everything seen, (\d+) answers? changed once more", text)[1])
        assert len(lines) == 40 + changed
        assert all("as it came: " in line for line in lines[40:])
