import io
import json
import os
import pickle
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from acclimate.errors import InputError, MissingExtraError
from acclimate.sources import Sample, open_source, order_samples, source_fingerprint
from acclimate.sources.folder import IMAGE_SUFFIXES, natural_key


def encoded(shade=0, kind="PNG"):
    buffer = io.BytesIO()
    Image.new("RGB", (4, 3), (shade % 256, 10, 20)).save(buffer, kind)
    return buffer.getvalue()


def draw(path, shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), (shade, 10, 20)).save(path)
    return path


def names(samples):
    return [sample.name for sample in samples]


def labels(samples):
    return [sample.label for sample in samples]


def shade(sample):
    return Image.open(io.BytesIO(sample.read())).convert("RGB").getpixel((0, 0))[0]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Local paths


def test_one_image(here):
    draw(here / "Photo.PNG", 7)
    (sample,) = open_source("./Photo.PNG")
    assert (sample.name, sample.label, shade(sample)) == ("Photo.PNG", None, 7)
    assert names(open_source(here / "Photo.PNG")) == [(here / "Photo.PNG").as_posix()]


def test_a_folder_is_listed_in_natural_order_with_labels(here):
    for number, path in enumerate(["img10.png", "IMG2.png", "img1.JPG", "dogs/b.webp", "dogs/puppies/a.bmp"]):
        draw(here / "photos" / path, number)
    for path in (".hidden.png", ".cache/x.png", "dogs/._b.png"):
        draw(here / "photos" / path)
    (here / "photos/notes.txt").write_text("x")
    (here / "photos/jpg").write_text("a file without a suffix")
    samples = open_source("photos/")
    assert names(samples) == [
        f"photos/{path}" for path in ("dogs/b.webp", "dogs/puppies/a.bmp", "img1.JPG", "IMG2.png", "img10.png")
    ]
    assert labels(samples) == ["dogs", "puppies", None, None, None]
    assert shade(samples[-1]) == 0
    assert names(open_source(here / "photos")) == [(here / name).as_posix() for name in names(samples)]
    os.chdir("photos")
    assert names(open_source("."))[2:] == ["img1.JPG", "IMG2.png", "img10.png"]


def test_links_lead_neither_in_circles_nor_to_anything_twice(here):
    draw(here / "photos/cats/a.png")
    draw(here / "elsewhere/b.png")
    draw(here / "photos/.store/c.png")
    for link, target in {
        "photos/again": "cats",
        "photos/cats/self": ".",
        "photos/cats/up": "../..",
        "photos/cats/root": "..",
        "photos/dogs": "../elsewhere",
        "photos/twice": "../elsewhere",
        "photos/birds": ".store",
        "photos/snake": "snake",
        "photos/gone.png": "nowhere.png",
        "elsewhere/back": "../photos",
    }.items():
        (here / link).symlink_to(target)
    samples = open_source("photos")
    assert names(samples) == ["photos/birds/c.png", "photos/cats/a.png", "photos/dogs/b.png", "photos/gone.png"]
    with pytest.raises(FileNotFoundError):
        samples[-1].read()


def test_patterns(here):
    for path in ("x/img10.png", "x/img9.png", "x/deep/er/c.jpg", "x/.h/d.png", "x/deep/e.txt"):
        draw(here / path) if not path.endswith("txt") else (here / path).write_text("")
    assert names(open_source("x/img*.png")) == ["x/img9.png", "x/img10.png"]
    assert names(open_source("x/img?.png")) == ["x/img9.png"]
    assert names(open_source(f"{here}/x/img[0-9].png")) == [f"{here.as_posix()}/x/img9.png"]
    everything = ["x/deep/er/c.jpg", "x/img9.png", "x/img10.png"]
    assert names(open_source("x/**")) == names(open_source("x/**/*")) == names(open_source("**/*")) == everything
    assert labels(open_source("x/**")) == ["er", None, None]
    assert names(open_source("x/.h/*")) == ["x/.h/d.png"]
    draw(here / "odd[1].png")
    assert names(open_source("odd[1].png")) == ["odd[1].png"]
    with pytest.raises(InputError, match=r"no images in x/z\*: no file matches it"):
        open_source("x/z*")
    with pytest.raises(InputError, match=r"no images in \*\*/\*\.txt: no file has an image suffix \(saw x/deep/e\.txt"):
        open_source("**/*.txt")


