"""Settings of the service: where they come from, and the file that has all of them."""

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.main import get_command
from typer.testing import CliRunner

from acclimate.cli import app
from acclimate.serve.limits import Limits
from acclimate.serve.settings import ServeSettings, load_settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
words = st.text("abc\"\\'#=[]\n\x7f\0é🐈", min_size=1, max_size=8)
numbers = st.integers(1, 10**5)
seconds = st.floats(min_value=1e-3, max_value=1e6)
chosen = st.fixed_dictionaries(
    {},
    optional={
        "data": texts.filter(lambda text: "\0" not in text).map(lambda text: Path("x", text)),
        "model": texts,
        "compile": st.booleans(),
        "port": st.integers(0, 65535),
        "allow_host": st.lists(words, max_size=3),
        "streams": st.fixed_dictionaries(
            {},
            optional={
                "labels": texts | st.lists(texts, max_size=3),
                "templates": texts | st.lists(texts) | st.dictionaries(words, st.lists(words, max_size=2), max_size=3),
                "settings": st.dictionaries(words, st.booleans() | numbers | seconds | texts, max_size=3),
                "views_kind": st.sampled_from([None, "crop"]),
                "unsure": st.none() | st.floats(0, 1),
            },
        ),
        "limits": st.fixed_dictionaries({}, optional={"timeout_s": seconds, "streams": numbers, "workers": numbers}),
    },
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("settings") / "serve.toml"


@pytest.fixture
def printed(tmp_path, monkeypatch):
    """Return a function that returns what --print-config prints, parsed, with options, variables and a file."""

    def run(*options, variables=None, file=None):
        for name, value in (variables or {}).items():
            monkeypatch.setenv(f"ACCLIMATE_SERVE_{name}", value)
        if file is not None:
            (tmp_path / "serve.toml").write_text(file)
            options += ("--config", str(tmp_path / "serve.toml"))
        result = CliRunner().invoke(app, ["serve", "--print-config", *options])
        assert result.exit_code in (0, 2), result.output
        return tomllib.loads(result.stdout) if result.exit_code == 0 else result.stderr

    return run


@settings(deadline=None)
@given(chosen)
def test_the_printed_file_has_the_same_settings(file, values):
    one = load_settings(None, values)
    file.write_text(one.toml(), "utf-8")
    assert load_settings(file, {}).model_dump() == one.model_dump()


def test_the_printed_file_has_every_setting_and_a_sentence_for_each():
    text = ServeSettings().toml()
    for model in (ServeSettings, type(ServeSettings().streams), Limits):
        for name, field in model.model_fields.items():
            if name == "config":
                continue
            assert f"{name} = " in text or f"{name}]" in text
            assert field.description[0].isupper()
            assert field.description.endswith(".")
            assert f"# {field.description}\n" in text


def test_the_command_line_comes_first_then_variables_then_the_file(printed):
    file = 'port = 1\nhost = "::1"\nmodel = "file"\n[streams]\nmethod = "tda"\n[limits]\nimages = 3\nbatch = 4\n'
    variables = {"PORT": "2", "HOST": "localhost", "LIMITS__IMAGES": "5", "LABELS": "cat, dog", "SET": "negative=false"}
    found = printed("--port", "3", "--set", "positive_capacity=2", variables=variables, file=file)
    assert [found[name] for name in ("port", "host", "model", "device")] == [3, "localhost", "file", "auto"]
    assert [found["limits"][name] for name in ("images", "batch", "queue")] == [5, 4, 512]
    assert (found["streams"]["method"], found["streams"]["labels"]) == ("tda", "cat, dog")
    assert found["streams"]["settings"] == {"positive_capacity": 2}


def test_variables_of_every_kind(printed):
    variables = {
        "ALLOW_HOST": "a.example b.example",
        "STREAMS__TEMPLATES": '["a {}", "the {}"]',
        "STREAMS__SETTINGS": '{"negative": false}',
        "STREAMS__SKIP_DUPLICATES": "false",
        "THUMBNAILS": "1",
    }
    found = printed(variables=variables)
    assert found["allow_host"] == ["a.example", "b.example"]
    assert found["streams"]["templates"] == ["a {}", "the {}"]
    assert found["streams"]["settings"] == {"negative": False}
    assert (found["streams"]["skip_duplicates"], found["streams"]["thumbnails"]) == (False, True)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("prot = 1", "unknown field 'prot'; did you mean 'port'"),
        ("[limits]\ntimeout = 1", "limits: unknown field 'timeout'; did you mean 'timeout_s'"),
        ("[streams]\nlabel = 'x'", "streams: unknown field 'label'; did you mean 'labels'"),
        ("[streams]\nguard = false", "streams: unknown field 'guard'"),
        ("[limits]\ntimeout_s = 0", "limits.timeout_s: Input should be greater than 0"),
        ("[limits]\ntimeout_s = inf", "limits.timeout_s: Input should be a finite number"),
        ("port = 70000", "port: Input should be less than or equal to 65535"),
        ("port = [", "serve.toml cannot be read: Invalid"),
        ("\0", "serve.toml cannot be read: Invalid"),
    ],
)
def test_wrong_settings_are_refused(printed, file, message):
    assert message in printed(file=file)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MAX_BODY", "1", "the environment variable ACCLIMATE_SERVE_MAX_BODY sets nothing"),
        ("LIMIT__QUEUE", "1", "did you mean 'limits'"),
        ("LIMITS__TIMEOUT", "1", "did you mean 'timeout_s'"),
        ("LIMITS__TIMEOUT_S", "soon", "limits.timeout_s: Input should be a valid number"),
        ("STREAMS", "{", "streams"),
    ],
)
def test_wrong_variables_are_refused(printed, name, value, message):
    assert message in printed(variables={name: value})


def test_the_file_in_the_guide(file):
    guide = (Path(__file__).parents[2] / "docs" / "serve.md").read_text("utf-8")
    (text,) = re.findall(r"^```toml\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    file.write_text(text)
    found = load_settings(file, {})
    assert found.streams.settings == {"positive_capacity": 5}
    assert (found.limits.timeout_s, found.limits.client_streams) == (60, 500)
    table = guide.partition("### Limits")[2].partition("\n## ")[0]
    named = re.findall(r"^\|[^|]+\|[^|]+\|([^|]*)\|[^|]+\|$", table, re.MULTILINE)
    assert {*re.findall(r"`(\w+)`", " ".join(named))} <= {*Limits.model_fields}


def test_files_that_cannot_be_read(printed, tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        assert "--config" in printed("--config", str(path))


def test_the_command_has_few_options():
    assert len(get_command(app).commands["serve"].params) <= 16


@pytest.mark.parametrize("limits", [{"queue": 0}, {"batch": 0}, {"wait_s": -1.0}, {"history": 1}, {"labels": 1}])
def test_limits_that_make_no_sense_are_refused(limits):
    with pytest.raises(ValidationError):
        Limits(**limits)
