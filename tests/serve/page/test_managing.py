"""Streams are created, changed and deleted; tokens; the keyboard alone; phones."""

import re

import pytest

from drawn_images import draw
from page_driver import LABELS, cards, create, finished, says, send, show_only, slots

playwright = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright")
pytestmark = pytest.mark.slow

# What people who cannot see the page would not know the name of.
NAMELESS = """() => [...document.querySelectorAll("button, input, select, textarea, img, svg, [role=listbox]")]
    .filter((each) => each.checkVisibility() && !(each.labels?.length || each.textContent.trim()
    || each.getAttribute("aria-label") || each.getAttribute("alt") !== null)).map((each) => each.outerHTML)"""


def test_labels_of_the_service_need_not_be_typed(run_service, open_page, photos):
    images = sorted((photos / "red").iterdir())[:3]
    page = open_page(run_service("--labels", "square, circle, dots", "--method", "dota"))
    page.set_input_files("#images", images)
    page.fill("#name", "shop-1")
    page.click("#new-dialog .main")
    finished(page)
    assert page.locator("#columns tbody th").all_inner_texts() == ["square", "circle", "dots"]
    assert page.inner_text("#counted") == page.inner_text("#seen") == "3"  # none was learnt from twice

    page.click("#new")
    assert "square, circle, dots" in page.inner_text("#labels-none")
    assert page.input_value("#method") == "dota"
    page.fill("#name", "shop-2")
    page.check("#thumbnails")  # every box counts, also without labels
    page.uncheck("#skip_duplicates")
    page.click("#new-dialog .main")
    page.locator("#title", has_text="shop-2").wait_for()
    page.wait_for_selector("#panels")
    assert (page.inner_text("#lead").split(" · ")[1], page.inner_text("#seen")) == ("3 labels", "0")
    described = page.evaluate("fetch('/v1/streams/shop-2').then((answer) => answer.json())")
    assert [described[each] for each in ("thumbnails", "skip_duplicates", "answered")] == [True, False, 0]

    page = open_page(run_service())
    page.set_input_files("#images", images)
    page.wait_for_selector("#new-dialog[open]")
    assert page.is_hidden("#labels-none")  # this one was started without
    page.fill("#name", "shop-1")
    page.click("#new-dialog .main")
    assert page.evaluate("document.getElementById('new-labels').validity.valueMissing")
    page.fill("#new-labels", "square, circle")
    page.click("#new-dialog .main")
    finished(page)


@pytest.mark.parametrize(
    ("folder", "name"),
    [("My Pets (2024)", "my-pets-2024"), ("_Überblick_1.2", "uberblick_1.2"), ("猫", ""), ("a" * 70, "a" * 60)],
)
def test_a_stream_is_named_after_the_folder(run_service, open_page, tmp_path, folder, name):
    (tmp_path / folder / "red").mkdir(parents=True)
    draw("red", 1).save(tmp_path / folder / "red" / "1.png")
    page = open_page(run_service())
    page.set_input_files("#folder", tmp_path / folder)
    page.wait_for_selector("#new-dialog[open]")
    assert page.input_value("#name") == name
    assert page.inner_text("#name-hint") == "Use small letters, digits, . _ -"
    page.fill("#name", "Not A Name")
    assert page.evaluate("document.getElementById('name').validationMessage").startswith(
        "Use small letters, digits, . _ -"
    )
    page.fill("#name", "a-name")
    assert page.evaluate("document.getElementById('name').validationMessage") == ""


