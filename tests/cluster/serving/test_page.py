"""The page works on Ray as it does on one machine: a real browser creates a stream, sends images, corrects one."""

import shutil

import pytest

from cluster_service import KEEPER
from page_driver import cards, correct, create, send

playwright = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright")


def test_the_page_is_that_of_one_machine(cluster, photos):
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium here")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(reduced_motion="reduce").new_page()
        page.set_default_timeout(120_000)
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(str(cluster.client.base_url))
        page.wait_for_selector("#token-dialog[open]")
        page.fill("#token", KEEPER)
        page.keyboard.press("Enter")
        page.wait_for_selector("#token-dialog", state="hidden")
        create(page, "seen")
        send(page, photos, "#folder")
        shown = cards(page)
        assert len(shown) == 40
        correct(page, shown[0][0], "red")
        assert problems == []
        browser.close()
    listed = cluster.client.get("/v1/streams/seen/corrections").json()["corrections"]
    assert [each["label"] for each in listed] == ["red"]
    assert cluster.client.get("/v1/streams/seen").json()["samples_seen"] == 40
    cluster.client.delete("/v1/streams/seen").raise_for_status()
