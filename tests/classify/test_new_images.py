"""Images that come later: added to a folder whose results are complete, or arriving while it is followed."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from acclimate.classify.outputs import ResultFile, read_results
from acclimate.classify.run import Classification

from acclimate import Classifier, load_state
from acclimate.encoders import load_encoder
from acclimate.errors import InputError, RunError
from acclimate.sources.follow import Follow
from acclimate.sources.source import open_source
from drawn_images import draw, draw_folder
from earlier_results import ADDED, remove_columns
from waiting import wait_until

SUFFIXES = [".csv", ".jsonl", ".parquet"]


@pytest.fixture(scope="module")
def encoder(tiny_onnx):
    return load_encoder(f"onnx:{tiny_onnx}")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "photos").mkdir()
    return draw_folder(tmp_path / "photos", 12)


@pytest.fixture
def make(encoder, folder, tmp_path):
    def run(name="r.csv", **options):
        classifier = Classifier(["red", "green", "blue"], encoder, batch_size=4, cache=tmp_path / "cache")
        state = tmp_path / "site.safetensors"
        if state.exists():
            classifier.continue_from(state)
        defaults = {
            "classifier": classifier,
            "samples": open_source(str(folder)),
            "output": ResultFile(tmp_path / name, top_k=2),
            "top_k": 2,
            "checkpoint_every": 0.0,
            "state": state,
        }
        return Classification(**defaults | options)

    return run


def add_images(folder, count=5):
    for seed in range(100, 100 + count):
        draw("red", seed).save(folder / "red" / f"added{seed}.png")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("passes", [1, 2])
def test_new_images_are_added_to_complete_results(make, folder, tmp_path, suffix, passes):
    name = f"r{suffix}"
    make(name, passes=passes).run()
    before = read_results(tmp_path / name)
    add_images(folder)
    run = make(name, passes=passes)
    assert run.run(resume=True)
    after = read_results(tmp_path / name)
    assert after[:12] == before
    assert [row["file"].rsplit("/", 1)[1] for row in after[12:]] == [f"added{seed}.png" for seed in range(100, 105)]
    assert [int(row["index"]) for row in after] == list(range(17))
    assert run.summary.images == 17
    assert load_state(tmp_path / "site.safetensors").samples_seen == 17
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == sorted([name, "site.safetensors"])


@pytest.mark.parametrize("stops", range(1, 5))
def test_adding_images_can_be_interrupted(make, folder, tmp_path, stops):
    make().run()
    add_images(folder, 9)
    for name in ("r.csv", "site.safetensors"):
        shutil.copy(tmp_path / name, tmp_path / f"copy-{name}")
    make().run(resume=True)
    whole = (tmp_path / "r.csv").read_bytes()
    for name in ("r.csv", "site.safetensors"):
        shutil.copy(tmp_path / f"copy-{name}", tmp_path / name)
    calls = iter(range(stops, -1, -1))
    if not make(stop=lambda: next(calls) <= 1).run(resume=True):
        assert make().run(resume=True)
    assert (tmp_path / "r.csv").read_bytes() == whole


def test_complete_results_without_new_images_stay_as_they_are(make, tmp_path):
    make().run()
    content = (tmp_path / "r.csv").read_bytes()
    seen = load_state(tmp_path / "site.safetensors").samples_seen
    run = make()
    assert run.run(resume=True)
    assert (tmp_path / "r.csv").read_bytes() == content
    assert load_state(tmp_path / "site.safetensors").samples_seen == seen
    assert (run.summary.images, run.summary.answered, run.kept.images) == (12, 12, 12)


def test_an_interrupted_run_takes_on_what_was_added_and_keeps_what_was_removed(make, folder, tmp_path):
    make(stop=lambda: True).run()
    done = [line.split(",")[0] for line in (tmp_path / "r.csv").read_text().splitlines()[1:]]
    add_images(folder, 2)
    (folder / done[0].split("photos/")[1]).unlink()
    assert make().run(resume=True)
    files = [row["file"] for row in read_results(tmp_path / "r.csv")]
    assert files[: len(done)] == done
    assert len(files) == len(set(files)) == 14


def test_results_of_another_source_or_with_other_columns_are_not_continued(make, folder, tmp_path):
    make().run()
    (tmp_path / "elsewhere").mkdir()
    draw("red", 0).save(tmp_path / "elsewhere" / "x.png")
    with pytest.raises(InputError, match="none of its 12 images is among those of the source"):
        make(samples=open_source(str(tmp_path / "elsewhere"))).run(resume=True)
    add_images(folder, 1)
    with pytest.raises(InputError, match="its columns are different: another --top-k"):
        make(top_k=3, output=ResultFile(tmp_path / "r.csv", top_k=3)).run(resume=True)


@pytest.mark.parametrize("passes", [1, 2])
def test_new_images_are_added_to_results_of_an_earlier_version(make, folder, tmp_path, passes):
    make(passes=passes).run()
    before = read_results(tmp_path / "r.csv")
    remove_columns(tmp_path / "r.csv")
    add_images(folder)
    assert make(passes=passes).run(resume=True)
    after = read_results(tmp_path / "r.csv")
    assert len(after) == 17
    for row, other in zip(after, before, strict=False):
        assert row.keys() == other.keys()
        assert all(row[name] == other[name] for name in row if name not in ADDED)
        assert (row["online_label"], row["sorted_to"]) == (row["label"], "")


def test_results_that_are_not_results_are_refused(tmp_path):
    for name, content, why in (
        ("a.csv", "file,label\nx.png,cat\n", "row 1 has no score"),
        ("a.jsonl", "[1]\n", "row 1 has no file"),
        ("b.jsonl", "nonsense\n", "cannot be read as results"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(InputError, match=why):
            read_results(tmp_path / name)
    with pytest.raises(InputError, match="no results at"):
        read_results(tmp_path / "none.csv")


def test_a_followed_folder_is_classified_as_images_arrive(make, folder, tmp_path):
    stopped = threading.Event()
    run = make(samples=(), more=Follow(str(folder), stopped.is_set, interval=0.05))
    worker = threading.Thread(target=run.run)
    worker.start()
    try:
        wait_until(lambda: run.summary.images == 12)
        add_images(folder, 3)
        wait_until(lambda: run.summary.images == 15)
    finally:
        stopped.set()
        worker.join(180)
    assert load_state(tmp_path / "site.safetensors").samples_seen == 15
    assert not make().output.checkpoint.is_file()
    assert len(read_results(tmp_path / "r.csv")) == 15  # complete as it is, and it can go on
    add_images(folder, 6)
    again = make(samples=(), more=Follow(str(folder), lambda: again.summary.images == 18, interval=0.05))
    again.run(resume=True)
    rows = (tmp_path / "r.csv").read_text().splitlines()[1:]
    assert len({row.split(",")[0] for row in rows}) == len(rows) == 18


def test_only_stable_images_are_taken(tmp_path):
    follow = Follow(str(tmp_path))
    (tmp_path / "empty.png").touch()
    path = tmp_path / "photo.png"
    draw("red", 0).save(path)
    whole = path.read_bytes()
    for part in (10, 100, 100, 100, 200):  # the copy pauses
        path.write_bytes(whole[:part])
        assert follow._look(()) == []
    path.write_bytes(whole)
    assert follow._look(()) == []
    assert [sample.name for sample in follow._look(())] == [path.as_posix()]
    assert follow._look(()) == follow._look({path.as_posix()}) == []


def test_an_image_that_stays_broken_is_reported_at_last(tmp_path):
    follow = Follow(str(tmp_path), patience=0.0)
    (tmp_path / "broken.png").write_bytes(b"broken")
    assert follow._look(()) == []
    assert [Path(sample.name).name for sample in follow._look(())] == ["broken.png"]


def test_a_folder_that_vanishes_during_a_look_ends_nothing(tmp_path, monkeypatch):
    draw("red", 0).save(tmp_path / "a.png")
    follow = Follow(str(tmp_path))
    assert follow._look(()) == []
    with monkeypatch.context() as patch:
        # raises an InputError for what is not a folder
        patch.setattr("acclimate.sources.follow.LOCAL", SimpleNamespace(list_files=Follow))
        follow.folder = str(tmp_path / "gone")
        assert follow._look(()) == []
    follow.folder = str(tmp_path)
    assert [follow._look(()) for _ in range(2)][1]


def test_an_image_that_was_repaired_is_read_again(make, folder, tmp_path):
    image = folder / "red" / "img0.png"
    whole = image.read_bytes()
    image.write_bytes(b"broken")
    make().run()
    assert [row["file"] for row in read_results(tmp_path / "r.csv") if row["error"]] == [image.as_posix()]
    image.write_bytes(whole)
    make().run(resume=True)
    rows = read_results(tmp_path / "r.csv")
    assert [int(row["index"]) for row in rows] == list(range(12))
    assert rows[-1]["file"] == image.as_posix()
    assert not any(row["error"] for row in rows)


def test_true_labels_that_come_later_are_written(make, tmp_path):
    make().run()
    before = read_results(tmp_path / "r.csv")
    run = make(samples=[replace(sample, label="blue") for sample in open_source(str(tmp_path / "photos"))])
    assert run.run(resume=True)
    after = read_results(tmp_path / "r.csv")
    assert after == [row | {"true_label": "blue"} for row in before]
    assert run.summary.images == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": ["cat", "dog"]}, "it has the label"),
        ({"unsure": 1.0}, "it was made with another --unsure"),
        ({"reject": True}, "it was made without --none-of-these"),
    ],
)
def test_results_of_other_options_are_not_continued(make, encoder, tmp_path, options, message):
    make().run()
    content = (tmp_path / "r.csv").read_bytes()
    chosen = {"labels": ["red", "green", "blue"], "cache": tmp_path / "cache"} | options
    if options.get("reject"):
        chosen["encoder"] = "bundled"
    classifier = Classifier(**{"encoder": encoder, **chosen})
    with pytest.raises(InputError, match=message):
        make(classifier=classifier, state=None).run(resume=True)
    assert (tmp_path / "r.csv").read_bytes() == content


def test_results_that_a_spreadsheet_has_saved_are_read(make, folder, tmp_path):
    make().run()
    rows = read_results(tmp_path / "r.csv")
    text = (tmp_path / "r.csv").read_text()
    (tmp_path / "r.csv").write_bytes(b"\xef\xbb\xbf" + text.replace(",", ";").replace("false", "FALSE").encode())
    assert [row["label"] for row in read_results(tmp_path / "r.csv")] == [row["label"] for row in rows]
    add_images(folder, 1)
    assert make().run(resume=True)
    assert len(read_results(tmp_path / "r.csv")) == 13


def test_images_that_cannot_be_read_stop_a_followed_folder_only_if_asked(make, folder):
    (folder / "red" / "broken.png").write_bytes(b"broken")
    with pytest.raises(RunError, match=r"broken\.png cannot be read"):
        make(samples=(), more=Follow(str(folder), interval=0.01, patience=0.1), on_error="raise").run()


def test_only_folders_can_be_followed(tmp_path):
    with pytest.raises(InputError, match="only a folder can be followed"):
        Follow(str(tmp_path / "x.png"))
