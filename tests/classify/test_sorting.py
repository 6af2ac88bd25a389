"""A folder per answer, and back."""

import os
from pathlib import Path

import pytest

from acclimate.classify import sorting
from acclimate.classify.sorting import folder_name, sort_images, unsort_images
from acclimate.classify.table import Table, read_results, write_results
from acclimate.errors import InputError, RunError
from acclimate.predict import Answer, Prediction
from acclimate.run import Run


@pytest.fixture(params=[".csv", ".jsonl", ".parquet"])
def results(request, tmp_path):
    """Return results of six images: two cats of one name, a dog, an unsure, a missing and a broken one."""
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
    output = Table(tmp_path / f"results{request.param}", 2)
    output.write([found])
    return output.path


def files_below(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("how", ["copy", "link", "move"])
def test_images_go_to_a_folder_per_answer_and_come_back(results, tmp_path, how):
    before = files_below(tmp_path / "photos")
    rows = read_results(results)
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


@pytest.mark.parametrize("how", ["copy", "link", "move"])
def test_undo_finds_what_was_put_into_another_folder(results, tmp_path, how):
    before = files_below(tmp_path / "photos")
    sort_images(results, tmp_path / "sorted", how)
    (tmp_path / "sorted/fox").mkdir()
    (tmp_path / "sorted/AC_DC/2.jpg").rename(tmp_path / "sorted/fox/2.jpg")  # a folder of one's own
    (tmp_path / "sorted/cat/1.jpg").rename(tmp_path / "sorted/fox/1.jpg")
    (tmp_path / "sorted/unsure/3.jpg").rename(tmp_path / "sorted/fox/renamed.jpg")
    left = [] if how != "move" else [str(tmp_path / "sorted/unsure/3.jpg")]  # nobody knows whose image that is
    assert unsort_images(results) == (4 - len(left), left)
    if how != "move":
        (tmp_path / "sorted/fox/renamed.jpg").unlink()
        (tmp_path / "sorted/fox").rmdir()
        (tmp_path / "sorted").rmdir()
        assert files_below(tmp_path / "photos") == before
    else:
        assert files_below(tmp_path / "sorted") == {"fox/renamed.jpg": b"image 3"}


def test_corrected_images_go_to_their_correct_label(results, tmp_path):
    records = read_results(results)
    for place in (0, 3):  # a cat, and the unsure one
        records[place]["correct_label"] = "dog"
    write_results(results, records)
    assert sort_images(results, tmp_path / "sorted") == {"dog": 2, "cat": 1, "AC_DC": 1}


def test_an_interrupted_sort_is_completed_or_undone(results, tmp_path, monkeypatch):
    before = files_below(tmp_path / "photos")
    moves = []

    def move(source, target):
        if len(moves) == 2:
            raise OSError(28, "No space left on device")
        moves.append(target)
        os.replace(source, target)

    monkeypatch.setattr(sorting, "_move", move)
    with pytest.raises(RunError, match=r"2 of 4 images could not be sorted. The first is .*: No space left on device"):
        sort_images(results, tmp_path / "sorted", "move")
    monkeypatch.undo()
    assert sum(sort_images(results, tmp_path / "sorted", "move").values()) == 4
    unsort_images(results)
    assert files_below(tmp_path / "photos") == before


def test_undo_elsewhere_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jpg").write_bytes(b"image")
    write("r.csv", ["a.jpg"])
    sort_images(Path("r.csv"), Path("sorted"), "move")
    content = Path("r.csv").read_bytes()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(InputError, match="undo from the folder in which they were sorted"):
        unsort_images(Path("../r.csv"))
    monkeypatch.chdir(tmp_path)
    assert Path("r.csv").read_bytes() == content
    assert unsort_images(Path("r.csv")) == (1, [])
    assert (tmp_path / "a.jpg").read_bytes() == b"image"


def test_undo_touches_only_what_was_sorted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jpg", "private.txt", "same.jpg"):
        Path(name).write_bytes(name.encode())
    write("r.csv", ["a.jpg", "gone.jpg", "same.jpg"])
    records = read_results(Path("r.csv"))
    for record, target in zip(records, ("cat/a.jpg", "private.txt", "same.jpg"), strict=True):
        record["sorted_to"] = target
    write_results(Path("r.csv"), records)
    assert unsort_images(Path("r.csv")) == (1, ["private.txt", "same.jpg"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jpg", "private.txt", "r.csv", "same.jpg"]
    assert [record["sorted_to"] for record in read_results(Path("r.csv"))] == ["", "private.txt", "same.jpg"]


def test_links_and_long_names_are_sorted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("real").mkdir()
    Path("photos").mkdir()
    Path("real/r.jpg").write_bytes(b"image")
    Path("photos/linked.jpg").symlink_to("../real/r.jpg")
    long = "x" * 250 + ".jpg"
    Path(long).write_bytes(b"long")
    write("r.csv", ["photos/linked.jpg", long])
    sort_images(Path("r.csv"), Path("sorted"), "copy")
    assert Path("sorted/cat", long).read_bytes() == b"long"
    unsort_images(Path("r.csv"))
    sort_images(Path("r.csv"), Path("sorted"), "move")
    assert Path("sorted/cat/linked.jpg").read_bytes() == b"image"
    assert unsort_images(Path("r.csv")) == (2, [])
    assert Path("photos/linked.jpg").read_bytes() == b"image"


def write(path, names):
    answer = Answer("cat", 0.9)
    rows = [Prediction(i, (answer,), answer, name=name, online=answer) for i, name in enumerate(names)]
    Table(Path(path), 1).write([rows])


def test_existing_files_are_never_replaced(results, tmp_path):
    (tmp_path / "sorted" / "cat").mkdir(parents=True)
    (tmp_path / "sorted" / "cat" / "1.jpg").write_bytes(b"mine")
    sort_images(results, tmp_path / "sorted")
    assert (tmp_path / "sorted" / "cat" / "1.jpg").read_bytes() == b"mine"
    (tmp_path / "sorted" / "cat" / "1 (2).jpg").write_bytes(b"edited")
    done, left = unsort_images(results)
    assert (done, left) == (3, [str(tmp_path / "sorted" / "cat" / "1 (2).jpg")])
    assert (tmp_path / "sorted" / "cat" / "1.jpg").read_bytes() == b"mine"


def test_names_of_folders():
    assert [folder_name(label) for label in ("a/b", "..", "x. ", "café", 'q"?')] == ["a_b", "_", "x", "café", "q__"]
    assert [folder_name(label) for label in ("con", "NUL.txt", "lpt1", "contour")] == [
        "con_",
        "NUL.txt_",
        "lpt1_",
        "contour",
    ]


def test_incomplete_results_are_not_sorted(tmp_path):
    run = Run.create(tmp_path / "r.run", {})
    run.answer = {"answers": "online"}
    run.save()
    Table(tmp_path / "r.csv", 1).begin()
    with pytest.raises(InputError, match="is incomplete; complete it"):
        sort_images(tmp_path / "r.csv", tmp_path / "sorted")


@pytest.mark.parametrize("how", ["copy", "link", "move"])
def test_a_file_that_appears_meanwhile_is_not_replaced(results, tmp_path, how, monkeypatch):
    """Somebody else writes the very name, after the results say where the image goes."""
    planted = tmp_path / "sorted" / "cat" / "1.jpg"

    def write_and_plant(path, records):
        write_results(path, records)
        if not planted.exists():
            planted.parent.mkdir(parents=True)
            planted.write_bytes(b"of somebody else")

    monkeypatch.setattr(sorting, "write_results", write_and_plant)
    with pytest.raises(RunError, match="1 of 4 images could not be sorted"):
        sort_images(results, tmp_path / "sorted", how)
    assert planted.read_bytes() == b"of somebody else"
    assert (tmp_path / "photos/a/1.jpg").read_bytes() == b"image 0"
    assert sort_images(results, tmp_path / "sorted", how) == {"cat": 2, "AC_DC": 1, "unsure": 1}
    assert planted.read_bytes() == b"of somebody else"
    assert sorted(files_below(tmp_path / "sorted").values()) == [
        *(f"image {i}".encode() for i in range(4)),
        b"of somebody else",
    ]
    assert unsort_images(results) == (4, [])
    assert files_below(tmp_path / "sorted") == {"cat/1.jpg": b"of somebody else"}


def test_moving_works_where_there_are_no_hard_links(results, tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    before = files_below(tmp_path / "photos")
    sort_images(results, tmp_path / "sorted", "move")
    assert len(files_below(tmp_path / "sorted")) == 4
    assert unsort_images(results) == (4, [])
    assert files_below(tmp_path / "photos") == before


@pytest.mark.parametrize("how", ["copy", "link", "move"])
def test_a_link_in_the_place_of_a_subfolder_is_not_followed(results, tmp_path, how):
    (tmp_path / "private").mkdir()
    (tmp_path / "sorted").mkdir()
    (tmp_path / "sorted" / "cat").symlink_to(tmp_path / "private")
    with pytest.raises(RunError, match=r"2 of 4 images could not be sorted.* its folder is a symbolic link"):
        sort_images(results, tmp_path / "sorted", how)
    assert not list((tmp_path / "private").iterdir())


def test_a_member_of_an_archive_is_never_a_file_on_the_disk(tmp_path, monkeypatch):
    """Its name leads to a file of the user if a folder has the name of the archive and a colon."""
    monkeypatch.chdir(tmp_path)
    private = tmp_path / "private" / "diary.webp"
    private.parent.mkdir()
    private.write_bytes(b"private")
    (tmp_path / "x.tar").write_bytes(b"a tar file")
    (tmp_path / "x.tar::a").mkdir()
    (tmp_path / "a::b.webp").write_bytes(b"a file with such a name")
    answer = Answer("cat", 0.9)
    names = ["x.tar::a/../private/diary.webp", "a::b.webp"]
    assert Path(names[0]).read_bytes() == b"private"
    found = [Prediction(i, (answer,), answer, name=name, online=answer) for i, name in enumerate(names)]
    output = Table(tmp_path / "results.csv", 1)
    output.write([found])
    assert sort_images(output.path, tmp_path / "sorted", "move") == {"cat": 1}
    assert private.read_bytes() == b"private"
    assert files_below(tmp_path / "sorted") == {"cat/a::b.webp": b"a file with such a name"}
