import io
import json
import os
import pickle
import sys
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from acclimate.errors import InputError, install_command
from acclimate.images.opening import lacking_for_heif
from acclimate.sources import Sample, open_source, order_samples
from acclimate.sources.folder import IMAGE_SUFFIXES, natural_key
from acclimate.sources.source import choose_order
from small_images import draw, encoded, labels, names, shade, write_tar

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
    with pytest.raises(InputError, match=r"no images in \*\*/\*\.txt: found only 1 \.txt; images end in"):
        open_source("**/*.txt")


def test_missing_sources_are_named(here):
    (here / "empty").mkdir()
    with pytest.raises(InputError, match="no images in empty: no files"):
        open_source("empty")
    for name in "dcba":
        (here / "empty" / f"{name}.pdf").write_text("")
    with pytest.raises(InputError, match=r"no images in empty: found only 4 \.pdf; images end in"):
        open_source("empty")
    with pytest.raises(InputError, match=r"no images in empty/a\.pdf: found only 1 \.pdf; images end in"):
        open_source("empty/a.pdf")
    with pytest.raises(InputError, match="no file or folder at nowhere"):
        open_source("nowhere")
    for nothing in ("", [], ["empty", ""]):
        with pytest.raises(InputError, match="the image source is empty"):
            open_source(nothing)
    with pytest.raises(InputError, match=r"no file or folder at C:\\photos"):
        open_source("C:\\photos")
    with pytest.raises(InputError, match=r"unknown prefix tar: in tar:x.*coop:, dataset:, wds:, hfds:"):
        open_source("tar:x")
    for url in ("s3://bucket/*.png", "https://example.org/cat.jpg"):
        with pytest.raises(InputError, match=r"is a URL, which is not downloaded; download the images"):
            open_source(url)


def test_pipes_and_devices_are_listed_and_cannot_be_read(here):
    os.mkfifo(here / "pipe")
    (here / "photos").mkdir()
    draw(here / "photos/a.png", 5)
    targets = {"b.jpg": "/dev/zero", "c.png": "/dev/urandom", "d.jpg": here / "pipe"}
    if find_spec("av"):  # without it, videos are not listed
        targets["e.mp4"] = here / "pipe"
    for name, target in targets.items():
        (here / "photos" / name).symlink_to(target)
    samples = open_source("photos")
    assert len(samples) == 1 + len(targets)
    assert shade(samples[0]) == 5
    for sample in samples[1:]:
        with pytest.raises(OSError, match=r"a (device|pipe), not a regular file"):
            sample.read()
    (here / "list.txt").symlink_to("/dev/zero")
    for spec in ("pipe", "/dev/zero", "list.txt"):
        with pytest.raises(InputError, match="is a pipe or a device; pass a regular file"):
            open_source(spec)
    with pytest.raises(InputError, match="no file or folder at aaa"):
        open_source("a" * 5000)


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


# Several sources


def test_several_paths_are_listed_once_and_in_their_order(here):
    for number, path in enumerate(["a.png", "b.png", "cats/c.png", "cats/d.png", "dogs/e.png"]):
        draw(here / path, number)
    (here / "list.csv").write_text("file,label\ncats/c.png,feline\ndogs/e.png,canine\ndogs/e.png,canine\n")
    samples = open_source(["b.png", "a.png", "cats/", "./b.png", here / "a.png", "cats/d.png"])
    assert names(samples) == ["b.png", "a.png", "cats/c.png", "cats/d.png"]
    assert [shade(sample) for sample in samples] == [1, 0, 2, 3]
    listed = open_source(["dogs/e.png", "list.csv"])
    assert list(zip(names(listed), labels(listed), strict=True)) == [("dogs/e.png", None), ("cats/c.png", "feline")]
    assert names(open_source(["list.csv"])) == ["cats/c.png", "dogs/e.png", "dogs/e.png"]
    assert names(open_source(["-", "a.png"], io.StringIO("b.png\na.png\n"))) == ["b.png", "a.png"]


def test_paths_that_a_shell_expands_are_labelled_as_the_pattern_is(here):
    for path in ("photos/cats/a.png", "photos/cats/b.png", "photos/dogs/c.png", "photos/dogs/small/d.png"):
        draw(here / path)
    pattern = open_source("photos/*/*.png")
    expanded = open_source(sorted(str(path.relative_to(here)) for path in here.glob("photos/*/*.png")))
    assert (names(expanded), labels(expanded)) == (names(pattern), labels(pattern))
    assert labels(open_source(["photos/cats", "photos/dogs"])) == ["cats", "cats", "dogs", "small"]
    assert labels(open_source(["photos/cats/a.png", "photos/cats/b.png"])) == [None, None]