def test_what_is_not_there_is_named(here):
    (here / "empty").mkdir()
    with pytest.raises(InputError, match="no images in empty: it holds no files"):
        open_source("empty")
    for name in "dcba":
        (here / "empty" / f"{name}.pdf").write_text("")
    with pytest.raises(InputError, match=r"no file has an image suffix \(saw a\.pdf, b\.pdf, c\.pdf\)"):
        open_source("empty")
    with pytest.raises(InputError, match=r"empty/a\.pdf is neither an image by its suffix nor a list"):
        open_source("empty/a.pdf")
    with pytest.raises(InputError, match="no file or folder at nowhere"):
        open_source("nowhere")
    with pytest.raises(InputError, match="no image source given"):
        open_source("")
    with pytest.raises(InputError, match=r"no file or folder at C:\\photos"):
        open_source("C:\\photos")
    with pytest.raises(InputError, match=r"unknown prefix s3: in s3://bucket.*coop:, wds:, hfds:"):
        open_source("s3://bucket/*.png")


def test_a_file_whose_name_has_a_colon_is_a_file(here):
    draw(here / "shot:1.png", 5)
    assert shade(open_source("shot:1.png")[0]) == 5


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_folder_that_cannot_be_listed_is_an_error(here):
    draw(here / "photos/a.png")
    (here / "photos/locked").mkdir(mode=0)
    with pytest.raises(InputError, match="cannot list the folder photos/locked"):
        open_source("photos")


def test_suffixes_are_those_pillow_opens():
    assert set(IMAGE_SUFFIXES) - {".avif"} <= set(Image.registered_extensions())


paths = st.text(alphabet="aAbB/._-é019\n", max_size=12)


@given(paths, paths, paths)
def test_natural_order_is_total(a, b, c):
    keys = [natural_key(path) for path in (a, b, c)]
    assert sum([keys[0] < keys[1], keys[0] == keys[1], keys[0] > keys[1]]) == 1
    assert (keys[0] == keys[1]) == (a == b)
    if keys[0] <= keys[1] <= keys[2]:
        assert keys[0] <= keys[2]


@given(st.lists(st.integers(min_value=0), min_size=2, unique=True), st.text("abAB_", max_size=3))
def test_digits_compare_as_numbers(numbers, prefix):
    files = [f"{prefix}{number}.png" for number in numbers]
    assert sorted(files, key=natural_key) == [f"{prefix}{number}.png" for number in sorted(numbers)]
    assert natural_key("9" * 5000) < natural_key("1" + "0" * 5000)


# Lists


def test_lists_of_every_kind(here):
    draw(here / "data/img/a.png", 3)
    absolute = draw(here / "other/b.png", 4)
    (here / "data/list.txt").write_text(f"\ufeff# mine\n\nimg/a.png\r\n  {absolute}  \nimg/gone.png\n", "utf-8")
    (here / "data/list.csv").write_text(f"id, File ,Class\n1,img/a.png,cat\n2,{absolute},\n\n3,img/gone.png,dog\n")
    rows = [{"file_name": "img/a.png", "label": 0}, {"path": str(absolute), "class": None}, {"image": "img/gone.png"}]
    (here / "data/list.JSONL").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    for file, expected in {
        "list.txt": [None] * 3,
        "list.csv": ["cat", None, "dog"],
        "list.JSONL": ["0", None, None],
    }.items():
        samples = open_source(f"data/{file}")
        assert names(samples) == ["data/img/a.png", absolute.as_posix(), "data/img/gone.png"]
        assert labels(samples) == expected
        assert [shade(sample) for sample in samples[:2]] == [3, 4]
        with pytest.raises(FileNotFoundError):
            samples[2].read()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("l.csv", b"name,score\na.png,1\n", "no column of paths among name, score; call it file, path"),
        ("l.csv", b"", "no column of paths among none"),
        ("l.csv", b"file,label\n", r"no images in l\.csv: it lists no paths"),
        ("l.csv", b"label,file\ncat\n", "line 2: not a path: ''"),
        ("l.txt", b"# nothing\n\n", r"no images in l\.txt: it lists no paths"),
        ("l.txt", b"caf\xe9.png\n", r"l\.txt cannot be read as a list of paths in UTF-8"),
        ("l.txt", b"a\0.png\n", "line 1: not a path"),
        ("l.jsonl", b'{"file": "a.png"}\n{"file": ', r"l\.jsonl, line 2: not JSON"),
        ("l.jsonl", b'["a.png"]\n', "line 1: not a JSON object"),
        ("l.jsonl", b'{"name": "a.png"}\n', "line 1: no path among the keys name; call it file"),
        ("l.jsonl", b'{"file": 3}\n', "line 1: not a path: 3"),
    ],
)
def test_bad_lists_say_what_is_wrong(here, file, content, message):
    (here / file).write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_source(file)


