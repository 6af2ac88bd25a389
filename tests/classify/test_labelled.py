import json
from pathlib import Path

import pytest

from acclimate.classify.labelled import TRUTHS, match_labels, read_labels
from acclimate.errors import InputError
from acclimate.predict import NONE

NAMES = ["photos/cats/1.jpg", "photos/dogs/1.jpg", "photos/dogs/2.jpg", "photos/red, fox.jpg"]
LABELS = ["cat", "dog", "red fox"]


def read_truths(path, names, labels):
    return match_labels(read_labels(path, TRUTHS), names, (*labels, NONE))


@pytest.fixture
def truths(tmp_path):
    """Return the true labels of the images that a file gives."""

    def read(text, suffix=".csv"):
        path = tmp_path / f"truth{suffix}"
        path.write_text(text, encoding="utf-8")
        found = read_truths(path, NAMES, LABELS)
        return [found.get(name) for name in NAMES]

    return read


def test_formats(truths):
    expected = ["cat", None, "dog", "red fox"]
    rows = [("photos/cats/1.jpg", "cat"), ("photos/dogs/2.jpg", "Dog"), ('"photos/red, fox.jpg"', "red_fox")]
    plain = "".join(f"{file},{label}\n" for file, label in rows)
    assert truths(plain) == truths(plain, ".txt") == truths(f"\ufeff# by hand\n\n{plain}", ".txt") == expected
    assert truths("Label, File\n" + "".join(f"{label},{file}\n" for file, label in rows)) == expected
    results = "file,label,true_label\n" + "".join(f"{file},cat,{label}\n" for file, label in rows)
    assert truths(results) == expected  # the results of a run have both: the answer is not the truth
    objects = "".join(
        f'{{"path": {file if file[0] == chr(34) else chr(34) + file + chr(34)}, "class": "{label}"}}\n'
        for file, label in rows
    )
    assert truths(objects, ".jsonl") == expected


def test_a_file_is_found_by_its_path_its_end_or_its_name(truths):
    assert truths("./photos/cats/1.jpg,cat") == ["cat", None, None, None]
    assert truths("dogs/1.jpg,dog") == [None, "dog", None, None]
    assert truths("2.jpg,dog") == [None, None, "dog", None]
    assert truths(f"{Path.cwd()}/photos/dogs/2.jpg,dog") == [None, None, "dog", None]


def test_unknown_labels_are_left_out(truths):
    assert truths("2.jpg,\ncats/1.jpg,none of these") == ["none of these", None, None, None]
    assert truths('{"file": "2.jpg", "label": null}', ".jsonl") == [None] * 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "2.jpg,dog\n3.jpg,dog",
            "line 2: 3.jpg is not among the images of this run; did you mean",
        ),
        ("elsewhere/2.jpg,dog", "line 1: elsewhere/2.jpg is not among the images of this run"),
        ("gs/2.jpg,dog", "line 1: gs/2.jpg is not among"),
        ("1.jpg,cat", "line 1: 1.jpg could be photos/cats/1.jpg or photos/dogs/1.jpg; write more of its path"),
        ("2.jpg,dgo", "line 1: 'dgo' is not a label of this run; did you mean 'dog'"),
        ("# mine\n\n1.jpg,cat", "line 3: 1.jpg could be"),
        (
            "file,label,online_label\n2.jpg,dog,dog",
            "line 2: none of true_label, truth, label, class is among file",
        ),
        ("2.jpg,dog\ndogs/2.jpg,cat", "line 2: photos/dogs/2.jpg already has the label 'dog'; leave one of them"),
        ("2.jpg", "line 1: no label in '2.jpg'; write one image per line as file,label"),
        ("file,species\n2.jpg,dog", "line 2: none of true_label, truth, label, class is among file, species"),
        ("", "gives no label; write one image per line"),
        ("file,label\n", "gives no label"),
    ],
)
def test_the_first_row_that_cannot_be_used_is_named(truths, text, message):
    with pytest.raises(InputError, match=message):
        truths(text)


def test_files_that_cannot_be_read(truths, tmp_path):
    with pytest.raises(InputError, match="line 1: not JSON"):
        truths("2.jpg,dog", ".jsonl")
    with pytest.raises(InputError, match=r"labels of files are in a \.csv, \.txt or \.jsonl file"):
        truths("", ".xlsx")
    with pytest.raises(InputError, match=r"cannot read the labels in .*: No such file"):
        read_truths(tmp_path / "none.csv", [], LABELS)
    (tmp_path / "latin.csv").write_bytes("2.jpg,caf\xe9".encode("latin-1"))
    with pytest.raises(InputError, match="cannot be read as a table in UTF-8"):
        read_truths(tmp_path / "latin.csv", [], LABELS)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_names_that_are_not_unicode_are_found_as_results_have_them(tmp_path, suffix):
    path = tmp_path / f"truth{suffix}"
    names = ["photos/x\udc80y.jpg", "photos/xy.jpg"]
    for name in (r"photos/x\udc80y.jpg", r"x\udc80y.jpg"):
        line = json.dumps({"file": name, "label": "cat"}) if suffix == ".jsonl" else f"{name},cat"
        path.write_text(line)
        assert read_truths(path, names, LABELS) == {r"photos/x\udc80y.jpg": "cat"}
    if suffix == ".jsonl":
        path.write_text(r'{"file": "photos/x\udc80y.jpg", "label": "cat"}')
        assert read_truths(path, names, LABELS) == {r"photos/x\udc80y.jpg": "cat"}
