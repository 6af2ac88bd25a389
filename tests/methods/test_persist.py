import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import acclimate
from acclimate import TDA, load, merge, save
from acclimate.errors import InputError, StateError
from acclimate.methods.persist import duplicate, read_notes, to_bytes


@pytest.fixture
def adapter(stream):
    adapter = TDA(stream.class_vectors, logit_scale=10.0, class_names=stream.class_names, origin="site")
    adapter.step(stream.features)
    return adapter


@pytest.fixture
def state_file(adapter, tmp_path):
    path = tmp_path / "state.safetensors"
    save(adapter, path)
    return path


def metadata_of(path):
    with safe_open(path, "numpy") as file:
        return file.metadata()


def rewrite(path, change):
    """Change a state file in place, as if an acclimate that wrote no checksums had written it."""
    tensors, metadata = load_file(path), metadata_of(path)
    description = json.loads(metadata["description"])
    del metadata["checksum"]
    change(tensors, metadata, description)
    save_file(tensors, path, metadata | {"description": json.dumps(description)})


def test_a_state_says_what_it_is(state_file, stream):
    metadata = metadata_of(state_file)
    assert (metadata["format"], metadata["version"]) == ("acclimate-state", "1")
    description = json.loads(metadata["description"])
    assert description["method"] == "tda"
    assert description["config"]["positive_capacity"] == 3
    assert description["arguments"]["class_names"] == list(stream.class_names)
    assert description["arguments"]["logit_scale"] == 10.0
    assert (description["dim"], description["samples_seen"]) == (32, 400)


def test_loading_gives_the_adapter_back(state_file, adapter):
    loaded = load(state_file)
    assert repr(loaded) == repr(adapter)
    assert (loaded.seen, loaded.origin) == ({"site": 400}, "site")
    assert np.array_equal(loaded.class_vectors, adapter.class_vectors)


def test_saving_twice_gives_the_same_bytes(state_file, tmp_path):
    save(load(state_file), tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == state_file.read_bytes()


def test_batches_leave_no_trace_in_the_file(stream, tmp_path):
    files = []
    for size in (1, 64, 400):
        adapter = TDA(stream.class_vectors.astype(np.float64), logit_scale=10.0)
        for start in range(0, 400, size):
            adapter.step(stream.features[start : start + size].astype(np.float64))
        save(adapter, tmp_path / f"{size}.safetensors")
        files.append(load_file(tmp_path / f"{size}.safetensors"))
    for other in files[1:]:
        for name, values in files[0].items():
            np.testing.assert_allclose(other[name], values, atol=1e-12)


def test_a_torch_adapter_comes_back_as_one(stream, tmp_path):
    torch = pytest.importorskip("torch")
    adapter = TDA(torch.asarray(stream.class_vectors), logit_scale=10.0)
    adapter.step(torch.asarray(stream.features))
    save(adapter, tmp_path / "s.safetensors")
    loaded = load(tmp_path / "s.safetensors", like=adapter)
    assert isinstance(loaded.class_vectors, torch.Tensor)
    more = torch.asarray(stream.features[::-1].copy())
    assert torch.equal(loaded.step(more), adapter.step(more))
    on_numpy = load(tmp_path / "s.safetensors")
    assert isinstance(on_numpy.step(stream.features), np.ndarray)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"method": "zero-shot"}, "does not fit: method 'tda' against 'zero-shot'"),
        ({"positive_capacity": 4}, "does not fit: positive_capacity 3 against 4"),
        ({"names": ["x", *(f"class {i}" for i in range(1, 8))]}, "class 0 is 'class 0' against 'x'"),
        ({"classes": 7}, "8 classes against 7"),
        ({"dim": 16}, "dim 32 against 16"),
        ({"logit_scale": 20.0}, r"logit scale 10 \(bias 0\) against 20 \(bias 0\)"),
        ({"shuffled": True}, "the class vectors differ"),
    ],
)
def test_a_state_of_another_kind_is_refused_and_told_apart(state_file, stream, other, message):
    classes, dim = other.pop("classes", 8), other.pop("dim", 32)
    vectors = stream.class_vectors[::-1] if other.pop("shuffled", False) else stream.class_vectors
    names = other.pop("names", stream.class_names)[:classes]
    arguments = {"logit_scale": 10.0} | other
    method = arguments.pop("method", "tda")
    like = acclimate.create(method, vectors[:classes, :dim], class_names=names, **arguments)
    with pytest.raises(StateError, match=message):
        load(state_file, like=like)


