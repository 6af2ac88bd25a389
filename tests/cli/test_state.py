"""`acclimate state`: show, merge and compare."""

import numpy as np
import pytest

from acclimate import TDA, Accord, Head, create, load_state, save_state
from acclimate.encoders import load_encoder
from acclimate.files import read_snapshot, snapshot_bytes
from portal import running


@pytest.fixture
def states(stream, tmp_path):
    paths = []
    for name, part in (("a", slice(0, 150)), ("b", slice(150, 400))):
        adapter = TDA(stream.head, origin=name)
        adapter.step(stream.features[part], ids=np.arange(400)[part])
        paths.append(tmp_path / f"{name}.safetensors")
        save_state(adapter, paths[-1])
    return paths


def test_state_inspect(invoke, states):
    output = invoke("state", "inspect", *states).stdout
    assert "samples_seen=150" in output
    assert "samples_seen=250" in output
    assert "positive: 24 entries" in output
    assert "150 samples of a\n" in output
    assert ["class", "positive", "negative"] in [line.split() for line in output.splitlines()]
    listed = invoke("state", "inspect", states[0], "--entries").stdout
    adapter = load_state(states[0])
    for part, entries in adapter.entries().items():
        for entry in entries:
            row = [part, f"{entry.entropy:.3g}", str(entry.id)]
            assert any(line.split()[-3:] == row for line in listed.splitlines())


def test_state_merge_and_diff(invoke, states, tmp_path):
    invoke("state", "merge", *states, "--out", "ab.safetensors")
    invoke("state", "merge", *reversed(states), "--out", "ba.safetensors")
    assert invoke("state", "diff", "ab.safetensors", "ba.safetensors").stdout == "no difference\n"
    merged = load_state(tmp_path / "ab.safetensors")
    assert merged.samples_seen == 400
    output = invoke("state", "diff", states[0], "ab.safetensors", exit_code=1).stdout
    assert "samples seen: 150 against 400" in output
    assert "positive:" in output
    merged.freeze()
    save_state(merged, tmp_path / "frozen.safetensors")
    assert (
        "frozen: False against True"
        in invoke("state", "diff", "ab.safetensors", "frozen.safetensors", exit_code=1).stdout
    )


@pytest.fixture
def fleet(stream, here):
    """Return a folder with the states of 20 sites."""

    def make(method, start=None):
        (here / "sites").mkdir(exist_ok=True)
        for site, part in enumerate(np.split(np.arange(400), 20)):
            adapter = create(method, stream.head) if start is None else load_state(start)
            adapter.origin = f"site {site}"
            adapter.step(stream.features[part], ids=part + adapter.samples_seen)
            save_state(adapter, here / "sites" / f"{site:02}.safetensors")
        return [here / "sites" / f"{site:02}.safetensors" for site in range(20)]

    return make


def same_sums(one, other):
    ours = load_state(one).dump()
    theirs = load_state(other).dump()
    return all(np.allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-5) for name in ours)


@pytest.mark.parametrize("method", ["tda", "dota"])
@pytest.mark.parametrize("named", ["folder", "pattern", "both"])
def test_a_fleet_merges_from_a_folder_or_a_pattern(invoke, fleet, here, stream, method, named):
    fleet(method)
    words = {"folder": ["sites"], "pattern": ["sites/*.safetensors"], "both": ["sites/0?.safetensors", "sites/1*"]}
    for out in ("all.safetensors", "sites/all.safetensors", "sites/all.safetensors"):  # it is not merged itself
        said = invoke("state", "merge", *words[named], "--out", out).stdout
        assert said == f"{out}: 20 states merged, 400 samples of 20 streams\n"
    whole = create(method, stream.head, origin="whole")
    whole.step(stream.features)
    save_state(whole, here / "whole.safetensors")
    save_state(create(method, stream.head), here / "new.safetensors")
    invoke("state", "merge", "whole.safetensors", "new.safetensors", "--out", "settled.safetensors")
    assert same_sums("all.safetensors", "settled.safetensors")