def test_standard_input(here, monkeypatch):
    draw(here / "a b.png", 9)
    samples = open_source("-", io.StringIO("a b.png\r\n\n#gone.png"))
    assert names(samples) == ["a b.png", "#gone.png"]
    assert shade(samples[0]) == 9
    monkeypatch.setattr(sys, "stdin", io.StringIO("x.png\n"))
    assert names(open_source("-")) == ["x.png"]
    with pytest.raises(InputError, match="standard input: it was empty"):
        open_source("-", io.StringIO("\n"))
    with pytest.raises(InputError, match="standard input is not text"):
        open_source("-", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), "utf-8"))


# CoOp splits


@pytest.mark.parametrize("folder", [".", "2750", "my pictures"])
def test_coop_split(here, folder):
    draw(here / "euro" / folder / "Forest/f1.png", 6)
    split = {"train": [], "test": [["Forest/gone.png", 1, "Forest"], ["Forest/f1.png", 1, "Forest"]]}
    split["val"] = [["Forest/f1.png", 1, "a forest"]]
    (here / "euro/split_zhou_EuroSAT.json").write_text(json.dumps(split))
    (here / "euro/another").mkdir()
    samples = open_source("coop:euro/split_zhou_EuroSAT.json")
    assert names(samples) == [Path("euro", folder, "Forest", file).as_posix() for file in ("gone.png", "f1.png")]
    assert labels(samples) == ["Forest", "Forest"]
    assert shade(samples[1]) == 6
    with pytest.raises(FileNotFoundError):
        samples[0].read()
    assert labels(open_source("coop:euro/split_zhou_EuroSAT.json#val")) == ["a forest"]
    with pytest.raises(InputError, match="its split 'train' is empty"):
        open_source("coop:euro/split_zhou_EuroSAT.json#train")
    with pytest.raises(InputError, match="no split 'dev'; it has train, test, val"):
        open_source("coop:euro/split_zhou_EuroSAT.json#dev")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no split file at s\.json"),
        ("{", r"s\.json cannot be read as JSON"),
        ("[]", "not a CoOp split file"),
        ('{"test": [["a.png", "cat"]]}', r"entry 0 of 'test' must be \[path, number, class name\]"),
        ('{"test": [["a.png", 0, "cat"]]}', r"the images of s\.json are not there: a\.png lies neither in"),
    ],
)
def test_bad_coop_splits(here, content, message):
    if content is not None:
        (here / "s.json").write_text(content)
    with pytest.raises(InputError, match=message):
        open_source("coop:s.json#test")


# WebDataset shards


