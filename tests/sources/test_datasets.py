"""CoOp splits, tar shards and Hugging Face datasets."""

import json
import sys
import tarfile
from pathlib import Path

import pytest

from acclimate.errors import InputError, MissingExtraError
from acclimate.sources import open_source
from small_images import draw, encoded, labels, names, shade, write_tar


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
        ('{"test": [["a.png", "cat"]]}', r"entry 0 of 'test' must be \[path, class index, class name\]"),
        ('{"test": [["a.png", 0, "cat"]]}', r"the images of s\.json are missing: a\.png is neither in"),
    ],
)
def test_bad_coop_splits(here, content, message):
    if content is not None:
        (here / "s.json").write_text(content)
    with pytest.raises(InputError, match=message):
        open_source("coop:s.json#test")


# WebDataset shards


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
    with pytest.raises(InputError, match=r"set/test/0\.tar has the label 1, but its classnames\.txt has only 1 names"):
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
    with pytest.raises(InputError, match=r"no images in the shards of texts\.tar: no member ends in .*found a\.txt"):
        open_source("wds:texts.tar")
    (here / "none").mkdir()
    with pytest.raises(InputError, match=r"no images in none: the folder contains no \.tar files"):
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
    assert names(open_source("hfds:imagefolder?data_dir=set&split=all")) == ["imagefolder[all]#0", "imagefolder[all]#1"]
    with pytest.raises(InputError, match="cannot be loaded: Unknown split"):
        open_source("hfds:imagefolder?data_dir=set&split=dev")
    with pytest.raises(InputError, match="corresponds to no data"):
        open_source("hfds:imagefolder?data_dir=set&split=train[:0]")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("one?split=dev", "one has only one split, 'test'; omit"),
        ("many?split=dev", "many has no split 'dev'; choose one with .* from train, test"),
        ("one?image=photo", "one has no column 'photo'; it has img, kind"),
        ("one?shuffle=1", "unknown option 'shuffle'; choose from split, image"),
        ("one?split", "write options as"),
        ("one?image=kind", "the column 'kind' does not contain images"),
        ("texts", "texts has no image column among text"),
        ("./nowhere", r"no dataset at hfds:\./nowhere"),
        ("", "no dataset at"),
    ],
)
def test_bad_hf_datasets(saved, spec, message):
    with pytest.raises(InputError, match=message):
        open_source(f"hfds:{spec}")


def test_an_empty_hf_dataset(here):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"image": []}, features=datasets.Features({"image": datasets.Image()}))
    try:
        rows.save_to_disk("empty")
    except ZeroDivisionError:
        pytest.skip("this version of datasets cannot save an empty dataset")
    with pytest.raises(InputError, match=r"no images in hfds:empty: the split has no rows|hfds:empty cannot be loaded"):
        open_source("hfds:empty")


def test_without_the_package(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"install .*\[datasets\]"):
        open_source("hfds:food101")
