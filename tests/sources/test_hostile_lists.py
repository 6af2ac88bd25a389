"""Bounded costs of untrusted shards and lists, and parquet lists."""

import io
import sys
import tarfile

import pytest

from acclimate.errors import InputError, MissingExtraError
from acclimate.sources import open_source
from acclimate.sources.source import read_file
from small_images import draw, encoded, labels, names, shade

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

END = bytes(1024)


def header(name, size, kind=tarfile.REGTYPE, pax=None):
    member = tarfile.TarInfo(name)
    member.size = size
    member.type = kind
    member.pax_headers = pax or {}
    return member.tobuf(tarfile.PAX_FORMAT if pax else tarfile.GNU_FORMAT)


def padded(content):
    return content + bytes(-len(content) % 512)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_header_that_promises_gigabytes_is_not_read(here, kind):
    with open(here / "huge.tar", "wb") as file:
        file.write(header("x", 2**33, kind))
        file.truncate(2**33 + 4096)  # takes no room on the disk
    with pytest.raises(InputError, match=r"the shard huge\.tar .*\(a header of 8,589,934,592 bytes\)"):
        open_source("wds:huge.tar")


@pytest.mark.parametrize(
    "content",
    [
        header("a.png", -512) + END,
        header("b.png", 0) + header("a.png", -1024) + END,
        header("a.png", -100) + END,
        header("x", -512, tarfile.GNUTYPE_LONGNAME) + END,
        header("a.cls", 2**20) + bytes(2**20) + END,
        (header("x", 2, tarfile.GNUTYPE_LONGNAME) + padded(b"a\0")) * 2000 + END,
    ],
    ids=["itself", "back", "little", "name", "label", "deep"],
)
def test_headers_that_mislead_are_refused(here, content):
    (here / "bad.tar").write_bytes(content)
    with pytest.raises(InputError, match=r"the shard bad\.tar is truncated, compressed or not a tar file"):
        open_source("wds:bad.tar")


def test_a_negative_size_in_an_extended_header_is_refused(here):
    """Some versions of Python take it for the end of the file."""
    (here / "bad.tar").write_bytes(header("a.png", 0, pax={"size": "-5120"}) + END)
    said = r"the shard bad\.tar is truncated, compressed or not a tar file|no images in the shards of bad\.tar"
    with pytest.raises(InputError, match=said):
        open_source("wds:bad.tar")


def test_a_size_below_zero_reads_nothing(here):
    draw(here / "a.png")
    with pytest.raises(OSError, match="allowed"):
        read_file("a.png", 0, -1)


# Parquet lists


def write(to, **columns):
    pq.write_table(pa.table(columns), to)


def test_a_parquet_list(here):
    for number, name in enumerate(["photos/a.png", "photos/b.png"]):
        draw(here / name, number)
    write(
        here / "photos/list.parquet", score=[0.5, 1.5, 2.5], File=["b.png", "a.png", "gone.png"], Class=["x", None, "x"]
    )
    samples = open_source("photos/list.parquet")
    assert names(samples) == ["photos/b.png", "photos/a.png", "photos/gone.png"]
    assert labels(samples) == ["x", None, "x"]
    assert samples[0].label is samples[2].label
    assert [shade(each) for each in samples[:2]] == [1, 0]
    write(here / "numbers.PARQUET", path=[(here / "photos/a.png").as_posix()], label=[7])
    assert labels(open_source("numbers.PARQUET")) == ["7"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a.png"]}, "no path among the columns text; name it file or path or image"),
        ({"file": [7]}, "line 1: not a path: 7"),
        ({"file": ["a.png", None]}, "line 2: no path among file"),
        ({"file": [b"a.png"]}, "line 1: not a path: b'a.png'"),
        ({"file": ["https://example.org/a.png"]}, "line 1: .* is a URL; download the images"),
        ({"file": [["a.png"]]}, "the column file holds list<.*>, not paths or labels; name columns of text"),
        ({"file": ["a" * 70_000]}, "more than 65,536 bytes; write it shorter"),
        ({"file": pa.array([], pa.string())}, "no images in list.parquet: it lists no paths"),
    ],
)
def test_bad_parquet_lists_say_what_is_wrong(here, columns, message):
    write(here / "list.parquet", **columns)
    with pytest.raises(InputError, match=message):
        open_source("list.parquet")


def test_damaged_parquet_lists_are_refused(here):
    write(here / "list.parquet", file=["a.png"] * 1000)
    content = (here / "list.parquet").read_bytes()
    for damaged in (b"", b"PAR1", content[:-20], content[20:], content[:4] + b"\xff" * 40 + content[44:]):
        (here / "list.parquet").write_bytes(damaged)
        with pytest.raises(InputError, match=r"list\.parquet cannot be read as a parquet file"):
            open_source("list.parquet")


@pytest.mark.parametrize(("bound", "most"), [("MAX_ROWS", 999), ("MAX_COLUMN_BYTES", 10)])
def test_parquet_lists_are_bounded(here, monkeypatch, bound, most):
    write(here / "list.parquet", file=["a.png"] * 1000)
    monkeypatch.setattr(f"acclimate.sources.table.{bound}", most)
    with pytest.raises(InputError, match=r"list\.parquet has 1,000 rows .*: split it"):
        open_source("list.parquet")


def test_without_pyarrow(here, monkeypatch):
    write(here / "list.parquet", file=["a.png"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        MissingExtraError, match=r"list\.parquet needs pyarrow: .*\[parquet\].*; or write the list as \.csv"
    ):
        open_source("list.parquet")


def test_a_shard_keeps_its_images(here):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo(f"{'long/' * 60}a.png")  # a name that needs a header of its own
        member.size = len(encoded(9))
        tar.addfile(member, io.BytesIO(encoded(9)))
    (here / "good.tar").write_bytes(buffer.getvalue())
    (sample,) = open_source("wds:good.tar")
    assert (sample.name, shade(sample)) == (f"good.tar::{'long/' * 60}a.png", 9)
