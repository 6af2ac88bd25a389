import io
import os
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from acclimate.cli import app
from acclimate.cluster.storage import Storage
from acclimate.errors import InputError
from acclimate.sources import open_source, urls
from acclimate.sources.urls import list_images, open_object
from small_images import draw, encoded, labels, names, shade, write_tar


def fill(url, files):
    for name, content in files.items():
        Storage(url).write(name, content)


def tar_bytes(path, members):
    write_tar(path, members)
    return path.read_bytes()


def parquet_bytes(**columns):
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


PHOTOS = ["img10.png", "IMG2.png", "dogs/b #1.png", "dogs/puppies/a.png", ".hidden.png", ".cache/x.png", "dogs/.c.png"]


# On the local disk: what `open_source` lists


def test_local_sources_are_those_of_one_machine(here, monkeypatch):
    for number, path in enumerate(PHOTOS):
        draw(here / "photos" / path, number)
    (here / "list.csv").write_text("file,label\nphotos/img10.png,ten\nphotos/missing.png,\n")
    write_tar(here / "shards/0.tar", {"a.png": encoded(7), "a.cls": b"cat"})
    for spec in (
        "photos",
        "photos/",
        "./photos/img10.png",
        "photos/**/*.png",
        "list.csv",
        "wds:shards",
        here / "photos",
    ):
        spec = os.fspath(spec)
        expected = open_source(spec)
        samples = list_images(spec)
        assert (names(samples), labels(samples)) == (names(expected), labels(expected)), spec
    samples = list_images(["list.csv", "photos", "wds:shards/{0..0}.tar"])
    assert names(samples) == names(open_source(["list.csv", "photos", "wds:shards/{0..0}.tar"]))
    monkeypatch.chdir("/")  # where a worker on another machine may be
    assert [shade(each) for each in pickle.loads(pickle.dumps([samples[0], samples[-1]]))] == [0, 7]


# By URL


def test_a_folder_by_url_is_listed_as_on_disk(elsewhere, here):
    for number, path in enumerate(PHOTOS):
        draw(here / "photos" / path, number)
        fill(elsewhere, {f"photos/{path}": encoded(number)})
    fill(elsewhere, {"photos/notes.md": b"", "photos/clip.mp4": b"", "photos/dogs/more.xmp": b""})
    expected = open_source("photos")
    samples = list_images(f"{elsewhere}/photos/")
    assert names(samples) == [f"{elsewhere}/{name}" for name in names(expected)]
    assert labels(samples) == labels(expected)
    assert list(map(shade, pickle.loads(pickle.dumps(list(samples))))) == list(map(shade, expected))
    assert samples.skipped == {".md": 1, ".xmp": 1, ".mp4 (must be on the local disk: copy it there)": 1}
    (one,) = list_images(f"{elsewhere}/photos/dogs/b #1.png")
    assert (one.name, one.label, shade(one)) == (f"{elsewhere}/photos/dogs/b #1.png", None, 2)


def test_classify_takes_urls(elsewhere, here):
    for number in range(6):
        draw(here / f"photos/{number}.png", 40 * number)
        fill(elsewhere, {f"photos/{number}.png": encoded(40 * number)})
    for source, out in (("photos", "disk.csv"), (f"{elsewhere}/photos", "store.csv")):
        done = CliRunner().invoke(app, ["classify", source, "--labels", "dark, bright", "--out", out])
        assert done.exit_code == 0, done.stderr
    rows = [(here / name).read_text() for name in ("disk.csv", "store.csv")]
    assert rows[1].replace(f"{elsewhere}/", "") == rows[0]


def test_several_sources_are_joined(elsewhere, here):
    draw(here / "cats/a.png", 1)
    fill(elsewhere, {"cats/b.png": encoded(2), "dogs/c.png": encoded(3)})
    samples = list_images([f"{elsewhere}/cats", f"{elsewhere}/dogs", f"{elsewhere}/cats/b.png", "cats"])
    assert names(samples) == [f"{elsewhere}/cats/b.png", f"{elsewhere}/dogs/c.png", "cats/a.png"]
    assert labels(samples) == ["cats", "dogs", "cats"]


LISTS = {
    "txt": b"photos/a.png\n# a comment\nURL/photos/b.png\n/ROOT/photos/c.png\n",
    "csv": b"file,label\nphotos/a.png,x\nURL/photos/b.png,\n/ROOT/photos/c.png,y\n",
    "jsonl": b'{"path": "photos/a.png", "class": 7}\n{"path": "URL/photos/b.png"}\n{"path": "/ROOT/photos/c.png"}\n',
    "parquet": ["photos/a.png", "URL/photos/b.png", "/ROOT/photos/c.png"],
}


