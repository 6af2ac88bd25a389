"""`classify --follow` and `sort`, as people type them."""

import csv
import signal
import subprocess
import sys

import pytest

from drawn_images import draw, draw_folder
from waiting import wait_until


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "camera").mkdir()
    return draw_folder(tmp_path / "camera", 6)


@pytest.fixture
def model(tiny_onnx):
    return ["--model", f"onnx:{tiny_onnx}", "--labels", "red, green, blue"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_it_follows_a_folder_until_it_is_stopped_is_sorted_and_corrected_and_goes_on(invoke, folder, model, tmp_path):
    command = [sys.executable, "-m", "acclimate", "classify", "--out", "r.csv"]
    (folder / "half.png").write_bytes(b"on its way")
    for seed, options in ((100, [str(folder), *model, "--follow"]), (200, ["--resume"])):
        child = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        before = rows(tmp_path)
        wait_for(child, lambda before=before: len(rows(tmp_path)) >= max(6, len(before)))
        draw("red", seed).save(folder / "red" / f"late{seed}.png")
        wait_for(child, lambda before=before: len(rows(tmp_path)) == max(6, len(before)) + 1)
        child.send_signal(signal.SIGINT)
        said = child.communicate()[1]
        assert child.returncode == 130
        assert "stopped after" in said
        assert "--resume to continue" in said
        assert f"not classified, as they were incomplete or could not be read: {folder}/half.png." in said
        if seed == 100:
            (tmp_path / "fixes.csv").write_text("file,label\nlate100.png,blue\n")
            said = invoke("correct", "r.csv", "fixes.csv").stderr
            assert "1 correction in all.\nAnswered again: " in said
            assert "7 images sorted into sorted: " in invoke("sort", "r.csv", "sorted").stderr
    found = [row["file"].rsplit("/", 1)[1] for row in rows(tmp_path)]
    assert sorted(found[:6]) == [f"img{i}.png" for i in range(6)]
    assert found[6:] == ["late100.png", "late200.png"]
    assert [row["correct_label"] for row in rows(tmp_path)] == [*[""] * 6, "blue", ""]
    assert [bool(row["sorted_to"]) for row in rows(tmp_path)] == [*[True] * 7, False]
    assert "blue" in invoke("correct", "r.csv", "--list").stdout


def test_images_are_sorted_and_taken_back(invoke, folder, model, tmp_path):
    before = sorted(path.name for path in folder.rglob("*.png"))
    invoke("classify", folder, *model, "--out", "r.csv", "--unsure", "0.2")
    assert "6 images sorted into sorted: " in invoke("sort", "r.csv", "sorted", "--how", "move").stderr
    assert not list(folder.rglob("*.png"))
    assert sorted(path.name for path in (tmp_path / "sorted").rglob("*.png")) == before
    assert "6 images taken back." in invoke("sort", "r.csv", "--undo").stderr
    assert sorted(path.name for path in folder.rglob("*.png")) == before
    assert "6 images sorted into elsewhere: " in invoke("sort", "r.csv", "elsewhere", "--how", "link").stderr
    assert all(path.is_symlink() for path in (tmp_path / "elsewhere").rglob("*.png"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--follow", "--passes", "2"], "no end at which to answer once more; leave out --passes"),
        (["--counts", "label"], "name the file with --out"),
        (["--resume", "--overwrite", "--out", "r.csv"], "pass one of them"),
        (["--freeze", "--state", "typo.safetensors"], "name one that exists with --state"),
        (["--out", "nowhere/r.csv"], "there is no folder nowhere"),
    ],
)
def test_invalid_combinations_are_refused(invoke, folder, model, tmp_path, options, message):
    assert message in invoke("classify", folder, *model, *options, exit_code=2).stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_sort_wants_a_folder_or_undo(invoke, tmp_path):
    for options in ([], ["x", "--undo"]):
        assert "name the folder to sort into, or pass --undo" in invoke("sort", "r.csv", *options, exit_code=2).stderr


def rows(folder):
    path = folder / "r.csv"
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def wait_for(child, condition):
    wait_until(lambda: condition() or child.poll() is not None)
    assert child.poll() is None, child.stderr.read()