@pytest.mark.parametrize("method", ["tda", "dota"])
def test_a_fleet_goes_on_from_its_merged_state(invoke, fleet, here, method):
    fleet(method)
    invoke("state", "merge", "sites", "--out", "monday.safetensors")
    fleet(method, start="monday.safetensors")
    arguments = ("state", "merge", "sites", "--out", "tuesday.safetensors")
    if method == "dota":
        error = invoke(*arguments, exit_code=2).stderr
        assert "sites/01.safetensors and sites/00.safetensors both hold samples of the origin 'site 0'" in error
    said = invoke(*arguments, "--start", "monday.safetensors").stdout
    assert said == "tuesday.safetensors: 20 states merged, 800 samples of 20 streams\n"
    if method == "dota":
        one, two = (load_state(here / f"{day}.safetensors").dump() for day in ("monday", "tuesday"))
        np.testing.assert_allclose(two["sums.counts"], 2 * one["sums.counts"], rtol=1e-5)
    invoke("state", "merge", "sites/03.safetensors", "--out", "three.safetensors", "--start", "monday.safetensors")
    assert (here / "three.safetensors").read_bytes() == (here / "sites/03.safetensors").read_bytes()
    twice = ("state", "merge", "sites/03.safetensors", "sites", "--out", "x", "--start", "monday.safetensors")
    assert "sites/03.safetensors both hold" in invoke(*twice, exit_code=2).stderr
    early = invoke(*arguments, "--start", "sites/04.safetensors", exit_code=2).stderr
    assert "sites/00.safetensors: an adapter has seen 20 samples of the origin 'site 4' fewer than `start`" in early


def test_a_file_that_cannot_be_used_is_named_or_skipped(invoke, fleet, here, stream):
    files = fleet("dota")
    files[3].write_bytes(files[3].read_bytes()[:-100])
    error = invoke("state", "merge", "sites", "--out", "all.safetensors", exit_code=2).stderr
    assert "sites/03.safetensors cannot be read as a state" in error
    files[5].write_bytes(b"")
    save_state(create("dota", stream.head, refresh=7), files[7])
    files[9].write_bytes(files[0].read_bytes())
    result = invoke("state", "merge", "sites", "nowhere", "--out", "all.safetensors", "--skip-unusable")
    assert result.stdout == "all.safetensors: 16 states merged, 5 skipped, 320 samples of 16 streams\n"
    for line, words in zip(
        result.stderr.splitlines(),
        (
            "sites/03.safetensors cannot be read as a state",
            "sites/05.safetensors cannot be read as a state",
            "sites/07.safetensors cannot be merged with sites/00.safetensors: refresh 7 against 32",
            "sites/09.safetensors and sites/00.safetensors both hold samples of the origin 'site 0'",
            "no state file at nowhere",
        ),
        strict=True,
    ):
        assert line.startswith(f"skipped: {words}")
    assert load_state(here / "all.safetensors").samples_seen == 320


def test_a_fleet_is_not_thrown_away_for_one_that_differs(invoke, fleet, stream, here):
    files = fleet("dota")
    save_state(create("dota", stream.head, refresh=7), files[0])
    error = invoke("state", "merge", "sites", "--out", "all", "--skip-unusable", exit_code=2).stderr
    assert "19 files are of another kind than sites/00.safetensors, and 1 of the same; leave that one out" in error
    assert not (here / "all").exists()


def test_nothing_to_merge(invoke, here):
    (here / "empty").mkdir()
    for name in ("empty", "no/*.safetensors"):
        error = invoke("state", "merge", name, "--out", "all", exit_code=2).stderr
        assert f"{name}; name files, or folders with *.safetensors files" in error
    error = invoke("state", "merge", "nowhere", "--out", "all", "--skip-unusable", exit_code=2).stderr
    assert "none of the files can be used" in error


def test_methods_that_cannot_merge_are_named_with_the_file(invoke, stream, here):
    for name in ("one", "other"):
        save_state(create("bca", stream.head), here / name)
    error = invoke("state", "merge", "one", "other", "--out", "both", exit_code=2).stderr
    assert "one: states of 'bca' cannot be merged: what it learns depends on the order" in error


