import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.testing import assert_array_equal
from safetensors import safe_open
from safetensors.numpy import load_file

import acclimate
from acclimate import TDA, Head, load_state, merge_states, save_state, state_from_bytes, state_to_bytes
from acclimate.errors import InputError, StateError
from acclimate.files import parse_snapshot, snapshot_bytes
from acclimate.methods import CLASSES, Sums, Tensors, duplicate, load_with_notes


@pytest.fixture
def adapter(stream):
    adapter = TDA(stream.head, origin="site")
    adapter.step(stream.features)
    return adapter


@pytest.fixture
def state_file(adapter, tmp_path):
    path = tmp_path / "state.safetensors"
    save_state(adapter, path)
    return path


def metadata_of(path):
    with safe_open(path, "numpy") as file:
        return file.metadata()


def rewrite(path, change):
    """Change a state file in place, with a checksum that matches."""
    tensors = load_file(path)
    description = json.loads(metadata_of(path)["description"])
    change(tensors, description)
    path.write_bytes(snapshot_bytes(tensors, description))


def test_a_state_says_what_it_is(state_file, stream):
    metadata = metadata_of(state_file)
    assert (metadata["format"], metadata["version"]) == ("acclimate-state", "2")
    description = json.loads(metadata["description"])
    assert description["method"] == "tda"
    assert description["settings"]["positive_capacity"] == 3
    assert description["head"]["class_names"] == list(stream.head.class_names)
    assert description["head"]["logit_scale"] == 10.0
    assert description["seen"] == {"site": 400}


def test_loading_gives_the_adapter_back(state_file, adapter):
    loaded = load_state(state_file)
    assert repr(loaded) == repr(adapter)
    assert (loaded.seen, loaded.origin) == ({"site": 400}, "site")
    assert np.array_equal(loaded.head.class_vectors, adapter.head.class_vectors)


def test_saving_twice_gives_the_same_bytes(state_file, tmp_path):
    save_state(load_state(state_file), tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == state_file.read_bytes()


@given(shape=st.lists(st.integers(0, 3), max_size=3).map(tuple), classes=st.booleans(), added=st.booleans())
def test_state_of_any_shape_can_be_saved(shape, classes, added):
    class Keeps(acclimate.ZeroShot):
        name = "keeps"

        def setup(self):
            axes = (CLASSES, *shape) if classes else shape
            self.sums = self.declare("sums", Sums(self.head, x=axes))
            self.tensors = self.declare("tensors", Tensors(self.head, y=axes))

    adapter = Keeps(Head(np.eye(3), logit_scale=10.0))
    if added:
        adapter.tensors["y"][...] = 0.5
        adapter.sums.add(x=np.full(adapter.sums["x"].shape, 0.25))
    loaded = state_from_bytes(state_to_bytes(adapter), like=adapter)
    for name, values in adapter.dump().items():
        assert loaded.dump()[name].shape == values.shape
        assert_array_equal(loaded.dump()[name], values)
    loaded.flush()
    assert state_to_bytes(state_from_bytes(state_to_bytes(loaded), like=loaded)) == state_to_bytes(loaded)


@given(
    values=arrays(
        st.sampled_from(["<f4", ">f4", "<f8", ">f8", "<i8", ">i8", "?"]),
        array_shapes(min_dims=0, min_side=0, max_side=4),
    ),
    transposed=st.booleans(),
)
def test_arrays_of_any_kind_and_layout_are_read_as_they_were_written(values, transposed):
    values = values.T if transposed else values
    (read,) = parse_snapshot(snapshot_bytes({"x": values}, {}))[0].values()
    assert read.shape == values.shape
    assert read.dtype.name == values.dtype.name
    assert_array_equal(read, values)


def test_batches_leave_no_trace_in_the_file(stream, tmp_path):
    files = []
    for size in (1, 64, 400):
        adapter = TDA(stream.head.to(np.empty(0)))
        for start in range(0, 400, size):
            adapter.step(stream.features[start : start + size].astype(np.float64))
        save_state(adapter, tmp_path / f"{size}.safetensors")
        files.append(load_file(tmp_path / f"{size}.safetensors"))
    for other in files[1:]:
        for name, values in files[0].items():
            np.testing.assert_allclose(other[name], values, atol=1e-12)


def test_a_torch_adapter_comes_back_as_one(stream, tmp_path):
    torch = pytest.importorskip("torch")
    adapter = TDA(stream.head.to(torch.empty(0)))
    adapter.step(torch.asarray(stream.features))
    save_state(adapter, tmp_path / "s.safetensors")
    loaded = load_state(tmp_path / "s.safetensors", like=adapter)
    assert isinstance(loaded.head.class_vectors, torch.Tensor)
    more = torch.asarray(stream.features[::-1].copy())
    assert torch.equal(loaded.step(more), adapter.step(more))
    on_numpy = load_state(tmp_path / "s.safetensors")
    assert isinstance(on_numpy.step(stream.features), np.ndarray)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"method": "zero-shot"}, "does not match: method 'tda' against 'zero-shot'"),
        ({"positive_capacity": 4}, "does not match: positive_capacity 3 against 4"),
        ({"names": ["x", *(f"class {i}" for i in range(1, 8))]}, "class 0 is 'class 0' against 'x'"),
        ({"classes": 7}, "8 classes against 7"),
        ({"dim": 16}, "dim 32 against 16"),
        ({"logit_scale": 20.0}, r"logit scale 10 \(bias 0\) against 20 \(bias 0\)"),
        ({"shuffled": True}, "the class vectors differ"),
    ],
)
def test_a_state_of_another_kind_is_refused_and_told_apart(state_file, stream, other, message):
    classes = other.pop("classes", 8)
    dim = other.pop("dim", 32)
    vectors = stream.head.class_vectors[::-1] if other.pop("shuffled", False) else stream.head.class_vectors
    names = other.pop("names", stream.head.class_names)[:classes]
    head = Head(vectors[:classes, :dim], other.pop("logit_scale", 10.0), class_names=names)
    like = acclimate.create(other.pop("method", "tda"), head, **other)
    with pytest.raises(StateError, match=message):
        load_state(state_file, like=like)


