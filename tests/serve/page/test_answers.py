"""Answers are filtered, sorted, corrected, downloaded, charted, and counted over a reload."""

import csv
import io
import json
import re
from urllib.request import urlopen

import pytest

from acclimate import Classifier
from acclimate.classify.table import csv_columns, csv_records
from acclimate.predict import NONE, is_true
from page_driver import LABELS, cards, correct, create, says, send, show_only

playwright = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright")
pytestmark = pytest.mark.slow

MANY = [*LABELS, "stripes", "square", "circle"]  # among these, the tiny model is often wrong or unsure


def listed(service, stream="shop-1"):
    """Return the corrections that the service holds: {id: label}."""
    with urlopen(f"{service.address}/v1/streams/{stream}/corrections") as answer:
        return {each["id"]: each["label"] for each in json.load(answer)["corrections"]}


def rows(page, button="#save-csv"):
    """Return the downloaded answers as records."""
    with page.expect_download() as saved:
        page.click(button)
    text = saved.value.path().read_text("utf-8")
    if button == "#save-jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(io.StringIO(text)))


def test_filters_and_order_agree_with_the_downloaded_answers(run_service, open_page, photos):
    page = open_page(run_service())
    create(page, "shop-1", MANY)
    assert page.is_hidden("#tools")
    send(page, photos, "#folder")
    with page.expect_download() as saved:
        page.click("#save-csv")
    assert saved.value.suggested_filename == "shop-1.csv"
    text = saved.value.path().read_text("utf-8")
    columns = text.splitlines()[0].split(",")
    records = rows(page, "#save-jsonl")
    assert columns == csv_columns(5)  # those of `acclimate classify`
    names = ("file", "zero_shot_label", "label", "changed")
    read = [
        [is_true(row[name]) if name == "changed" else row[name] for name in names]
        for row in csv_records(text.splitlines())
    ]
    assert read == [[row[name] for name in names] for row in records]
    assert [*map(tuple, read)] == [*map(tuple, cards(page))]

    newest = records[::-1]
    wrong = [each["file"] for each in records if each["label"] != each["true_label"]]
    unsure = [each["file"] for each in records if each["score"] < 0.6]
    changed = [each["file"] for each in records if each["changed"]]
    assert all((wrong, unsure, changed))
    assert unsure == [each["file"] for each in records if each["unsure"]]
    assert show_only(page, "wrong") == (len(wrong), wrong)
    assert show_only(page, "changed") == (len(changed), changed)
    assert page.is_hidden("#threshold")
    assert show_only(page, "unsure") == (len(unsure), unsure)
    page.locator("#threshold").fill("0.3")
    lower = [each["file"] for each in records if each["score"] < 0.3]
    assert show_only(page, "unsure") == (len(lower), lower)
    assert show_only(page, "all")[0] == len(records)
    page.select_option("#order", "unsure")
    assert [card[0] for card in cards(page)][::-1] == [
        each["file"] for each in sorted(newest, key=lambda each: each["score"])
    ]


def test_without_folders_nothing_is_called_wrong(run_service, open_page, photos):
    page = open_page(run_service())
    create(page, "shop-1")
    send(page, sorted((photos / "red").iterdir())[:3])
    assert page.is_hidden("#filters [value=wrong]")
    assert page.is_hidden("#filters [value=corrected]")
    assert page.is_visible("#filters label:has([value=unsure])")
    assert {row["true_label"] for row in rows(page)} == {""}


def test_foreign_images_are_unsure_and_not_learnt(run_service, open_page, photos):
    page = open_page(run_service())
    create(page, "shop-1", reject=True)
    page.click("#setup summary")
    assert page.locator("#setup dt", has_text="None of these").locator("+ dd").inner_text() == "recognised"
    send(page, photos, "#folder")
    foreign = [each for each in rows(page, "#save-jsonl") if each["label"] == NONE]
    assert foreign  # whatever the tiny model takes for it
    assert all(each["none_score"] >= 0.5 for each in foreign)
    page.locator("#threshold").evaluate("(each) => (each.value = each.min)")
    assert {each["file"] for each in foreign} <= set(show_only(page, "unsure")[1])
    assert page.locator("#feed .why", has_text="not learnt").count() >= len(foreign)


