"""Bodies cost little before they are refused: no list, form, text or chunk of a client holds up the others."""

import json
import re
import tempfile
from base64 import b64encode
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil
import pytest
from pydantic import ValidationError

from acclimate.errors import InputError
from acclimate.prompts import clean_labels
from acclimate.serve import schemas
from acclimate.serve.app import BODIES
from acclimate.serve.http_errors import MAX_MESSAGE_CHARS
from acclimate.serve.limits import Limits
from acclimate.serve.security import TokenFile
from service_process import service

ONE = "/v1/streams/one"
JSON = "application/json"
FORM = "multipart/form-data; boundary=x"
SETUP = {"name": "new", "labels": ["cat", "dog"]}
MB = 10**6
PART = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n'
ATTACKS = {
    "numbers for images": (f"{ONE}/classify", JSON, b'{"images":[' + b"1," * 15 * MB + b"1]}"),
    "numbers for labels": ("/classify", JSON, b'{"parameters":{"candidate_labels":[' + b"1," * 15 * MB + b"1]}}"),
    "empty images": (f"{ONE}/classify", JSON, b'{"images":[' + b'"",' * 10 * MB + b'""]}'),
    "unknown keys": (f"{ONE}/classify", JSON, b"{" + b",".join(b'"k%d":1' % i for i in range(2 * MB)) + b"}"),
    "a long key": (f"{ONE}/classify", JSON, b'{"' + b"k" * 30 * MB + b'":1}'),
    "settings": ("/v1/streams", JSON, b'{"settings":{' + b",".join(b'"k%d":[]' % i for i in range(30_000)) + b"}}"),
    "escapes": (f"{ONE}/classify", JSON, b'{"images":["' + b"\\u0041" * 5 * MB + b'"]}'),
    "spaces": (f"{ONE}/classify", JSON, b" " * 31 * MB),
    "brackets": (f"{ONE}/classify", JSON, b'{"images":' + b"[" * 31 * MB),
    "digits": (f"{ONE}/classify", JSON, b'{"top_k":' + b"1" * 31 * MB + b"}"),
    "bytes that are no text": (f"{ONE}/classify", JSON, b'{"images":["' + b"\xff" * 31 * MB + b'"]}'),
    "many parts": (f"{ONE}/classify", FORM, (PART + b"\r\n") * 10_000 + b"--x--"),
    "a long header": (f"{ONE}/classify", FORM, PART + b"A: " + b"b" * 31 * MB),
    "many headers": (f"{ONE}/classify", FORM, PART + b"A: b\r\n" * 5 * MB),
    "line breaks": (f"{ONE}/classify", FORM, PART + b"\r\n" + b"\r\n--" * 7 * MB),
}


@pytest.fixture(scope="module")
def client(serve):
    """Return a client of one service for all tests here: refused requests do not affect the next test."""
    with serve() as client:
        yield client


def refused(answer, *statuses):
    assert answer.status_code in (statuses or (422,)), answer.text
    message = answer.json()["error"]["message"]
    assert len(message) <= MAX_MESSAGE_CHARS + 3
    return message


def post(client, path, content, kind=JSON):
    return client.post(path, content=content, headers={"Content-Type": kind})


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_others_are_answered_and_memory_is_bounded(tiny_onnx, tmp_path):
    """A body takes little time of the processor, so that others do not wait; up to ten seconds without bounds."""
    with service(tiny_onnx, tmp_path / "data", "--labels", "cat,dog") as (process, url):
        status = Path(f"/proc/{process.pid}/status")

        def memory(which):
            return int(re.search(rf"{which}:\s+(\d+) kB", status.read_text())[1]) * 1024

        with httpx.Client(base_url=url, timeout=180) as client:
            idle = memory("VmRSS")
            watched = psutil.Process(process.pid)
            for name, (path, kind, body) in ATTACKS.items():
                before = watched.cpu_times().user
                refused(post(client, path, body, kind), 400, 413, 422)
                assert client.get("/health/live").status_code == 200
                assert watched.cpu_times().user - before < 2, name
            assert memory("VmHWM") - idle < 400 * MB