@pytest.mark.parametrize("kind", LISTS)
def test_lists_by_url(elsewhere, kind):
    fill(elsewhere, {f"photos/{name}.png": encoded(number) for number, name in enumerate("abc")})
    root = elsewhere.partition("://")[2].partition("/")[2]  # below the bucket
    if kind == "parquet":
        paths = [path.replace("URL", elsewhere).replace("ROOT", root) for path in LISTS[kind]]
        content = parquet_bytes(File=paths, label=["x", None, "y"], other=[1, 2, 3])
    else:
        content = LISTS[kind].replace(b"URL", elsewhere.encode()).replace(b"ROOT", root.encode())
    fill(elsewhere, {f"list.{kind}": content})
    samples = list_images(f"{elsewhere}/list.{kind}")
    assert names(samples) == [f"{elsewhere}/photos/{name}.png" for name in "abc"]
    assert labels(samples) == {"txt": [None] * 3, "jsonl": ["7", None, None]}.get(kind, ["x", None, "y"])
    assert list(map(shade, samples)) == [0, 1, 2]


def test_a_local_list_may_name_urls(elsewhere, here):
    fill(elsewhere, {"a.png": encoded(5)})
    draw(here / "b.png", 6)
    (here / "list.parquet").write_bytes(parquet_bytes(path=[f"{elsewhere}/a.png", "b.png"]))
    assert [(each.name, shade(each)) for each in list_images("list.parquet")] == [
        (f"{elsewhere}/a.png", 5),
        ("b.png", 6),
    ]


SHARDS = {
    "00": {"0.png": encoded(1), "0.cls": b"1", "1.png": encoded(2), "1.cls": b"cat"},
    "01": {"0.png": encoded(3), "0.json": b"{}"},
}


@pytest.mark.parametrize("spec", ["train", "train/", "train/{00..01}.tar", "train/{00,01}.tar"])
def test_shards_by_url(elsewhere, here, spec):
    fill(elsewhere, {f"train/{name}.tar": tar_bytes(here / "one.tar", members) for name, members in SHARDS.items()})
    fill(elsewhere, {"classnames.txt": b"tench\ngoldfish\n"})
    samples = list_images(f"wds:{elsewhere}/{spec}")
    assert names(samples) == [
        f"{elsewhere}/train/{each}" for each in ("00.tar::0.png", "00.tar::1.png", "01.tar::0.png")
    ]
    assert labels(samples) == ["goldfish", "cat", None]
    assert list(map(shade, pickle.loads(pickle.dumps(list(samples))))) == [1, 2, 3]


def test_headers_of_shards_are_read_and_not_the_images(elsewhere, here, monkeypatch):
    read = []

    class Counting(io.RawIOBase):
        def __init__(self, file):
            self.file = file

        def readable(self):
            return True

        def seekable(self):
            return True

        def seek(self, *to):
            return self.file.seek(*to)

        def tell(self):
            return self.file.tell()

        def readinto(self, buffer):
            content = self.file.read(len(buffer))
            buffer[: len(content)] = content
            read.append(len(content))
            return len(content)

    fill(elsewhere, {"0.tar": tar_bytes(here / "one.tar", {f"{each}.png": bytes(2**20) for each in range(20)})})
    monkeypatch.setattr(urls, "open_object", lambda url: Counting(open_object(url)))
    assert len(list_images(f"wds:{elsewhere}/0.tar")) == 20
    assert 0 < sum(read) < 3 * 2**20


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("URL/nowhere", "nothing at URL/nowhere; check the names of the bucket and of the folder"),
        ("URL/photos/*.png", "patterns and options cannot be part of it: name a folder"),
        ("URL/notes", r"no images in URL/notes: found only 1 \.md"),
        ("wds:URL/notes", r"no images in URL/notes: the folder contains no \.tar files"),
        ("wds:URL/{0..1}.tar", r"no shard at URL/0\.tar; check the path"),
        ("wds:URL/notes/a.md", "is truncated, compressed or not a tar file"),
        ("URL/bad.parquet", "cannot be read as a parquet file"),
        ("URL/odd.parquet", "no path among the columns text; name it file or path"),
        ("URL/clips.txt", r"line 1: .*clip\.mp4 is a video, which must be on the local disk"),
    ],
)
def test_sources_that_cannot_be_listed_say_why(elsewhere, spec, message):
    fill(elsewhere, {"notes/a.md": b"x", "bad.parquet": b"PAR1", "odd.parquet": parquet_bytes(text=["a.png"])})
    fill(elsewhere, {"clips.txt": b"clip.mp4\n"})
    with pytest.raises(InputError, match=message.replace("URL", elsewhere)):
        list_images(spec.replace("URL", elsewhere))


def test_a_missing_bucket_and_an_unknown_scheme(s3):
    with pytest.raises(InputError, match="nothing at s3://no-such-bucket/photos; check the names of the bucket"):
        list_images("s3://no-such-bucket/photos")
    with pytest.raises(InputError, match="unknown scheme s3x://"):
        list_images("s3x://bucket/photos")
