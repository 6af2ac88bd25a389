"""The Python client, against a real service."""

import re
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Thread

import pytest
from PIL import Image

from acclimate import Classifier, load_state
from acclimate.client import Client, ServiceError
from acclimate.serve.security import TokenFile
from drawn_images import draw

LABELS = ["red circle", "green square", "blue stripes"]
KEEPER = "keeper-token-0123456789"


@pytest.fixture
def remote(client):
    return Client(str(client.base_url))


def test_a_streams_life(remote, pictures, tmp_path):
    assert remote.ready()
    made = remote.create("new", LABELS, templates=["a {}", "the {}"], skip_duplicates=False, unsure=1.0)
    assert (made["labels"], made["unsure"]) == (LABELS, 1.0)
    assert [each["name"] for each in remote.streams()] == ["new", "one", "two"]
    path = tmp_path / 'a "cat".png'
    path.write_bytes(pictures[0])
    results = remote.classify("new", path, pictures[1], draw("blue", 2), top_k=2)
    assert [each["id"] for each in results] == [0, 1, 2]
    assert all(each["unsure"] and len(each["predictions"]) == 2 for each in results)
    assert remote.classify("new", str(path), adapt=False, unsure=0.0)[0]["unsure"] is False
    assert remote.change_labels("new", add=["yellow dots"])["labels"] == [*LABELS, "yellow dots"]
    snapshot = remote.snapshot("new")
    assert remote.freeze("new")["frozen"] is True
    assert remote.freeze("new", frozen=False)["frozen"] is False
    assert {each["cache"] for each in remote.caches("new", thumbnails=True)} <= {"positive", "negative"}
    assert remote.learnt("new")["labels"] == [*LABELS, "yellow dots"]
    (tmp_path / "state").write_bytes(remote.state("new"))
    assert load_state(tmp_path / "state").samples_seen == 3
    assert remote.reset("new")["samples_seen"] == 0
    assert remote.upload_state("new", tmp_path / "state")["samples_seen"] == 3
    assert remote.snapshots("new")[0]["reason"] == "uploaded"
    assert remote.rollback("new", snapshot) == snapshot
    assert "acclimate_images_total" in remote.metrics()
    remote.delete("new")
    with pytest.raises(ServiceError) as caught:
        remote.describe("new")
    assert (caught.value.status, caught.value.code) == (404, "not_found")
    assert caught.value.message == "there is no stream 'new'; create it first."
    assert re.fullmatch("[0-9a-f]{32}", caught.value.request_id)


def test_zero_shot(remote, encoder, pictures):
    mine = Classifier(LABELS, encoder, method="zero-shot", templates="a {}")(pictures[0])
    theirs = remote.zero_shot(pictures[0], LABELS, "a {}")
    assert [each["label"] for each in theirs] == [each["label"] for each in mine]


def test_every_kind_of_image(remote, pictures):
    for image in (pictures[0], bytearray(pictures[0]), Image.new("RGBA", (9, 9)), Image.new("1", (9, 9))):
        assert remote.classify("one", image, adapt=False)[0]["predictions"]
    with pytest.raises(TypeError, match="a path, encoded bytes or a Pillow image, got int"):
        remote.classify("one", 7)
    with pytest.raises(FileNotFoundError):
        remote.classify("one", "nowhere.png")


def test_the_file_that_cannot_be_read_is_named(remote, pictures, tmp_path):
    (tmp_path / "notes.jpg").write_text("no image")
    with pytest.raises(ServiceError, match=r"image 1 \(notes.jpg\) cannot be read"):
        remote.classify("one", pictures[0], tmp_path / "notes.jpg")


def test_a_token_is_sent(serve, tmp_path):
    (tmp_path / "tokens").write_text(f"keeper {KEEPER} *=manage\n")
    with serve(tokens=TokenFile(tmp_path / "tokens")) as client:
        assert Client(str(client.base_url), KEEPER).describe("one")["name"] == "one"
        with pytest.raises(ServiceError) as caught:
            Client(str(client.base_url)).streams()
        assert caught.value.code == "unauthorized"


