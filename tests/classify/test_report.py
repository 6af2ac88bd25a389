import gc
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from types import FunctionType, ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.arrays import softmax_and_entropy
from acclimate.checks.synthetic import shifted_stream
from acclimate.classify import summary as summary_module
from acclimate.classify.report import write_report
from acclimate.classify.rows import Row
from acclimate.classify.summary import Summary
from acclimate.errors import InputError
from acclimate.methods import TDA, ZeroShot

Image = pytest.importorskip("PIL.Image")
ImageDraw = pytest.importorskip("PIL.ImageDraw")

HOSTILE = "</title><script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;$title${x}"
SETTINGS = {"encoder": "synthetic clusters", "labels": "<b>8</b> & more", "acclimate": "0.1"}


def make_rows(stream, names, unreadable=(), settings=None):
    """Rows of a real adapter over a stream, and the adapter; images in `unreadable` have no answer."""
    arguments = {"logit_scale": stream.logit_scale, "class_names": names}
    adapter, plain = (
        TDA(stream.class_vectors, **arguments, **(settings or {})),
        ZeroShot(stream.class_vectors, **arguments),
    )
    indices = np.array([i for i in range(len(stream.features)) if i not in unreadable])
    after, _ = softmax_and_entropy(adapter.step(stream.features[indices], ids=indices))
    before, entropy = softmax_and_entropy(plain.step(stream.features[indices]))
    rows = [Row(i, f"photos/{i:05d}.jpg", error="not an image") for i in unreadable]
    for position, i in enumerate(indices.tolist()):
        old, new = int(before[position].argmax()), int(after[position].argmax())
        score, old_score = float(after[position, new]), float(before[position, old])
        top = ((names[new], score),)
        shown = (names[new], score, top, names[old], old_score, old != new, float(entropy[position]))
        rows.append(Row(i, f"photos/{i:05d}.jpg", *shown))
    return sorted(rows, key=lambda row: row.index), adapter


def summarise(labels, rows):
    summary = Summary(labels)
    for row in rows:
        summary.add(row)
    return summary


