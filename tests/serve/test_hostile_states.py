"""State files that a manager uploads: refused without a trace, or taken over so that memory and disk agree."""

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from acclimate import create, merge_states, state_from_bytes, state_to_bytes
from acclimate.errors import StateError
from acclimate.files import parse_snapshot, snapshot_bytes
from acclimate.methods.persist import MAX_ORIGINS

ONE = "/v1/streams/one"
LABELS = ["red circle", "green square", "blue stripes", "cat", "dog"]


def files(folder):
    """Read what the files of all streams contain."""
    found = {}
    for path in sorted((folder / "streams").glob("*.sqlite")):
        with closing(sqlite3.connect(path)) as database:
            found[path] = list(database.iterdump())
    return found


def hostile(tensors, description):
    """Return damaged files with a checksum that matches, by their damage."""
    width = tensors["class_vectors"].shape[1]
    count = len(tensors["positive.ids"])
    head = description["head"]
    names = description["head"]["class_names"]
    for change, about in (
        ({"negative.targets": np.zeros((0, 10**8), np.int32)}, {}),
        ({"negative.targets": np.zeros((0, 2**40), np.int32)}, {}),
        ({"class_vectors": np.ones((len(names), 10**5), np.float32)}, {}),
        ({"positive.entropies": np.nan * tensors["positive.entropies"]}, {}),
        ({"positive.keys": np.full((count, width), np.inf, np.float32)}, {}),
        ({"positive.keys": tensors["positive.keys"].astype(np.int32)}, {}),
        ({"positive.classes": np.full(count, len(names), np.int32)}, {}),
        ({"positive.targets": np.full((count, 1), len(names), np.int32)}, {}),
        ({"positive.ids": np.full(count, 2**62)}, {}),
        ({"positive.ids": np.arange(count) + 2**52}, {}),
        ({}, {"origin": ["a", "list"]}),
        ({}, {"seen": {"one": 2**60}}),
        ({}, {"seen": {str(i): 0 for i in range(MAX_ORIGINS)}}),
        ({}, {"head": head | {"class_names": [names[0]] * len(names)}}),
        ({}, {"head": head | {"class_names": ["\ud800", *names[1:]]}}),
        ({}, {"head": head | {"logit_scale": 1e308}}),
        ({}, {"notes": []}),
    ):
        yield snapshot_bytes(tensors | change, description | about)


def test_refused_states_leave_no_trace(client, pictures):
    client.post(f"{ONE}/classify", files=[("image", each) for each in pictures]).raise_for_status()
    state = client.get(f"{ONE}/state").content
    described = client.get(ONE).json()
    before = files(client.folder)
    uploads = 0
    for content in hostile(*parse_snapshot(state)):
        answer = client.put(f"{ONE}/state", content=content)
        assert (answer.status_code, len(answer.text) < 2000) == (422, True), answer.text
        uploads += 1
    assert client.get(f"{ONE}/state").content == state
    assert client.get(ONE).json() == described
    assert files(client.folder) == before
    audited = (client.folder / "audit" / "service.refused.jsonl").read_text().splitlines()
    assert [json.loads(line)["action"] for line in audited] == ["upload_state"] * uploads
    assert client.post(f"{ONE}/classify", files={"image": pictures[0]}).status_code == 200


@pytest.mark.parametrize("method", ["tda", "dota", "accord", "bca", "onzeta", "oga", "prior"])
def test_memory_and_disk_agree_after_an_upload(start, after_a_kill, images, method):
    """A state merged of streams that both counted from 0 where it can be merged, so that entries share ids."""
    setup = {"method": method, "skip_duplicates": False}
    stream = start().create("shop", LABELS, **setup)
    head = stream.learner.adapter.head
    rng = np.random.default_rng(0)
    shards = [create(method, head, origin=origin) for origin in ("yard", "road")]
    for shard in shards:
        shard.step(rng.standard_normal((150, head.dim)).astype(np.float32))
    uploaded = merge_states(shards) if shards[0].merges else shards[0]
    stream.continue_from(state_to_bytes(uploaded))
    uploaded.origin = "shop"
    assert stream.state_bytes() == state_to_bytes(uploaded)
    for start_at in range(0, 40, 10):
        stream.classify(images[start_at : start_at + 10])
        copy = after_a_kill().get("shop")
        assert copy.state_bytes() == stream.state_bytes()
        assert copy.caches() == stream.caches()
        assert copy.describe()["broken"] is None
    loaded = state_from_bytes(stream.state_bytes())
    assert loaded.samples_seen == uploaded.samples_seen + 40


def test_an_upload_leaves_room_for_what_follows(start, images):
    stream = start().create("shop", LABELS, method="prior", skip_duplicates=False)
    tensors, description = parse_snapshot(stream.state_bytes())
    stream.continue_from(snapshot_bytes(tensors, description | {"seen": {"yard": 2**52}}))
    stream.classify(images[:3])
    assert state_from_bytes(stream.state_bytes()).samples_seen == 2**52 + 3
    with pytest.raises(StateError, match="no room for more samples"):
        stream.continue_from(stream.state_bytes())
