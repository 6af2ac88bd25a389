"""Images are sent, answered as `classify` answers them, and what was learnt is shown."""

import re
import signal
from pathlib import Path

import pytest

from acclimate import DEFAULT_METHOD, Classifier
from acclimate.sources import open_source
from drawn_images import draw, draw_folder
from page_driver import LABELS, cards, create, finished, says, send, show_only, slots

playwright = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright")
pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>"


def learnt(classifier):
    """Return the entries that `slots` should find."""
    found = {}
    for cache, title in (("positive", "For"), ("negative", "Against")):
        for entry in classifier.adapter.entries()[cache]:
            shown = f"{entry.entropy:.3f}" if entry.entropy >= 0.001 else "<0.001"
            found.setdefault((classifier.labels[entry.class_index], title), []).append(shown)
    return {key: sorted(entropies) for key, entropies in found.items()}


def below(folder, samples):
    return [Path(sample.name).relative_to(folder).as_posix() for sample in samples]


def percent(part, whole):
    return f"{100 * part / whole:.1f}".removesuffix(".0") + "\u202f%"


def test_a_folder_flows_in_and_is_answered_as_classify_answers(run_service, open_page, tiny_onnx, photos):
    page = open_page(run_service())
    page.set_input_files("#folder", photos)  # there is no stream yet: the folders suggest its labels
    page.wait_for_selector("#new-dialog[open]")
    assert page.input_value("#new-labels").split() == LABELS
    labels = [*LABELS, "stripes", "square", "circle"]  # among these, adapting changes answers
    page.fill("#new-labels", "\n".join(labels))
    assert page.input_value("#name") == photos.name
    assert page.input_value("#method") == DEFAULT_METHOD
    page.uncheck("#skip_duplicates")
    page.select_option("#method", "tda")  # the default changes nothing in so few images
    page.click("#new-dialog .main")
    finished(page)

    samples = open_source(str(photos))
    classifier = Classifier(labels, f"onnx:{tiny_onnx}", method="tda")
    expected = list(classifier.stream(samples))
    files = below(photos.parent, samples)
    shown = [[f, e.zero_shot.label, e.label, e.changed] for f, e in zip(files, expected, strict=True)]
    assert cards(page) == shown
    assert slots(page) == learnt(classifier)

    count = len(expected)
    changed = sum(each.changed for each in expected)
    assert 0 < changed < count
    assert page.inner_text("#share") == percent(changed, count)
    assert page.inner_text("#counted") == page.inner_text("#seen") == str(count)
    assert page.inner_text("#kept") == str(sum(map(len, learnt(classifier).values())))
    right = sum(e.label == s.label for s, e in zip(samples, expected, strict=True))
    before = sum(e.zero_shot.label == s.label for s, e in zip(samples, expected, strict=True))
    assert page.inner_text("#right") == percent(right, count)
    assert page.inner_text("#right-before") == percent(before, count)
    assert page.locator("#feed .new .mark.right").count() == right
    assert page.locator("#feed img.thumb").count() == count
    assert page.locator(".line").count() == 3  # changed, right before and after
    assert show_only(page, "changed") == (changed, [card[0] for card in shown if card[3]])


def test_the_default_method_shows_statistics_and_advice(run_service, open_page, photos):
    page = open_page(run_service())
    create(page, "shop-1", [*LABELS, *(f"kind {i}" for i in range(9))], method=DEFAULT_METHOD)
    assert page.is_hidden("#advice")
    send(page, 3 * sorted((photos / "red").iterdir()))
    assert page.locator("#columns thead th").all_inner_texts() == ["label", "samples"]
    assert "The table shows" in page.inner_text("#learnt-text")
    advice = page.evaluate("fetch('/v1/streams/shop-1').then((answer) => answer.json())")["advice"]
    assert page.inner_text("#advice") == (f"Note: {advice}" if advice else "")