def test_foreign_and_damaged_files_are_refused(state_file, stream_file, tmp_path):
    with pytest.raises(StateError, match="no state file at"):
        load_state(tmp_path / "nowhere")
    with pytest.raises(StateError, match="not an acclimate state"):
        load_state(stream_file)
    (tmp_path / "text").write_text("hello, this is no state file")
    with pytest.raises(StateError, match="truncated, damaged or foreign"):
        load_state(tmp_path / "text")
    content = state_file.read_bytes()
    for length in [0, 1, 7, 8, 100, len(content) // 2, len(content) - 1]:
        (tmp_path / "cut").write_bytes(content[:length])
        with pytest.raises(StateError, match="truncated, damaged or foreign"):
            load_state(tmp_path / "cut")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, d: d.update(method="magic"), "does not have: unknown method 'magic'"),
        (lambda t, d: d["settings"].update(novelty=1), "has no setting 'novelty'"),
        (lambda t, d: d["settings"].update(positive_capacity=2.5), "positive_capacity must be a whole number"),
        (lambda t, d: d.pop("seen"), "not a complete state: 'seen' is missing or wrong"),
        (lambda t, d: t.pop("positive.ids"), "entries must hold keys, classes, entropies, ids, targets"),
        (lambda t, d: t.update({"third.ids": t["positive.ids"]}), "'tda' has no part named 'third'"),
        (lambda t, d: t.pop("class_vectors"), "holds a head that cannot be used"),
        (lambda t, d: t.update({"positive.ids": t["positive.ids"][:-1]}), "ids must have one row per entry"),
        (lambda t, d: t.update({"positive.ids": t["positive.ids"].astype(float)}), "ids must be whole numbers"),
        (lambda t, d: t.update({"positive.targets": t["positive.targets"][:, :0]}), "must have 1 to 8 columns"),
        (lambda t, d: d.update(seen={"": -1}), "'seen' must hold counts"),
        (lambda t, d: d.update(seen={"": 2**54}), "'seen' must hold counts"),
        (lambda t, d: d.update(frozen="yes"), "'frozen' is missing or wrong"),
        (lambda t, d: d["head"].update(logit_scale="high"), "holds a head that cannot be used"),
    ],
)
def test_edited_files_are_refused(state_file, change, message):
    rewrite(state_file, change)
    with pytest.raises(StateError, match=message):
        load_state(state_file)