def test_a_correction_teaches_is_listed_and_can_be_undone(run_service, open_page, photos):
    service = run_service()
    page = open_page(service)
    create(page, "shop-1", MANY)
    send(page, photos / "red", "#folder")
    figures = [page.inner_text(each) for each in ("#share", "#counted", "#right", "#right-before")]
    names = [card[0] for card in cards(page)]
    card = page.locator("#feed > li", has_text=names[-1])
    correct(page, names[-1], "circle")
    assert card.locator(".corrected").inner_text() == "corrected: circle"
    assert listed(service) == {len(names) - 1: "circle"}
    assert page.inner_text("#corrections-list").split()[-2:] == ["circle", "Undo"]
    answered = [page.inner_text(each) for each in ("#share", "#counted", "#right", "#right-before")]
    assert answered == figures  # they count what was answered when the images came
    assert "not the corrections" in page.inner_text("#notes")
    correct(page, names[-1], "stripes")  # another one replaces it
    correct(page, names[0], "square")
    assert listed(service) == {0: "square", len(names) - 1: "stripes"}
    assert show_only(page, "corrected") == (2, [names[0], names[-1]])
    assert [row["correct_label"] for row in rows(page)] == ["square", *[""] * (len(names) - 2), "stripes"]
    assert page.evaluate("document.activeElement.textContent") != ""

    show_only(page, "all")
    page.get_by_role("button", name=f"Undo the correction of {names[-1]}", exact=True).click()
    says(page, re.compile("^The correction was undone."))
    assert card.locator(".corrected").inner_text() == ""
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == f"Change the label of {names[-1]}"
    page.reload()
    page.get_by_role("button", name=f"Undo the correction of {names[0]} to square").click()
    says(page, re.compile("^The correction was undone."))
    assert listed(service) == {}
    assert page.is_hidden("#corrections")
    assert page.evaluate("document.activeElement.id") == "learnt-title"


def test_an_image_that_was_not_learnt_is_sent_again(run_service, open_page, photos):
    service = run_service()
    page = open_page(service, wrong=("404",))
    create(page, "shop-1")
    page.click("#freeze")
    says(page, re.compile("^Frozen"))
    images = sorted((photos / "red").iterdir())[:2]
    send(page, images)  # these have no id
    correct(page, images[0].name, "blue")
    page.click("#freeze")
    says(page, "Learning again.")
    send(page, images[:1])
    page.click("#reset")
    page.click("#reset-dialog .main")
    says(page, "The stream was reset.")
    send(page, images[1:])  # gets the id that the image before the reset had
    page.locator("#feed > li").nth(1).locator(".fix").click()
    page.fill("#label-search", "green")
    page.keyboard.press("Enter")
    says(page, re.compile("^Corrected"))
    (label,) = listed(service).values()
    assert label == "green"
    assert [card.locator(".corrected").inner_text() for card in page.locator("#feed > li").all()][:2] == [
        "",
        "corrected: green",
    ]


def test_a_label_is_found_by_typing_and_by_the_arrow_keys(run_service, open_page, photos):
    page = open_page(run_service())
    create(page, "shop-1", [*LABELS, *(f"kind {i} of things" for i in range(150))])
    send(page, photos / "red", "#folder")
    page.locator("#feed > li .two").first.click()  # anywhere on the card
    chooser = page.get_by_role("combobox", name="Right label")
    options = page.get_by_role("listbox", name="Labels").get_by_role("option")
    assert chooser.evaluate("(each) => each === document.activeElement")
    assert options.count() == 100
    assert "type to find others" in page.inner_text("#label-found")
    assert "red" in options.first.inner_text()  # what its folder says
    assert "its folder" in options.first.inner_text()
    chooser.fill("thing 12")
    assert options.all_inner_texts() == [f"kind {i} of things" for i in range(150) if "12" in str(i)]
    for key, position in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("PageDown", 9), ("PageDown", 11)):
        page.keyboard.press(key)
        assert options.nth(position).get_attribute("aria-selected") == "true"
        assert chooser.get_attribute("aria-activedescendant") == options.nth(position).get_attribute("id")
    chooser.fill("nonsense")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#correct-dialog .error")).to_have_text("Choose one of the labels.")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.className") == "fix"  # back where it was
    page.keyboard.press("Enter")
    chooser.fill("kind 7 of")
    options.first.click()
    says(page, re.compile("is kind 7 of things"))


def test_the_axes_show_the_range_of_the_data(run_service, open_page, photos):
    page = open_page(run_service())
    create(page, "shop-1", MANY)
    send(page, photos, "#folder")
    chart = page.locator("#right-chart")
    ticks = [float(text.removesuffix("\u202f%")) for text in chart.locator(".y span").all_inner_texts()]
    shares = [float(page.inner_text(f"#{each}").removesuffix("\u202f%")) for each in ("right", "right-before")]
    assert ticks[-1] <= min(shares) <= max(shares) <= ticks[0]
    assert ticks[0] - ticks[-1] < 100
    assert chart.locator(".x span").all_inner_texts() == ["20", "40 images"]
    assert chart.locator(".range").inner_text() == "The axis runs from 20\u202f% to 60\u202f%, not from zero."
    assert page.locator("#changed-chart .y span").last.inner_text() == "0\u202f%"
    dashes = {
        each: chart.locator(f".line.{each}").evaluate("(line) => getComputedStyle(line).strokeDasharray")
        for each in ("alone", "adapted")
    }
    assert dashes["adapted"] == "none" != dashes["alone"]  # told apart without colours
    described = "Correct answers: model alone 27.5\u202f%, adapted 22.5\u202f%; axis runs from 20\u202f% to 60\u202f%"
    assert chart.locator("svg").get_attribute("aria-label") == described


