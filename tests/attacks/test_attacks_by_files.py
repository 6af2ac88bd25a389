"""Attacks by files: states, and sources of the command line."""

import csv
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest

from acclimate.files import parse_snapshot, snapshot_bytes
from attacks import files
from attacks.target import LABELS, Service, command_line

pytestmark = [pytest.mark.attack, pytest.mark.held_by("command")]


def edited(content, change):
    """Return a state file with a valid checksum whose tensors and description were changed."""
    tensors, description = parse_snapshot(content)
    tensors = {name: values.copy() for name, values in tensors.items()}
    change(tensors, description)
    return snapshot_bytes(tensors, description)


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


# States that must be refused, and states of a valid form with values that no stream leads to.
REFUSED_STATES = {
    "wide empty targets": _tensor("positive.targets", np.zeros((0, 10**8), np.int32)),
    "endless empty targets": _tensor("positive.targets", np.zeros((0, 2**40), np.int32)),
    "wide targets": _tensor("positive.targets", lambda old: np.pad(old, ((0, 0), (0, 9)), constant_values=-1)),
    "origin is a list": _field("origin", value=["a"]),
    "frozen is text": _field("frozen", value="no"),
    "names are numbers": _field("head", "class_names", value=list(range(len(LABELS)))),
    "equal class names": _field("head", "class_names", value=["cat"] * 130_000),
    "the largest id": _tensor("positive.ids", lambda old: np.full_like(old, 2**63 - 1)),
    "huge counts": _field("seen", value={"alice": 2**70}),
    "negative ids": _tensor("positive.ids", lambda old: -1 - old),
    "keys are NaN": _tensor("positive.keys", _keys(np.nan)),
    "settings of 1e400": _field("settings", "alpha", value=float("inf")),
    "a scale of zero": _field("head", "logit_scale", value=0.0),
    "a name with markup": _field("head", "class_names", value=["[/bold]", *LABELS[1:]]),
}
IMPOSSIBLE_STATES = {
    "negative entropies": _tensor("positive.entropies", lambda old: -1.0 - old),
    "entropies beyond the largest": _tensor("positive.entropies", lambda old: old + 100),
    "keys times 100": _tensor("positive.keys", _keys(100)),
    "keys of 3e38": _tensor("positive.keys", lambda old: np.full_like(old, 3e38)),
    "keys are zeros": _tensor("positive.keys", _keys(0)),
    "keys are float16": _tensor("positive.keys", lambda old: old.astype(np.float16)),
}


@pytest.mark.held_by("service")
@pytest.mark.long_attack
def test_states_over_http(attack):
    """Hostile states over HTTP."""
    answers = []
    with attack.on_service() as service:
        service.learn_some("mallory-s", "mallory", method="tda")
        before = service.state("mallory-s", "mallory")
        for name, change in REFUSED_STATES.items():
            answers.append(service.upload("mallory-s", edited(before, change), "mallory"))
            assert answers[-1].status == 422, name
        service.learn_some("mallory-i", "mallory", method="tda")
        for name, change in IMPOSSIBLE_STATES.items():
            service.upload("mallory-i", edited(service.state("mallory-i", "mallory"), change), "mallory")
            assert service.classify("mallory-i", files.photo(20), token="mallory").status in (200, 422), name
            service.call("POST", "/v1/streams/mallory-i/reset", token="mallory")
        assert service.state("mallory-s", "mallory") == before, "a refused state has changed the stream"
        assert service.classify("mallory-s", files.photo(20), token="mallory").status == 200
        last = service.state("mallory-s", "mallory")
    with Service(attack.folder) as again:
        assert again.state("mallory-s", "mallory") == last, "after a kill the state differs"
    attack.check(answers, {422})


@pytest.mark.long_attack
def test_states_on_the_command_line(attack):
    """Hostile states on the command line."""
    pictures = attack.folder / "pictures"
    pictures.mkdir()
    for seed in range(8):
        (pictures / f"{seed}.jpg").write_bytes(files.photo(seed))
    good = attack.folder / "good.safetensors"
    learn = ["classify", pictures, "--labels", ",".join(LABELS), "--method", "tda", "--state", good]
    code, output, *_ = command_line(*learn, "--out", attack.folder / "first.csv")
    assert code == 0, output
    content = good.read_bytes()
    path = attack.folder / "bad.safetensors"
    for name, change in REFUSED_STATES.items():
        hostile = edited(content, change)
        path.write_bytes(hostile)
        for arguments in (["state", "inspect", path], [*learn[:-1], path, "--out", attack.folder / "again.csv"]):
            code, output, peak, _ = command_line(*arguments)
            attack.tries += 1
            attack.peak_mb = max(attack.peak_mb, peak)
            assert code not in (None, 0) or "markup" in name, f"{name}, {arguments[0]}: exit {code}"
            assert "Traceback" not in output, f"{name}, {arguments[0]}: a traceback"
        assert path.read_bytes() == hostile, f"{name}: the file has changed"
    turned = edited(content, _tensor("positive.keys", lambda old: np.ascontiguousarray(np.roll(old, 1, axis=1))))
    path.write_bytes(turned)
    code, output, *_ = command_line("state", "diff", good, path)
    assert code == 1
    assert "no difference" not in output
    assert attack.peak_mb < 1024