@pytest.mark.parametrize("method", ["tda", "dota", "prior"])
def test_states_of_two_runs_merge(invoke, stream_file, here, method):
    for name in ("one", "other"):
        invoke("run", stream_file, "--method", method, "--save-state", f"{name}.safetensors")
    invoke("state", "merge", "one.safetensors", "other.safetensors", "--out", "both.safetensors")
    assert load_state(here / "both.safetensors").seen == {"one": 400, "other": 400}


def test_state_inspect_passes_on_what_the_method_advises(invoke, tmp_path):
    adapter = Accord(Head(np.eye(8), logit_scale=20.0))
    adapter.step(np.eye(8)[np.arange(200) % 2])
    save_state(adapter, tmp_path / "few.safetensors")
    assert "note: some of the 8 labels seem to be rare" in invoke("state", "inspect", "few.safetensors").stdout


@pytest.mark.parametrize("name", ["positive.keys", "negative.keys", "positive.entropies", "positive.ids"])
def test_states_that_differ_in_one_array_differ(invoke, states, tmp_path, name):
    arrays, description = read_snapshot(states[0])
    changed = arrays[name].copy()
    if name.endswith("keys"):
        changed[0] = np.roll(changed[0], 1)
    else:
        changed[0] = changed[0] * 0.5 if changed.dtype.kind == "f" else 1000
    (tmp_path / "other").write_bytes(snapshot_bytes(arrays | {name: changed}, description))
    output = invoke("state", "diff", states[0], "other", exit_code=1).stdout
    assert f"{name}: differs by up to " in output
    assert invoke("state", "diff", states[0], states[0]).stdout == "no difference\n"


@pytest.mark.parametrize("method", ["dota", "accord", "bca"])
def test_one_more_sample_is_a_difference(invoke, tmp_path, stream, method):
    adapter = create(method, stream.head)
    adapter.step(stream.features[:200])
    save_state(adapter, tmp_path / "one")
    adapter.step(stream.features[200:201])
    adapter.seen = {"": 200}
    save_state(adapter, tmp_path / "other")
    assert ": differs by up to " in invoke("state", "diff", "one", "other", exit_code=1).stdout


def test_pending_samples_are_no_difference(invoke, tmp_path, stream):
    one = create("dota", stream.head, refresh=1000)
    one.step(stream.features[:399])  # after 128 samples, every 16th refreshes
    save_state(one, tmp_path / "one")
    assert any(name.startswith("waiting") for name in one.parts["sums"].dump())
    one.flush()
    assert not any(name.startswith("waiting") for name in one.parts["sums"].dump())
    save_state(one, tmp_path / "other")
    assert invoke("state", "diff", "one", "other").stdout == "no difference\n"


def test_class_names_cannot_drive_the_terminal(invoke, tmp_path):
    names = ("[/bold]", "\x1b]0;title\x07", "a\nb", "7", ":cat:")
    adapter = TDA(Head(np.eye(5), 10.0, class_names=names), origin="\x1b[2J")
    adapter.step(np.eye(5))
    save_state(adapter, tmp_path / "names.safetensors")
    for option in ([], ["--entries"]):
        output = invoke("state", "inspect", "names.safetensors", *option).stdout
        assert not set(output) & {"\x1b", "\x07"}
        for shown in ("[/bold]", r"\x1b]0;title\x07", r"a\nb", ":cat:", r"samples of \x1b[2J"):
            assert shown in output


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays, about: about["head"].update(class_names=[7, *about["head"]["class_names"][1:]]),
        lambda arrays, about: about["head"].update(class_names=["\ud800", *about["head"]["class_names"][1:]]),
        lambda arrays, about: about.update(notes={"fitted": []}, seen=[]),
        lambda arrays, about: about.update(seen={"\x1b[2J": 2**60}),
        lambda arrays, about: about.update(method="\x1b[2J"),
        lambda arrays, about: arrays.update({"positive.ids": arrays["positive.ids"] + 2**62}),
        lambda arrays, about: arrays.update({"positive.keys": np.full_like(arrays["positive.keys"], np.inf)}),
        lambda arrays, about: arrays.update({"negative.targets": np.zeros((0, 10**8), np.int32)}),
        lambda arrays, about: arrays.update({"\x1b[2J.keys": arrays["positive.keys"]}),
    ],
)
def test_every_command_refuses_an_edited_state_in_one_line(invoke, states, here, tiny_onnx, photos, change):
    arrays, description = read_snapshot(states[0])
    change(arrays, description)
    states[0].write_bytes(snapshot_bytes(arrays, description))
    before = states[0].read_bytes()
    classify = ("classify", photos, "--model", f"onnx:{tiny_onnx}", "--labels", "cat,dog")
    for command in (
        ("state", "inspect", states[0]),
        ("state", "merge", *states, "--out", "merged"),
        ("state", "diff", *states),
        ("correct", "--state", states[0], "--list"),
        ("correct", "--state", states[0], "--undo", "1"),
        (*classify, "--method", "tda", "--state", states[0]),
    ):
        result = invoke(*command, exit_code=2)
        error = result.stderr.strip().splitlines()[-1]
        assert error.startswith("error: "), result.stderr
        assert states[0].name in error
        assert "\x1b" not in result.stdout + result.stderr
        assert "Traceback" not in result.stderr
    assert states[0].read_bytes() == before
    assert not (here / "merged").exists()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("method", ["tda", "accord"])
