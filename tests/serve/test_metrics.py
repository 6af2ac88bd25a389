"""Metrics and logs: their content, and what they never contain."""

import io
import json
import logging
import re

import pytest

from acclimate import __version__
from acclimate.serve.logs import JsonLines
from acclimate.serve.security import TokenFile
from waiting import wait_until

NAMES = (
    "acclimate_images_total",
    "acclimate_request_duration_seconds",
    "acclimate_encode_duration_seconds",
    "acclimate_adapt_duration_seconds",
    "acclimate_batch_size",
    "acclimate_cache_entries",
    "acclimate_cache_replacements_total",
    "acclimate_prediction_entropy_ratio",
    "acclimate_changed_predictions_total",
    "acclimate_build_info",
    "acclimate_unsure_predictions_total",
    "acclimate_near_duplicates_total",
    "acclimate_corrections",
)
ONE = "/v1/streams/one"


def read(client):
    """Return every sample: name and labels -> value."""
    lines = client.get("/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


@pytest.fixture
def log():
    """Return the lines that the service logs."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("acclimate.serve")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def lines(count):
        wait_until(lambda: stream.getvalue().count("\n") >= count)  # a line is written once the answer is on its way
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    yield lines
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_images_are_counted(client, pictures):
    results = []
    for _ in range(2):  # twice, so that there is something to replace
        for picture in pictures:
            results += client.post(f"{ONE}/classify", files={"image": picture}).json()["results"]
    assert client.post(f"{ONE}/classify", files={"image": b"none"}).status_code == 422
    found = read(client)
    for name in NAMES:
        assert any(re.match(rf"{name}(_bucket|_count|_sum)?(\{{|$)", each) for each in found), name
    assert found['acclimate_images_total{outcome="answered"}'] == 24
    assert found['acclimate_images_total{outcome="unreadable"}'] == 1
    assert found["acclimate_changed_predictions_total"] == sum(each["changed"] for each in results)
    assert found["acclimate_prediction_entropy_ratio_count"] == 24
    assert found["acclimate_batch_size_sum"] == 24
    assert found["acclimate_adapt_duration_seconds_count"] == 24
    assert found[f'acclimate_build_info{{version="{__version__}"}}'] == 1
    entries = client.get(ONE).json()["entries"]
    for kind, count in entries.items():
        assert found[f'acclimate_cache_entries{{kind="{kind}"}}'] == count
    admitted = sum(len(each["admitted"]) for each in results)
    assert found["acclimate_cache_replacements_total"] == admitted - sum(entries.values())
    route = 'method="POST",route="/v1/streams/{name}/classify",status="200"'
    assert found[f"acclimate_request_duration_seconds_count{{{route}}}"] == 24


def test_no_stream_label_or_client_is_named(client, pictures):
    setup = {"name": "secret-name", "labels": ["secret label", "dog"]}
    client.post("/v1/streams", json=setup)
    client.post("/v1/streams/secret-name/classify", files={"image": pictures[0]})
    client.get("/secret-path")
    client.request("SECRET", "/")
    text = client.get("/metrics").text
    assert "secret" not in text.lower()
    assert "127.0.0.1" not in text


def test_a_line_for_each_request(client, pictures, log):
    client.post(f"{ONE}/classify?top_k=1", files={"image": pictures[0]}, headers={"X-Request-ID": "mine"})
    client.get("/nowhere/at%0A-all?token=secret")
    client.head("/" + "x" * 5000)
    client.post("/v1/streams", json={"name": "new", "labels": ["cat", "dog"]})
    client.get("/page/style.css")
    first, *others = log(5)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first.pop("time"))
    assert first.pop("duration_s") > 0
    assert first == {
        "level": "info",
        "message": "request",
        "request_id": "mine",
        "method": "POST",
        "path": "/v1/streams/one/classify",
        "status": 200,
        "stream": "one",
        "client": "127.0.0.1",
    }
    keys = ("method", "path", "status", "stream", "code")
    assert [tuple(line.get(key) for key in keys) for line in others] == [
        ("GET", "/nowhere/at\n-all", 404, None, "not_found"),
        ("HEAD", "/" + "x" * 199, 404, None, "not_found"),
        ("POST", "/v1/streams", 201, "new", None),
        ("GET", "/page/style.css", 200, None, None),
    ]
    assert "secret" not in json.dumps(others)


def test_the_log_names_the_token(serve, log, tmp_path):
    (tmp_path / "tokens").write_text("camera camera-token-0123456789 one=classify\n")
    with serve(tokens=TokenFile(tmp_path / "tokens")) as client:
        client.get(ONE, headers={"Authorization": "Bearer camera-token-0123456789"})
        client.get(f"{ONE}/caches", headers={"Authorization": "Bearer camera-token-0123456789"})
        client.get(ONE, headers={"Authorization": "Bearer wrong-token-0123456789"})
    lines = sorted(log(3), key=lambda line: line["status"] == 401)  # a line is written after the answer
    assert [(line.get("token"), line["status"], line.get("code")) for line in lines] == [
        ("camera", 200, None),
        ("camera", 403, "forbidden"),
        (None, 401, "unauthorized"),
    ]
    assert "0123456789" not in json.dumps(lines)


def test_an_unexpected_error_is_a_plain_500_and_a_traceback_in_the_log(client, log, monkeypatch):
    def fail(name, client):
        raise ZeroDivisionError("nobody's business")

    monkeypatch.setattr(client.streams, "get", fail)
    answer = client.get(ONE)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal"
    assert "business" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    failure, line = log(2)
    assert "ZeroDivisionError: nobody's business" in failure["traceback"]
    assert failure["request_id"] == line["request_id"] == answer.json()["error"]["request_id"]
    assert line["status"] == 500
