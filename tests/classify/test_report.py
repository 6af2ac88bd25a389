import io
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

from acclimate import Accord, create
from acclimate.checks.synthetic import shifted_stream
from acclimate.classify.report import _in_variety, write_report
from acclimate.classify.summary import summarise
from acclimate.errors import InputError
from acclimate.evidence import Head
from acclimate.predict import NONE, Answer, Prediction, SecondAnswers, adapt_batch
from acclimate.run import Batch
from acclimate.sources.source import Sample
from prediction_columns import columns_of

Image = pytest.importorskip("PIL.Image")
ImageDraw = pytest.importorskip("PIL.ImageDraw")

HOSTILE = "</title><script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;$title${x}"
SETTINGS = {"encoder": "synthetic clusters", "labels": "<b>8</b> & more", "acclimate": "0.1"}


def make_run(stream, method="tda", labels=(), unreadable=(), known=False, unsure=0.0, **settings):
    """Return the predictions of a method over a stream, and the adapter; images in `unreadable` have no answer."""
    head = Head(stream.head.class_vectors, stream.head.logit_scale, class_names=labels or stream.head.class_names)
    adapter = create(method, head, **settings)
    names = [f"photos/{i:05d}.jpg" for i in range(len(stream))]
    errors = ["not an image" if i in unreadable else None for i in range(len(stream))]
    truths = [head.class_names[label] if known else None for label in stream.targets]
    batch = Batch(0, names, errors, stream.features[[error is None for error in errors]], truths)
    return adapt_batch(adapter, batch, 2, unsure, first_id=0)[0], adapter


def unreadable(index):
    return Prediction(index, name=f"{index}.jpg", error="bad")


def report(path, *, title, summary, adapter, samples, settings, first_id=0, unsure=0.0):
    """Write the report of a run that has these."""
    classifier = SimpleNamespace(adapter=adapter, unsure=unsure)
    run = SimpleNamespace(summary=summary, classifier=classifier, samples=samples, first_id=first_id)
    write_report(path, run, title, settings)


def make_samples(count, paint, name="photos/{:05d}.jpg"):
    """Return samples whose images a function paints."""

    def read(index):
        buffer = io.BytesIO()
        paint(index).save(buffer, "PNG")
        return buffer.getvalue()

    return [Sample(name.format(i), partial(read, i)) for i in range(count)]