def write_tar(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


@pytest.fixture
def shards(here):
    for shard in range(12):
        members = {}
        for row in range(3):
            number = 3 * shard + row
            members |= {
                f"s{number:03d}.cls": f"{number % 2}\n".encode(),
                f"s{number:03d}.seg.png": b"",
                f"s{number:03d}.jpeg" if row else f"s{number:03d}.png": encoded(number, "JPEG" if row else "PNG"),
                f"s{number:03d}.json": b"{}",
            }
        write_tar(here / f"set/test/{shard}.tar", members)
    return here / "set/test"


def test_webdataset(shards):
    samples = open_source("wds:set/test")
    assert len(samples) == 36
    assert names(samples)[:4] == [
        "set/test/0.tar::s000.png",
        "set/test/0.tar::s001.jpeg",
        "set/test/0.tar::s002.jpeg",
        "set/test/1.tar::s003.png",
    ]
    assert labels(samples)[:3] == ["0", "1", "0"]
    assert [shade(samples[row]) for row in (33, 0, 9)] == [33, 0, 9]
    (shards.parent / "classnames.txt").write_text("cat\nblack bear\n")
    assert labels(open_source("wds:set/test/11.tar")) == ["black bear", "cat", "black bear"]
    (shards / "classnames.txt").write_text("one\n")
    with pytest.raises(InputError, match=r"set/test/0\.tar has the label 1, but its classnames\.txt only 1 names"):
        open_source("wds:set/test")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{3,1}", ["3", "1"]),
        ("1*", ["1", "10", "11"]),
        ("{[2-4],1{0..1}}", ["2", "3", "4", "10", "11"]),
    ],
)
def test_shards_by_pattern(shards, spec, expected):
    found = dict.fromkeys(name.partition("::")[0] for name in names(open_source(f"wds:set/test/{spec}.tar")))
    assert list(found) == [f"set/test/{shard}.tar" for shard in expected]


def test_padded_shards_and_labels_as_text(here):
    for shard in range(8, 11):
        write_tar(here / f"{shard:03d}.tar", {"d/._a.jpg": b"", "d/a.JPG": encoded(shard), "d/a.cls": b"a red fox"})
    samples = open_source("wds:{008..010}.tar")
    assert names(samples) == ["008.tar::d/a.JPG", "009.tar::d/a.JPG", "010.tar::d/a.JPG"]
    assert labels(samples) == ["a red fox"] * 3
    with pytest.raises(InputError, match=r"no shard at 011\.tar"):
        open_source("wds:{008..011}.tar")
    with pytest.raises(InputError, match=r"\{9\.\.8\} in \{9\.\.8\}\.tar is empty"):
        open_source("wds:{9..8}.tar")


def test_bad_shards_are_named(here):
    write_tar(here / "good.tar", {"a.png": encoded(1), "a.cls": b"0", "b.png": encoded(2)})
    content = (here / "good.tar").read_bytes()
    end = 6 * 512  # three members of a header and a block each
    for length in (0, 100, 700, 1024, 1100, end - 1, end, end + 200):
        (here / "short.tar").write_bytes(content[:length])
        with pytest.raises(InputError, match=r"the shard short\.tar is truncated"):
            open_source("wds:short.tar")
    (here / "short.tar").write_bytes(content[:1024] + b"x" * 512 + content[1536:])
    with pytest.raises(InputError, match=r"the shard short\.tar is truncated"):
        open_source("wds:short.tar")
    with tarfile.open(here / "zipped.tar", "w:gz"):
        pass
    with pytest.raises(InputError, match=r"zipped\.tar is truncated, compressed or not a tar"):
        open_source("wds:zipped.tar")
    write_tar(here / "texts.tar", {"a.txt": b"x", "a.cls": b"0"})
    with pytest.raises(InputError, match=r"no images in texts\.tar: no member ends in .*saw a\.txt"):
        open_source("wds:texts.tar")
    (here / "none").mkdir()
    with pytest.raises(InputError, match=r"no images in none: the folder holds no \.tar files"):
        open_source("wds:none")
    samples = open_source("wds:good.tar")
    (here / "good.tar").write_bytes(content[: end - 512])
    with pytest.raises(OSError, match="it is truncated"):
        samples[1].read()


# Hugging Face datasets


@pytest.fixture
def saved(here):
    datasets = pytest.importorskip("datasets")
    path = str(draw(here / "on_disk.png", 2))
    features = datasets.Features({"img": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])})
    images = [{"bytes": encoded(0), "path": None}, {"bytes": encoded(1), "path": "x.png"}, path]
    rows = datasets.Dataset.from_dict({"img": images, "kind": [1, -1, 0]}, features=features, split="test")
    rows.save_to_disk("one")
    datasets.DatasetDict({"train": rows.select([0]), "test": rows.with_format("numpy")}).save_to_disk("many")
    datasets.DatasetDict({"extra": rows.rename_columns({"kind": "label"})}).save_to_disk("sole")
    datasets.Dataset.from_dict({"image": [path], "label": ["a fox"], "n": [3]}).save_to_disk("paths")
    datasets.Dataset.from_dict({"text": ["x"]}).save_to_disk("texts")
    rows.select([]).save_to_disk("empty")
    return here