def test_the_largest_stream_has_few_commas():
    limits = Limits()
    labels = [f"label, {i}: it's" for i in range(limits.labels)]
    prompts = [f'a "photo", {i}' for i in range(limits.prompts // limits.labels)]
    setup = {"name": "a", "labels": labels, "templates": dict.fromkeys(labels, prompts)}
    assert json.dumps(setup).count(",") < 1000 + 10 * (limits.labels + limits.prompts + limits.images)


def test_oversized_bodies_are_not_parsed(client, monkeypatch):
    parsed = []
    for model in BODIES:
        monkeypatch.setattr(model, "model_validate_json", lambda content: parsed.append(content))
    for name in ("numbers for images", "numbers for labels", "empty images", "unknown keys"):
        path, kind, body = ATTACKS[name]
        assert "commas" in refused(post(client, path, body, kind), 422)
    assert parsed == []


def test_bodies_without_images_are_small(client):
    spaces = b" " * (2 * 2**20) + b"{}"
    for method, path in (("POST", "/v1/streams"), ("PATCH", f"{ONE}/labels"), ("POST", f"{ONE}/rollback")):
        for content in (spaces, iter([spaces])):  # announced, or not
            answer = client.request(method, path, content=content, headers={"Content-Type": JSON})
            assert "2097152 bytes" in refused(answer, 413)
    image = b64encode(b"x" * 3 * MB).decode()
    assert "cannot be read" in refused(client.post(f"{ONE}/classify", json={"images": [image]}))
    assert "cannot be read" in refused(client.post(f"{ONE}/corrections", json={"image": image, "label": "red circle"}))


def bounded(schema, where):
    """Walk a JSON schema: everything in it has a bound."""
    kind = schema.get("type")
    if kind == "string" and "enum" not in schema:
        assert "maxLength" in schema, where
    if kind == "array":
        assert "maxItems" in schema, where
        bounded(schema["items"], where)
    if kind in ("integer", "number"):
        least = {"minimum", "exclusiveMinimum"} & schema.keys()
        assert least, where
        assert "maximum" in schema, where
    if isinstance(schema.get("additionalProperties"), dict):
        assert "maxProperties" in schema, where
        bounded(schema["additionalProperties"], where)
        bounded(schema.get("propertyNames", {}), where)
    for name, each in {**schema.get("properties", {}), **schema.get("$defs", {})}.items():
        bounded(each, f"{where}.{name}")
    for each in schema.get("anyOf", ()):
        bounded(each, where)


@pytest.mark.parametrize("model", BODIES, ids=lambda model: model.__name__)
def test_everything_in_a_request_is_bounded(model):
    bounded(model.model_json_schema(), model.__name__)


@pytest.mark.parametrize("wrong", [True, "0", 1.0, -1, 2**53 + 1, [], 10**400])
def test_ids_are_integers(client, wrong):
    refused(client.post(f"{ONE}/corrections", json={"id": wrong, "label": "red circle"}))
    refused(client.post(f"{ONE}/rollback", json={"snapshot": wrong}))


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {f"k{i}": 1 for i in range(101)}},
        {"templates": ["{}" * 500] * 400, "labels": ["x" * 190 + str(i) for i in range(2000)]},
        {"templates": {"cat": ["a cat"], "dog": [1] * 1000}},
        {"views": True},
        {"unsure": float("nan")},
        {"x" * 10_000: 1},
        {"settings": {"x" * 10_000: 1}},
    ],
    ids=lambda change: next(iter(change))[:20],
)
def test_streams_that_would_cost_too_much(client, change):
    refused(post(client, "/v1/streams", json.dumps(SETUP | change)))


def test_the_body_of_a_rollback_is_optional(client, pictures):
    for headers in ({}, {"Content-Type": JSON}):
        for picture in pictures[:2]:
            client.post(f"{ONE}/classify", files={"image": picture})
            client.post(f"{ONE}/snapshot")
        assert client.post(f"{ONE}/rollback", headers=headers).status_code == 200
    refused(client.post(f"{ONE}/rollback", content=b"{}", headers={"Content-Type": "text/plain"}), 415)


@pytest.mark.parametrize("text", ["cat\ud800", "c\0t", "c\x1bt", "c\nt", "c\u2028t"])
def test_text_that_cannot_be_written(client, text, pictures):
    bad = json.dumps(text)
    image = b64encode(pictures[0]).decode()
    refused(post(client, "/v1/streams", f'{{"name": "new", "labels": ["dog", {bad}]}}'))
    answer = client.request("PATCH", f"{ONE}/labels", content=f'{{"add": [{bad}]}}', headers={"Content-Type": JSON})
    refused(answer)
    refused(post(client, "/classify", f'{{"inputs": "{image}", "parameters": {{"candidate_labels": ["a", {bad}]}}}}'))
    refused(post(client, f"{ONE}/corrections", f'{{"id": 0, "label": {bad}}}'))
    with pytest.raises(InputError, match=r"has (half a character|the control character)"):
        clean_labels(["dog", text])
    if text in ("cat\ud800", "c\0t"):
        for templates in (f"{text} {{}}", ["{}", f"{{}} {text}"], {"cat": [text], "dog": ["x"]}):
            refused(post(client, "/v1/streams", json.dumps(SETUP | {"templates": templates})))
    query = f"candidate_labels=a&candidate_labels={quote(text, errors='surrogatepass')}"
    refused(post(client, f"/classify?{query}", pictures[0], "image/png"))
    if "\n" not in text and "\u2028" not in text:  # a template may have several lines
        query = f"candidate_labels=a&candidate_labels=b&hypothesis_template={{}}{quote(text, errors='surrogatepass')}"
        refused(post(client, f"/classify?{query}", pictures[0], "image/png"))


