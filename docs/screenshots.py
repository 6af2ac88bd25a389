"""Make the pictures of the README and the guides: the demo's report, and the service's page with the demo's pictures.

python docs/screenshots.py docs/report.png --report acclimate-demo/report.html
python docs/screenshots.py docs/page.png                          # needs playwright and Chromium; a minute on two cores
python docs/screenshots.py phone.png --scheme dark --width 390    # how it looks elsewhere
"""

import argparse
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import URLError
from urllib.request import urlopen
from zipfile import ZipFile

from playwright.sync_api import Page, expect, sync_playwright

HEIGHT = 1240
RANDOM = (
    "let seed = 1; Math.random = () => (seed = (seed * 16807) % 2147483647) / 2147483647"  # the same order each time
)


def main() -> None:
    """Run the service, send the pictures through its page, and write what the page shows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--scheme", choices=["light", "dark"], default="light")
    parser.add_argument("--width", type=int, default=1180)
    parser.add_argument("--report", type=Path, help="take this report of a run instead of the service's page")
    options = parser.parse_args()
    if options.report is not None:
        with _page(options) as page:
            page.goto(options.report.resolve().as_uri())
            card = page.locator(".change >> nth=4").bounding_box()  # two rows of changed answers
            page.screenshot(path=options.file, clip={"x": 0, "y": 0, "width": options.width, "height": card["y"] - 4})
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with TemporaryDirectory() as name:
        pictures = Path(name, "pictures")
        with ZipFile(BytesIO((files("acclimate.cli") / "pictures.zip").read_bytes())) as archive:
            archive.extractall(pictures)
        command = [sys.executable, "-m", "acclimate", "serve", "--data", f"{name}/state", "--port", str(port)]
        service = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            _photograph(f"http://127.0.0.1:{port}", service, pictures, options)
        finally:
            service.terminate()
            service.wait()


def _photograph(address: str, service: "subprocess.Popen[bytes]", pictures: Path, options: argparse.Namespace) -> None:
    while True:
        try:
            urlopen(f"{address}/health/ready", timeout=5).close()
            break
        except (URLError, ConnectionError):
            if service.poll() is not None:
                raise SystemExit("the service has stopped; run `acclimate serve` to see why.") from None
            time.sleep(0.1)
    with _page(options) as page:
        page.add_init_script(RANDOM)
        page.goto(address)
        page.click("#new")
        page.fill("#name", "drawings")
        page.fill("#new-labels", "\n".join(sorted(folder.name for folder in pictures.iterdir())))
        page.click("#new-dialog .main")
        page.wait_for_selector("#panels")
        page.set_checked("#shuffle", True)
        page.set_input_files("#folder", pictures)
        expect(page.locator("#status")).to_contain_text("Done", timeout=600_000)
        page.click("#filters label:has([value=wrong])")
        for _ in range(2):  # the first label that is offered is that of the folder
            page.evaluate("document.getElementById('status').textContent = ''")
            page.click("#feed > li:not(.fixed) .fix >> nth=0")
            page.keyboard.press("Enter")
            page.wait_for_selector("#correct-dialog", state="hidden")
            expect(page.locator("#status")).to_contain_text("answered again")
        page.click("#filters label:has([value=changed])")
        page.screenshot(path=options.file)


@contextmanager
def _page(options: argparse.Namespace) -> Iterator[Page]:
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        size = {"width": options.width, "height": HEIGHT}
        yield browser.new_page(viewport=size, reduced_motion="reduce", color_scheme=options.scheme)
        browser.close()


if __name__ == "__main__":
    main()