def test_labels_are_added_and_removed_after_a_question(run_service, open_page, photos):
    page = open_page(run_service())
    create(page, "shop-1")
    send(page, photos, "#folder")
    page.click("#edit")
    labels = page.get_by_role("textbox", name="Labels")
    assert labels.input_value().split("\n") == LABELS
    labels.fill("blue\nred\nfire engine, small")
    assert page.inner_text("#labels-change") == "Adds fire engine, small. Removes green."
    save = page.locator("#labels-dialog .main")
    save.click()
    assert save.inner_text() == "Remove the label"
    assert "What was learnt about it is lost" in page.inner_text("#labels-change")
    labels.fill("red\nfire engine, small")  # something else than what was asked about
    assert save.inner_text() == "Save"
    save.click()
    assert save.inner_text() == "Remove 2 labels"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "edit"
    assert page.locator(".label-card h3").all_inner_texts() == LABELS
    page.click("#edit")
    labels.fill("blue\nred\nfire engine, small")
    save.click()
    save.click()
    says(page, "The stream has 3 labels now.")
    assert page.locator(".label-card h3").all_inner_texts() == ["blue", "red", "fire engine, small"]


def test_a_stream_is_deleted_only_by_its_name(run_service, open_page, photos):
    service = run_service()
    page = open_page(service, wrong=("404",))  # the page may still refresh a stream while it is being deleted
    for name in ("shop-1", "shop-2"):
        create(page, name)
    send(page, photos / "red", "#folder")
    page.click("#delete")
    confirm = page.locator("#delete-dialog .main")
    assert confirm.is_disabled()
    page.get_by_label("Type its name to confirm").fill("shop-1")
    assert confirm.is_disabled()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "delete"
    page.click("#delete")
    assert page.input_value("#delete-name") == ""
    page.keyboard.type("shop-2")
    page.keyboard.press("Enter")
    says(page, "Deleted stream shop-2.")
    assert page.inner_text("#title") == "shop-1"
    assert page.locator("#stream option").all_inner_texts() == ["shop-1"]
    page.click("#delete")
    page.keyboard.type("shop-1")
    page.keyboard.press("Enter")
    says(page, "Deleted stream shop-1.")
    assert page.is_hidden("#panels")
    assert page.is_hidden("#stream")
    create(page, "shop-2")  # a new one of the same name starts from zero
    assert (page.inner_text("#counted"), page.inner_text("#seen")) == ("0", "0")


def test_the_settings_of_a_stream_are_shown_and_hold(run_service, open_page, photos):
    page = open_page(run_service())
    create(page, "shop-1", thumbnails=True, views=2, skip_duplicates=True, unsure="0.75")
    page.click("#setup summary")
    shown = dict(
        zip(page.locator("#setup dt").all_inner_texts(), page.locator("#setup dd").all_inner_texts(), strict=True)
    )
    assert shown["Method"] == "tda"
    assert (shown["Views per image"], shown["Small pictures stored"]) == ("2", "yes")
    assert (shown["Near-duplicates"], shown["Unsure below"]) == ("answered, not learnt", "0.75")
    send(page, 2 * sorted((photos / "red").iterdir())[:1])
    assert page.locator("#feed .why").first.inner_text() == "not learnt: nearly the same as an image before it"
    show_only(page, "unsure")
    assert page.inner_text("#threshold-value") == "0.75"
    assert "positive alpha: 2" in shown["Settings of the method"]


def test_freeze_reset_and_roll_back(run_service, open_page, photos):
    page = open_page(run_service())
    create(page, "shop-1")
    send(page, photos, "#folder")
    full = slots(page)
    page.click("#snapshot")
    says(page, "Snapshot taken.")

    page.click("#freeze")
    says(page, re.compile("^Frozen"))
    send(page, photos / "red", "#folder")
    assert (slots(page), page.inner_text("#seen")) == (full, "40")
    assert "Frozen" in page.inner_text("#lead")
    page.click("#freeze")
    says(page, "Learning again.")

    page.click("#reset")
    page.click("#reset-dialog .cancel")
    assert slots(page) == full
    page.click("#reset")
    page.click("#reset-dialog .main")
    says(page, "The stream was reset.")
    assert (slots(page), page.inner_text("#kept")) == ({}, "0")

    page.click("#rollback")
    page.get_by_label("requested").check()
    page.click("#rollback-dialog .main")
    says(page, "Rolled back.")
    assert slots(page) == full
    assert page.locator(".slots img").count() == page.locator(".slots figure").count()  # still knows the pictures