def test_a_query_is_utf8(client, pictures):
    for wrong in ("%ed%a0%80", "%ff", "%c3", "%c0%80"):
        for path in (f"/classify?candidate_labels=a&candidate_labels={wrong}", f"{ONE}/classify?{wrong}=1"):
            assert "not UTF-8" in refused(post(client, path, pictures[0], "image/png"))
    right = "/classify?candidate_labels=%C3%A9+1&candidate_labels=%25ff"
    assert {each["label"] for each in post(client, right, pictures[0], "image/png").json()} == {"é 1", "%ff"}


def test_a_query_has_few_parameters(client, pictures):
    path = f"/classify?{'candidate_labels=a&' * 3000}"
    refused(post(client, path, pictures[0], "image/png"))
    refused(post(client, f"/classify?{'a&' * 30_000}", pictures[0], "image/png"))


def test_one_client_leaves_memory_for_the_next(serve, tmp_path):
    (tmp_path / "tokens").write_text("".join(f"{name} {name * 20} *=manage\n" for name in ("a", "b")))
    with serve(tokens=TokenFile(tmp_path / "tokens"), body_bytes=100_000) as client, ExitStack() as lines:

        def begin(name):
            line = HTTPConnection(client.base_url.host, client.base_url.port, timeout=180)
            lines.callback(line.close)
            line.putrequest("PUT", f"{ONE}/state")
            for header, value in (("Authorization", f"Bearer {name * 20}"), ("Content-Length", "100000")):
                line.putheader(header, value)
            line.endheaders(b"x" * 99_999)
            return line

        for _ in range(2):
            begin("a")
        third = begin("a")
        assert third.getresponse().status == 429
        last = begin("b")
        last.send(b"x")
        assert last.getresponse().status == 422  # it was read, and is not a state


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (PART + b"\r\n1\r\n--x--", "multipart/form-data", "boundary"),
        (PART + b"\r\n1\r\n--x--", "multipart/form-data; xboundary=x", "boundary"),
        (PART + b"\r\n1\r\n--x--", f"multipart/form-data; boundary={'x' * 10_000}", "cannot be read"),
        (b"a preamble" + PART, FORM, "cannot be read"),
        (PART + b"\r\n1\r\n", FORM, "does not end with its boundary"),
        (PART + b"\r\n1\r\n" + PART + b"\r\n2\r\n--x-", FORM, "does not end with its boundary"),
        ((PART + b"\r\n\r\n") * 65 + b"--x--", FORM, "Too many files"),
        (b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\n1\r\n--x--', FORM, "Too many fields"),
        (b"--x\r\n\r\n1\r\n--x--", FORM, "cannot be read"),
        (PART + b"A: b\r\n" * 100 + b"\r\n1\r\n--x--", FORM, "cannot be read"),
    ],
    ids=range(10),
)
def test_forms_that_cannot_be_read(client, body, kind, message):
    assert message in refused(post(client, f"{ONE}/classify", body, kind), 400)


def test_no_part_of_a_form_is_written_to_disk(client, pictures, monkeypatch):
    """Temporary files would be on a disk that may be full, and stay there after a kill."""
    monkeypatch.setattr(tempfile, "TemporaryFile", None)
    body = PART + b"\r\n" + pictures[0] + bytes(20 * MB) + b"\r\n--x--"
    assert post(client, f"{ONE}/classify", body, FORM).status_code == 200


def test_a_corrected_image_can_be_corrected_again_at_the_limit(serve, pictures):
    with serve(corrections=1) as client:
        for label in ("red circle", "green square"):
            body = {"image": b64encode(pictures[0]).decode(), "label": label}
            assert client.post(f"{ONE}/corrections", json=body).status_code == 200
        body["image"] = b64encode(pictures[1]).decode()
        assert "the maximum of 1 corrections" in refused(client.post(f"{ONE}/corrections", json=body))


def test_limits_that_no_request_could_reach():
    with pytest.raises(ValidationError, match=r"labels\n.*less than or equal"):
        Limits(labels=schemas.MAX_LABELS + 1)
