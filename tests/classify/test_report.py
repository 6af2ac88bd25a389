import gc
import io
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from types import FunctionType, ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.arrays import softmax_and_entropy
from acclimate.checks.synthetic import shifted_stream
from acclimate.classifier import Answer
from acclimate.classify import summary as summary_module
from acclimate.classify.report import write_report
from acclimate.classify.rows import Row
from acclimate.classify.summary import Summary
from acclimate.errors import InputError
from acclimate.methods import TDA, ZeroShot
from acclimate.sources.base import Sample

Image = pytest.importorskip("PIL.Image")
ImageDraw = pytest.importorskip("PIL.ImageDraw")

HOSTILE = "</title><script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;$title${x}"
SETTINGS = {"encoder": "synthetic clusters", "labels": "<b>8</b> & more", "acclimate": "0.1"}


def make_rows(stream, names, unreadable_images=(), settings=None):
    """Rows of a real adapter over a stream, and the adapter; `unreadable_images` have no answer."""
    arguments = {"logit_scale": stream.logit_scale, "class_names": names}
    adapter, plain = (
        TDA(stream.class_vectors, **arguments, **(settings or {})),
        ZeroShot(stream.class_vectors, **arguments),
    )
    indices = np.array([i for i in range(len(stream.features)) if i not in unreadable_images])
    after, _ = softmax_and_entropy(adapter.step(stream.features[indices], ids=indices))
    before, entropy = softmax_and_entropy(plain.step(stream.features[indices]))
    rows = [unreadable(i, f"photos/{i:05d}.jpg", "not an image") for i in unreadable_images]
    for position, i in enumerate(indices.tolist()):
        old, new = int(before[position].argmax()), int(after[position].argmax())
        adapted, zero_shot = (Answer(names[k], float(p[position, k])) for k, p in ((new, after), (old, before)))
        rows.append(Row(i, (adapted,), zero_shot, float(entropy[position]), name=f"photos/{i:05d}.jpg"))
    return sorted(rows, key=lambda row: row.index), adapter


def unreadable(index, name, error):
    return Row(index, (), Answer("", 0.0), 0.0, error, name)


def answered(index, name, label, score, zero_shot_label, zero_shot_score):
    return Row(index, (Answer(label, score),), Answer(zero_shot_label, zero_shot_score), 0.1, name=name)


def summarise(labels, rows):
    summary = Summary(labels)
    for row in rows:
        summary.add(row)
    return summary


def make_samples(count, paint, name="photos/{:05d}.jpg"):
    """Samples whose images a function paints."""

    def read(index):
        buffer = io.BytesIO()
        paint(index).save(buffer, "PNG")
        return buffer.getvalue()

    return [Sample(name.format(i), partial(read, i)) for i in range(count)]


def painter(labels, size=(160, 120)):
    """Pictures whose colour says their true class."""

    def paint(index):
        hue = int(255 * labels[index] / (max(labels) + 1))
        picture = Image.new("HSV", size, (hue, 90, 225)).convert("RGB")
        draw = ImageDraw.Draw(picture)
        x, y = 20 + index * 37 % (size[0] // 2), 10 + index * 23 % (size[1] // 3)
        dark = Image.new("HSV", (1, 1), (hue, 170, 120)).convert("RGB").getpixel((0, 0))
        draw.ellipse((x, y, x + size[0] // 3, y + size[0] // 3), fill=dark)
        return picture

    return paint


@pytest.fixture
def run(stream):
    """What a report of a run needs."""
    rows, adapter = make_rows(stream, stream.class_names, unreadable_images=(3, 77))
    samples = make_samples(len(stream), painter(stream.labels.tolist()))
    return {"summary": summarise(stream.class_names, rows), "adapter": adapter, "samples": samples}


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


def test_report_says_what_happened(run, tmp_path):
    summary, state = run["summary"], run["adapter"].dump()
    write_report(tmp_path / "report.html", title="Holiday photos", settings=SETTINGS, **run)
    text = (tmp_path / "report.html").read_text("utf-8")
    page = Page(text)
    assert f"398 images sorted into 8 labels. Adapting changed {summary.changed} answers." in page.text
    assert "2 images could not be read" in page.text
    assert "not an image" in page.text
    assert "<b>8</b> & more" in page.text
    assert page.tags["img"] == min(24, summary.changed) + len(state["positive.ids"]) + len(state["negative.ids"])
    assert all(value.startswith("data:image/jpeg;base64,") for key, value in page.attributes if key == "src")
    assert not re.search(r"https?:|//[a-z]", re.sub(r"base64,[A-Za-z0-9+/=]+", "", text))
    write_report(tmp_path / "again.html", title="Holiday photos", settings=SETTINGS, **run)
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "report.html").read_bytes()


def test_images_of_earlier_runs_are_named_as_such(run, tmp_path):
    write_report(tmp_path / "report.html", title="x", settings={}, first_id=10_000, **run)
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    assert page.tags["img"] == min(24, run["summary"].changed)
    assert "from an earlier run" in page.text


def test_names_cannot_break_out_of_the_page(stream, tmp_path):
    names = [f"{HOSTILE} {i}" for i in range(8)]
    rows, adapter = make_rows(stream, names, unreadable_images=(0,))
    rows = [replace(row, name=HOSTILE + "\udcff") for row in rows]
    rows[0] = unreadable(0, HOSTILE, HOSTILE)
    path = tmp_path / "report.html"
    gone = [Sample(HOSTILE, lambda: b"")] * len(stream)
    write_report(
        path,
        title=HOSTILE,
        summary=summarise(names, rows),
        adapter=adapter,
        samples=gone,
        settings={HOSTILE: HOSTILE},
    )
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
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8))  # the worst for JPEG
    path = tmp_path / "report.html"
    summary = summarise(stream.class_names, rows)
    samples = make_samples(4000, lambda index: noise)
    write_report(path, title="noise", summary=summary, adapter=adapter, samples=samples, settings={})
    page = Page(path.read_text("utf-8"))
    assert path.stat().st_size < 3_000_000
    assert page.tags["img"] == 24 + 40 * 5
    assert "Shown are the 40 commonest of 60 labels" in page.text
    assert "At most 3 images for a label and 2 against" in page.text
    assert "40 other labels" in page.text


