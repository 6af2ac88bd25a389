import gc
import io
import json
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from types import FunctionType, ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import Halves, create
from acclimate.checks.synthetic import shifted_stream
from acclimate.classify import summary as summary_module
from acclimate.classify.report import write_report
from acclimate.classify.summary import Summary
from acclimate.errors import InputError
from acclimate.evidence import Head
from acclimate.predict import Answer, Batch, Prediction, adapt_batch, answer_again, predictions
from acclimate.sources.base import Sample

Image = pytest.importorskip("PIL.Image")
ImageDraw = pytest.importorskip("PIL.ImageDraw")

HOSTILE = "</title><script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;$title${x}"
SETTINGS = {"encoder": "synthetic clusters", "labels": "<b>8</b> & more", "acclimate": "0.1"}


def make_run(stream, method="tda", labels=(), unreadable=(), **settings):
    """The predictions of a method over a stream, and the adapter; images in `unreadable` have no answer."""
    head = Head(stream.head.class_vectors, stream.head.logit_scale, class_names=labels or stream.head.class_names)
    adapter = create(method, head, **settings)
    names = [f"photos/{i:05d}.jpg" for i in range(len(stream))]
    errors = ["not an image" if i in unreadable else None for i in range(len(stream))]
    batch = Batch(0, names, errors, stream.features[[error is None for error in errors]], [None] * len(stream))
    readable = batch.readable
    adapted = adapt_batch(adapter, batch, first_id=0)
    found = predictions(head, adapted, 2, readable, [names[i] for i in readable])
    failed = [Prediction(i, name=names[i], error=errors[i]) for i in unreadable]
    return sorted([*found, *failed], key=lambda each: each.index), adapter


def answered(index, label, score, zero_shot_label, zero_shot_score, online_label=None):
    online = Answer(online_label or label, score)
    zero_shot = Answer(zero_shot_label, zero_shot_score)
    return Prediction(index, (Answer(label, score),), zero_shot, 0.1, name=f"{index}.jpg", online=online)


def unreadable(index):
    return Prediction(index, name=f"{index}.jpg", error="bad")


def summarise(found):
    summary = Summary()
    for prediction in found:
        summary.add(prediction)
    return summary


def report(path, *, title, summary, adapter, samples, settings, first_id=0):
    """Write the report of a run that has these."""
    classifier = SimpleNamespace(adapter=adapter)
    run = SimpleNamespace(summary=summary, classifier=classifier, samples=samples, first_id=first_id)
    write_report(path, run, title, settings)


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
    found, adapter = make_run(stream, unreadable=(3, 77))
    samples = make_samples(len(stream), painter(stream.labels.tolist()))
    return {"summary": summarise(found), "adapter": adapter, "samples": samples}


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
    summary, entries = run["summary"], run["adapter"].entries()
    report(tmp_path / "report.html", title="Holiday photos", settings=SETTINGS, **run)
    text = (tmp_path / "report.html").read_text("utf-8")
    page = Page(text)
    assert f"398 images sorted into 8 labels. Adapting changed {summary.changed} answers." in page.text
    assert "2 images could not be read" in page.text
    assert "not an image" in page.text
    assert "<b>8</b> & more" in page.text
    assert page.tags["img"] == min(24, summary.changed) + len(entries["positive"]) + len(entries["negative"])
    assert all(value.startswith("data:image/jpeg;base64,") for key, value in page.attributes if key == "src")
    assert not re.search(r"https?:|//[a-z]", re.sub(r"base64,[A-Za-z0-9+/=]+", "", text))
    report(tmp_path / "again.html", title="Holiday photos", settings=SETTINGS, **run)
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "report.html").read_bytes()


