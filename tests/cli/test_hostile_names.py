"""Names of files and classes are foreign text: whatever they hold, they neither control a terminal nor forge a line."""

import csv
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.classify.table import read_results
from acclimate.cli.tables import print_table
from acclimate.errors import JOINERS, printable
from drawn_images import draw

NAMES = (
    "\x1b]0;title\x07.jpg",
    "\x1b[2Jclear.jpg",
    "two\nlines.jpg",
    "\x9b31mred.jpg",
    "\u202egpj.exe.jpg",
    "back\r\x08space.jpg",
    "[bold]\u2028\u2066.jpg",
)
SOURCES = Path(__file__).parents[2] / "src"


@pytest.fixture
def on_terminal(here):
    """Run a command with stdout and stderr on a real terminal; returns every character that arrived there."""
    changed = {"PYTHONPATH": str(SOURCES), "ACCLIMATE_CACHE": str(here / ".cache"), "NO_COLOR": "1", "TERM": "dumb"}

    def run(*arguments, exit_code=0):
        master, slave = pty.openpty()
        command = [sys.executable, "-m", "acclimate", *map(str, arguments)]
        process = subprocess.Popen(
            command, cwd=here, env=os.environ | changed, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave
        )
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the last process has closed the terminal
                break
            if not part:
                break
            shown += part
        os.close(master)
        assert process.wait() == exit_code, shown
        return shown.decode().replace("\r\n", "\n")  # the terminal itself makes it of a newline

    return run


def unsafe(shown):
    """Return the characters in what was shown that could do harm, apart from newlines and our own dimmed text."""
    plain = shown.replace("\x1b[2m", "").replace("\x1b[0m", "")
    return {each for each in plain if each != "\n" and printable(each) != each}


@given(st.text(st.characters(exclude_categories=())))
def test_printable_text_is_one_line_of_visible_characters_and_plain_text_is_unchanged(text):
    shown = printable(text)
    shown.encode()  # is valid Unicode
    assert len(shown.splitlines()) <= 1
    assert printable(shown) == shown
    if all(each.isprintable() or each in JOINERS for each in text):
        assert shown == text


@pytest.mark.slow
def test_results_on_a_terminal(here, on_terminal):
    (here / "photos").mkdir()
    for name in (*NAMES, os.fsdecode(b"latin \xe9.jpg")):
        draw("red", 0).save(here / "photos" / name)
    (here / "photos" / f"broken {NAMES[0]}").write_bytes(b"no image")
    shown = on_terminal("classify", "photos", "--labels", "cat,a\u202edog")
    assert not unsafe(shown)
    for text in (r"photos/\x1b[2Jclear.jpg", r"photos/two\nlines.jpg", r"latin \udce9.jpg", "could not be read"):
        assert text in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("classify", NAMES[0], "--labels", "a,b"),
        ("classify", "photos", f"--{NAMES[1]}"),
        (f"x{NAMES[2]}",),
    ],
)
def test_errors_on_a_terminal(arguments, on_terminal):
    shown = on_terminal(*arguments, exit_code=2)
    assert not unsafe(shown)
    assert "rror: " in shown


FORMULAS = ("=HYPERLINK(1).jpg", "+1+1.jpg", "-2+3.jpg", "@SUM(1).jpg", "'=1.jpg", "plain.jpg")
LABEL = '=HYPERLINK("http://x")'


def test_formulas_in_csv(here, invoke):
    for seed, name in enumerate(FORMULAS):
        draw(("red", "green")[seed % 2], seed).save(here / name)
    (here / "labels.csv").write_text('label\n"\'=HYPERLINK(""http://x"")"\ncat\n')
    common = ["--labels", "labels.csv", "--top-k", 2]
    printed = invoke("classify", ".", *common).stdout
    invoke("classify", ".", *common, "--out", "r.csv", "--state", "s.safetensors")
    assert (here / "r.csv").read_text() == printed
    rows = list(csv.DictReader(printed.splitlines()))
    for row in rows:
        for cell in row.values():
            assert not re.match(r"\s*[=+@]|\s*-(?![\d.]+$)", cell), cell
        assert {row["label"], row["label_2"]} == {f"'{LABEL}", "cat"}
        assert (here / row["file"]).is_file() or row["file"] == "./'=1.jpg"
    assert {row["file"] for row in rows} >= {"./-2+3.jpg", "./=HYPERLINK(1).jpg", "plain.jpg"}
    # Everything that reads it again understands it: resume, truth, corrections, sorting, lists.
    draw("blue", 9).save(here / "-new.jpg")
    invoke("classify", ".", *common, "--out", "r.csv", "--state", "s.safetensors", "--resume")
    found = {each["file"]: each for each in read_results(here / "r.csv")}
    assert set(found) == {*FORMULAS, "-new.jpg"}
    assert {each["label"] for each in found.values()} <= {LABEL, "cat"}
    with open("truth.csv", "w", newline="") as file:
        csv.writer(file).writerows([("file", "label"), *((row["file"], row["label"]) for row in rows)])
    said = invoke("classify", ".", *common, "--truth", "truth.csv", "--out", "t.csv").stderr
    assert "Accuracy on 6 images" in said
    (here / "fixes.csv").write_text("file,label\n./-2+3.jpg,cat\n")
    invoke("correct", "r.csv", "fixes.csv", "--state", "s.safetensors")
    assert {each["file"]: each["correct_label"] for each in read_results(here / "r.csv")}["-2+3.jpg"] == "cat"
    assert "7 images sorted into sorted" in invoke("sort", "r.csv", "sorted").stderr
    assert "7 images taken back" in invoke("sort", "r.csv", "--undo").stderr
    assert "7 images classified" in invoke("classify", "r.csv", *common, "--out", "l.csv").stderr


def test_tables_show_names_as_they_are_but_for_control_characters(capsys):
    print_table(["class"], [["[/bold]"], [":cat:"], ["\x1b[2J\n"], ["Größe"]], left=("class",))
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        "class",
        "[/bold]",
        ":cat:",
        r"\x1b[2J\n",
        "Größe",
    ]
