"""The service on Ray answers as `acclimate serve` does: one schema, one page, the same bodies, the same states."""

import re
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from json import loads

import httpx
import pytest
from PIL import Image

from cluster_service import BODY, CAMERA, KEEPER, LAB, LABELS, bearer, png
from service_process import service
from waiting import wait_until

# What differs from one run to the next: ids of requests, times, and what depends on the time that was taken.
CHANGING = re.compile(r'"(request_id|time)": ?("[^"]*"|[0-9.e+]+)')
RAW = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def alone(running, tmp_path_factory):
    """Run `acclimate serve` with the same options."""
    folder = tmp_path_factory.mktemp("alone") / "state"
    options = ["--token-file", str(running.token_file), "--max-body", str(BODY), "--timeout", "60"]
    options += ["--labels", ",".join(LABELS), "--no-skip-duplicates", "--method", "tda", "--no-guard", "--workers", "1"]
    with (
        service(running.model, folder, *options) as (_, url),
        httpx.Client(base_url=url, timeout=120, headers=bearer(KEEPER)) as client,
    ):
        yield client


def script(pictures):
    """Make calls of all kinds; a later one may send parts of an earlier answer."""
    form = [("image", (f"{i}.png", image, "image/png")) for i, image in enumerate(pictures[:6])]
    here = "/v1/streams/lab"
    text = [b64encode(image).decode() for image in pictures[6:9]]
    lab = {"name": "lab", "labels": LABELS, "method": "tda", "skip_duplicates": False, "thumbnails": True}
    yield "GET", "/openapi.json", {}
    yield "GET", "/health/live", {}
    yield "GET", "/health/ready", {}
    yield "GET", "/", {}
    yield "GET", "/page/page.js", {}
    yield "POST", "/v1/streams", {"json": {"name": "lab", "labels": ["one"]}}
    yield "POST", "/v1/streams", {"json": {**lab, "views": 0}}
    yield "POST", "/v1/streams", {"json": lab}
    yield "POST", "/v1/streams", {"json": lab}
    yield "GET", here, {}
    yield "POST", f"{here}/classify", {"files": form}
    yield "POST", f"{here}/classify", {"json": {"images": text}, "params": {"top_k": 2}}
    yield "POST", f"{here}/classify", {"content": pictures[9], "headers": RAW, "params": {"adapt": "false"}}
    yield "POST", f"{here}/classify", {"content": b"not an image", "headers": RAW}
    yield "POST", f"{here}/classify", {"files": [*form, ("image", ("bad.png", b"bad", "image/png"))]}
    yield "POST", f"{here}/classify", {"content": bytes(BODY + 1), "headers": RAW}
    yield "POST", f"{here}/classify", {"content": b"text", "headers": {"content-type": "text/plain"}}
    yield "POST", f"{here}/classify", {"params": {"nonsense": 1}}
    yield "POST", f"{here}/corrections", {"json": {"id": 2, "label": LABELS[0]}}
    yield "POST", f"{here}/corrections", {"json": {"image": text[0], "label": LABELS[1]}}
    yield "POST", f"{here}/corrections", {"json": {"id": 2, "label": "nothing"}}
    yield "GET", f"{here}/corrections", {}
    yield "DELETE", f"{here}/corrections/2", {}
    yield "DELETE", f"{here}/corrections/99", {}
    yield "POST", f"{here}/snapshot", {}
    yield "POST", f"{here}/freeze", {}
    yield "POST", f"{here}/classify", {"files": form}
    yield "POST", f"{here}/unfreeze", {}
    yield "PATCH", f"{here}/labels", {"json": {"add": ["fox"], "remove": [LABELS[2]]}}
    yield "PATCH", f"{here}/labels", {"json": {"add": ["fox"]}}
    yield "POST", f"{here}/classify", {"files": form}
    yield "GET", f"{here}/snapshots", {}
    yield "GET", f"{here}/caches", {"params": {"thumbnails": "true"}}
    yield "GET", f"{here}/learnt", {}
    yield "GET", f"{here}/state", {}
    yield "PUT", f"{here}/state", {"content": "state", "headers": RAW}
    yield "PUT", f"{here}/state", {"content": b"not a state", "headers": RAW}
    yield "POST", f"{here}/rollback", {"json": {"snapshot": 1}}
    yield "POST", f"{here}/rollback", {"json": {"snapshot": 77}}
    yield "POST", f"{here}/reset", {}
    yield "GET", f"{here}/state", {}
    yield "GET", here, {}
    yield "GET", "/v1/streams", {}
    yield "POST", "/classify", {"content": pictures[0], "headers": RAW, "params": {"candidate_labels": ["cat", "dog"]}}
    yield "POST", "/v1/streams/walk-in/classify", {"content": b"not an image", "headers": RAW}
    yield "POST", "/v1/streams/walk-in/classify", {"content": pictures[0], "headers": RAW}
    yield "DELETE", "/v1/streams/walk-in", {}
    yield "DELETE", "/v1/streams/walk-in", {}
    yield "GET", here, {"headers": bearer(CAMERA)}
    yield "POST", "/v1/streams/shop/freeze", {"headers": bearer(CAMERA)}
    yield "GET", here, {"headers": bearer("wrong-token-0123456789")}
    yield "GET", here, {"headers": {"host": "example.com"}}
    yield "DELETE", here, {}
    yield "GET", here, {}
    yield "POST", f"{here}/classify", {"content": b"", "headers": RAW, "params": {"adapt": "maybe"}}