def test_a_reload_forgets_nothing_and_tiles_are_explained(run_service, open_page, photos):
    service = run_service()
    page = open_page(service)
    create(page, "shop-1", skip_duplicates=True)  # what was not learnt is remembered, too
    send(page, photos, "#folder")
    assert page.is_hidden("#bare")
    before = (cards(page), rows(page), page.inner_text("#filters"), page.inner_text("#label-filter"))
    assert page.locator("#feed .why", has_text="nearly the same").count() > 0
    figures = page.inner_text("#figures")
    lines = page.locator(".line").evaluate_all("(all) => all.map((line) => line.outerHTML)")
    page.reload()
    page.wait_for_selector(".slots figure")
    assert page.inner_text("#figures") == figures
    assert page.locator(".line").evaluate_all("(all) => all.map((line) => line.outerHTML)") == lines
    assert (cards(page), rows(page), page.inner_text("#filters"), page.inner_text("#label-filter")) == before
    tiles = page.locator(".slots div.face")
    assert page.inner_text("#bare").startswith(f"{tiles.count()} tiles without a picture: ")
    assert "this stream stores no small pictures" in page.inner_text("#bare")
    assert "no picture" in page.locator(".slots figure").first.get_attribute("title")
    send(page, photos / "red", "#folder")
    assert page.inner_text("#counted") == str(40 + len(list((photos / "red").iterdir())))
    other = open_page(service)  # another tab shows the same
    other.wait_for_selector(".slots figure")
    assert other.inner_text("#figures") == page.inner_text("#figures")
    assert [card[0] for card in cards(other)] == [card[0] for card in cards(page)]
    assert other.locator("#feed img.thumb").count() == 0


def test_pictures_and_corrections_are_there_after_a_reload(run_service, open_page, photos):
    page = open_page(run_service())
    create(page, "shop-1", MANY, thumbnails=True)
    send(page, photos / "red", "#folder")
    names = [card[0] for card in cards(page)]
    correct(page, names[2], "circle")
    before = (cards(page), rows(page), page.inner_text("#corrections-list"))
    page.reload()
    page.wait_for_selector("#corrections-list li")
    assert (cards(page), rows(page), page.inner_text("#corrections-list")) == before
    assert page.locator("#feed img.thumb").count() == len(names)
    assert show_only(page, "corrected") == (1, [names[2]])
    correct(page, names[2], "square")  # without its file
    assert page.inner_text("#corrections-list").split()[-2:] == ["square", "Undo"]


def test_labels_are_counted_and_chosen(run_service, open_page, photos):
    page = open_page(run_service())
    create(page, "shop-1", MANY)
    send(page, photos, "#folder")
    records = rows(page)
    counts = {each: [row["label"] for row in records].count(each) for each in MANY}
    pills = page.locator("#label-filter label:visible")
    shown = ["All labels 40", *(f"{each} {count}" for each, count in counts.items() if count)]
    assert [" ".join(text.split()) for text in pills.all_inner_texts()] == shown
    label = max(counts, key=counts.get)
    pills.filter(has=page.locator(f"[value={label}]")).click()
    assert [card[0] for card in cards(page)] == [row["file"] for row in records if row["label"] == label]
    wrong = [row["file"] for row in records if row["label"] == label != row["true_label"]]
    assert show_only(page, "wrong") == (len(wrong), wrong)
    assert f"{label} {len(wrong)}" in [" ".join(text.split()) for text in pills.all_inner_texts()]


def test_a_second_pass_answers_as_classify_does(run_service, open_page, photos, tiny_onnx):
    page = open_page(run_service())
    create(page, "shop-1", MANY)
    send(page, photos, "#folder")
    page.click("#again-all")
    says(page, re.compile(r"^40 images answered again .* By their folders, \d+ of 40 are right now"))
    expected = Classifier(MANY, f"onnx:{tiny_onnx}", method="tda").classify(str(photos))
    again = [(row["online_label"], row["label"]) for row in rows(page)]
    assert again == [(each.online.label, each.label) for each in expected]
    assert any(online != label for online, label in again)
    page.reload()
    page.wait_for_selector(".slots figure")
    assert [(row["online_label"], row["label"]) for row in rows(page)] == again
