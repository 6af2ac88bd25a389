"""Attacks on the service's files: failing deletes, foreign files, kills, damage."""

import fcntl
import os
import random
import shutil
import struct
import time

import pytest

from attacks import files
from attacks.target import Service

pytestmark = [pytest.mark.attack, pytest.mark.held_by("service"), pytest.mark.long_attack]

IMMUTABLE = 0x10
GET_FLAGS = 0x80086601
SET_FLAGS = 0x40086602


def set_immutable(path, on):
    """Set the immutable flag of a file, where the file system has it; else OSError."""
    file = os.open(path, os.O_RDONLY)
    try:
        flags = struct.unpack("l", fcntl.ioctl(file, GET_FLAGS, struct.pack("l", 0)))[0]
        flags = flags | IMMUTABLE if on else flags & ~IMMUTABLE
        fcntl.ioctl(file, SET_FLAGS, struct.pack("l", flags))
    finally:
        os.close(file)


def test_failing_delete(attack):
    """A delete that fails."""
    with Service(attack.folder) as service:
        folder = service.data / "streams"
        service.learn_some("alice", "alice")
        try:
            set_immutable(folder, True)
        except OSError:
            pytest.skip("this file system has no immutable files")
        try:
            assert service.call("DELETE", "/v1/streams/alice", token="alice").status == 503
            assert service.classify("alice", files.photo(30), token="alice").status == 200
        finally:
            set_immutable(folder, False)
        assert service.call("DELETE", "/v1/streams/alice", token="alice").status == 204
        service.create("alice", "alice")
    attack.tries = 2


def test_rubbish(attack):
    """Rubbish in the data folder."""
    with Service(attack.folder) as service:
        service.learn_some("alice", "alice")
        for turn in range(6):
            service.create(f"mallory-{turn}", "alice", labels=[f"thing {turn} {i}" for i in range(500)])
            service.call("DELETE", f"/v1/streams/mallory-{turn}", token="alice")
        service.kill()
        data = service.data
    (data / "streams" / "foreign.sqlite").write_bytes(b"x" * 1000)
    (data / "streams" / "empty.sqlite").touch()
    (data / "streams" / "notes.txt").write_text("x")
    (data / "streams" / "folder").mkdir()
    with Service(attack.folder) as again:
        assert again.classify("alice", files.photo(9), token="alice").status == 200
        listed = {
            each["name"]: each["broken"] for each in again.call("GET", "/v1/streams", token="alice").json()["streams"]
        }
        assert listed.pop("alice") is None
        assert all(listed.values()), "a foreign file is shown as a stream that can be used"
    left = [path.name for path in (data / "streams").iterdir() if "mallory" in path.name]
    assert not left
    size = sum(path.stat().st_size for path in data.rglob("*") if path.is_file()) / 1e6
    attack.tries = 4
    attack.note = f"the data folder has {size:.0f} MB"
    assert size < 300


def test_kills(attack):
    """Twenty kills under load."""
    rng = random.Random(0)
    learnt = 0
    with Service(attack.folder) as service:
        service.create("alice", "alice", skip_duplicates=False)
        service.kill()
    before = None
    for turn in range(21):
        with Service(attack.folder) as service:
            assert before in (None, service.state("alice", "alice")), f"kill {turn}: another state"
            for _ in range(rng.randint(1, 4)):
                answer = service.classify("alice", *[files.photo(100 * turn + i) for i in range(3)], token="alice")
                assert [each["id"] for each in answer.json()["results"]] == [learnt, learnt + 1, learnt + 2]
                learnt += 3
            before = service.state("alice", "alice")
            seen = service.call("GET", "/v1/streams/alice", token="alice").json()["samples_seen"]
            service.kill()
    attack.tries = 20
    attack.note = f"{learnt} acknowledged, {seen} found"
    assert seen == learnt


def damage(content, kind, rng):
    """Return a damaged file: a changed byte, a cut end, foreign bytes in the middle, or nothing at all."""
    place = rng.randrange(len(content))
    if kind == "flipped":
        return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]
    if kind == "cut":
        return content[:place]
    if kind == "inserted":
        return content[: len(content) // 2] + bytes(64) + content[len(content) // 2 :]
    return b""


def test_damage(attack):
    """Damaged files."""
    rng = random.Random(1)
    with Service(attack.folder, limits={"snapshot_samples": 4}) as service:
        service.learn_some("alice", "alice")
        service.learn_some("bob", "alice")
        before = service.state("alice", "alice")
        service.stop()
        data = service.data
    pristine = attack.folder / "pristine"
    shutil.copytree(data, pristine)
    for turn in range(12):
        shutil.rmtree(data)
        shutil.copytree(pristine, data)
        path = data / "streams" / "alice.sqlite"
        path.write_bytes(damage(path.read_bytes(), ("flipped", "cut", "inserted", "emptied")[turn % 4], rng))
        with Service(attack.folder) as service:
            assert service.classify("bob", files.photo(50), token="alice").status == 200
            state = service.call("GET", "/v1/streams/alice/state", token="alice")
            assert state.status == 503 or state.content == before, f"{turn}: answered with another state"
            assert service.classify("alice", files.photo(50), token="alice").status in (200, 503)
        attack.tries += 1


@pytest.mark.parametrize("kind", ["cut", "emptied"])
def test_lost_log(attack, kind):
    """A write-ahead log that was cut is reported, or loses nothing."""
    with Service(attack.folder) as service:
        service.learn_some("alice", "alice")
        before = service.state("alice", "alice")
        time.sleep(3.0)  # a checkpoint comes within this time
        service.kill()
        log = service.data / "streams" / "alice.sqlite-wal"
    if log.exists():
        os.truncate(log, log.stat().st_size // 2 if kind == "cut" else 0)
    with Service(attack.folder) as again:
        state = again.call("GET", "/v1/streams/alice/state", token="alice")
        assert state.status == 503 or state.content == before, "samples are missing, and nothing says so"
    attack.tries = 1