def test_a_busy_service_is_asked_again(serve, encoder, pictures, monkeypatch):
    """While the encoder is stuck the queue is full; the client waits as long as it is told to."""
    begun, go_on, encode = Event(), Event(), encoder.encode_images
    monkeypatch.setattr(encoder, "encode_images", lambda images: begun.set() or (go_on.wait() and encode(images)))
    with serve(queue=2, images=2, batch=1) as client:
        blocking = [Thread(target=Client(str(client.base_url)).classify, args=("two", pictures[i])) for i in range(3)]
        for thread in blocking:
            thread.start()
        begun.wait(60)
        while client.streams.batcher.waiting < 2:
            pass
        remote = Client(str(client.base_url), retries=0)
        assert remote.ready() is False
        with pytest.raises(ServiceError, match="try again in a moment") as caught:
            remote.classify("one", pictures[0])
        assert (caught.value.status, caught.value.code) == (429, "busy")
        answers = []
        patient = Client(str(client.base_url), retries=30)
        waiting = Thread(target=lambda: answers.append(patient.classify("one", pictures[0])))
        waiting.start()
        go_on.set()
        for thread in (waiting, *blocking):
            thread.join(60)
        assert answers[0][0]["id"] == 0


def test_what_may_have_been_done_is_not_sent_twice(monkeypatch):
    """A connection that breaks after the request was sent: only what changes nothing is sent again."""
    client, sent = Client("http://localhost:1", retries=2), []

    def fail(request, timeout):
        sent.append(request.get_method())
        raise ConnectionResetError("gone")

    monkeypatch.setattr(client._opener, "open", fail)
    monkeypatch.setattr("acclimate.client.time.sleep", lambda seconds: None)
    for call, times in (
        (lambda: client.classify("one", b"x"), 1),
        (lambda: client.reset("one"), 1),
        (lambda: client.classify("one", b"x", adapt=False), 3),
        (lambda: client.describe("one"), 3),
        (lambda: client.correct("one", 1, "cat"), 3),
    ):
        sent.clear()
        with pytest.raises(ServiceError) as caught:
            call()
        assert (len(sent), caught.value.code) == (times, "unreachable")


@contextmanager
def replying(status, headers, seen):
    """The address of a server that replies to every request in the same way, and keeps their headers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(dict(self.headers))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("asked", ["Wed, 21 Oct 2026 07:28:00 GMT", "-3", "nan", "2"])
def test_any_time_to_wait_is_understood(monkeypatch, asked):
    waited, seen = [], []
    monkeypatch.setattr("acclimate.client.time.sleep", waited.append)
    with replying(503, {"Retry-After": asked}, seen) as url, pytest.raises(ServiceError, match="503"):
        Client(url, retries=2).streams()
    assert (len(seen), waited) == (3, [2, 2] if asked == "2" else [0.5, 1.0])


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_token_stays_with_its_service(status):
    theirs, ours = [], []
    with replying(200, {}, theirs) as elsewhere:
        for target in (f"{elsewhere}/v1/streams", "ftp://127.0.0.1/streams", "file:///etc/passwd"):
            with replying(status, {"Location": target}, ours) as url, pytest.raises(ServiceError) as caught:
                Client(url, KEEPER, retries=0).streams()
            assert (caught.value.status, caught.value.code) == (status, "unexpected")
    assert (len(ours), theirs) == (3, [])
    with replying(status, {"Location": "/v1/streams"}, ours) as url, pytest.raises(ServiceError):
        Client(url, KEEPER, retries=0).streams()  # again and again, but at the same address
    assert all(each["Authorization"] == f"Bearer {KEEPER}" for each in ours)
    assert len(ours) > 4


def test_it_needs_the_standard_library_only():
    code = "import sys, acclimate.client; print([m for m in ('numpy', 'fastapi', 'PIL', 'httpx') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_something_else_at_the_address_is_said(client):
    with pytest.raises(ServiceError, match="does not answer as acclimate does"):
        Client(f"{client.base_url}/docs#").streams()
