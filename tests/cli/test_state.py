"""`acclimate state`: show, merge and compare."""

import numpy as np
import pytest

from acclimate import TDA, Halves, Head, load_state, save_state
from acclimate.files import read_snapshot, snapshot_bytes


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


def test_a_state_that_was_edited(invoke, states):
    arrays, description = read_snapshot(states[0])
    for head in ([], {"class_names": 5}):
        states[0].write_bytes(snapshot_bytes(arrays, description | {"method": "coop", "head": head}))
        assert "was damaged or edited" in invoke("state", "inspect", states[0], exit_code=2).stderr


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


def test_state_inspect_shows_class_names_as_they_are(invoke, tmp_path):
    head = Head(np.eye(2), 10.0, class_names=("[red]fox[/red]", "[link]owl"))
    save_state(TDA(head), tmp_path / "markup.safetensors")
    output = invoke("state", "inspect", "markup.safetensors").stdout
    assert "[red]fox[/red]" in output
    assert "[link]owl" in output


@pytest.mark.parametrize("method", ["tda", "dota", "prior"])
def test_states_of_two_runs_merge(invoke, stream_file, here, method):
    for name in ("one", "other"):
        invoke("run", stream_file, "--method", method, "--save-state", f"{name}.safetensors")
    invoke("state", "merge", "one.safetensors", "other.safetensors", "--out", "both.safetensors")
    assert load_state(here / "both.safetensors").seen == {"one": 400, "other": 400}


def test_state_inspect_passes_on_what_the_method_advises(invoke, tmp_path):
    adapter = Halves(Head(np.eye(8), logit_scale=20.0))
    adapter.step(np.eye(8)[np.arange(200) % 2])
    save_state(adapter, tmp_path / "few.safetensors")
    assert "note: about 2 of the 8 classes" in invoke("state", "inspect", "few.safetensors").stdout