def painter(labels, size=(160, 120)):
    """Pictures whose colour says their true class."""

    def image(index):
        hue = int(255 * labels[index] / (max(labels) + 1))
        picture = Image.new("HSV", size, (hue, 90, 225)).convert("RGB")
        draw = ImageDraw.Draw(picture)
        x, y = 20 + index * 37 % (size[0] // 2), 10 + index * 23 % (size[1] // 3)
        dark = Image.new("HSV", (1, 1), (hue, 170, 120)).convert("RGB").getpixel((0, 0))
        draw.ellipse((x, y, x + size[0] // 3, y + size[0] // 3), fill=dark)
        return picture

    return image


@pytest.fixture
def job(stream):
    rows, adapter = make_rows(stream, stream.class_names, unreadable=(3, 77))
    return summarise(stream.class_names, rows), adapter, painter(stream.labels.tolist())


class Page(HTMLParser):
    """Checks that tags are closed in order, and notes tags, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = Counter(), [], "", []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags[tag] += 1
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_report_says_what_happened(job, tmp_path):
    summary, adapter, image = job
    write_report(tmp_path / "report.html", summary, adapter, image, SETTINGS, "Holiday photos")
    text = (tmp_path / "report.html").read_text("utf-8")
    page = Page(text)
    assert f"398 images sorted into 8 labels. Adapting changed {summary.changed} answers." in page.text
    assert "2 images could not be read" in page.text
    assert "not an image" in page.text
    assert "<b>8</b> & more" in page.text
    shown = min(24, summary.changed) + len(adapter.dump()["positive.ids"]) + len(adapter.dump()["negative.ids"])
    assert page.tags["img"] == shown
    assert all(value.startswith("data:image/jpeg;base64,") for key, value in page.attributes if key == "src")
    assert not re.search(r"https?:|//[a-z]", re.sub(r"base64,[A-Za-z0-9+/=]+", "", text))
    write_report(tmp_path / "again.html", summary, adapter, image, SETTINGS, "Holiday photos")
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "report.html").read_bytes()


def test_names_cannot_break_out_of_the_page(stream, tmp_path):
    names = [f"{HOSTILE} {i}" for i in range(8)]
    rows, adapter = make_rows(stream, names, unreadable=(0,))
    rows = [Row(row.index, HOSTILE + "\udcff", *list(vars(row).values())[2:]) for row in rows]
    rows[0] = Row(0, HOSTILE, error=HOSTILE)
    path = tmp_path / "report.html"
    arguments = (path, summarise(names, rows), adapter, lambda index: None, {HOSTILE: HOSTILE}, HOSTILE)
    write_report(*arguments, name=lambda index: HOSTILE)
    page = Page(path.read_text("utf-8"))
    assert page.tags["script"] == page.tags["img"] == page.tags["b"] == 0
    assert not any(key.startswith("on") for key, _ in page.attributes)
    assert HOSTILE in page.text
    assert "no longer readable" in path.read_text("utf-8")


def test_file_stays_small_and_says_what_is_left_out(tmp_path):
    stream = shifted_stream(samples=4000, classes=60, dim=32, seed=2)
    rows, adapter = make_rows(
        stream, stream.class_names, settings={"positive_capacity": 5, "entropy_low": 0.0, "entropy_high": 1.0}
    )
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)  # the worst for JPEG
    path = tmp_path / "report.html"
    write_report(path, summarise(stream.class_names, rows), adapter, lambda index: Image.fromarray(noise), {}, "noise")
    page = Page(path.read_text("utf-8"))
    assert path.stat().st_size < 3_000_000
    assert page.tags["img"] == 24 + 40 * 5
    assert "Shown are the 40 commonest of 60 labels" in page.text
    assert "At most 3 images for a label and 2 against" in page.text
    assert "40 other labels" in page.text


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F", "HSV"])
def test_pictures_of_every_mode_are_shown(job, tmp_path, mode):
    summary, adapter, _ = job
    write_report(tmp_path / "report.html", summary, adapter, lambda index: Image.new(mode, (500, 3)), {}, "modes")
    assert Page((tmp_path / "report.html").read_text("utf-8")).tags["img"] > 0


@pytest.mark.parametrize("rows", [[], [Row(0, "a.jpg", error="empty")]])
def test_report_without_answers_or_caches(stream, tmp_path, rows):
    adapter = ZeroShot(stream.class_vectors, logit_scale=10.0, class_names=stream.class_names)
    path = tmp_path / "report.html"
    write_report(path, summarise(stream.class_names, rows), adapter, lambda index: None, {}, "nothing")
    page = Page(path.read_text("utf-8"))
    assert "No image was classified." in page.text
    assert "Nothing was learnt" in page.text


def test_an_unwritable_place_is_named(job, tmp_path):
    summary, adapter, image = job
    with pytest.raises(InputError, match="cannot write the report"):
        write_report(tmp_path / "missing" / "report.html", summary, adapter, image, {}, "nowhere")


LABELS = ("a", "b", "c", "d")
probabilities = st.floats(0, 1, width=32)
answers = st.tuples(st.sampled_from(LABELS), probabilities, st.sampled_from(LABELS), probabilities)


@given(st.lists(st.none() | answers, max_size=700))
def test_summary_counts_as_a_naive_count_does(drawn):
    rows = [
        Row(i, f"{i}.jpg", error="bad")
        if one is None
        else Row(i, f"{i}.jpg", one[0], one[1], (one[:2],), one[2], one[3], one[0] != one[2], 0.1)
        for i, one in enumerate(drawn)
    ]
    summary = summarise(LABELS, rows)
    answered = [row for row in rows if row.error is None]
    changed = [row for row in answered if row.changed]
    assert (summary.images, summary.answered, summary.changed) == (len(rows), len(answered), len(changed))
    assert summary.reasons == [(row.file, "bad") for row in rows if row.error][:20]
    assert summary.before == [sum(row.zero_shot_label == label for row in answered) for label in LABELS]
    assert summary.after == [sum(row.label == label for row in answered) for label in LABELS]
    edges = np.linspace(0, 1, 21)
    assert summary.after_bins == np.histogram([row.score for row in answered], edges)[0].tolist()
    pairs = Counter((row.zero_shot_label, row.label) for row in changed)
    assert {(old, new): count for old, new, count in summary.transitions()} == pairs
    ranked = sorted(changed, key=lambda row: (-(row.score + row.zero_shot_score - 1.0), row.index))[:24]
    assert [row.index for row in summary.most_changed()] == [row.index for row in ranked]
    for least in (1, 20):
        bins = summary.along_stream(least)
        assert sum(rows for _, rows, _ in bins) == len(answered)
        for start, count, number in bins:
            assert number == sum(bool(row.changed) for row in answered[start : start + count])
            assert count >= min(least, len(answered))
    assert vars(summarise(LABELS, rows)) == vars(summary)


def objects_in(root):
    """How many objects hang on this one."""
    seen, waiting = set(), [root]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, type | ModuleType | FunctionType):
            seen.add(id(one))
            waiting += gc.get_referents(one)
    return len(seen)


def test_memory_does_not_grow_with_the_rows(monkeypatch):
    monkeypatch.setattr(summary_module, "PAIRS", 500)
    labels = [str(i) for i in range(60)]
    rng = np.random.default_rng(0)
    summary, sizes = Summary(labels), []
    for i in range(40_000):
        old, new = (labels[k] for k in rng.integers(0, 60, 2))
        row = Row(i, f"{i}.jpg", new, 0.5, ((new, 0.5),) * 60, old, 0.5, old != new, 1.0)
        summary.add(row if i % 7 else Row(i, f"{i}.jpg", error="bad"))
        summary.add(Row(i, "often.jpg", "1", 0.9, (), "0", 0.9, True, 0.1))
        if i % 4000 == 3999:
            sizes.append(objects_in(summary))
    assert max(sizes) < 3000
    assert 64 <= len(summary.stream) <= 128
    assert summary.pairs_dropped
    assert summary.transitions(1)[0][:2] == ("0", "1")
    assert summary.transitions(1)[0][2] >= 40_000


def test_an_unknown_label_is_refused():
    summary = Summary(["cat"])
    with pytest.raises(InputError, match="row 5 names the label 'dog'"):
        summary.add(Row(5, "x.jpg", "dog", 0.5, (), "cat", 0.5, True, 0.1))
    assert vars(summary) == vars(Summary(["cat"]))


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browse(profile, page, *options):
    """Open a page in a headless browser that fetches nothing by itself; its standard output."""
    quiet = ("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
    quiet += ("--disable-component-update", "--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}")
    command = [CHROMIUM, "--headless", "--no-sandbox", *quiet, *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
def test_page_renders_in_a_browser(job, tmp_path):
    summary, adapter, image = job
    page, picture = tmp_path / "report.html", tmp_path / "page.png"
    write_report(page, summary, adapter, image, SETTINGS, f"Photos {HOSTILE}")
    dom = browse(tmp_path / "profile", page, "--dump-dom")
    assert "What it has learnt" in dom
    assert "<script" not in dom
    assert dom.count('src="data:image/jpeg') >= 24
    browse(tmp_path / "profile", page, f"--screenshot={picture}", "--window-size=1100,2400")
    with Image.open(picture) as drawn:
        assert drawn.size == (1100, 2400)
        colours = drawn.convert("RGB").getcolors(drawn.width * drawn.height)
    assert len(colours) > 100
