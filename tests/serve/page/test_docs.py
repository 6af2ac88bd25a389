"""The API documentation in a browser."""

import json
from urllib.request import urlopen

import pytest

from acclimate.serve.security import TokenFile

playwright = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright")


@pytest.mark.slow
def test_the_api_documentation_shows_and_runs_every_operation(run_service, open_page, tmp_path, photos):
    """Swagger UI under the service's own content policy: nothing inline, nothing from another host."""
    (tmp_path / "tokens").write_text("boss a-token-that-is-long *=manage\n")
    service = run_service("--token-file", str(tmp_path / "tokens"), "--labels", "red, green")
    page = open_page(service, "docs", ["401"], viewport={"width": 1200, "height": 1000})
    page.wait_for_selector(".opblock")
    with urlopen(f"{service.address}/openapi.json") as answer:
        described = json.load(answer)["paths"]
    expected = {(method.upper(), path) for path, operations in described.items() for method in operations}
    methods = page.locator(".opblock-summary-method").all_inner_texts()
    paths = [text.replace("\u200b", "") for text in page.locator(".opblock-summary-path").all_inner_texts()]
    assert set(zip(methods, paths, strict=True)) == expected
    page.click("button.authorize")
    page.fill(".auth-container input", "a-token-that-is-long")
    page.click(".auth-btn-wrapper .authorize")
    page.click(".auth-btn-wrapper .btn-done")
    operation = page.locator("#operations-streams-classify_images_v1_streams__name__classify_post")
    operation.locator(".opblock-summary-control").click()
    playwright.expect(operation.locator(".opblock-description")).to_contain_text("Needs classify or manage")
    operation.locator('input[placeholder="name"]').fill("shop-1")
    operation.locator('input[type="file"]').set_input_files(next(photos.rglob("*.png")))
    operation.locator(".execute").click()
    playwright.expect(operation.locator(".live-responses-table")).to_contain_text("zero_shot")

    page.goto(service.address)  # a token that was given to the page in this tab need not be typed again
    page.fill("#token", "a-token-that-is-long")
    page.keyboard.press("Enter")
    page.wait_for_selector("#panels")
    page.goto(f"{service.address}/docs")
    operation = page.locator("#operations-streams-list_streams_v1_streams_get")
    operation.locator(".opblock-summary-control").click()
    operation.locator(".execute").click()
    playwright.expect(operation.locator(".live-responses-table")).to_contain_text("shop-1")


def test_the_documentation_says_what_a_token_must_allow(serve, tmp_path):
    (tmp_path / "tokens").write_text("camera a-token-that-is-long one=classify\n")
    with serve(tokens=TokenFile(tmp_path / "tokens")) as client:
        described = client.get("/openapi.json").json()["paths"]
        client.headers["Authorization"] = "Bearer a-token-that-is-long"
        bodies = {
            "/v1/streams": {"name": "new", "labels": ["cat", "dog"]},
            "/v1/streams/{name}": {"labels": ["cat", "dog"]},
            "/v1/streams/{name}/labels": {"add": ["fox"]},
        }
        bodies["/v1/streams/{name}/corrections"] = {"id": 0, "label": "fox"}
        for path, operations in described.items():
            for method, operation in operations.items():
                address = path.format(name="one", correction=0)
                answer = client.request(method, address, json=bodies.get(path, {}))
                assert (answer.status_code == 403) == ("Needs `manage`" in operation["description"]), (method, path)