def test_a_dropped_folder_is_walked(run_service, open_page, tmp_path):
    (tmp_path / "drop").mkdir()
    folder = draw_folder(tmp_path / "drop", 6)
    (folder / "red" / "deep").mkdir()
    draw("red", 50).save(folder / "red" / "deep" / "img10.png")
    draw("red", 51).save(folder / "red" / "deep" / "img9.png")
    (folder / "notes.txt").write_text("no image")
    (folder / ".hidden.png").write_bytes(b"")
    page = open_page(run_service())
    create(page, "shop-1")
    drag = {"items": [], "files": [str(folder)], "dragOperationsMask": 1}
    session = page.context.new_cdp_session(page)
    for step in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": step, "x": 300, "y": 300, "data": drag})
    finished(page)
    names = [card[0] for card in cards(page)]
    assert names == below(tmp_path, open_source(str(folder)))
    assert len(names) == 8
    assert page.inner_text("#left-out") == f"Left out, as not an image: {folder.name}/notes.txt"
    page.set_input_files("#images", folder / "notes.txt")
    says(page, "There are no images among these files.")
    assert page.inner_text("#left-out") == "Left out, as not an image: notes.txt"


@pytest.mark.parametrize("method", ["dota", "prior"])
def test_statistics_are_shown_for_methods_without_caches(run_service, open_page, tiny_onnx, photos, method):
    page = open_page(run_service())
    create(page, "shop-1", method=method)
    send(page, photos, "#folder")
    classifier = Classifier(LABELS, f"onnx:{tiny_onnx}", method=method)
    for _ in classifier.stream(open_source(str(photos))):
        pass
    columns = classifier.adapter.class_statistics()
    assert page.locator("#columns thead th").all_inner_texts() == ["label", *columns]
    rows = page.locator("#columns tbody tr").all()
    assert [row.locator("th").inner_text() for row in rows] == LABELS
    for row, *values in zip(rows, *columns.values(), strict=True):
        for cell, name, value in zip(row.locator("td").all(), columns, values, strict=True):
            shown = float(cell.inner_text().removesuffix("\u202f%")) / (100 if name == "share" else 1)
            assert shown == pytest.approx(value, abs=0.06)
    assert page.inner_text("#clients") == "Learnt from 127.0.0.1 (40)"
    assert page.is_hidden("#kept-figure")
    assert page.is_hidden("#labels")
    assert page.inner_text("#seen") == "40"


def test_a_method_that_learns_nothing_says_so(run_service, open_page, photos):
    page = open_page(run_service())
    create(page, "shop-1", method="zero", views=3)
    send(page, sorted((photos / "red").iterdir())[:3])
    assert "3 views" in page.inner_text("#lead")
    assert page.inner_text("#learnt-text").startswith("This method does not learn")
    assert page.is_hidden("#columns")
    assert page.is_hidden("#labels")


def test_entries_are_replaced_in_their_slots(run_service, open_page, photos):
    service = run_service()
    page = open_page(service, reduced_motion="no-preference")
    create(page, "shop-1")
    page.evaluate(
        """() => {
            window.left = 0;
            const count = (seen) => (window.left += seen.filter(({ target }) => target.className === "leaving").length);
            const watched = { attributes: true, attributeFilter: ["class"], subtree: true };
            new MutationObserver(count).observe(document.getElementById("labels"), watched);
        }"""
    )
    send(page, photos, "#folder")
    page.wait_for_selector(".leaving", state="detached")  # gone once its animation is over
    replaced = int(re.fullmatch(r"(\d+) replaced by better ones", page.inner_text("#replaced"))[1])
    assert replaced == page.evaluate("window.left") > 0
    assert page.locator(".positive .slots li").count() == 3 * len(LABELS)
    assert page.locator(".slots img").count() == page.locator(".slots figure").count() == int(page.inner_text("#kept"))


def test_others_can_be_watched_and_pictures_are_kept_only_if_asked_for(run_service, open_page, photos):
    service = run_service()
    page = open_page(service)
    for name, kept in (("private", False), ("pictured", True)):
        create(page, name, thumbnails=kept)
        other = open_page(service)
        other.select_option("#stream", name)
        send(other, sorted((photos / "red").iterdir())[:3])
        entries = page.locator(".slots figure")  # it has sent nothing itself
        playwright.expect(entries).to_have_count(int(other.inner_text("#kept")))
        assert page.locator(".slots img").count() == (entries.count() if kept else 0)


