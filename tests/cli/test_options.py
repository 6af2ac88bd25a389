"""What the values of options mean: labels, templates, settings."""

import json

import pytest

import acclimate
from acclimate.cli.options import parse_settings, read_labels, read_templates
from acclimate.errors import InputError
from acclimate.prompts import prompts_for


def test_labels_from_a_list():
    assert read_labels("cat, dog ,bird") == ("cat", "dog", "bird")
    assert read_labels("cat") == ("cat",)
    assert read_labels("yes/no, maybe") == ("yes/no", "maybe")
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
    for missing in (str(tmp_path / "animals"), "animals.txt"):
        with pytest.raises(InputError, match=r"no label file at .*animals"):
            read_labels(missing)
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(InputError, match="no labels"):
        read_labels(str(tmp_path / "empty.txt"))


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