def test_report_says_which_answer_is_which(stream, tmp_path):
    found, adapter = make_run(stream)
    final = list(answer_again(adapter, stream.features, found, 2))
    summary = Summary(passes=2)
    for prediction in final:
        summary.add(prediction)
    assert summary.changed_again > 0
    samples = make_samples(len(stream), painter(stream.labels.tolist()))
    report(tmp_path / "two.html", title="x", settings={}, summary=summary, adapter=adapter, samples=samples)
    two = Page((tmp_path / "two.html").read_text("utf-8")).text
    counts = (
        f"changed {summary.changed_online} answers; the second pass changed {summary.changed_again} online answers."
    )
    assert f"Online, adapting {counts} Where nothing else is said, answers are those of the second pass." in two
    shown = [record for _, _, record in summary.most_changed]
    assert two.count("online: ") == sum(record["online_label"] != record["label"] for record in shown) > 0
    report(tmp_path / "one.html", title="x", settings={}, summary=summarise(found), adapter=adapter, samples=samples)
    one = Page((tmp_path / "one.html").read_text("utf-8")).text
    assert "Each image was answered once, when it came." in one
    assert "second pass" not in one


def test_report_passes_on_what_the_method_advises_and_shows_all_that_it_learnt(stream, run, tmp_path):
    adapter = Halves(stream.head)
    adapter.step(stream.features[stream.labels < 2])
    report(tmp_path / "few.html", title="x", settings={}, **run | {"adapter": adapter})
    page = Page((tmp_path / "few.html").read_text("utf-8"))
    assert f"Note: {adapter.advice()}" in page.text
    assert "samples" in page.text.split("What it has learnt")[-1]


def test_images_of_earlier_runs_are_named_as_such(run, tmp_path):
    report(tmp_path / "report.html", title="x", settings={}, first_id=10_000, **run)
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    assert page.tags["img"] == min(24, run["summary"].changed)
    assert "from an earlier run" in page.text


def test_names_cannot_break_out_of_the_page(stream, tmp_path):
    labels = [f"{HOSTILE} {i}" for i in range(8)]
    for method in ("tda", "prior"):
        found, adapter = make_run(stream, method, labels, unreadable=(0,))
        found = [replace(each, name=HOSTILE + "\udcff") for each in found]
        found[0] = Prediction(0, name=HOSTILE, error=HOSTILE)
        gone = [Sample(HOSTILE, lambda: b"")] * len(stream)
        path = tmp_path / "report.html"
        settings = {HOSTILE: HOSTILE}
        report(path, title=HOSTILE, summary=summarise(found), adapter=adapter, samples=gone, settings=settings)
        page = Page(path.read_text("utf-8"))
        assert page.tags["script"] == page.tags["img"] == page.tags["b"] == 0
        assert not any(key.startswith("on") for key, _ in page.attributes)
        assert HOSTILE in page.text
        assert "no longer readable" in path.read_text("utf-8")


def test_file_stays_small_and_says_what_is_left_out(tmp_path):
    stream = shifted_stream(samples=4000, classes=60, dim=32, seed=2)
    found, adapter = make_run(stream, positive_capacity=5, negative_capacity=5, entropy_low=0.0, entropy_high=1.0)
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8))  # the worst for JPEG
    path = tmp_path / "report.html"
    samples = make_samples(4000, lambda index: noise)
    report(path, title="noise", summary=summarise(found), adapter=adapter, samples=samples, settings={})
    page = Page(path.read_text("utf-8"))
    assert path.stat().st_size < 3_000_000
    assert page.tags["img"] == 24 + 33 * 6
    assert "Shown are 33 of 60 labels, up to 3 images in a row." in page.text
    assert "20 other labels are not shown" in page.text


@pytest.mark.parametrize("method", ["dota", "prior"])
def test_methods_that_keep_no_images_show_what_they_learnt(stream, tmp_path, method):
    found, adapter = make_run(stream, method)
    path = tmp_path / "report.html"
    report(path, title="x", summary=summarise(found), adapter=adapter, samples=[], settings={})
    page = Page(path.read_text("utf-8"))
    assert "Nothing" not in page.text
    assert f"{method}: {adapter.summary}. It has learnt from 400 images." in page.text
    for column, values in adapter.learnt().items():
        assert column in page.text
        for value in values.tolist():
            assert f"{round(value, 3):,}" in page.text