def test_hf_datasets_saved_to_disk(saved):
    samples = open_source("hfds:one")
    assert names(samples) == ["one[test]#0", "one[test]#1", "one[test]#2"]
    assert labels(samples) == ["dog", None, "cat"]
    assert [shade(sample) for sample in samples] == [0, 1, 2]
    assert samples[0].read() == encoded(0)
    assert names(open_source("hfds:many"))[-1] == "many[test]#2"
    assert names(open_source("hfds:many?split=train&image=img")) == ["many[train]#0"]
    assert labels(open_source("hfds:sole")) == labels(open_source("hfds:sole?split=extra")) == ["dog", None, "cat"]
    (sample,) = open_source("hfds:paths?label=n")
    assert (sample.name, sample.label, shade(sample)) == ("paths#0", "3", 2)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_hf_imagefolder(here, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", here / "cache")
    draw(here / "set/cat/a.png", 1)
    draw(here / "set/dog/b.png", 2)
    samples = open_source("hfds:imagefolder?data_dir=set")
    assert names(samples) == ["imagefolder[train]#0", "imagefolder[train]#1"]
    assert labels(samples) == ["cat", "dog"]
    assert [shade(sample) for sample in samples] == [1, 2]
    assert names(open_source("hfds:imagefolder?data_dir=set&split=train[1:]")) == ["imagefolder[train[1:]]#0"]
    with pytest.raises(InputError, match="cannot be loaded: Unknown split"):
        open_source("hfds:imagefolder?data_dir=set&split=dev")
    with pytest.raises(InputError, match="corresponds to no data"):
        open_source("hfds:imagefolder?data_dir=set&split=train[:0]")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("one?split=dev", "one holds one split, 'test'; leave"),
        ("many?split=dev", "many has no split 'dev'; choose one with .* from train, test"),
        ("one?image=photo", "one has no column 'photo'; it has img, kind"),
        ("one?shuffle=1", "unknown option 'shuffle'; choose from split, image"),
        ("one?split", "write options as"),
        ("one?image=kind", "the column 'kind' holds no images"),
        ("texts", "texts has no column of images among text"),
        ("empty", "hfds:empty cannot be loaded|the split has no rows"),  # datasets 5.2 fails on it
        ("./nowhere", r"no dataset at hfds:\./nowhere"),
        ("", "no dataset at"),
    ],
)
def test_bad_hf_datasets(saved, spec, message):
    with pytest.raises(InputError, match=message):
        open_source(f"hfds:{spec}")


def test_without_the_package(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'acclimate\[datasets\]'"):
        open_source("hfds:food101")


# All sources


def test_orders():
    samples = [Sample(str(number), bytes) for number in range(50)]
    assert order_samples(samples, "path") == samples
    shuffled = order_samples(samples, "seed:3")
    assert shuffled == order_samples(samples, "seed:3") != order_samples(samples, "seed:4")
    assert sorted(names(shuffled), key=int) == names(samples)
    for order in ("random", "seed", "seed:", "seed:-1", "seed:x", "seed:1\n"):
        with pytest.raises(InputError, match=r"unknown order .*; choose 'path' .* or 'seed:N'"):
            order_samples(samples, order)


def test_fingerprints_depend_on_names_and_order_alone():
    def of(*listed):
        return source_fingerprint([Sample(name, bytes) for name in listed])

    assert of("a", "b") == source_fingerprint([Sample(name, lambda: b"x", "label") for name in "ab"])
    assert len({of(), of(""), of("a", "b"), of("b", "a"), of("ab"), of("a1:b"), of("\udcff")}) == 7
    assert len(of("a")) == 64


def test_samples_travel_to_other_processes(here):
    draw(here / "a.png", 8)
    write_tar(here / "s.tar", {"a.png": encoded(8)})
    for spec in ("a.png", "wds:s.tar"):
        assert shade(pickle.loads(pickle.dumps(open_source(spec)[0]))) == 8
