"""Attacks on the service's files: failing deletes, foreign files, kills, damage."""

import fcntl
import os
import random
import shutil
import struct
import time

from attacks import files
from attacks.cases import Seen, case
from attacks.target import Service

IMMUTABLE = 0x10
GET_FLAGS = 0x80086601
SET_FLAGS = 0x40086602


def immutable(path, on):
    """Set the immutable flag of a file, where the file system has it; else OSError."""
    with open(path, "rb") as file:
        flags = struct.unpack("l", fcntl.ioctl(file, GET_FLAGS, struct.pack("l", 0)))[0]
        flags = flags | IMMUTABLE if on else flags & ~IMMUTABLE
        fcntl.ioctl(file, SET_FLAGS, struct.pack("l", flags))


@case("a delete that fails")
def failing_delete(work):
    seen = Seen()
    service = Service(work)
    folder = service.data / "streams"
    try:
        service.learn_some("alice", "alice")
        try:
            immutable(folder, True)
        except OSError:
            seen.note = "this file system has no immutable files; see tests/serve/test_streams.py"
            return seen
        try:
            answer = service.call("DELETE", "/v1/streams/alice", token="alice")
            seen.expect(answer.status == 503, f"delete: {answer.status}")
            used = service.classify("alice", files.photo(30), token="alice")
            seen.expect(used.status == 200, f"afterwards {used.status}")
        finally:
            immutable(folder, False)
        answer = service.call("DELETE", "/v1/streams/alice", token="alice")
        seen.expect(answer.status == 204, f"delete: {answer.status}")
        service.create("alice", "alice")
        seen.tries = 2
    finally:
        service.close()
    return seen


@case("rubbish in the data folder")
def rubbish(work):
    seen = Seen()
    service = Service(work)
    service.learn_some("alice", "alice")
    for turn in range(6):
        service.create(f"mallory-{turn}", "alice", labels=[f"thing {turn} {i}" for i in range(500)])
        service.call("DELETE", f"/v1/streams/mallory-{turn}", token="alice")
    service.kill()
    service.close()
    left = [
        service.data / "streams" / "alice" / ".00000011.safetensors.0a1b2c3d.tmp",
        service.data / "texts" / ".x.safetensors.0a1b2c3d.tmp",
        service.data / "streams" / ".new-0a1b2c3d" / "x",
    ]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 1000)
    again = Service(work)
    try:
        seen.tries = len(left)
        seen.expect(not any(path.exists() for path in left), "leftovers remain")
        size = sum(path.stat().st_size for path in (service.data / "texts").iterdir()) / 1e6
        seen.note = f"texts/ holds {size:.0f} MB"
        seen.expect(size < 300, seen.note)
        seen.expect(again.classify("alice", files.photo(9), token="alice").status == 200, "not answered")
    finally:
        again.close()
    return seen


@case("twenty kills under load")
def kills(work):
    """Kill the service under load: acknowledged samples are kept, and the ids have no gap."""
    seen = Seen()
    rng = random.Random(0)
    learnt = 0
    service = Service(work)
    service.create("alice", "alice", skip_duplicates=False)
    for turn in range(20):
        for _ in range(rng.randint(1, 4)):
            answer = service.classify("alice", *[files.photo(100 * turn + i) for i in range(3)], token="alice")
            seen.expect(answer.status == 200, f"answered {answer.status}")
            ids = [each["id"] for each in answer.json()["results"]]
            seen.expect(ids == [learnt, learnt + 1, learnt + 2], f"ids {ids} after {learnt}")
            learnt += 3
        before = service.state("alice", "alice")
        service.kill()
        service.close()
        service = Service(work)
        seen.expect(service.state("alice", "alice") == before, f"kill {turn}: another state")
    described = service.call("GET", "/v1/streams/alice", token="alice").json()
    seen.expect(described["samples_seen"] == learnt, f"{described['samples_seen']} of {learnt}")
    service.close()
    seen.tries = 20
    seen.note = f"{learnt} acknowledged, {described['samples_seen']} found"
    return seen


@case("damaged files")
def damage(work):
    """Damage files: the service must start, and each stream must be in an earlier state or report the damage."""
    seen = Seen()
    rng = random.Random(1)
    service = Service(work, "--snapshot-every", "4")
    service.learn_some("alice", "alice")
    service.learn_some("bob", "alice")
    service.stop()
    pristine = work / "pristine"
    shutil.copytree(service.data, pristine)
    for turn in range(12):
        shutil.rmtree(service.data)
        shutil.copytree(pristine, service.data)
        path = rng.choice(sorted(each for each in (service.data / "streams/alice").iterdir() if each.is_file()))
        content = bytearray(path.read_bytes())
        kind = turn % 4
        if kind == 0:
            content[rng.randrange(len(content))] ^= 0xFF
        elif kind == 1:
            del content[rng.randrange(len(content)) :]
        elif kind == 2:
            content[len(content) // 2 : len(content) // 2] = bytes(64)
        path.write_bytes(content) if kind < 3 else path.unlink()
        service = Service(work)
        try:
            other = service.classify("bob", files.photo(50), token="alice")
            seen.expect(other.status == 200, f"{path.name}: the other stream answers {other.status}")
            answer = service.classify("alice", files.photo(50), token="alice")
            seen.expect(answer.status in (200, 503), f"{path.name}: {answer.status}")
        finally:
            service.close()
        seen.tries += 1
    return seen


@case("a journal that was cut short is reported")
def cut_journal(work):
    seen = Seen()
    service = Service(work)
    service.learn_some("alice", "alice")
    time.sleep(2.5)  # it is synced within this time
    service.kill()
    service.close()
    journal = sorted((service.data / "streams/alice").glob("*.journal"))[-1]
    os.truncate(journal, journal.stat().st_size // 2)
    again = Service(work)
    try:
        seen.tries = 1
        described = again.call("GET", "/v1/streams/alice", token="alice").json()
        seen.expect(described["broken"], "nothing says that samples are missing")
    finally:
        again.close()
    return seen
