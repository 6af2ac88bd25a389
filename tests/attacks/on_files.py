"""Attacks by files: states, what lies on the disk, and what the command line is pointed at."""

import csv
import fcntl
import http.client
import json
import os
import pty
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np

from acclimate.files import parse_snapshot, snapshot_bytes
from attacks import files
from attacks.cases import Seen, attacked, case
from attacks.target import LABELS, Service, command_line


def edited(content, change):
    """A state file with a valid checksum whose tensors and description were changed."""
    tensors, description = parse_snapshot(content)
    tensors = {name: values.copy() for name, values in tensors.items()}
    change(tensors, description)
    return snapshot_bytes(tensors, description)


def _learnt(service, name, token):
    service.create(name, token, skip_duplicates=False)
    for seed in range(6):
        assert service.classify(name, files.photo(seed), token=token).status == 200
    answer = service.call("GET", f"/v1/streams/{name}/state", token=token)
    assert answer.status == 200


def _state(service, name, token):
    """The bytes of a state; `call` decodes text."""
    connection = http.client.HTTPConnection(service.host, service.port, timeout=60)
    connection.request(
        "GET", f"/v1/streams/{name}/state", headers={"Authorization": f"Bearer 0123456789abcdef-{token}"}
    )
    content = connection.getresponse().read()
    connection.close()
    return content


def _tensor(name, values):
    def change(tensors, description):
        tensors[name] = values(tensors[name]) if callable(values) else values

    return change


def _field(*keys, value):
    def change(tensors, description):
        place = description
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


def _keys(factor):
    return lambda keys: (keys * factor).astype(keys.dtype)


HOSTILE_STATES = {
    "8 wide empty targets": _tensor("positive.targets", np.zeros((0, 10**8), np.int32)),
    "8 endless empty targets": _tensor("positive.targets", np.zeros((0, 2**40), np.int32)),
    "8 wide targets": _tensor("positive.targets", lambda old: np.pad(old, ((0, 0), (0, 9)), constant_values=-1)),
    "9 origin is a list": _field("origin", value=["a"]),
    "9 frozen is text": _field("frozen", value="no"),
    "9 names are numbers": _field("head", "class_names", value=list(range(len(LABELS)))),
    "10 negative entropies": _tensor("positive.entropies", lambda old: -1.0 - old),
    "10 entropies beyond the largest": _tensor("positive.entropies", lambda old: old + 100),
    "11 equal class names": _field("head", "class_names", value=["cat"] * 130_000),
    "27 the largest id": _tensor("positive.ids", lambda old: np.full_like(old, 2**63 - 1)),
    "27 huge counts": _field("seen", value={"alice": 2**70}),
    "27 negative ids": _tensor("positive.ids", lambda old: -1 - old),
    "27 keys times 100": _tensor("positive.keys", _keys(100)),
    "27 keys of 3e38": _tensor("positive.keys", lambda old: np.full_like(old, 3e38)),
    "27 keys are zeros": _tensor("positive.keys", _keys(0)),
    "27 keys are float16": _tensor("positive.keys", lambda old: old.astype(np.float16)),
    "27 keys are NaN": _tensor("positive.keys", _keys(np.nan)),
    "27 settings of 1e400": _field("settings", "alpha", value=float("inf")),
    "27 a scale of zero": _field("head", "logit_scale", value=0.0),
    "27 a name with markup": _field("head", "class_names", value=["[/bold]", *LABELS[1:]]),
}


@case("8-11, 27", "hostile states over HTTP")
def states_over_http(work):
    seen = Seen()
    with attacked(work, seen, allowed={422}) as (service, answers):
        _learnt(service, "mallory-s", "mallory")
        before = _state(service, "mallory-s", "mallory")
        for name, change in HOSTILE_STATES.items():
            answer = service.call(
                "PUT", "/v1/streams/mallory-s/state", edited(before, change), "application/octet-stream", "mallory"
            )
            answers.append(answer)
            seen.expect(answer.status == 422, f"{name}: {answer.status}")
        seen.expect(_state(service, "mallory-s", "mallory") == before, "a refused state has changed the stream")
        got = service.classify("mallory-s", files.photo(20), token="mallory")
        seen.expect(got.status == 200, f"afterwards {got.status}")
        last = _state(service, "mallory-s", "mallory")
    again = Service(work)
    try:
        seen.expect(_state(again, "mallory-s", "mallory") == last, "after a kill the state differs")
    finally:
        again.close()
    return seen