def painter(labels, size=(160, 120)):
    """Return a painter of pictures whose colour is that of their true class."""

    def paint(index):
        hue = int(255 * labels[index] / (max(labels) + 1))
        picture = Image.new("HSV", size, (hue, 90, 225)).convert("RGB")
        draw = ImageDraw.Draw(picture)
        x = 20 + index * 37 % (size[0] // 2)
        y = 10 + index * 23 % (size[1] // 3)
        dark = Image.new("HSV", (1, 1), (hue, 170, 120)).convert("RGB").getpixel((0, 0))
        draw.ellipse((x, y, x + size[0] // 3, y + size[0] // 3), fill=dark)
        return picture

    return paint


@pytest.fixture
def run(stream):
    """Return the arguments of a report of a run."""
    found, adapter = make_run(stream, unreadable=(3, 77))
    samples = make_samples(len(stream), painter(stream.targets.tolist()))
    return {"summary": summarise([columns_of(found)]), "adapter": adapter, "samples": samples}


class Page(HTMLParser):
    """A parser that checks that tags are closed in order, and keeps tags, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.tags = Counter()
        self.attributes = []
        self.text = ""
        self.open = []
        self.heads = []
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
        if self.open and self.open[-1] == "h2":
            self.heads.append(data)


def test_report_is_about_the_images_first(run, tmp_path):
    summary = run["summary"]
    entries = run["adapter"].entries()
    report(tmp_path / "report.html", title="Holiday photos", settings=SETTINGS, **run)
    text = (tmp_path / "report.html").read_text("utf-8")
    page = Page(text)
    assert page.heads == [
        "What adapting changed",
        "Least sure answers",
        "Images per label",
        "How it adapted",
        "Unreadable images",
        "How it was made",
    ]
    assert "398 images sorted into 8 labels." in page.text
    assert f"Adapting changed {summary.changed} answers of 398." in page.text
    assert "2 images could not be read" in page.text
    assert "not an image" in page.text
    assert "<b>8</b> & more" in page.text
    assert "an entry votes against the classes to which zero-shot gave a probability" in page.text  # mask_low
    assert "are right" not in page.text.split("What adapting changed")[0]
    kept = len(entries["positive"]) + len(entries["negative"])
    assert page.tags["img"] == sum(min(6, n) for n in summary.after.values()) + 24 + min(12, summary.changed) + kept
    assert all(value.startswith("data:image/jpeg;base64,") for key, value in page.attributes if key == "src")
    assert not re.search(r"https?:|//[a-z]", re.sub(r"base64,[A-Za-z0-9+/=]+", "", text))
    report(tmp_path / "again.html", title="Holiday photos", settings=SETTINGS, **run)
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "report.html").read_bytes()


def test_report_shows_what_was_right_and_what_is_unsure(stream, tmp_path):
    found, adapter = make_run(stream, known=True, unsure=0.7)
    path = tmp_path / "report.html"
    samples = make_samples(len(stream), painter(stream.targets.tolist()))
    summary = summarise([columns_of(found)])
    report(path, title="x", summary=summary, adapter=adapter, samples=samples, settings={}, unsure=0.7)
    page = Page(path.read_text("utf-8"))
    assert page.heads[:7] == [
        "What adapting corrected",
        "Least sure answers",
        "Images per label",
        "Was it right?",
        "Wrong answers",
        "What was taken for what",
        "Results by label",
    ]
    right = sum(each.label == each.truth for each in found)
    assert "of the answers are right (95\u202f% interval " in page.text
    assert f"{100 * right / 400:.3g}\u202f%" in page.text
    assert "The true label is known of 400 of 400 images." in page.text
    assert f"48 of {400 - right} wrong answers" in page.text
    unsure = sum(each.score < 0.7 for each in found)
    assert f"{unsure} of 400 answers are unsure: their score is below 0.7." in page.text
    matrix = Counter((each.truth, each.label) for each in found)
    cells = {
        kind: re.findall(rf'<td class="{kind}" [^>]*>([0-9,]+)<', path.read_text("utf-8")) for kind in ("hit", "miss")
    }
    names = adapter.head.class_names
    assert [int(cell) for cell in cells["hit"]] == [matrix[name, name] for name in names]
    pairs = [matrix[truth, label] for truth in names for label in names if truth != label]
    assert [int(cell) for cell in cells["miss"]] == [number for number in pairs if number]


def test_corrected_answers_come_first_and_wrong_ones_have_a_cross(stream, tmp_path):
    found, adapter = make_run(stream, known=True)
    judged = [replace(each, truth=each.zero_shot.label) if each.index % 2 else each for each in found]
    path = tmp_path / "report.html"
    summary = summarise([columns_of(judged)])
    report(path, title="x", summary=summary, adapter=adapter, samples=[], settings={})
    part = path.read_text("utf-8").split("What adapting corrected</h2>")[1].split("</section>")[0]
    assert f"of 400: it corrected {summary.accuracy.gained} and broke {summary.accuracy.lost}." in part
    shown = _in_variety(summary.most_changed)[:12]
    right = [record["label"] == record["true_label"] for record in shown]
    assert right == sorted(right, reverse=True)
    kinds = [(record["zero_shot_label"], record["label"]) for record in shown[: sum(right)]]
    assert kinds[: len(set(kinds))] == list(dict.fromkeys(kinds))  # no kind twice before all have been shown
    for before, which in ((True, "zero_shot_label"), (False, "label")):
        pattern = rf'class="answer {"" if before else "new "}(truth|wrong)"><span class="name">([^<]+)<'
        assert re.findall(pattern, part) == [
            ("truth" if record[which] == record["true_label"] else "wrong", record[which]) for record in shown
        ]
    others = [record for record in shown if record["true_label"] not in (record["label"], record["zero_shot_label"])]
    assert re.findall(r"true: ([^<]+)<", part) == [record["true_label"] for record in others]


def test_all_labels_are_listed_where_it_says_how_it_was_made(run, tmp_path):
    report(tmp_path / "report.html", title="x", settings=SETTINGS, **run)
    made = (tmp_path / "report.html").read_text("utf-8").split("How it was made</h2>")[1]
    assert f"<p>8 labels: {', '.join(run['adapter'].head.class_names)}</p>" in made


def test_many_labels_have_pairs_instead_of_a_matrix_and_all_are_listed(tmp_path):
    stream = shifted_stream(samples=600, classes=60, dim=32, seed=2)
    found, adapter = make_run(stream, "zero-shot", known=True)
    path = tmp_path / "report.html"
    report(path, title="x", summary=summarise([columns_of(found)]), adapter=adapter, samples=[], settings={})
    text = path.read_text("utf-8")
    page = Page(text)
    assert 'class="matrix' not in text
    assert "60 labels are too many for a table of all pairs" in page.text
    gallery = text.split("Was it right?")[1]
    assert all(re.search(rf"\b{name}\b", gallery) for name in adapter.head.class_names)
    assert f'<summary>60 labels</summary><p class="names">{", ".join(adapter.head.class_names)}</p>' in text


def test_images_that_no_label_fits_are_counted_apart(run, stream, tmp_path):
    found, _ = make_run(stream, unreadable=(3, 77))
    foreign = Answer(NONE, 0.9)
    others = [
        Prediction(400 + i, (foreign,), Answer("class 0", 0.6), 0.1, online=foreign, truth=NONE) for i in range(3)
    ]
    run["summary"] = summarise([columns_of([*found, *others])])
    report(tmp_path / "report.html", title="x", settings={}, **run)
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    assert "none of these (0.748\u202f%)" in page.text
    assert "The true label is known of 3 of 401 images." in page.text
    assert "So few images say little." in page.text


def test_report_says_which_answer_is_which(stream, tmp_path):
    found, adapter = make_run(stream)
    final = found.answered_again(SecondAnswers(adapter, stream.features, 2), 2, unsure=0.0)
    summary = summarise([final], passes=2)
    assert summary.changed_again > 0
    samples = make_samples(len(stream), painter(stream.targets.tolist()))
    report(tmp_path / "two.html", title="x", settings={}, summary=summary, adapter=adapter, samples=samples)
    two = Page((tmp_path / "two.html").read_text("utf-8")).text
    counts = f"changed {summary.changed_online} answers; at the end, {summary.changed_again} answers changed once more."
    assert f"As the images came, adapting {counts} Where nothing else is said, answers are those given" in two
    shown = _in_variety(summary.most_changed)[:12]
    assert two.count("as it came: ") == sum(record["online_label"] != record["label"] for record in shown) > 0
    report(
        tmp_path / "one.html",
        title="x",
        settings={},
        summary=summarise([columns_of(found)]),
        adapter=adapter,
        samples=samples,
    )
    one = Page((tmp_path / "one.html").read_text("utf-8")).text
    assert "Each image was answered once, when it came." in one
    assert "at the end" not in one


def test_report_passes_on_what_the_method_advises_and_shows_all_that_it_learnt(stream, run, tmp_path, monkeypatch):
    monkeypatch.setattr(Accord, "advice", lambda self: "look at this.")
    adapter = Accord(stream.head)
    adapter.step(stream.features)
    report(tmp_path / "few.html", title="x", settings={}, **run | {"adapter": adapter})
    page = Page((tmp_path / "few.html").read_text("utf-8"))
    assert f"Note: {adapter.advice()}" in page.text
    assert "samples" in page.text.split("What it has learnt")[-1]


def test_images_of_earlier_runs_are_named_as_such(run, tmp_path):
    report(tmp_path / "report.html", title="x", settings={}, first_id=10_000, **run)
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    summary = run["summary"]
    assert page.tags["img"] == sum(min(6, n) for n in summary.after.values()) + 24 + min(12, summary.changed)
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
        report(
            path,
            title=HOSTILE,
            summary=summarise([columns_of(found)]),
            adapter=adapter,
            samples=gone,
            settings=settings,
        )
        page = Page(path.read_text("utf-8"))
        assert page.tags["script"] == page.tags["img"] == page.tags["b"] == 0
        assert not any(key.startswith("on") for key, _ in page.attributes)
        assert HOSTILE in page.text
        assert "no longer readable" in path.read_text("utf-8")


def test_file_stays_small_and_says_what_is_left_out(tmp_path):
    stream = shifted_stream(samples=4000, classes=60, dim=32, seed=2)
    settings = {"positive_capacity": 5, "negative_capacity": 5, "entropy_low": 0.0, "entropy_high": 1.0}
    found, adapter = make_run(stream, known=True, **settings)
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8))  # the worst for JPEG
    path = tmp_path / "report.html"
    samples = make_samples(4000, lambda index: noise)
    report(path, title="noise", summary=summarise([columns_of(found)]), adapter=adapter, samples=samples, settings={})
    page = Page(path.read_text("utf-8"))
    assert path.stat().st_size < 5_000_000
    assert page.tags["img"] <= 240 + 24 + 48 + 12 + 72
    assert "Shown are 12 of 60 labels, up to 3 images in a row." in page.text
    assert "36 more labels" in page.text


@pytest.mark.parametrize("method", ["dota", "prior"])
def test_methods_that_keep_no_images_show_what_they_learnt(stream, tmp_path, method):
    found, adapter = make_run(stream, method)
    path = tmp_path / "report.html"
    report(path, title="x", summary=summarise([columns_of(found)]), adapter=adapter, samples=[], settings={})
    page = Page(path.read_text("utf-8"))
    assert "Nothing" not in page.text
    assert f"{method}: {adapter.summary}. It has learnt from 400 images." in page.text
    for column, values in adapter.class_statistics().items():
        assert column in page.text
        for value in values.tolist():
            assert f"{round(value, 3):,}" in page.text


@pytest.mark.parametrize("found", [[], [unreadable(0)]])
@pytest.mark.parametrize("method", ["zero-shot", "tda", "dota"])
def test_report_without_answers(stream, tmp_path, found, method):
    path = tmp_path / "report.html"
    adapter = create(method, stream.head)
    report(path, title="nothing", summary=summarise([columns_of(found)]), adapter=adapter, samples=[], settings={})
    page = Page(path.read_text("utf-8"))
    assert "No image was classified." in page.text
    learnt = "Nothing: the method zero-shot answers" if method == "zero-shot" else "It has learnt from 0 images."
    assert learnt in page.text


def test_an_unwritable_place_is_named(run, tmp_path):
    with pytest.raises(InputError, match="cannot write the report"):
        report(tmp_path / "missing" / "report.html", title="nowhere", settings={}, **run)


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browse(profile, page, *options):
    """Open a page in a headless browser that fetches nothing by itself; its standard output."""
    quiet = ("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
    quiet += ("--disable-component-update", "--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}")
    command = [CHROMIUM, "--headless", "--no-sandbox", *quiet, *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
def test_no_word_of_a_table_is_broken_on_a_phone(stream, tmp_path):
    """Every label fits in one line, and only the wrappers of wide tables scroll."""
    sync_api = pytest.importorskip("playwright.sync_api")
    names = ["abyssinian", "rhododendron", *(f"staffordshire {i}" for i in range(6))]
    found, adapter = make_run(stream, labels=names, known=True)
    page = tmp_path / "report.html"
    report(page, title="x", summary=summarise([columns_of(found)]), adapter=adapter, samples=[], settings={})
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        phone = browser.new_page(viewport={"width": 390, "height": 844})
        phone.goto(page.as_uri())
        lines = """() => [...document.querySelectorAll("section:not(:has(.facts)) table:not(.matrix) tbody th")]
            .filter(cell => cell.checkVisibility() && ["abyssinian", "rhododendron"].includes(cell.textContent))
            .map(cell => { const text = document.createRange(); text.selectNodeContents(cell); return text; })
            .map(text => text.getClientRects().length)"""
        counts = phone.evaluate(lines)
        assert set(counts) == {1}
        assert phone.evaluate("document.documentElement.scrollWidth") <= 390
        browser.close()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
def test_page_renders_in_a_browser(run, tmp_path):
    page = tmp_path / "report.html"
    picture = tmp_path / "page.png"
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
