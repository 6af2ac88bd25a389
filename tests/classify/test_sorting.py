"""A folder per answer, and back."""

import os

import pytest

from acclimate.classify import sorting
from acclimate.classify.outputs import ResultFile, read_results, write_results
from acclimate.classify.sorting import folder_name, sort_images, unsort_images
from acclimate.errors import InputError, RunError
from acclimate.predict import Answer, Prediction


@pytest.fixture(params=[".csv", ".jsonl", ".parquet"])
def results(request, tmp_path):
    """Results of six images: two cats of one name, a dog, an unsure one, one that is gone, and one that is broken."""
    images = tmp_path / "photos"
    names = ["a/1.jpg", "b/1.jpg", "2.jpg", "3.jpg", "gone.jpg", "broken.jpg"]
    labels = ["cat", "cat", "AC/DC", "cat", "cat", None]
    found = []
    for index, (name, label) in enumerate(zip(names, labels, strict=True)):
        path = images / name
        if name != "gone.jpg":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(f"image {index}".encode())
        top = () if label is None else (Answer(label, 0.9), Answer('other, "one"', 0.1))
        answer = top[0] if top else Answer("", 0.0)
        error = None if label else "not an image"
        found.append(Prediction(index, top, answer, name=str(path), error=error, online=answer, unsure=name == "3.jpg"))
    output = ResultFile(tmp_path / f"results{request.param}", 2)
    output.open()
    output.write(found)
    output.finish()
    return output.path


def files_below(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("how", ["copy", "link", "move"])
def test_images_go_to_a_folder_per_answer_and_come_back(results, tmp_path, how):
    before, rows = files_below(tmp_path / "photos"), read_results(results)
    counts = sort_images(results, tmp_path / "sorted", how)
    assert counts == {"cat": 2, "AC_DC": 1, "unsure": 1}
    images = [b"image 0", b"image 1", b"image 2", b"image 3"]
    where = ["cat/1.jpg", "cat/1 (2).jpg", "AC_DC/2.jpg", "unsure/3.jpg"]
    assert files_below(tmp_path / "sorted") == dict(zip(where, images, strict=True))
    assert len(files_below(tmp_path / "photos")) == (1 if how == "move" else 5)
    assert sort_images(results, tmp_path / "sorted", how) == counts  # nothing is done twice
    assert len(files_below(tmp_path / "sorted")) == 4
    assert unsort_images(results) == (4, [])
    assert files_below(tmp_path / "photos") == before
    assert not (tmp_path / "sorted").exists()
    assert read_results(results) == rows


def test_corrected_images_go_to_their_correct_label(results, tmp_path):
    records = read_results(results)
    for place in (0, 3):  # a cat, and the unsure one
        records[place]["correct_label"] = "dog"
    write_results(results, records)
    assert sort_images(results, tmp_path / "sorted") == {"dog": 2, "cat": 1, "AC_DC": 1}


def test_an_interrupted_sort_is_completed_or_undone(results, tmp_path, monkeypatch):
    before, moves = files_below(tmp_path / "photos"), []

    def move(source, target):
        if len(moves) == 2:
            raise OSError(28, "No space left on device")
        moves.append(target)
        os.replace(source, target)

    monkeypatch.setattr(sorting, "_move", move)
    with pytest.raises(RunError, match=r"cannot move .*: No space left on device. Sort again to continue"):
        sort_images(results, tmp_path / "sorted", "move")
    monkeypatch.undo()
    assert sum(sort_images(results, tmp_path / "sorted", "move").values()) == 4
    unsort_images(results)
    assert files_below(tmp_path / "photos") == before


def test_what_is_there_is_never_replaced(results, tmp_path):
    (tmp_path / "sorted" / "cat").mkdir(parents=True)
    (tmp_path / "sorted" / "cat" / "1.jpg").write_bytes(b"mine")
    sort_images(results, tmp_path / "sorted")
    assert (tmp_path / "sorted" / "cat" / "1.jpg").read_bytes() == b"mine"
    (tmp_path / "sorted" / "cat" / "1 (2).jpg").write_bytes(b"edited")
    done, left = unsort_images(results)
    assert (done, left) == (4, [str(tmp_path / "sorted" / "cat" / "1 (2).jpg")])
    assert (tmp_path / "sorted" / "cat" / "1.jpg").read_bytes() == b"mine"


def test_a_failed_copy_leaves_no_part(results, tmp_path, monkeypatch):
    monkeypatch.setattr(sorting.shutil, "copy2", lambda source, target: target.write_bytes(b"par") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sort_images(results, tmp_path / "sorted")
    assert files_below(tmp_path / "sorted") == {}


def test_names_of_folders():
    assert [folder_name(label) for label in ("a/b", "..", "x. ", "café", 'q"?')] == ["a_b", "_", "x", "café", "q__"]


def test_incomplete_results_are_not_sorted(tmp_path):
    output = ResultFile(tmp_path / "r.csv", 1)
    output.open()
    output.checkpoint.touch()
    with pytest.raises(InputError, match="is incomplete; complete it"):
        sort_images(output.path, tmp_path / "sorted")