@case("8, 26, 27", "hostile states on the command line")
def states_on_the_command_line(work):
    seen = Seen()
    pictures = work / "pictures"
    pictures.mkdir()
    for seed in range(8):
        (pictures / f"{seed}.jpg").write_bytes(files.photo(seed))
    good = work / "good.safetensors"
    learn = ["classify", pictures, "--labels", ",".join(LABELS), "--method", "tda", "--state", good]
    code, output, *_ = command_line(*learn, "--out", work / "first.csv")
    assert code == 0, output
    content, path = good.read_bytes(), work / "bad.safetensors"
    for name, change in HOSTILE_STATES.items():
        hostile = edited(content, change)
        path.write_bytes(hostile)
        for arguments in (["state", "inspect", path], [*learn[:-1], path, "--out", work / "again.csv"]):
            if arguments[0] == "classify" and name.split()[0] not in ("8", "27"):
                continue
            code, output, peak, _ = command_line(*arguments)
            seen.tries += 1
            seen.peak_mb = max(seen.peak_mb, peak)
            seen.expect(code not in (None, 0) or "markup" in name, f"{name}, {arguments[0]}: exit {code}")
            seen.expect("Traceback" not in output, f"{name}, {arguments[0]}: a traceback")
        seen.expect(path.read_bytes() == hostile, f"{name}: the file has changed")
    turned = edited(content, _tensor("positive.keys", lambda old: np.ascontiguousarray(np.roll(old, 1, axis=1))))
    path.write_bytes(turned)
    code, output, *_ = command_line("state", "diff", good, path)
    seen.expect(code == 1 and "no difference" not in output, f"diff of other keys: {output!r}")
    seen.expect(seen.peak_mb < 1024, f"{seen.peak_mb:.0f} MB")
    return seen


@case("1, 16", "a folder with bombs, links to devices and FIFOs")
def hostile_folder(work):
    seen = Seen()
    folder = work / "folder"
    folder.mkdir()
    for number, bomb in enumerate(files.wide_bombs()):
        (folder / f"wide{number}.png").write_bytes(bomb)
    (folder / "tile.tif").write_bytes(files.tiff_with_tile())
    (folder / "scans.jpg").write_bytes(files.jpeg_with_scans(600))
    (folder / "zero.jpg").symlink_to("/dev/zero")
    (folder / "random.jpg").symlink_to("/dev/urandom")
    os.mkfifo(work / "fifo")
    (folder / "pipe.jpg").symlink_to(work / "fifo")
    os.mkfifo(folder / "fifo.jpg")
    (folder / "good.jpg").write_bytes(files.photo())
    code, _, seen.peak_mb, seconds = command_line("classify", folder, "--labels", "cat,dog", "--out", work / "r.csv")
    seen.tries = len(list(folder.iterdir()))
    rows = (work / "r.csv").read_text().splitlines() if (work / "r.csv").exists() else []
    seen.expect(code is not None, f"took {seconds:.0f} s and {seen.peak_mb:.0f} MB")
    seen.expect(any("good.jpg" in row and "cannot" not in row for row in rows), "the good image has no answer")
    seen.expect(seen.peak_mb < 1500, f"{seen.peak_mb:.0f} MB")
    seen.note = f"exit {code}, {len(rows) - 1} rows, {seconds:.0f} s"
    return seen


NAMES = ["\x1b]0;owned\x07.jpg", "\x1b[2J.jpg", "new\nline.jpg", "\u202egpj.exe.jpg", "\x9b31m.jpg"]


def in_terminal(*arguments, cwd):
    """What a command writes to a terminal, as bytes."""
    main, other = pty.openpty()
    command = [sys.executable, "-m", "acclimate", *map(str, arguments)]
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, cwd=cwd, close_fds=True)
    os.close(other)
    written = b""
    with suppress(OSError):
        while part := os.read(main, 65536):
            written += part
    os.close(main)
    process.wait()
    return written


@case("14", "terminal escapes in names")
def terminal_escapes(work):
    seen = Seen()
    folder = work / "folder"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(files.photo(number) if number % 2 else b"x")
    tried = [
        ["classify", folder, "--labels", "cat,\x1b]0;owned\x07"],
        ["classify", folder, "--labels", "cat,dog"],
        ["classify", folder / "\x1b]0;owned\x07 is not there", "--labels", "cat,dog"],
        ["classify", folder, "--labels", "cat,dog", "--out", work / "\x1b[2Jno" / "r.csv"],
        ["state", "inspect", work / "\x1b[2J.safetensors"],
    ]
    for arguments in tried:
        written = in_terminal(*arguments, cwd=work)
        seen.tries += 1
        for escape in (b"\x1b]0;owned", b"\x1b[2J", "\u202e".encode(), "\x9b".encode()):
            seen.expect(escape not in written, f"{arguments[0]} wrote {escape!r}")
    return seen