@pytest.mark.parametrize("found", [[], [unreadable(0)]])
@pytest.mark.parametrize("method", ["zero-shot", "tda", "dota"])
def test_report_without_answers(stream, tmp_path, found, method):
    path, adapter = tmp_path / "report.html", create(method, stream.head)
    report(path, title="nothing", summary=summarise(found), adapter=adapter, samples=[], settings={})
    page = Page(path.read_text("utf-8"))
    assert "No image was classified." in page.text
    learnt = "Nothing: the method zero-shot answers" if method == "zero-shot" else "It has learnt from 0 images."
    assert learnt in page.text


def test_an_unwritable_place_is_named(run, tmp_path):
    with pytest.raises(InputError, match="cannot write the report"):
        report(tmp_path / "missing" / "report.html", title="nowhere", settings={}, **run)


LABELS = ("a", "b", "c", "d")
probabilities = st.floats(0, 1, width=32)
labels = st.sampled_from(LABELS)
answers = st.tuples(labels, probabilities, labels, probabilities, labels)


@given(st.lists(st.none() | answers, max_size=700))
def test_summary_counts_as_a_naive_count_does(drawn):
    found = [unreadable(i) if one is None else answered(i, *one) for i, one in enumerate(drawn)]
    summary = summarise(found)
    good = [each for each in found if each.error is None]
    changed = [each for each in good if each.changed]
    assert (summary.images, summary.answered, summary.changed) == (len(found), len(good), len(changed))
    assert summary.changed_online == sum(each.online.label != each.zero_shot.label for each in good)
    assert summary.changed_again == sum(each.online.label != each.label for each in good)
    assert summary.reasons == [[each.name, "bad"] for each in found if each.error][:20]
    assert summary.before == Counter(each.zero_shot.label for each in good)
    assert summary.after == Counter(each.label for each in good)
    edges = np.linspace(0, 1, 21)
    assert summary.after_bins == np.histogram([each.score for each in good], edges)[0].tolist()
    pairs = Counter((each.zero_shot.label, each.label) for each in changed)
    assert summary.pairs == pairs
    ranked = sorted(changed, key=lambda each: (-(each.score + each.zero_shot.score - 1.0), each.index))[:24]
    shown = [record["index"] for _, _, record in sorted(summary.most_changed, reverse=True)]
    assert shown == [each.index for each in ranked]
    bins = [good[start : start + summary.bin_width] for start in range(0, len(good), summary.bin_width)]
    assert summary.stream == [sum(each.changed for each in part) for part in bins]
    online = [sum(each.online.label != each.zero_shot.label for each in part) for part in bins]
    assert summary.stream_online == online
    assert vars(Summary.from_json(json.loads(json.dumps(summary.to_json())))) == vars(summary)


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
    summary, sizes = Summary(), []
    for i in range(40_000):
        old, new = (labels[k] for k in rng.integers(0, 60, 2))
        one = Prediction(i, (Answer(new, 0.5),) * 60, Answer(old, 0.5), 1.0, name=f"{i}.jpg")
        summary.add(one if i % 7 else unreadable(i))
        summary.add(answered(i, "1", 0.9, "0", 0.9))
        if i % 4000 == 3999:
            sizes.append(objects_in(summary))
    assert max(sizes) < 3000
    assert 64 <= len(summary.stream) <= 128
    assert summary.pairs.total() < summary.changed
    assert summary.pairs.most_common(1)[0][0] == ("0", "1")
    assert summary.pairs["0", "1"] >= 40_000


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
    report(page, title=f"Photos {HOSTILE}", settings=SETTINGS, **run)
    dom = browse(tmp_path / "profile", page, "--dump-dom")
    assert "What it has learnt" in dom
    assert "<script" not in dom
    assert dom.count('src="data:image/jpeg') >= 24
    browse(tmp_path / "profile", page, f"--screenshot={picture}", "--window-size=1100,2400")
    with Image.open(picture) as drawn:
        assert drawn.size == (1100, 2400)
        colours = drawn.convert("RGB").getcolors(drawn.width * drawn.height)
    assert len(colours) > 100