def run(client, pictures):
    """Yield the answer to each call: status, type and content; without the streams that were there before."""
    state = b""
    before = [each["name"] for each in client.get("/v1/streams").json()["streams"]]
    for method, path, given in script(pictures):
        if given.get("content") == "state":
            given = {**given, "content": state}
        answer = client.request(method, path, **given)
        if path.endswith("/state") and method == "GET":
            state = answer.content
        kind = answer.headers.get("content-type")
        text = answer.content if kind == RAW["content-type"] else CHANGING.sub("", answer.text)
        if (method, path) == ("GET", "/v1/streams"):
            text = [each for each in answer.json()["streams"] if each["name"] not in before]
        yield method, path, answer.status_code, kind, text


def test_the_same_calls_get_the_same_answers(cluster, alone, pictures):
    here = list(run(alone, pictures))
    there = list(run(cluster.client, pictures))
    assert len(here) == len(there) > 50
    for one, other in zip(here, there, strict=True):
        assert other == one
    assert {each[2] for each in here} >= {200, 201, 204, 401, 403, 404, 409, 413, 415, 422}


def test_every_response_has_the_same_headers(cluster, alone):
    given = {"x-request-id": "abc-1"}
    ours, theirs = (client.get("/v1/streams", headers=given).headers for client in (alone, cluster.client))
    assert dict(theirs) | {"date": "", "content-length": "", "server": ""} == dict(ours) | {
        "date": "",
        "content-length": "",
        "server": "",
    }


def test_streams_are_side_by_side_and_each_is_in_order(cluster, pictures):
    names = ["left", "right"]
    for name in names:
        cluster.create(name, skip_duplicates=False, guard=None)

    def send(name):
        return [cluster.classify(name, pictures[i : i + 2]).json()["results"] for i in range(0, 24, 2)]

    with ThreadPoolExecutor() as threads:
        both = list(threads.map(send, names))
    assert both[0] == both[1]
    assert [each["id"] for answer in both[0] for each in answer] == list(range(24))
    for name in names:
        assert cluster.client.delete(f"/v1/streams/{name}").status_code == 204


def test_large_images_travel_past_the_streams_process(cluster, pictures):
    """More bytes than travel with a call, so that they lie in the object store: the same answers."""
    large = png(Image.effect_noise((400, 400), 90).convert("RGB"))
    assert len(large) > 2**17
    cluster.create("large", skip_duplicates=False)
    answers = [cluster.classify("large", [large], params={"adapt": "false"}).json()["results"] for _ in range(2)]
    assert answers[0] == answers[1]
    cluster.client.delete("/v1/streams/large").raise_for_status()


def test_metrics_are_those_of_all_processes(cluster, pictures):
    def value(line):
        found = re.search(rf"^{re.escape(line)} ([0-9.e+]+)$", cluster.client.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    answered = 'acclimate_images_total{outcome="answered"}'
    unreadable = 'acclimate_images_total{outcome="unreadable"}'
    cluster.create("counted", method="tda", skip_duplicates=False)
    before = value(answered)
    bad = value(unreadable)
    assert cluster.classify("counted", pictures[:6]).status_code == 200
    assert cluster.classify("counted", [b"not an image"]).status_code == 422
    wait_until(lambda: value(answered) == before + 6 and value(unreadable) == bad + 1)
    assert value('acclimate_cache_entries{kind="positive"}') > 0
    text = cluster.client.get("/metrics").text
    assert len(re.findall("^acclimate_build_info", text, re.MULTILINE)) == 1
    assert "acclimate_encode_duration_seconds_count" in text
    cluster.client.delete("/v1/streams/counted").raise_for_status()
    assert value(answered) >= before + 6  # what a stream has counted remains when it is deleted


def test_changes_are_in_the_audit_log(cluster):
    cluster.create("audited")
    cluster.client.delete("/v1/streams/audited").raise_for_status()
    lines = [loads(line) for line in (cluster.folder / "audit.jsonl").read_text().splitlines()]
    mine = [(each["action"], each["caller"], each["outcome"]) for each in lines if each["stream"] == "audited"]
    assert mine == [("create_stream", "keeper", "done"), ("delete_stream", "keeper", "done")]


def test_tokens_are_read_again(cluster):
    assert cluster.client.get("/v1/streams", headers=bearer(LAB)).status_code == 401
    before = cluster.token_file.read_text()
    cluster.token_file.write_text(before + f"lab {LAB} lab=manage\n")
    cluster.service.reload_tokens()
    for _ in range(3):  # reaches all replicas of the front
        wait_until(lambda: cluster.client.get("/v1/streams", headers=bearer(LAB)).status_code == 200)
    assert LAB not in (cluster.folder / "tokens").read_text()
    cluster.token_file.write_text(before)
    cluster.service.reload_tokens()
