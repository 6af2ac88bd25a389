"""Arguments as people type them: several paths, videos, kinds of files, devices, formats."""

import csv
import io
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from acclimate import load_state, read_stream
from acclimate.images.opening import pixel_limit
from small_images import draw

LABELS = "red circle, green square, blue stripes"


@pytest.fixture
def model(tiny_onnx):
    return ["--model", f"onnx:{tiny_onnx}", "--labels", LABELS]


def files_of(text):
    return [row["file"] for row in csv.DictReader(io.StringIO(text))]


def test_several_paths_and_folders(invoke, model, here):
    for path in ("a.png", "b.png", "more/c.png"):
        draw(here / path)
    (here / "more/raw.cr2").touch()
    result = invoke("classify", "b.png", "a.png", "more/", "b.png", *model)
    assert files_of(result.stdout) == ["b.png", "a.png", "more/c.png"]
    assert "note: skipped 1 .cr2 (camera raw, which is not read: export JPEGs)." in result.stderr
    assert "3 images classified" in result.stderr
    result = invoke("classify", "a.png", *model, "dog", "bird", exit_code=2)
    assert "no file or folder at dog, bird; if these are labels, write them all in one argument" in result.stderr


def test_folders_that_are_classes_are_shuffled(invoke, model, photos):
    labels = ["--labels", ", ".join(sorted(folder.name for folder in photos.iterdir()))]
    shuffled = invoke("classify", photos, *model[:2], *labels)
    assert "note: folders are classes, so the images are shuffled" in shuffled.stderr
    listed = invoke("classify", photos, *model[:2], *labels, "--order", "path")
    assert "shuffled" not in listed.stderr
    assert files_of(shuffled.stdout) != files_of(listed.stdout)
    assert sorted(files_of(shuffled.stdout)) == sorted(files_of(listed.stdout))
    assert files_of(shuffled.stdout) == files_of(
        invoke("classify", photos, *model[:2], *labels, "--order", "shuffled:0").stdout
    )


