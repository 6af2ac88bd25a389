"""Operation of the service: probes, messages, the log at the start, tokens that change while it runs."""

import json
import signal

import pytest
from PIL import Image

from acclimate.encoders import load_encoder
from acclimate.errors import BusyError, InputError
from acclimate.predict import NONE
from acclimate.serve.client import Client, ServiceError
from drawn_images import draw, encoded
from service_process import service
from waiting import wait_until

ONE = "/v1/streams/one"
JSON = {"Content-Type": "application/json"}
OLD = "old-token-0123456789"
NEW = "new-token-0123456789"


def test_head_is_answered_where_get_is(client):
    paths = ["/", "/docs", "/openapi.json", "/health/live", "/health/ready", "/metrics", "/page/style.css"]
    paths += ["/v1/streams", ONE, f"{ONE}/snapshots", f"{ONE}/state", f"{ONE}/caches", f"{ONE}/corrections"]
    for path in paths:
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b""), path
        assert answer.headers["content-type"] == client.get(path).headers["content-type"]
    assert client.head("/nowhere").status_code == 404
    assert client.head(f"{ONE}/reset").status_code == 405


def test_an_image_as_the_whole_body(client, pictures):
    for kind in ("image/png", "image/jpeg", "application/octet-stream", "IMAGE/PNG; x=y"):
        headers = {"Content-Type": kind}
        answer = client.post(f"{ONE}/classify?adapt=false&top_k=2", content=pictures[0], headers=headers)
        form = client.post(f"{ONE}/classify?adapt=false&top_k=2", files={"image": pictures[0]})
        assert answer.json() == form.json()
        assert "image 0 cannot be read" in client.post(f"{ONE}/classify", content=b"x", headers=headers).text
        path = "/classify?candidate_labels=cat&candidate_labels=dog&hypothesis_template=a {}"
        assert len(client.post(path, content=pictures[0], headers=headers).json()) == 2
        missing = client.post("/classify", content=pictures[0], headers=headers)
        assert "candidate_labels=cat" in missing.json()["error"]["message"]


def test_messages_say_what_to_do(client):
    for method, path, options, status, message in (
        ("GET", "/nowhere", {}, 404, "there is no GET '/nowhere'; /docs lists all routes."),
        ("PUT", "/v1/streams", {}, 405, "there is no PUT '/v1/streams'; /docs lists all routes."),
        ("POST", "/v1/streams", {"content": b"{", "headers": JSON}, 422, "the body is not valid JSON: "),
        ("POST", f"{ONE}/classify", {"content": b"[", "headers": JSON}, 422, "JSON"),
        ("GET", "/v1/streams/Pets", {}, 422, "Use small letters, digits, . _ -; for instance pets-2024."),
        ("POST", "/v1/streams", {"json": {"name": "A B", "labels": ["a", "b"]}}, 422, "for instance pets-2024."),
        ("POST", "/v1/streams", {"json": {"name": "a", "labels": ["a", "b"], "thumbnail": True}}, 422, "'thumbnails'?"),
        ("POST", f"{ONE}/classify?topk=1", {}, 422, "unknown query parameter 'topk'; did you mean 'top_k'?"),
        ("GET", f"{ONE}?verbose=1", {}, 422, "unknown query parameter 'verbose'; there are: none."),
        ("GET", f"{ONE}/caches?thumbnail=1", {}, 422, "did you mean 'thumbnails'?"),
        ("GET", f"{ONE}/corrections?x=1", {}, 422, "unknown query parameter 'x'"),
        ("GET", "/metrics?x=1", {}, 422, "unknown query parameter 'x'"),
    ):
        answer = client.request(method, path, **options)
        assert answer.status_code == status
        assert message in answer.json()["error"]["message"]


def test_probes_may_have_parameters(client):
    assert client.get("/health/live?now=1").status_code == 200


def test_frames_that_are_nearly_the_same_are_answered_and_not_learnt_again(client, pictures):
    remote = Client(str(client.base_url))
    remote.create("camera", ["cat", "dog"])
    first, *others = [remote.classify("camera", pictures[0])[0] for _ in range(4)]
    assert first["id"] == 0
    assert {each["refused"] for each in others} == {"nearly the same as an image before it"}
    assert remote.describe("camera")["samples_seen"] == 1
    assert "acclimate_near_duplicates_total 3.0" in remote.metrics()
    assert "acclimate_refusals_total 0.0" in remote.metrics()
    remote.reset("camera")
    assert remote.classify("camera", pictures[0])[0]["id"] == 0  # it has forgotten that, too
    mixed = remote.classify("one", pictures[0], pictures[0])
    assert [each["id"] for each in mixed] == [0, 1]  # a stream that learns everything


