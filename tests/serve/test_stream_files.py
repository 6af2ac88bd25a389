"""The files of streams, seen from outside: damaged, lost, foreign, copied while in use, on a full disk."""

import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from service_process import connected, service
from stream_calls import classify
from waiting import wait_until

LABELS = ["red circle", "green square", "blue stripes", "cat", "dog"]
SETUP = {"labels": LABELS, "method": "tda", "skip_duplicates": False}


def create(client, name, **options):
    answer = client.post("/v1/streams", json=SETUP | {"name": name} | options)
    assert answer.status_code == 201, answer.text


def state(client, name):
    return client.get(f"/v1/streams/{name}/state")


def answers(client, name):
    return client.get(f"/v1/streams/{name}/answers")


def flipped(content, rng):
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def zeroed(content, rng):
    place = rng.randrange(len(content))
    return content[:place] + bytes(min(4096, len(content) - place)) + content[place + 4096 :]


def cut(content, rng):
    return content[: rng.randrange(1, len(content))]


def page_lost(content, rng):
    place = rng.randrange(len(content) // 4096) * 4096
    return content[:place] + content[place + 4096 :]


def emptied(content, rng):
    return b""


def foreign(content, rng):
    return b"\x89PNG\r\n" + bytes(5000)


def other_database(content, rng):
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE events (id INTEGER)")
        return database.serialize() if hasattr(database, "serialize") else b"SQLite format 3\0" + bytes(4096)


DAMAGES = [*[flipped] * 12, *[zeroed] * 6, *[cut] * 4, *[page_lost] * 4, emptied, foreign, other_database]


@pytest.mark.slow
def test_a_damaged_file_is_reported_or_harmless_and_the_others_go_on(tiny_onnx, images, tmp_path):
    rng = random.Random(5)
    data = tmp_path / "state"
    names = [f"{number:02}-{damage.__name__.replace('_', '-')}" for number, damage in enumerate(DAMAGES)]
    with service(tiny_onnx, data) as (process, address), connected(address) as client:
        for name in ("whole", *names):
            create(client, name, thumbnails=True)
            classify(client, name, *images[:6])
            assert client.post(f"/v1/streams/{name}/snapshot").status_code == 200
            classify(client, name, *images[6:10])
        states = {name: state(client, name).content for name in ("whole", *names)}
        listed = {name: answers(client, name).json() for name in ("whole", *names)}
        process.send_signal(signal.SIGTERM)
        assert process.wait(180) == 0
    for name, damage in zip(names, DAMAGES, strict=True):
        path = data / "streams" / f"{name}.sqlite"
        path.write_bytes(damage(path.read_bytes(), rng))
    (data / "streams" / "stranger.txt").write_text("not a stream")
    (data / "streams" / "Not A Name.sqlite").write_text("not a stream")
    with service(tiny_onnx, data) as (_, address), connected(address) as client:
        broken = []
        for name in names:
            found = state(client, name)
            assert (found.status_code, found.content) == (200, states[name]) or found.status_code == 503, (name, found)
            if found.status_code == 503:
                broken.append(name)
                for url in (f"/v1/streams/{name}", f"/v1/streams/{name}/answers"):
                    message = client.get(url).json()["error"]["message"]
                    assert str(tmp_path) not in message
                    assert "backup" in message
                refused = client.post(f"/v1/streams/{name}/classify", files={"image": images[0]})
                assert refused.status_code == 503
            else:
                again = answers(client, name)
                assert again.status_code == 503 or again.json() == listed[name]
        assert state(client, "whole").content == states["whole"]
        assert classify(client, "whole", images[10])[0]["id"] == 10
        streams = {each["name"]: each for each in client.get("/v1/streams").json()["streams"]}
        assert set(streams) == {"whole", *names}
        assert {name for name, each in streams.items() if each["broken"]} == set(broken)
        certain = {name for name, damage in zip(names, DAMAGES, strict=True) if damage not in (flipped, zeroed)}
        assert certain <= set(broken)
        for name in broken:
            assert client.delete(f"/v1/streams/{name}").status_code == 204
        create(client, broken[0])
        assert classify(client, broken[0], images[0])[0]["id"] == 0


@pytest.mark.slow
def test_a_log_that_is_lost_after_a_kill_loses_nothing_that_was_checkpointed(tiny_onnx, images, tmp_path):
    data = tmp_path / "state"
    damages = {"deleted": os.unlink, "emptied": lambda path: os.truncate(path, 0), "kept": lambda path: None}
    with service(tiny_onnx, data) as (process, address), connected(address) as client:
        for name in damages:
            create(client, name)
            classify(client, name, *images[:4])
        states = {name: state(client, name).content for name in damages}
        logs = [data / "streams" / f"{name}.sqlite-wal" for name in damages]
        wait_until(lambda: not any(path.exists() and path.stat().st_size for path in logs))
        os.kill(process.pid, signal.SIGKILL)
    for path, damage in zip(logs, damages.values(), strict=True):
        if path.exists():
            damage(path)
    with service(tiny_onnx, data) as (_, address), connected(address) as client:
        assert {name: state(client, name).content for name in damages} == states


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["python", "sqlite3"])
def test_a_backup_while_the_service_works_is_a_stream(tiny_onnx, images, tmp_path, tool):
    if tool == "sqlite3" and shutil.which(tool) is None:
        pytest.skip("there is no command sqlite3 here")
    copy = tmp_path / "restored" / "streams" / "shop.sqlite"
    copy.parent.mkdir(parents=True)
    acknowledged = []
    with service(tiny_onnx, tmp_path / "state") as (_, address), connected(address) as client:
        create(client, "shop")

        def work():
            for turn in range(60):
                acknowledged.extend(classify(client, "shop", images[turn % len(images)]))

        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)
            wait_until(lambda: len(acknowledged) >= 10 or working.done())
            before = len(acknowledged)
            path = tmp_path / "state" / "streams" / "shop.sqlite"
            if tool == "sqlite3":
                subprocess.run([tool, path, f".backup {copy}"], check=True)
            else:
                with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
                    source.backup(target)
            working.result(180)
        assert len(acknowledged) == 60
    with service(tiny_onnx, tmp_path / "restored") as (_, address), connected(address) as client:
        found = answers(client, "shop").json()["answers"]
        assert before <= len(found) <= 60
        assert [(each["id"], each["label"]) for each in found] == [
            (each["id"], each["predictions"][0]["label"]) for each in acknowledged[: len(found)]
        ]
        assert classify(client, "shop", images[0])[0]["id"] == len(found)