def test_kinds_that_are_skipped_are_counted(here):
    for path in ("x/a.png", "x/deep/b.PNG"):
        draw(here / path)
    for name in ("1.CR2", "2.cr2", "deep/3.cr2", "notes.md", "README", ".hidden.cr2"):
        (here / "x" / name).write_text("")
    samples = open_source("x")
    raw = ".cr2 (camera raw, which is not read: export JPEGs)"
    assert samples.skipped == {raw: 3, ".md": 1, "without a suffix": 1}
    assert samples.left_out == f"3 {raw}, 1 .md and 1 without a suffix"
    assert open_source("x/*").skipped == {raw: 2, ".md": 1, "without a suffix": 1}
    both = open_source(["x/a.png", "x/notes.md", "x/README"])
    assert (names(both), both.left_out) == (["x/a.png"], "1 .md and 1 without a suffix")
    assert open_source("x/a.png").left_out == ""
    with pytest.raises(InputError, match=r"no images in x/1\.CR2, x/notes\.md: found only 1 \.cr2 .* and 1 \.md"):
        open_source(["x/1.CR2", "x/notes.md"])


def test_heic_is_an_image_where_it_can_be_read(here, monkeypatch):
    (here / "IMG.HEIC").write_bytes(b"x")
    monkeypatch.setattr("acclimate.sources.folder.lacking_for_heif", lambda: "")
    assert names(open_source("IMG.HEIC")) == names(open_source("*")) == ["IMG.HEIC"]
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr("acclimate.sources.folder.lacking_for_heif", lacking_for_heif.__wrapped__)
    with pytest.raises(InputError, match=r"no images in IMG\.HEIC: found only 1 \.heic \(needs .* install .*\[heic\]"):
        open_source("IMG.HEIC")
    draw(here / "a.png")
    assert open_source(".").left_out == f"1 .heic (needs pillow-heif: {install_command('heic')})"


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
        ("l.csv", b"name,score\na.png,1\n", r"l\.csv, line 2: no path among name, score; name it file or path"),
        ("l.csv", b"", r"no images in l\.csv: it lists no paths"),
        ("l.csv", b"file,label\n", r"no images in l\.csv: it lists no paths"),
        ("l.csv", b"label,file\ncat\n", "line 2: not a path: ''"),
        ("l.txt", b"# nothing\n\n", r"no images in l\.txt: it lists no paths"),
        ("l.txt", b"caf\xe9.png\n", r"l\.txt cannot be read as a list of paths in UTF-8"),
        ("l.txt", b"a\0.png\n", "line 1: not a path"),
        ("l.jsonl", b'{"file": "a.png"}\n{"file": ', r"l\.jsonl, line 2: not JSON"),
        ("l.jsonl", b'["a.png"]\n', "line 1: not a JSON object"),
        ("l.jsonl", b'{"name": "a.png"}\n', "line 1: no path among name; name it file"),
        ("l.jsonl", b'{"file": 3}\n', "line 1: not a path: 3"),
        ("l.txt", b"a.png\nhttps://example.org/b.png\n", "line 2: https.* is a URL; download the images"),
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
    with pytest.raises(InputError, match="standard input: it lists no paths"):
        open_source("-", io.StringIO("\n"))
    with pytest.raises(InputError, match="standard input is not text"):
        open_source("-", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), "utf-8"))


# All sources


def test_orders():
    samples = [Sample(str(number), bytes) for number in range(50)]
    assert order_samples(samples, "path") == samples
    shuffled = order_samples(samples, "shuffled:3")
    assert shuffled == order_samples(samples, "shuffled:3") != order_samples(samples, "shuffled:4")
    assert sorted(names(shuffled), key=int) == names(samples)
    for order in ("random", "seed", "shuffled:", "shuffled:-1", "shuffled:x", "shuffled:1\n"):
        with pytest.raises(InputError, match=r"unknown order .*; choose 'path' .* 'shuffled:N' .* 'auto'"):
            order_samples(samples, order)


def test_folders_that_are_classes_are_shuffled(here):
    def listed(*labels):
        return [Sample(str(number), bytes, label) for number, label in enumerate(labels)]

    by_class = listed(*["cat"] * 9, *["sea_lion"] * 9)
    assert choose_order(by_class) == choose_order(by_class, ["Cat", "sea lion", "dog"]) == "shuffled:0"
    assert order_samples(by_class, "auto", ["cat", "sea lion"]) == order_samples(by_class, "shuffled:0") != by_class
    for samples, classes in (
        (by_class, ["cat", "dog"]),  # one class alone
        (listed("monday", "tuesday"), ["cat", "dog"]),  # folders are days
        (listed(None, "cat"), None),
        (listed(None, None), None),
    ):
        assert order_samples(samples, "auto", classes) == samples


def test_samples_travel_to_other_processes(here):
    draw(here / "a.png", 8)
    write_tar(here / "s.tar", {"a.png": encoded(8)})
    for spec in ("a.png", "wds:s.tar"):
        assert shade(pickle.loads(pickle.dumps(open_source(spec)[0]))) == 8
