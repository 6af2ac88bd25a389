"""Make the picture of the README: the service's page, adapting to the drawn pictures of the demo.

python docs/screenshots.py docs/page.png        # needs playwright and Chromium; a minute on two cores
"""

import argparse
import shutil
import socket
import subprocess
import sys
import time
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import URLError
from urllib.request import urlopen
from zipfile import ZipFile

from playwright.sync_api import expect, sync_playwright

SIZE = {"width": 1180, "height": 980}
RANDOM = (
    "let seed = 1; Math.random = () => (seed = (seed * 16807) % 2147483647) / 2147483647"  # the same order each time
)


def main() -> None:
    """Run the service, send the pictures through its page, and write what the page shows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    path = parser.parse_args().file
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with TemporaryDirectory() as name:
        pictures = Path(name, "pictures")
        with ZipFile(BytesIO((files("acclimate.cli") / "pictures.zip").read_bytes())) as archive:
            archive.extractall(pictures)
        options = ["--data", f"{name}/state", "--port", str(port)]
        service = subprocess.Popen([sys.executable, "-m", "acclimate", "serve", *options], stderr=subprocess.DEVNULL)
        try:
            _photograph(f"http://127.0.0.1:{port}", service, pictures, path)
        finally:
            service.terminate()
            service.wait()


def _photograph(address: str, service: "subprocess.Popen[bytes]", pictures: Path, path: Path) -> None:
    while True:
        try:
            urlopen(f"{address}/health/ready", timeout=5).close()
            break
        except (URLError, ConnectionError):
            if service.poll() is not None:
                raise SystemExit("the service has stopped; run `acclimate serve` to see why.") from None
            time.sleep(0.1)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, reduced_motion="reduce", color_scheme="light")
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
        page.set_checked("#only-changed", True)
        page.screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    main()