def test_a_token_is_asked_for_and_kept_in_this_tab_only(run_service, open_page, tmp_path, photos):
    tokens = tmp_path / "tokens"
    tokens.write_text("boss a-token-that-is-long *=manage\ncamera a-token-of-a-camera shop-*=classify\n")
    page = open_page(run_service("--token-file", str(tokens)), wrong=("401", "403"))
    page.wait_for_selector("#token-dialog[open]")
    page.fill("#token", "a-token-that-is-wrong")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#token-text")).to_contain_text("does not know")
    page.fill("#token", "a-token-that-is-long")
    page.keyboard.press("Enter")
    page.wait_for_selector("#token-dialog", state="hidden")
    create(page, "shop-1")
    send(page, sorted((photos / "red").iterdir())[:2])
    page.reload()
    page.wait_for_selector(".slots figure")
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]

    page.click("#forget")
    page.wait_for_selector("#token-dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#notice")
    page.click("#again")
    page.fill("#token", "a-token-of-a-camera")
    page.keyboard.press("Enter")
    page.wait_for_selector("#panels")
    send(page, sorted((photos / "red").iterdir())[:2])
    assert len(cards(page)) == 2
    assert page.is_hidden("#actions")
    assert page.is_hidden("#learnt")  # it may classify, and not look or manage


def test_the_keyboard_is_enough(run_service, open_page, photos):
    page = open_page(run_service())
    page.on("filechooser", lambda chooser: None)  # set early, so that the one below is not missed

    def tab_to(selector):
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
                return
        raise AssertionError(f"{selector} cannot be reached")

    tab_to("#new")
    page.keyboard.press("Enter")
    page.wait_for_selector("#new-dialog[open]")
    page.keyboard.type("shop-1")
    tab_to("#new-labels")
    page.keyboard.type("red, green")
    page.keyboard.press("Tab")
    tab_to("#new-dialog .main")
    page.keyboard.press("Enter")
    page.wait_for_selector("#panels")
    tab_to("#choose-images")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(sorted((photos / "red").iterdir())[:2])
    finished(page)
    tab_to("#filters [value=all]")
    page.keyboard.press("ArrowRight")  # among the filters
    assert page.is_checked("#filters [value=unsure]")
    page.keyboard.press("ArrowLeft")
    tab_to("#feed .fix")
    page.keyboard.press("Enter")
    page.keyboard.type("green")
    assert page.evaluate(NAMELESS) == []
    page.keyboard.press("Enter")
    says(page, re.compile("^Corrected"))
    assert page.evaluate("document.activeElement.className") == "fix"
    assert page.evaluate("document.getAnimations().length") == 0  # the system asks for reduced motion
    tab_to("#freeze")
    page.keyboard.press("Space")
    says(page, re.compile("^Frozen"))
    assert page.evaluate(NAMELESS) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(run_service, open_page, photos, scheme):
    page = open_page(run_service(), viewport={"width": 360, "height": 740}, color_scheme=scheme)
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) == 360
    create(
        page, "a-very-long-name-of-a-stream.of-a-shop-in-a-town-far-away-from-h", ["red", "blue", "wordwithoutend" * 9]
    )
    send(page, photos / "red", "#folder")
    assert page.evaluate(wide) == 360
    for action in ("rollback", "reset", "labels", "delete", "correct", "new"):
        page.click({"labels": "#edit", "correct": "#feed .fix >> nth=0"}.get(action, f"#{action}"))
        page.wait_for_selector(f"#{action}-dialog[open]")
        assert page.evaluate(wide) == 360
        page.keyboard.press("Escape")
    red, green, blue = map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor")))
    assert (red + green + blue < 200) == (scheme == "dark")