@case("15", "formulas in csv")
def formulas(work):
    seen = Seen()
    for number, name in enumerate(("+1+1.jpg", "-2+3.jpg", "@SUM(1).jpg", "=1+1.jpg")):
        (work / name).write_bytes(files.photo(number))
    labels = work / "labels.txt"
    labels.write_text('=HYPERLINK("http://x";"y")\n@cat\n+dog\n')
    code, output, seen.peak_mb, _ = command_line("classify", ".", "--labels", labels, "--out", "x.csv", cwd=work)
    seen.expect(code == 0, output[-300:])
    cells = [cell for row in csv.reader((work / "x.csv").read_text().splitlines()) for cell in row]
    bad = [cell for cell in cells if cell[:1] in ("=", "+", "-", "@", "\t", "\r")]
    seen.tries = 4
    seen.expect(not bad, f"{len(bad)} cells such as {bad[:1]}")
    return seen


@case("28", "--resume on a file that is not its own")
def foreign_resume(work):
    seen = Seen()
    pictures = work / "pictures"
    pictures.mkdir()
    for seed in range(96):
        (pictures / f"{seed:03}.jpg").write_bytes(files.photo(seed))
    out = work / "out.csv"
    run = ["classify", pictures, "--labels", "cat,dog", "--out", out, "--batch-size", "8", "--checkpoint-every", "16"]
    process = subprocess.Popen(
        [sys.executable, "-m", "acclimate", *map(str, run)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not (out.exists() and out.read_bytes().count(b"\n") > 30):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    foreign = b"rubbish\n" * 20_000
    out.write_bytes(foreign)
    code, output, seen.peak_mb, _ = command_line(*run, "--resume")
    seen.tries, seen.note = 1, output.strip().splitlines()[-1][:60] if output.strip() else ""
    seen.expect(code not in (0, None), "accepted")
    seen.expect("Traceback" not in output, "a traceback")
    seen.expect(out.read_bytes() == foreign, "the foreign file was changed")
    return seen


IMMUTABLE, GET_FLAGS, SET_FLAGS = 0x10, 0x80086601, 0x40086602


def immutable(path, on):
    """Set the immutable flag of a file, where the file system has it; else OSError."""
    with open(path, "rb") as file:
        flags = struct.unpack("l", fcntl.ioctl(file, GET_FLAGS, struct.pack("l", 0)))[0]
        flags = flags | IMMUTABLE if on else flags & ~IMMUTABLE
        fcntl.ioctl(file, SET_FLAGS, struct.pack("l", flags))


@case("21", "a delete that fails")
def failing_delete(work):
    seen = Seen()
    service = Service(work)
    folder = service.data / "streams"
    try:
        _learnt(service, "alice", "alice")
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


@case("24", "rubbish in the data folder")
def rubbish(work):
    seen = Seen()
    service = Service(work)
    _learnt(service, "alice", "alice")
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


@case("held", "twenty kills under load")
def kills(work):
    """Nothing that was acknowledged is lost: the ids go on without a gap, and the state is that of the last answer."""
    seen, rng, learnt = Seen(), random.Random(0), 0
    service = Service(work)
    service.create("alice", "alice", skip_duplicates=False)
    for turn in range(20):
        for _ in range(rng.randint(1, 4)):
            answer = service.classify("alice", *[files.photo(100 * turn + i) for i in range(3)], token="alice")
            seen.expect(answer.status == 200, f"answered {answer.status}")
            ids = [each["id"] for each in answer.json()["results"]]
            seen.expect(ids == [learnt, learnt + 1, learnt + 2], f"ids {ids} after {learnt}")
            learnt += 3
        before = _state(service, "alice", "alice")
        service.kill()
        service.close()
        service = Service(work)
        seen.expect(_state(service, "alice", "alice") == before, f"kill {turn}: another state")
    described = service.call("GET", "/v1/streams/alice", token="alice").json()
    seen.expect(described["samples_seen"] == learnt, f"{described['samples_seen']} of {learnt}")
    service.close()
    seen.tries, seen.note = 20, f"{learnt} acknowledged, {described['samples_seen']} found"
    return seen


@case("held", "damaged files")
def damage(work):
    """The service starts whatever is damaged; a stream is as it was at some time, or says what is wrong."""
    seen, rng = Seen(), random.Random(1)
    service = Service(work, "--snapshot-every", "4")
    _learnt(service, "alice", "alice")
    _learnt(service, "bob", "alice")
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


def told(service, stream, token):
    """What a stream says of damage."""
    return json.loads(service.call("GET", f"/v1/streams/{stream}", token=token).text).get("broken")


@case("25", "a journal that was cut short is told")
def cut_journal(work):
    seen = Seen()
    service = Service(work)
    _learnt(service, "alice", "alice")
    time.sleep(2.5)  # by then it is synced
    service.kill()
    service.close()
    journal = sorted((service.data / "streams/alice").glob("*.journal"))[-1]
    os.truncate(journal, journal.stat().st_size // 2)
    again = Service(work)
    try:
        seen.tries, seen.note = 1, str(told(again, "alice", "alice"))[:60]
        seen.expect(told(again, "alice", "alice"), "nothing says that samples are missing")
    finally:
        again.close()
    return seen
