"""The page, end to end: the real service as its own process, and a real browser."""

import shutil

import pytest

from page_driver import PageService


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium here")
    playwright.expect.set_options(timeout=300_000)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory, tiny_onnx):
    """Return a service for all tests that neither stop it nor need options; each finds it without streams."""
    service = PageService(tmp_path_factory.mktemp("service"), tiny_onnx)
    yield service
    service.stop()


@pytest.fixture
def run_service(tmp_path, tiny_onnx, shared_service):
    """Return a function that starts a service; the shared one unless it has options or is to be its `own`."""
    started = []

    def start(*options, own=False):
        if not options and not own:
            return shared_service
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(PageService(folder, tiny_onnx, *options))
        return started[-1]

    yield start
    for service in started:
        service.stop()
    shared_service.delete_streams()


@pytest.fixture
def open_page(browser):
    """Return a function that opens a service's page; check after the test that there were no hidden errors."""
    opened = []

    def visit(service, path="", wrong=(), **context):
        page = browser.new_context(**{"reduced_motion": "reduce", **context}).new_page()
        page.set_default_timeout(300_000)
        problems = []
        requests = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: requests.append(request.url))
        opened.append((page, service.address, wrong, problems, requests))
        page.goto(f"{service.address}/{path}")
        return page

    yield visit
    for page, address, wrong, problems, requests in opened:
        page.context.close()
        assert [text for text in problems if not any(status in text for status in wrong)] == []
        assert [url for url in requests if not url.startswith((f"{address}/", f"blob:{address}/", "data:"))] == []