def test_a_state_with_numbers_too_large_to_answer_from(invoke, photos, tmp_path, method):
    command = ("classify", photos, "--labels", "cat, dog", "--method", method, "--state", "state.safetensors")
    invoke(*command)
    path = tmp_path / "state.safetensors"
    tensors, description = read_snapshot(path)
    learnt = {name: values for name, values in tensors.items() if name != "class_vectors" and values.dtype.kind == "f"}
    huge = {name: np.full_like(values, 1e38) for name, values in learnt.items()}
    path.write_bytes(snapshot_bytes(tensors | huge, description))
    error = invoke(*command, exit_code=2).stderr
    why = "the scores are not numbers, as the state or a setting is too large"
    assert error == f"error: {why}; take another state or other settings.\n"


def test_export_and_import_of_streams(invoke, tiny_onnx, photos, here):
    """A stream's state leaves a service that runs, and enters one that is stopped; snapshots can be exported, too."""
    images = [path.read_bytes() for path in sorted(photos.rglob("*.png"))[:8]]
    encoder = load_encoder(f"onnx:{tiny_onnx}", "cpu")
    one, two = (here / "data" / "streams" / f"{name}.sqlite" for name in ("one", "two"))
    with running(here / "data", encoder) as streams:
        for name in ("one", "two"):
            streams.create(name, ["red", "green", "blue"], method="tda", skip_duplicates=False)
        stream = streams.get("one")
        stream.classify(images[:5])
        snapshot = stream.snapshot()
        stream.classify(images[5:])
        invoke("state", "export", one, "now.safetensors")
        assert (here / "now.safetensors").read_bytes() == stream.state_bytes()
        assert "another service uses" in invoke("state", "import", "now.safetensors", two, exit_code=2).stderr
    invoke("state", "export", one, "then.safetensors", "--snapshot", snapshot)
    assert [load_state(here / f"{name}.safetensors").samples_seen for name in ("then", "now")] == [5, 8]
    invoke("state", "import", "then.safetensors", two)
    with running(here / "data", encoder) as streams:
        stream = streams.get("two")
        assert stream.describe()["samples_seen"] == 5
        assert "uploaded" in [each["reason"] for each in stream.snapshots()]
        invoke("state", "export", two, "two.safetensors")
    assert invoke("state", "diff", "then.safetensors", "two.safetensors").stdout == "no difference\n"


def test_files_that_are_no_streams(invoke, states, here):
    (here / "text.sqlite").write_text("not a database")
    assert "file is not a database" in invoke("state", "export", "text.sqlite", "out", exit_code=2).stderr
    assert "does not exist" in invoke("state", "export", "no.sqlite", "out", exit_code=2).stderr
    assert "does not exist" in invoke("state", "import", states[0], "no/streams/one.sqlite", exit_code=2).stderr
    assert not (here / "no").exists()