def test_a_state_of_another_version_is_refused(state_file):
    state_file.write_bytes(state_file.read_bytes().replace(b'"version":"2"', b'"version":"9"'))
    with pytest.raises(StateError, match="has state version 9, this acclimate reads version 2"):
        load_state(state_file)


def test_a_bug_in_a_constructor_is_not_a_damaged_file(state_file, adapter):
    class Buggy(TDA):
        def setup(self):
            raise KeyError("my own bug")

    like = duplicate(adapter)
    like.__class__ = Buggy
    with pytest.raises(KeyError, match="my own bug"):
        load_state(state_file, like=like)


def test_notes_are_kept_and_bytes_are_a_file(adapter, tmp_path):
    save_state(adapter, tmp_path / "s", {"done": 3})
    loaded, notes = load_with_notes(tmp_path / "s")
    assert (loaded.samples_seen, notes) == (400, {"done": 3})
    assert state_to_bytes(adapter, {"done": 3}) == (tmp_path / "s").read_bytes()
    assert repr(state_from_bytes((tmp_path / "s").read_bytes(), like=adapter)) == repr(adapter)
    with pytest.raises(StateError, match="the state cannot be read as a state"):
        state_from_bytes(b"nothing of the kind")


def test_a_duplicate_goes_its_own_way(adapter, stream):
    copy = duplicate(adapter)
    assert (copy.seen, copy.frozen) == (adapter.seen, adapter.frozen)
    assert np.array_equal(copy.step(stream.features[:50]), duplicate(adapter).step(stream.features[:50]))
    assert copy.samples_seen == adapter.samples_seen + 50


def test_a_failed_save_keeps_the_old_file(adapter, state_file, tmp_path, monkeypatch):
    before = state_file.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateError, match=r"No space left on device\. What was there before is untouched"):
        save_state(adapter, state_file)
    assert state_file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [state_file]
    with pytest.raises(StateError, match="cannot write"):
        save_state(adapter, tmp_path / "no" / "such" / "folder")


SAVER = """
import sys
import numpy as np
from acclimate import TDA, save_state
from acclimate.checks.synthetic import shifted_stream
stream = shifted_stream(samples=400, classes=40, dim=512, seed=1)
states = []
for count in (10, 400):
    adapter = TDA(stream.head)
    adapter.step(stream.features[:count])
    states.append(adapter)
save_state(states[0], sys.argv[1])
print("ready", flush=True)
while True:
    for adapter in states:
        save_state(adapter, sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_a_kill_at_any_moment_leaves_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "state.safetensors"
    rng = random.Random(0)
    seen = set()
    for _ in range(8):
        child = subprocess.Popen([sys.executable, "-c", SAVER, str(path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0, 0.03))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        seen.add(load_state(path).samples_seen)
    assert seen <= {10, 400}


def test_states_that_cannot_be_merged_are_refused(stream):
    one = TDA(stream.head)
    with pytest.raises(InputError, match="nothing to merge"):
        merge_states([])
    with pytest.raises(InputError, match="cannot be merged: method 'zero-shot' against 'tda'"):
        merge_states([one, acclimate.ZeroShot(stream.head)])
    with pytest.raises(InputError, match="cannot be merged: negative False against True"):
        merge_states([one, TDA(stream.head, negative=False)])


def test_a_frozen_adapter_is_saved_frozen(adapter, tmp_path):
    adapter.freeze()
    save_state(adapter, tmp_path / "s.safetensors")
    assert load_state(tmp_path / "s.safetensors").frozen


@pytest.mark.parametrize("method", ["dota", "prior", "tda", "onzeta", "oga", "bca", "sca", "dmn", "free-tta"])
def test_a_state_moves_between_libraries(stream, method):
    torch = pytest.importorskip("torch")
    adapter, reference = (acclimate.create(method, stream.head) for _ in range(2))
    for each in (adapter, reference):
        each.step(stream.features[:200])
    adapter.to(torch.empty(0))
    assert isinstance(adapter.head.class_vectors, torch.Tensor)
    np.testing.assert_allclose(adapter.step(stream.features[200:]), reference.step(stream.features[200:]), atol=1e-3)