def test_hostile_folder(attack):
    """A folder with bombs, links to devices and FIFOs."""
    folder = attack.folder / "folder"
    folder.mkdir()
    for number, bomb in enumerate(files.wide_bombs()):
        (folder / f"wide{number}.png").write_bytes(bomb)
    (folder / "tile.tif").write_bytes(files.tiff_with_tile())
    (folder / "scans.jpg").write_bytes(files.jpeg_with_scans(600))
    (folder / "zero.jpg").symlink_to("/dev/zero")
    (folder / "random.jpg").symlink_to("/dev/urandom")
    os.mkfifo(attack.folder / "fifo")
    (folder / "pipe.jpg").symlink_to(attack.folder / "fifo")
    os.mkfifo(folder / "fifo.jpg")
    (folder / "good.jpg").write_bytes(files.photo())
    code, _, attack.peak_mb, seconds = command_line(
        "classify", folder, "--labels", "cat,dog", "--out", attack.folder / "r.csv"
    )
    attack.tries = len(list(folder.iterdir()))
    rows = (attack.folder / "r.csv").read_text().splitlines() if (attack.folder / "r.csv").exists() else []
    assert code is not None, f"took {seconds:.0f} s and {attack.peak_mb:.0f} MB"
    assert any("good.jpg" in row and "cannot" not in row for row in rows), "the good image has no answer"
    assert attack.peak_mb < 1500
    attack.note = f"exit {code}, {len(rows) - 1} rows, {seconds:.0f} s"


NAMES = ["\x1b]0;owned\x07.jpg", "\x1b[2J.jpg", "new\nline.jpg", "\u202egpj.exe.jpg", "\x9b31m.jpg"]


def in_terminal(*arguments, cwd):
    """Run a command in a terminal, and return the bytes it writes."""
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


def test_terminal_escapes(attack):
    """Terminal escapes in names."""
    folder = attack.folder / "folder"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(files.photo(number) if number % 2 else b"x")
    tried = [
        ["classify", folder, "--labels", "cat,\x1b]0;owned\x07"],
        ["classify", folder, "--labels", "cat,dog"],
        ["classify", folder / "\x1b]0;owned\x07 is not there", "--labels", "cat,dog"],
        ["classify", folder, "--labels", "cat,dog", "--out", attack.folder / "\x1b[2Jno" / "r.csv"],
        ["state", "inspect", attack.folder / "\x1b[2J.safetensors"],
    ]
    for arguments in tried:
        written = in_terminal(*arguments, cwd=attack.folder)
        attack.tries += 1
        for escape in (b"\x1b]0;owned", b"\x1b[2J", "\u202e".encode(), "\x9b".encode()):
            assert escape not in written, f"{arguments[0]} wrote {escape!r}"


def test_formulas(attack):
    """Formulas in csv."""
    for number, name in enumerate(("+1+1.jpg", "-2+3.jpg", "@SUM(1).jpg", "=1+1.jpg")):
        (attack.folder / name).write_bytes(files.photo(number))
    labels = attack.folder / "labels.txt"
    labels.write_text('=HYPERLINK("http://x";"y")\n@cat\n+dog\n')
    code, output, attack.peak_mb, _ = command_line(
        "classify", ".", "--labels", labels, "--out", "x.csv", cwd=attack.folder
    )
    assert code == 0, output[-300:]
    cells = [cell for row in csv.reader((attack.folder / "x.csv").read_text().splitlines()) for cell in row]
    bad = [cell for cell in cells if cell[:1] in ("=", "+", "-", "@", "\t", "\r")]
    attack.tries = 4
    assert not bad, f"{len(bad)} cells such as {bad[:1]}"


@pytest.mark.long_attack
def test_foreign_resume(attack):
    """--resume on a file that is not its own."""
    pictures = attack.folder / "pictures"
    pictures.mkdir()
    for seed in range(96):
        (pictures / f"{seed:03}.jpg").write_bytes(files.photo(seed))
    out = attack.folder / "out.csv"
    run = ["classify", pictures, "--labels", "cat,dog", "--out", out, "--encode", "batch_size=8"]
    process = subprocess.Popen(
        [sys.executable, "-m", "acclimate", *map(str, run)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not (out.exists() and out.read_bytes().count(b"\n") > 30):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    foreign = b"rubbish\n" * 20_000
    out.write_bytes(foreign)
    code, output, attack.peak_mb, _ = command_line(*run, "--resume")
    attack.tries = 1
    assert code == 0, output
    assert "were edited; the table as it was is now" in output
    assert out.with_name("out.edited.csv").read_bytes() == foreign, "the foreign file was lost"