def test_unreadable_images_are_reported_and_the_rest_goes_on(run_service, open_page, tmp_path):
    (tmp_path / f"1{HOSTILE}.png").write_bytes(b"no image at all")
    draw("red", 1).save(tmp_path / f"2{HOSTILE}.png")
    page = open_page(run_service(), wrong=("422",))
    create(page, "shop-1", [HOSTILE, "<b>dog</b>"])
    send(page, sorted(tmp_path.glob("*.png")))
    assert page.inner_text("#feed .failed .why").startswith(f"1{HOSTILE}.png cannot be read: ")
    assert page.inner_text("#counted") == "1"
    assert page.inner_text("#counted-word") == "images classified, 1 unreadable"
    ((name, *answers, _),) = cards(page)
    assert name == f"2{HOSTILE}.png"
    assert set(answers) <= {HOSTILE, "<b>dog</b>"}
    assert page.locator("b, img[src=x]").count() == 0


def test_a_service_that_dies_and_comes_back_loses_no_image(run_service, open_page, photos):
    service = run_service(own=True)
    page = open_page(service, wrong=("ERR_",))
    create(page, "shop-1")
    page.route("**/classify?*", lambda route: route.continue_())  # the page waits for this test before each image
    page.set_input_files("#folder", photos)
    page.wait_for_selector("#feed > li:nth-child(6)")
    service.stop(signal.SIGKILL)
    page.wait_for_selector("#notice")
    assert "does not respond" in page.inner_text("#notice")
    before = len(cards(page))
    service.start()
    page.click("#again")
    finished(page)
    assert before < len(cards(page)) == 40
    assert page.is_hidden("#notice")


def test_sending_can_be_paused_and_stopped_and_waits_for_a_busy_service(run_service, open_page, photos):
    page = open_page(run_service(), wrong=("429",))
    create(page, "shop-1")
    answered = []
    page.on("response", lambda response: answered.append(1) if "/classify?" in response.url and response.ok else None)
    page.route("**/classify?*", lambda route: route.continue_())  # the page waits for this test before each image
    busy = {"status": 429, "headers": {"Retry-After": "1"}, "json": {"error": {"message": "busy"}}}
    page.route("**/classify?*", lambda route: route.fulfill(**busy), times=1)  # only the first image is turned away
    page.check("#shuffle")
    page.set_input_files("#folder", photos)
    page.wait_for_selector("#feed > li:nth-child(2)")
    page.click("#pause")
    playwright.expect(page.locator("#sending")).to_contain_text("paused")
    page.wait_for_timeout(500)  # the one under way may still be answered
    while len(cards(page)) < len(answered):
        page.wait_for_timeout(50)
    shown = len(cards(page))
    page.wait_for_timeout(500)
    assert shown <= len(cards(page)) <= shown + 1 < 40  # the one under way may come now on a slow machine
    page.click("#pause")
    page.wait_for_selector(f"#feed > li:nth-child({shown + 2})", state="attached")
    page.click("#stop")
    finished(page)
    assert shown < len(cards(page)) < 40
    assert page.is_hidden("#progress")
    assert len({card[0] for card in cards(page)}) == len(cards(page))


def test_damage_and_many_labels_are_shown(run_service, open_page, photos):
    service = run_service(own=True)
    page = open_page(service, wrong=("ERR_", "503"))
    create(page, "shop-1", [f"thing {i}" for i in range(60)])
    send(page, photos / "red", "#folder")
    labels = page.locator(".label-card")
    assert 0 < labels.count() < 60  # only labels with entries are shown
    assert page.is_hidden("#condition")
    service.stop()
    file = service.log.parent / "state" / "streams" / "shop-1.sqlite"
    file.write_bytes(file.read_bytes()[:-5000])
    service.start()
    page.reload()
    playwright.expect(page.locator("body")).to_contain_text("its file is damaged")