def small_disk(folder):
    """Return a command that runs another one with a small disk mounted on a folder; skips where that is not allowed."""
    folder.mkdir(exist_ok=True)
    script = 'mount -t tmpfs -o size=16m tmpfs "$0" && exec "$@"'
    prefix = ["unshare", "-rm", "sh", "-c", script, str(folder)]
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    return prefix


def fill(disk):
    """Write a file until the disk is full."""
    with open(disk / "ballast", "wb", buffering=0) as file:
        for size in (2**16, 2**10, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a full disk", "a limit of file sizes"])
def test_a_full_disk_stops_learning_and_nothing_else(tiny_onnx, images, tmp_path, kind):
    data = tmp_path / "state"
    prefix = small_disk(data) if kind == "a full disk" else ()
    log = data.with_suffix(".log")
    with service(tiny_onnx, data, prefix=prefix) as (process, address), connected(address) as client:
        create(client, "shop")
        create(client, "lab")
        classify(client, "shop", *images[:10])
        before = state(client, "shop").content
        if prefix:
            disk = Path(f"/proc/{process.pid}/root{data}")
            logs = [disk / "streams" / f"{name}.sqlite-wal" for name in ("shop", "lab")]
            wait_until(lambda: not any(path.stat().st_size for path in logs))  # it would free some space later
            fill(disk)
        else:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        for _ in range(3):
            results = classify(client, "shop", *images[10:30])
            assert {each["id"] for each in results} == {None}
            assert all("disk" in each["refused"] and each["predictions"] for each in results)
        assert "disk" in client.get("/v1/streams/shop").json()["degraded"]
        ready = client.get("/health/ready")
        assert ready.status_code == 503
        assert "degraded streams: 1" in ready.json()["error"]["message"]
        assert "acclimate_degraded_streams 1.0" in client.get("/metrics").text
        for call in (
            client.build_request("POST", "/v1/streams/shop/reset"),
            client.build_request("POST", "/v1/streams/shop/corrections", json={"id": 1, "label": "dog"}),
            client.build_request("PATCH", "/v1/streams/shop/labels", json={"add": ["fox"]}),
            client.build_request("PUT", "/v1/streams/shop/state", content=before),
            client.build_request("POST", "/v1/streams", json=SETUP | {"name": "new"}),
        ):
            refused = client.send(call)
            assert refused.status_code in (503, 507), (call, refused.text)
            assert "disk" in refused.json()["error"]["message"]
        assert state(client, "shop").content == before
        if prefix:  # else the log cannot be written either
            wait_until(lambda: log.read_text().count("what is learnt cannot be written") == 1)
        if prefix:
            (disk / "ballast").unlink()
            wait_until(lambda: shutil.disk_usage(disk).free > 2**23)  # the system may take a while to free it
        else:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert [each["id"] for each in classify(client, "shop", *images[10:12])] == [10, 11]
        assert client.get("/health/ready").status_code == 200
        wait_until(lambda: log.read_text().count("what is learnt can be written again") == 1)
        create(client, "new")
        after = state(client, "shop").content
        if prefix:
            shutil.copytree(disk, tmp_path / "copy")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with service(tiny_onnx, tmp_path / "copy" if prefix else data) as (_, address), connected(address) as client:
        assert state(client, "shop").content == after
        assert {each["name"] for each in client.get("/v1/streams").json()["streams"]} == {"shop", "lab", "new"}


def test_a_folder_of_an_earlier_version_is_refused(tiny_onnx, tmp_path):
    folder = tmp_path / "state" / "streams" / "shop"
    folder.mkdir(parents=True)
    (folder / "stream.json").write_text("{}")
    command = [sys.executable, "-m", "acclimate", "serve", "--model", f"onnx:{tiny_onnx}", "--data", tmp_path / "state"]
    ended = subprocess.run([*command, "--port", "0"], capture_output=True, text=True)
    assert ended.returncode not in (0, -signal.SIGKILL)
    assert ended.stdout == ""
    (line,) = [each for each in ended.stderr.splitlines() if "stream" in each]
    assert "download" in line
    assert (folder / "stream.json").exists()
