"""Values of options: labels, templates, settings."""

import csv
import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import acclimate
from acclimate import Classifier
from acclimate.cli.arguments import (
    list_images,
    note_language,
    parse_settings,
    read_labels,
    read_templates,
)
from acclimate.errors import InputError
from acclimate.files import MAX_TEXT
from acclimate.prompts import clean_labels, prompts_for
from acclimate.sources import order_samples
from small_images import draw, names


def test_labels_from_a_list():
    assert read_labels("cat, dog ,bird") == ("cat", "dog", "bird")
    assert read_labels("cat") == ("cat",)
    assert read_labels("yes/no, maybe") == ("yes/no", "maybe")
    assert read_labels("cat;dog; bird") == read_labels("cat\ndog\nbird") == ("cat", "dog", "bird")
    assert read_labels("cat, a;b") == ("cat", "a;b")
    assert read_labels("cat, big\ndog") == ("cat, big", "dog")
    assert len(read_labels(",".join(f"a rather long name {i}" for i in range(1000)))) == 1000
    with pytest.raises(InputError, match="no labels"):
        read_labels(" ")
    with pytest.raises(InputError, match="label 3 is empty"):
        read_labels("cat,dog,")


def test_labels_from_a_file(tmp_path):
    path = tmp_path / "labels"
    path.write_bytes("\ufeff# animals\r\ncat, big\r\n\r\n  grüner_Frosch \r\n#dog\r\nbird".encode())
    assert read_labels(str(path)) == ("cat, big", "grüner_Frosch", "bird")


def test_label_files_that_are_none(tmp_path):
    for name, content in {"utf16": "kät".encode("utf-16"), "binary": b"a\0b"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"{name} is not UTF-8 text"):
            read_labels(str(tmp_path / name))
    with pytest.raises(InputError, match="is a folder"):
        read_labels(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    for special, what in {"/dev/zero": "device", str(tmp_path / "pipe"): "pipe"}.items():
        with pytest.raises(InputError, match=f"cannot be read: a {what}, not a regular file"):
            read_labels(special)
    (tmp_path / "long.txt").write_bytes(b"")
    os.truncate(tmp_path / "long.txt", MAX_TEXT + 1)
    with pytest.raises(InputError, match=r"more than the .* allowed"):
        read_labels(str(tmp_path / "long.txt"))
    for missing in (str(tmp_path / "animals"), *(f"animals.{kind}" for kind in ("txt", "csv", "JSON", "tsv", "xlsx"))):
        with pytest.raises(InputError, match=r"no label file at .*animals"):
            read_labels(missing)
    for empty, content in {"e.txt": "# nothing\n", "e.csv": "id,label\n", "e.json": "[]", "f.csv": ""}.items():
        (tmp_path / empty).write_text(content)
        with pytest.raises(InputError, match=rf"{empty} holds no labels; write at least two, one per line"):
            read_labels(str(tmp_path / empty))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "id,name\r\n1,cat\r\n2,big dog\r\n"),
        ("a.csv", "\ufeffName;id\ncat;1\n\n big dog ;2\n;3\n"),
        ("a.tsv", "id\tClass\n1\tcat\n2\tbig dog\n"),
        ("a.csv", "file,label\nx.jpg,cat\ny.jpg,cat\nz.jpg,big dog\n"),
        ("a.csv", "label\ncat\n# comment\nbig dog\n"),
        ("a.csv", "cat\nbig dog\n"),
        ("a.csv", "cat,big dog\n"),
        ("a.csv", '"cat"\n"big dog"'),
        ("a.txt", "# mine\ncat, big dog\n"),
        ("a.txt", "cat;big dog"),
        ("a.JSON", '["cat", " big dog"]'),
    ],
)
def test_label_files_of_every_kind(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read_labels(str(tmp_path / name)) == ("cat", "big dog")


@given(st.lists(st.text("abc ,;\"'", min_size=1, max_size=6).filter(str.strip), min_size=1, max_size=5))
def test_any_labels_go_through_a_table(tmp_path_factory, labels):
    path = tmp_path_factory.mktemp("labels") / "labels.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["id", "label"], *enumerate(labels)])
    try:
        expected = clean_labels(list(dict.fromkeys(label.strip() for label in labels)))
    except InputError as error:
        with pytest.raises(InputError, match=re.escape(str(error))):
            read_labels(str(path))
    else:
        assert read_labels(str(path)) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "id,breed\n1,cat\n", r"a\.csv has the columns id, breed; name the one with the labels 'label'"),
        ("a.json", '{"0": "cat"}', "must hold a list, such as"),
        ("a.json", "[1, 2]", "label 1 must be a string"),
        ("a.json", "[", "is not JSON"),
        ("a.csv", "label\ncat\nCat\n", "'cat' and 'Cat' are the same class"),
        ("a.csv", 'label\n"cat\n' + "x" * 200_000, "is not a table"),
        ("a.xlsx", "PK", "cannot be read as an Excel file"),
        ("a.ods", "PK", "is a spreadsheet of another kind; save it as .xlsx or .csv"),
    ],
)
def test_label_files_that_cannot_be_used(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_labels(str(tmp_path / name))


def test_prompts_of_a_file_are_named_after_it(tmp_path):
    (tmp_path / "p.json").write_text('{"cat": "It purrs.", "dgo": "It barks."}')
    with pytest.raises(InputError, match=r"p\.json has no prompts for 'dog' \(it has 'dgo', not among the labels\)"):
        prompts_for(["cat", "dog"], read_templates([str(tmp_path / "p.json")]))


def test_images_of_a_command(here, capsys):
    for path in ("photos/cat/a.png", "photos/cat/b.png", "photos/dog/c.png", "photos/dog/d.png"):
        draw(here / path)
    (here / "photos/cat/raw.cr2").write_text("")

    def listed_as(*arguments):
        return names(list_images(["photos"], *arguments))

    listed = list_images(["photos"])
    assert [sample.label for sample in listed] == ["cat", "cat", "dog", "dog"]
    assert capsys.readouterr().err == "note: skipped 1 .cr2 (camera raw, which is not read: export JPEGs).\n"
    assert listed_as("auto", ["monday", "cat"]) == names(listed)
    assert "shuffled" not in capsys.readouterr().err
    assert listed_as("auto", ["dog", "cat"]) == names(order_samples(listed, "shuffled:0")) != names(listed)
    assert "note: folders are classes, so the images are shuffled; --order path keeps" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"no file or folder at dog, bird; if these are labels, write them all in one"):
        list_images(["dog", "photos", "bird"])
    with pytest.raises(InputError, match="no file or folder at dog; check the path"):
        list_images(["dog"])


