"""A driver of the page for its tests: run the service, send images, read what is shown."""

import json
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

from ports import free_port
from waiting import wait_until

LABELS = ["blue", "green", "red"]


class PageService:
    """`acclimate serve` on a free port; `start` again goes on with the same port and data."""

    def __init__(self, folder: Path, model: Path, *options: str):
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "acclimate", "serve", "--model", f"onnx:{model}", "--data", folder / "state"]
        self.command = [*map(str, command), "--port", str(self.port), *options]
        self.log = folder / "log"
        self.start()

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        wait_until(self.answers, 300)

    def answers(self):
        assert self.process.poll() is None, self.log.read_text()
        with suppress(OSError), urlopen(f"{self.address}/health/ready", timeout=180):
            return True
        return False

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait()

    def delete_streams(self):
        """Delete all streams."""
        with urlopen(f"{self.address}/v1/streams") as answer:
            listed = json.load(answer)["streams"]
        for each in listed:
            urlopen(Request(f"{self.address}/v1/streams/{each['name']}", method="DELETE")).close()


def create(
    page, name, labels=LABELS, thumbnails=False, method="tda", views=1, skip_duplicates=False, reject=False, unsure=""
):
    page.click("#new")
    page.fill("#name", name)
    page.fill("#new-labels", ", ".join(labels))
    page.select_option("#method", method)
    page.fill("#views", str(views))
    page.fill("#unsure", unsure)
    page.set_checked("#thumbnails", thumbnails)
    page.set_checked("#reject", reject)
    page.set_checked("#skip_duplicates", skip_duplicates)  # drawn images look much alike to the tiny model
    page.click("#new-dialog .main")
    page.locator("#title", has_text=re.compile(f"^{re.escape(name)}$")).wait_for()
    page.wait_for_selector("#panels")


def send(page, files, chooser="#images"):
    page.evaluate("document.getElementById('status').textContent = ''")
    page.set_input_files(chooser, files)
    finished(page)


def finished(page):
    says(page, re.compile("^Done"))


def says(page, words):
    from playwright.sync_api import expect

    expect(page.locator("#status")).to_have_text(words, timeout=300_000)


def cards(page):
    """(file, zero-shot label, adapted label, changed) of the cards of all images, oldest first."""
    while page.is_visible("#more"):
        page.click("#more")
    return page.evaluate(
        """() => [...document.querySelectorAll("#feed > li:not(.failed)")].reverse().map((card) => [
            card.querySelector(".file").textContent, ...[...card.querySelectorAll(".label")].map((label) =>
            label.firstChild.textContent), card.classList.contains("changed")])"""
    )


def show_only(page, which):
    """Choose a filter of the answers; returns the number that it promises, and the files that it shows."""
    pill = page.locator("#filters label", has=page.locator(f"[value={which}]"))
    pill.click()
    return int(pill.locator(".count").inner_text()), [card[0] for card in cards(page)]


def correct(page, file, label):
    """Correct the label of an image by its card."""
    page.evaluate("document.getElementById('status').textContent = ''")
    page.get_by_role("button", name=f"Change the label of {file}").click()
    page.fill("#label-search", label)
    page.keyboard.press("Enter")
    page.wait_for_selector("#correct-dialog", state="hidden")
    says(page, re.compile("^Corrected"))


def slots(page):
    """{(label, "For" or "Against"): entropies as shown, sorted} of the slots that are filled."""
    found = page.evaluate(
        """() => [...document.querySelectorAll(".label-card")].flatMap((card) =>
            [...card.querySelectorAll(".kinds > div")].map((kind) => [card.querySelector("h3").textContent,
            kind.querySelector("h4").textContent,
            [...kind.querySelectorAll("figcaption")].map((each) => each.textContent)]))"""
    )
    return {(label, kind): sorted(entropies) for label, kind, entropies in found if entropies}