def test_a_request_of_which_some_images_are_learnt_is_replayed_to_the_bit(start, after_a_kill, images):
    stream = start().create("shop", ["cat", "dog", "fox"])
    answers = stream.classify([images[0], images[0], *images[1:9], images[0]])
    assert answers[1].id is None
    assert [each.id for each in answers if each.id is not None] == list(range(stream.describe()["samples_seen"]))
    copy = after_a_kill().get("shop")
    assert (copy.state_bytes(), copy.caches()) == (stream.state_bytes(), stream.caches())
    assert copy.classify(images[:9]) == stream.classify(images[:9])  # it remembers as well
    learnt = [each.id for each in answers if each.id is not None]
    assert [stream.correct("dog", each) for each in learnt] == learnt


def test_nothing_is_encoded_for_a_request_that_is_refused(start, after_a_kill, images, encoder, monkeypatch):
    start().create("shop", ["cat", "dog"], reject=True)
    streams = after_a_kill()
    encode = encoder.encode_images
    encoded = []
    monkeypatch.setattr(encoder, "encode_images", lambda inputs: encoded.append(len(inputs)) or encode(inputs))
    streams.texts.pool.stop()  # nothing more is encoded, and the words for "none of these" are not there yet
    with pytest.raises(BusyError):
        streams.get("shop").classify(images[:3])
    streams.batcher.close()  # returns when all images are encoded
    assert encoded == []


def test_images_that_belong_to_no_label_are_recognised(start):
    """By the bundled model: a black square shows neither of these, and a green square is one."""
    streams = start(model=load_encoder("bundled"))
    stream = streams.create("strict", ["red circle", "green square", "blue stripes"], reject=True)
    black = encoded(Image.new("RGB", (64, 64)))
    green = encoded(draw("green", 1))
    foreign, known = stream.classify([black, green], top_k=4)
    assert (foreign.label, foreign.id, foreign.refused) == (NONE, None, "belongs to no label")
    assert foreign.none == foreign.score > 0.5 > known.none
    assert sum(each.score for each in foreign.top) == pytest.approx(1)
    assert (known.label, known.id) == ("green square", 0)
    assert b"acclimate_foreign_images_total 1.0" in streams.metrics_text()
    assert b"acclimate_refusals_total 0.0" in streams.metrics_text()
    for change in (
        lambda: stream.change_labels(add=["None of these"]),
        lambda: streams.create("none", ["cat", "None of these"], reject=True),
    ):
        with pytest.raises(InputError, match="'None of these' is the answer for images that belong to no label"):
            change()
    stream.change_labels(add=["black square"])
    stream.correct("black square", image=black)
    (told,) = stream.classify([black], adapt=False)
    assert (told.label, told.none) == ("black square", 0.0)
    stream.set_frozen(True)
    assert stream.classify([encoded(draw("red", 2))])[0].none is not None


def logged(data, message):
    """Return the first line of the log with this message."""

    def found():
        lines = data.with_suffix(".log").read_text().splitlines(keepends=True)
        entries = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return [entry for entry in entries if entry["message"] == message]

    return wait_until(found)[0]


def test_the_log_says_what_the_service_starts_with(tiny_onnx, pictures, tmp_path):
    data = tmp_path / "state"
    with service(tiny_onnx, data, "--labels", "cat,dog") as (_, address):
        Client(address).classify("shop", *pictures[:5])
    data.with_suffix(".log").write_text("")
    with service(tiny_onnx, data, "--labels", "cat,dog,fox"):
        started = logged(data, "started")
        assert (started["streams"], started["model"]) == (1, f"onnx:{tiny_onnx}")
        warning = logged(data, "streams keep labels that differ from --labels")
        assert (warning["level"], warning["streams"], warning["names"]) == ("warning", 1, ["shop"])


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP here")
def test_tokens_are_read_again_on_sighup(tiny_onnx, tmp_path):
    data = tmp_path / "state"
    tokens = tmp_path / "tokens"
    tokens.write_text(f"keeper {OLD} *=manage\n")
    with service(tiny_onnx, data, "--token-file", str(tokens)) as (process, address):
        old = Client(address, OLD)
        new = Client(address, NEW)
        assert old.streams() == []
        tokens.write_text("keeper short *=manage\n")
        process.send_signal(signal.SIGHUP)
        assert "too short to be safe" in logged(data, "token file not reloaded")["reason"]
        assert old.streams() == []  # a broken file changes nothing
        tokens.write_text(f"guard {NEW} *=manage\n")
        process.send_signal(signal.SIGHUP)
        assert logged(data, "token file reloaded")["tokens"] == 1
        assert new.streams() == []
        with pytest.raises(ServiceError) as caught:
            old.streams()
        assert caught.value.status == 401
    audit = [json.loads(line) for line in (data / "audit" / "SIGHUP.jsonl").read_text().splitlines()]
    assert [(each["action"], each["outcome"]) for each in audit] == [
        ("reload_tokens", "invalid"),
        ("reload_tokens", "done"),
    ]
    assert OLD not in data.with_suffix(".log").read_text()