@pytest.mark.parametrize("rows", [[], [unreadable(0, "a.jpg", "empty")]])
def test_report_without_answers_or_caches(stream, tmp_path, rows):
    adapter = ZeroShot(stream.class_vectors, logit_scale=10.0, class_names=stream.class_names)
    path = tmp_path / "report.html"
    summary = summarise(stream.class_names, rows)
    write_report(path, title="nothing", summary=summary, adapter=adapter, samples=[], settings={})
    page = Page(path.read_text("utf-8"))
    assert "No image was classified." in page.text
    assert "Nothing was learnt" in page.text


def test_an_unwritable_place_is_named(run, tmp_path):
    with pytest.raises(InputError, match="cannot write the report"):
        write_report(tmp_path / "missing" / "report.html", title="nowhere", settings={}, **run)


LABELS = ("a", "b", "c", "d")
probabilities = st.floats(0, 1, width=32)
answers = st.tuples(st.sampled_from(LABELS), probabilities, st.sampled_from(LABELS), probabilities)


@given(st.lists(st.none() | answers, max_size=700))
def test_summary_counts_as_a_naive_count_does(drawn):
    rows = [
        unreadable(i, f"{i}.jpg", "bad") if one is None else answered(i, f"{i}.jpg", *one)
        for i, one in enumerate(drawn)
    ]
    summary = summarise(LABELS, rows)
    good = [row for row in rows if row.error is None]
    changed = [row for row in good if row.changed]
    assert (summary.images, summary.answered, summary.changed) == (len(rows), len(good), len(changed))
    assert summary.reasons == [(row.name, "bad") for row in rows if row.error][:20]
    assert summary.before == {label: sum(row.zero_shot.label == label for row in good) for label in LABELS}
    assert summary.after == {label: sum(row.label == label for row in good) for label in LABELS}
    edges = np.linspace(0, 1, 21)
    assert summary.after_bins == np.histogram([row.score for row in good], edges)[0].tolist()
    pairs = Counter((row.zero_shot.label, row.label) for row in changed)
    assert {(old, new): count for old, new, count in summary.transitions()} == pairs
    ranked = sorted(changed, key=lambda row: (-(row.score + row.zero_shot.score - 1.0), row.index))[:24]
    assert [row.index for row in summary.most_changed()] == [row.index for row in ranked]
    for least in (1, 20):
        bins = summary.along_stream(least)
        assert sum(rows for _, rows, _ in bins) == len(good)
        for start, count, number in bins:
            assert number == sum(bool(row.changed) for row in good[start : start + count])
            assert count >= min(least, len(good))
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
        row = Row(i, (Answer(new, 0.5),) * 60, Answer(old, 0.5), 1.0, name=f"{i}.jpg")
        summary.add(row if i % 7 else unreadable(i, f"{i}.jpg", "bad"))
        summary.add(answered(i, "often.jpg", "1", 0.9, "0", 0.9))
        if i % 4000 == 3999:
            sizes.append(objects_in(summary))
    assert max(sizes) < 3000
    assert 64 <= len(summary.stream) <= 128
    assert summary.pairs_dropped
    assert summary.transitions(1)[0][:2] == ("0", "1")
    assert summary.transitions(1)[0][2] >= 40_000


def test_an_unknown_label_is_refused():
    summary = Summary(["cat"])
    with pytest.raises(InputError, match="row 5 has the label 'dog'"):
        summary.add(answered(5, "x.jpg", "dog", 0.5, "cat", 0.5))
    assert vars(summary) == vars(Summary(["cat"]))


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browse(profile, page, *options):
    """Open a page in a headless browser that fetches nothing by itself; its standard output."""
    quiet = ("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
    quiet += ("--disable-component-update", "--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}")
    command = [CHROMIUM, "--headless", "--no-sandbox", *quiet, *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
def test_page_renders_in_a_browser(run, tmp_path):
    page, picture = tmp_path / "report.html", tmp_path / "page.png"
    write_report(page, title=f"Photos {HOSTILE}", settings=SETTINGS, **run)
    dom = browse(tmp_path / "profile", page, "--dump-dom")
    assert "What it has learnt" in dom
    assert "<script" not in dom
    assert dom.count('src="data:image/jpeg') >= 24
    browse(tmp_path / "profile", page, f"--screenshot={picture}", "--window-size=1100,2400")
    with Image.open(picture) as drawn:
        assert drawn.size == (1100, 2400)
        colours = drawn.convert("RGB").getcolors(drawn.width * drawn.height)
    assert len(colours) > 100