def test_the_language_of_labels_is_noted_for_the_bundled_model(capsys):
    note_language(["chat", "chien"], "hf:some/model")
    note_language(["cat", "dog"], "bundled")
    assert capsys.readouterr().err == ""
    note_language(["chat", "chien"], "bundled")
    assert "'chat' and 'chien' look French; the bundled model reads English only" in capsys.readouterr().err
    Classifier(["chat", "chien"])  # does not say it again: a warning would be an error here


def test_template_options(tmp_path):
    (tmp_path / "t.txt").write_text("# mine\na {}.\n\nthe {c}.\n")
    (tmp_path / "t.json").write_text(json.dumps(["my {}."]))
    (tmp_path / "d.json").write_text(json.dumps({"cat": "It purrs.", "sea lion": ["It\u2028barks."]}, indent=1))
    text, templates, full = (str(tmp_path / name) for name in ("t.txt", "t.json", "d.json"))
    assert prompts_for(["x"], read_templates(None)) == [["a photo of a x."]]
    mixed = read_templates([text, "dtd", templates, "{}.txt"])
    assert prompts_for(["x"], mixed) == [["a x.", "the x.", "x texture.", "my x.", "x.txt"]]
    assert prompts_for(["cat", "sea_lion"], read_templates([full])) == [["It purrs."], ["It\u2028barks."]]
    with pytest.raises(InputError, match="cannot be mixed"):
        read_templates([full, "a {}."])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "is not JSON"),
        ("a.json", "3", "must hold templates"),
        ("a.json", "{}", "must hold templates"),
        ("a.json", '["a photo."]', "has no {}"),
        ("a.json", "[1]", "must be a string"),
        ("a.json", '{"cat": {"lion": ["x"]}}', "'cat' has"),
        ("a.txt", "#", "must hold templates"),
        ("a.txt", "a photo.", "has no {}"),
        ("a.txt", "\0", "not UTF-8"),
        ("a.txt", None, "no template file at"),
    ],
)
def test_template_files_that_are_none(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_templates([str(tmp_path / name)])


def test_a_template_option_that_is_none():
    with pytest.raises(InputError, match="name a set"):
        read_templates(["openai-81"])
    with pytest.raises(InputError, match="cannot be read"):
        read_templates(["x" * 5000 + ".txt"])


def test_a_bare_setting_is_for_the_methods_that_have_it(stream, monkeypatch):
    monkeypatch.setattr("acclimate.methods.registry._REGISTRY", acclimate.list_methods())

    @acclimate.register
    class Plain(acclimate.ZeroShot):
        name = "plain"

    both = ["tda", "plain"]
    assert parse_settings("tda", ["positive-alpha=3"], both) == {"positive_alpha": 3}
    assert parse_settings("plain", ["positive-alpha=3"], both) == {}
    with pytest.raises(InputError, match="'plain' has no setting 'positive_alpha'"):
        parse_settings("plain", ["plain.positive_alpha=3"], both)