def write_clip(path, seconds):
    av = pytest.importorskip("av")
    random = np.random.default_rng(1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width = 64
        stream.height = 48
        stream.pix_fmt = "yuv420p"
        for _ in range(5 * seconds):
            frame = np.kron(random.integers(0, 256, (6, 8, 3)), np.ones((8, 8, 1))).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        container.mux(stream.encode())


def test_videos_are_classified_frame_by_frame_and_resumed(invoke, model, here, monkeypatch):
    write_clip(here / "clip.mp4", 6)
    (here / "bad.mp4").write_bytes(b"not a video")
    command = ["classify", "clip.mp4", "bad.mp4", *model, "--encode", "fps=2"]
    command += ["--encode", "batch_size=4"]
    invoke(*command, "--out", "whole.csv")
    rows = list(csv.DictReader(io.StringIO(Path("whole.csv").read_text())))
    assert [row["file"] for row in rows] == [*(f"clip.mp4#{i / 2}s" for i in range(12)), "bad.mp4"]
    assert [bool(row["error"]) for row in rows] == [False] * 12 + [True]
    assert "the video cannot be read" in rows[-1]["error"]
    answers = iter([False, True])

    @contextmanager
    def stopping():
        yield lambda: next(answers)

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["acclimate.cli.classify"], "stop_requests", stopping)
        assert "stopped after 8 of 13 images" in invoke(*command, "--out", "part.csv", exit_code=130).stderr
    invoke(*command, "--out", "part.csv", "--resume")
    assert Path("part.csv").read_bytes() == Path("whole.csv").read_bytes()


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_features_are_what_their_name_says(invoke, model, photos, here, suffix):
    result = invoke("embed", *sorted(photos.glob("*/*.png"))[:4], *model, "--out", f"f.{suffix}")
    assert f"f.{suffix}: 4 images without true labels; try `acclimate run f.{suffix}`" in result.stderr
    with np.load("f.npz") if suffix == "npz" else nullcontext() as arrays:
        assert arrays is None or arrays["features"].shape[0] == 4
    assert len(read_stream(here / f"f.{suffix}")) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["embed", "--out", "f.npy"], "cannot write f.npy: a .npy file holds features alone"),
        (["embed", "--out", "f.parquet"], "feature files end in .safetensors or .npz"),
        (["classify", "--report", "r.pdf"], "cannot write r.pdf: a report is HTML"),
        (["classify", "--out", "no/r.csv"], "cannot write no/r.csv: there is no folder no; make it first"),
        (["classify", "--out", "photos"], "cannot write photos: it is a folder"),
        (["classify", "--device", "gpu"], "cannot use device 'gpu'; choose from auto, cpu"),
        (["embed", "--out", "f.npz", "--device", "gpu"], "cannot use device 'gpu'"),
        (["classify", "--encode", "fps=0"], "--encode fps takes a number from 0.001 on; got '0'"),
        (["classify", "--encode", "fsp=1"], "--encode takes KEY=VALUE, got 'fsp=1'; did you mean 'fps'?"),
        (["classify", "--encode", "fps"], "--encode takes KEY=VALUE, got 'fps'"),
        (["classify", "--encode", "decoder=gpu"], "--encode decoder takes auto, pillow, nvjpeg; got 'gpu'"),
        (["classify", "--encode", "compile=1"], "--encode compile takes true, false; got '1'"),
        (["classify", "--encode", "max_pixels=9"], "--encode max_pixels takes a number from 1,000,000"),
        (["classify", "--template", "a {x} of {}"], "has {x}; only {} or {c}"),
        (["classify", "--labels", "labels.csv"], "no label file at labels.csv"),
        (["classify", "--labels", "cat, Cat"], "'cat' and 'Cat' are the same class"),
        (["classify", "https://example.org/a.jpg"], "is a URL, which is not downloaded"),
    ],
)
def test_invalid_combinations_are_refused_before_any_work(invoke, model, here, arguments, message):
    draw(here / "photos/a.png")
    command, *options = arguments
    before = sorted(here.iterdir())
    assert message in invoke(command, "photos", *model, *options, exit_code=2).stderr
    assert sorted(here.iterdir()) == before


def test_labels_of_another_language(invoke, here):
    draw(here / "a.png")
    assert "'chat' and 'chien' look French" in invoke("classify", "a.png", "--labels", "chat, chien").stderr
    for command in ("classify", "embed", "fit"):
        assert "English" in invoke(command, "--help").stdout


def test_large_images(invoke, model, here, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # restores it
    Image.new("RGB", (1100, 1000)).save(here / "large.png")
    draw(here / "small.png")
    limit = ["--encode", "max_pixels=1000000"]
    result = invoke("classify", "large.png", "small.png", *model, *limit)
    assert (
        "1,100,000 pixels: more than 1 million; make it smaller, or start with a larger --max-pixels, " in result.stdout
    )
    assert "1 image classified, 1 could not be read" in result.stderr
    invoke("classify", "large.png", *model)
    assert pixel_limit() == 178_956_970


def test_frames_of_a_camera_that_stands_still_are_learnt_from_once(invoke, model, here):
    av = pytest.importorskip("av")
    with av.open("still.mp4", "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width = 64
        stream.height = 48
        stream.pix_fmt = "yuv420p"
        for _ in range(30):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 99, np.uint8))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    learnt = {}
    for option in ("--skip-duplicates", "--no-skip-duplicates", "--encode=fps=1"):
        state = f"{option.replace('=', '-')}.safetensors".strip("-")
        invoke("classify", "still.mp4", *model, "--method", "tda", "--state", state, option)
        learnt[option] = load_state(here / state).samples_seen
    assert learnt == {"--skip-duplicates": 1, "--no-skip-duplicates": 6, "--encode=fps=1": 1}