def test_foreign_and_damaged_files_are_refused(state_file, stream_file, tmp_path):
    with pytest.raises(StateError, match="no state file at"):
        load(tmp_path / "nowhere")
    with pytest.raises(StateError, match="not an acclimate state"):
        load(stream_file)
    (tmp_path / "text").write_text("hello, this is no state file")
    with pytest.raises(StateError, match="truncated, damaged or foreign"):
        load(tmp_path / "text")
    content = state_file.read_bytes()
    for length in [0, 1, 7, 8, 100, len(content) // 2, len(content) - 1]:
        (tmp_path / "cut").write_bytes(content[:length])
        with pytest.raises(StateError, match="truncated, damaged or foreign"):
            load(tmp_path / "cut")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, m, d: m.update(version="9"), "has state version 9, this acclimate reads version 1"),
        (lambda t, m, d: d.update(method="magic"), "does not have: unknown method 'magic'"),
        (lambda t, m, d: d["config"].update(novelty=1), "has no setting 'novelty'"),
        (lambda t, m, d: d.pop("seen"), "not a complete state"),
        (lambda t, m, d: t.pop("positive.ids"), "a TDA state with these caches holds"),
        (lambda t, m, d: t.pop("class_vectors"), "not a complete state"),
        (lambda t, m, d: t.update({"positive.ids": t["positive.ids"][:-1]}), "do not fit together"),
        (lambda t, m, d: t.update({"positive.ids": t["positive.ids"].astype(float)}), "do not fit together"),
        (lambda t, m, d: t.update({"positive.marks": t["positive.marks"][:, :0]}), "do not fit together"),
        (lambda t, m, d: d.update(seen={"": -1}), "not a complete state"),
        (lambda t, m, d: d.update(frozen="yes"), "not a complete state"),
        (lambda t, m, d: d["arguments"].update(logit_scale="high"), "not a complete state"),
    ],
)
def test_edited_files_are_refused(state_file, change, message):
    rewrite(state_file, change)
    with pytest.raises(StateError, match=message):
        load(state_file)


def test_a_flipped_bit_is_found_out(state_file, tmp_path):
    content = bytearray(state_file.read_bytes())
    header = int.from_bytes(content[:8], "little")
    for place in (8 + header, len(content) - 1, content.index(b"samples_seen") + 16):
        damaged = bytes(content[:place]) + bytes([content[place] ^ 1]) + bytes(content[place + 1 :])
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(StateError, match="damaged"):
            load(tmp_path / "damaged")


def test_notes_are_read_without_the_tensors(adapter, tmp_path):
    save(adapter, tmp_path / "s", {"done": 3})
    assert read_notes(tmp_path / "s") == {"done": 3}
    assert to_bytes(adapter) == (save(adapter, tmp_path / "t"), (tmp_path / "t").read_bytes())[1]


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
        save(adapter, state_file)
    assert state_file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [state_file]
    with pytest.raises(StateError, match="cannot write"):
        save(adapter, tmp_path / "no" / "such" / "folder")


SAVER = """
import sys
import numpy as np
from acclimate import TDA, save
from acclimate.checks.synthetic import shifted_stream
stream = shifted_stream(samples=400, classes=40, dim=512, seed=1)
states = []
for count in (10, 400):
    adapter = TDA(stream.class_vectors, logit_scale=10.0)
    adapter.step(stream.features[:count])
    states.append(adapter)
save(states[0], sys.argv[1])
print("ready", flush=True)
while True:
    for adapter in states:
        save(adapter, sys.argv[1])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_a_kill_at_any_moment_leaves_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "state.safetensors"
    rng = random.Random(0)
    seen = set()
    for _ in range(12):
        child = subprocess.Popen([sys.executable, "-c", SAVER, str(path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0, 0.03))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        seen.add(load(path).samples_seen)
    assert seen <= {10, 400}


def test_merging_shards_gives_the_cache_of_the_whole(stream):
    whole = TDA(stream.class_vectors, logit_scale=10.0)
    whole.step(stream.features)
    shards = []
    for name, part in (("first", slice(0, 150)), ("second", slice(150, 400))):
        shards.append(TDA(stream.class_vectors, logit_scale=10.0, origin=name))
        shards[-1].step(stream.features[part])
    merged = merge(shards)
    assert merged.samples_seen == 400
    for name, values in merge([whole]).dump().items():
        if not name.endswith("ids"):  # the shards counted for themselves
            np.testing.assert_allclose(merged.dump()[name], values, atol=1e-5)


def test_merging_leaves_its_inputs_alone(stream):
    one, other = (TDA(stream.class_vectors, logit_scale=10.0) for _ in range(2))
    one.step(stream.features[:200])
    other.step(stream.features[200:])
    before = one.dump()
    merge([one, other]).step(stream.features)
    assert all(np.array_equal(values, before[name]) for name, values in one.dump().items())


def test_what_cannot_be_merged(stream):
    one = TDA(stream.class_vectors, logit_scale=10.0)
    with pytest.raises(InputError, match="nothing to merge"):
        merge([])
    with pytest.raises(InputError, match="cannot be merged: method 'zero-shot' against 'tda'"):
        merge([one, acclimate.ZeroShot(stream.class_vectors, logit_scale=10.0)])
    with pytest.raises(InputError, match="cannot be merged: negative False against True"):
        merge([one, TDA(stream.class_vectors, logit_scale=10.0, negative=False)])


def test_a_frozen_adapter_is_saved_frozen(adapter, tmp_path):
    adapter.freeze()
    save(adapter, tmp_path / "s.safetensors")
    assert load(tmp_path / "s.safetensors").frozen
