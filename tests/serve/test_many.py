"""Many snapshots, many streams: one client can neither push out a good state, nor fill memory or disk."""

import sys
import time
from contextlib import suppress
from itertools import count as count_from
from pathlib import Path

import pytest

from service_process import connected, service
from stream_calls import classify
from waiting import wait_until

LABELS = ["red circle", "green square", "blue stripes", "cat", "dog"]
MANY = [f"thing {i}" for i in range(2000)]  # a state of half a megabyte with the default method


def loaded(process):
    """Return the number of streams that a service has in memory: their files are open."""
    files = set()
    for handle in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(OSError):  # closed in the meantime
            files.add(str(handle.readlink()))
    return sum(name.endswith(".sqlite") for name in files)


@pytest.mark.parametrize("count", [26, 200])
@pytest.mark.parametrize("learning", [True, False])
def test_snapshots_on_request_push_no_good_one_out(client, images, count, learning, monkeypatch):
    now = count_from(time.time(), step=0.1)  # not this machine's clock, as it may be busy
    monkeypatch.setattr("acclimate.serve.storage.time", lambda: next(now))
    one = "/v1/streams/one"
    classify(client, "one", *images[:10])
    good = client.post(f"{one}/snapshot").json()["snapshot"]
    state = client.get(f"{one}/state").content
    now = count_from(next(now) + 3600, step=0.1)  # an hour later
    for turn in range(count):
        if learning:
            classify(client, "one", images[turn % 40])
        assert client.post(f"{one}/snapshot").status_code == 200
    if not learning:
        assert client.post(f"{one}/snapshot").json()["snapshot"] == good  # nothing was learnt since
    listed = client.get(f"{one}/snapshots").json()["snapshots"]
    assert len(listed) <= 24
    assert good in [each["id"] for each in listed]
    assert client.post(f"{one}/rollback", json={"snapshot": good}).status_code == 200
    assert client.get(f"{one}/state").content == state


def test_the_files_of_one_client_are_bounded(tiny_onnx, images, tmp_path):
    data = tmp_path / "state"
    with service(tiny_onnx, data, client_bytes=4 * 2**20) as (_, address), connected(address) as client:
        for number in range(100):
            made = client.post("/v1/streams", json={"name": f"s{number}", "labels": MANY})
            if made.status_code != 201:
                break
        assert 3 <= number <= 12
        assert made.status_code == 409
        assert "delete" in made.json()["error"]["message"]
        assert sum(path.stat().st_size for path in (data / "streams").iterdir()) < 6 * 2**20
        assert client.delete("/v1/streams/s0").status_code == 204
        assert client.post("/v1/streams", json={"name": "again", "labels": MANY}).status_code == 201


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the open files of a process are listed on Linux only")
def test_streams_are_loaded_when_needed_and_unloaded_when_others_are(tiny_onnx, images, tmp_path):
    data = tmp_path / "state"
    limits = {"loaded_bytes": 4 * 2**20, "client_bytes": 2**30, "workers": 1}
    names = [f"s{number}" for number in range(20)]
    with service(tiny_onnx, data, **limits) as (process, address), connected(address) as client:
        for name in names:
            made = client.post("/v1/streams", json={"name": name, "labels": MANY, "skip_duplicates": False})
            assert made.status_code == 201
            classify(client, name, *images[:2])
            assert 1 <= loaded(process) <= 9
        states = {name: client.get(f"/v1/streams/{name}/state").content for name in names}
    with service(tiny_onnx, data, **limits) as (process, address), connected(address) as client:
        listed = client.get("/v1/streams").json()["streams"]
        assert [each["samples_seen"] for each in listed] == [2] * 20
        assert loaded(process) == 0
        for name in names:
            assert client.get(f"/v1/streams/{name}/state").content == states[name]
            assert classify(client, name, images[2])[0]["id"] == 2
            assert 1 <= loaded(process) <= 9


@pytest.mark.skipif(sys.platform != "linux", reason="the open files of a process are listed on Linux only")
def test_idle_streams_are_unloaded_and_answer_again(tiny_onnx, images, tmp_path):
    data = tmp_path / "state"
    setup = {"name": "shop", "labels": LABELS, "method": "tda", "skip_duplicates": False, "thumbnails": True}
    with service(tiny_onnx, data, idle_s=0.2) as (process, address), connected(address) as client:
        client.post("/v1/streams", json=setup).raise_for_status()
        classify(client, "shop", *images[:8])
        client.post("/v1/streams/shop/corrections", json={"id": 3, "label": "dog"}).raise_for_status()
        urls = [f"/v1/streams/shop{each}" for each in ("/state", "/caches", "/corrections", "/learnt", "/answers", "")]
        before = [client.get(url).content for url in urls]
        wait_until(lambda: loaded(process) == 0)
        assert [client.get(url).content for url in urls] == before
        wait_until(lambda: loaded(process) == 0)
        results = classify(client, "shop", *images[8:14])
        assert [each["id"] for each in results] == [8, 9, 10, 11, 12, 13]
