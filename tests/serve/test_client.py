"""The Python client, against a real service."""

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import chain, repeat
from threading import Event, Thread

import numpy as np
import pytest
from PIL import Image

from acclimate import Classifier, load_state
from acclimate.reading.batcher import TOTAL_QUEUE_FACTOR
from acclimate.serve.client import Client, ServiceError
from acclimate.serve.security import TokenFile
from drawn_images import draw

LABELS = ["red circle", "green square", "blue stripes"]
KEEPER = "keeper-token-0123456789"


@pytest.fixture
def remote(client):
    return Client(str(client.base_url))


def test_create_classify_manage_and_delete_a_stream(remote, pictures, tmp_path):
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


@pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="needs file names that are not UTF-8")
def test_a_file_name_need_not_be_text(remote, pictures, tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.png")
    path.write_bytes(pictures[0])
    assert remote.classify("one", path, adapt=False)[0]["predictions"]


def test_a_token_is_sent(serve, tmp_path):
    (tmp_path / "tokens").write_text(f"keeper {KEEPER} *=manage\n")
    with serve(tokens=TokenFile(tmp_path / "tokens")) as client:
        assert Client(str(client.base_url), KEEPER).describe("one")["name"] == "one"
        with pytest.raises(ServiceError) as caught:
            Client(str(client.base_url)).streams()
        assert caught.value.code == "unauthorized"


def test_a_busy_service_is_asked_again(serve, encoder, pictures, monkeypatch):
    """While the encoder is stuck the queue is full; the client waits as long as it is told to."""
    begun = Event()
    go_on = Event()
    encode = encoder.encode_images
    monkeypatch.setattr(encoder, "encode_images", lambda images: begun.set() or (go_on.wait() and encode(images)))
    with serve(queue=2, images=2, batch=1, timeout_s=300) as client, ExitStack() as finally_:
        finally_.callback(go_on.set)
        first = client.streams.batcher.submit(pictures[:1], client="another")
        assert begun.wait(180)
        whose = ["127.0.0.1", *(f"another {i}" for i in range(TOTAL_QUEUE_FACTOR))]
        others = [client.streams.batcher.submit(pictures[:2], client=name) for name in whose]
        remote = Client(str(client.base_url), retries=0)
        assert remote.ready() is False
        with pytest.raises(ServiceError, match="try again") as caught:
            remote.classify("one", pictures[0])
        assert (caught.value.status, caught.value.code) == (429, "busy")
        answers = []
        patient = Client(str(client.base_url), retries=30)
        waiting = Thread(target=lambda: answers.append(patient.classify("one", pictures[0])), daemon=True)
        waiting.start()
        go_on.set()
        for future in (first, *others):
            future.result(180)
        waiting.join(180)
        assert answers[0][0]["id"] == 0


def test_requests_that_may_have_been_carried_out_are_not_repeated(monkeypatch):
    """A connection that breaks after the request was sent: only what changes nothing is sent again."""
    monkeypatch.setattr("acclimate.serve.client.time.sleep", lambda seconds: None)
    for call, times in (
        (lambda client: client.classify("one", b"x"), 1),
        (lambda client: client.reset("one"), 1),
        (lambda client: client.classify("one", b"x", adapt=False), 3),
        (lambda client: client.describe("one"), 3),
        (lambda client: client.correct("one", 1, "cat"), 3),
    ):
        seen = []
        with sending(b"", seen=seen) as url, pytest.raises(ServiceError) as caught:
            call(Client(url, retries=2))
        assert (len(seen), caught.value.code) == (times, "unreachable")


def test_requests_that_cannot_be_delivered_are_repeated(monkeypatch):
    waited = []
    monkeypatch.setattr("acclimate.serve.client.time.sleep", waited.append)
    with pytest.raises(ServiceError, match="cannot be reached"):
        Client("http://127.0.0.1:1", retries=2).classify("one", b"x")
    assert waited == [0.5, 1.0]


@contextmanager
def replying(status, headers, seen):
    """Run a server that replies to every request in the same way and keeps their headers; yield its address."""

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
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(180)


@pytest.mark.parametrize("asked", ["Wed, 21 Oct 2026 07:28:00 GMT", "-3", "nan", "2"])
def test_any_time_to_wait_is_understood(monkeypatch, asked):
    waited = []
    seen = []
    monkeypatch.setattr("acclimate.serve.client.time.sleep", waited.append)
    with replying(503, {"Retry-After": asked}, seen) as url, pytest.raises(ServiceError, match="503"):
        Client(url, retries=2).streams()
    assert (len(seen), waited) == (3, [2, 2] if asked == "2" else [0.5, 1.0])


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_token_stays_with_its_service(status):
    theirs = []
    ours = []
    with replying(200, {}, theirs) as elsewhere:
        targets = (
            f"{elsewhere}/v1/streams",
            "ftp://127.0.0.1/streams",
            "/v1/streams",
        )
        for target in targets:
            with replying(status, {"Location": target}, ours) as url, pytest.raises(ServiceError) as caught:
                Client(url, KEEPER).streams()
            assert (caught.value.status, caught.value.code) == (status, "unexpected")
            assert target in caught.value.message
    assert (len(ours), theirs) == (3, [])  # none is followed, and none is asked again


@contextmanager
def sending(*pieces, pause=0.0, seen=None):
    """Run a server that sends these bytes to every client, the last without end if slow; yield its address."""
    ended = Event()

    def serve(listening):
        while not ended.is_set():
            with suppress(OSError), listening.accept()[0] as line:
                line.settimeout(180)
                request = line.recv(2**16)
                if seen is not None:
                    seen.append(request)
                for piece in pieces if not pause else chain(pieces, repeat(pieces[-1])):
                    line.sendall(piece)
                    if ended.wait(pause):
                        break

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.02)
        thread = Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            thread.join(180)


def ok(body, *headers):
    return "\r\n".join(["HTTP/1.1 200 OK", *headers, "", ""]).encode() + body


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 500 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 10**6 + b"\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[x/\r\n\r\n",
        b"HTTP/1.1 400 Bad\r\nContent-Length: 10\r\n\r\n{",
        b"HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\nzz",
        b'HTTP/1.1 500 Bad\r\n\r\n{"error": 7}',
        b'HTTP/1.1 500 Bad\r\n\r\n{"error": {"code": 1, "message": [], "request_id": null}}',
        b"HTTP/1.1 500 Bad\r\n\r\n" + b"[" * 100_000,
        ok(b"{}", "Content-Length: 100"),
        ok(b"5\r\n{}", "Transfer-Encoding: chunked"),
        ok(b""),
        ok(b"\xff\xfe"),
        ok(b"null"),
        ok(b"7"),
        ok(b"[]"),
        ok(b"{}"),
        ok(b'{"streams": 7, "results": {}, "id": "7", "snapshot": null, "entries": [7], "ready": "yes"}'),
        ok(b"[" * 100_000),
        ok(b"1" * 100_000),
    ],
    ids=lambda answer: repr(answer[-40:]),
)
def test_any_answer_is_understood_or_an_error(answer):
    """A dict is passed on as it is; any other answer is a ServiceError."""
    with sending(answer) as url:
        client = Client(url, retries=0, timeout=180)
        calls = [
            client.ready,
            client.streams,
            lambda: client.classify("one", b"x"),
            lambda: client.correct("one", 1, "cat"),
            lambda: client.rollback("one"),
            lambda: client.caches("one"),
        ]
        for call in calls:
            with pytest.raises(ServiceError) as caught:
                call()
            assert len(str(caught.value)) < 3000
        for call in (client.metrics, lambda: client.state("one"), lambda: client.describe("one")):
            with suppress(ServiceError):
                call()


def test_a_state_that_is_cut_off_is_an_error():
    with sending(ok(b"half", "Content-Length: 8")) as url, pytest.raises(ServiceError):
        Client(url, retries=0).state("one")


def test_answers_are_bounded(monkeypatch):
    monkeypatch.setattr("acclimate.serve.client.MAX_STATE_BYTES", 1000)
    with sending(ok(b"x" * 2000)) as url, pytest.raises(ServiceError, match="more than 1000 bytes"):
        Client(url, retries=0).state("one")


@pytest.mark.parametrize(
    ("begin", "pause"),
    [
        (b"H", 60),
        (b"HTTP/1.1 200 OK\r\nA: b", 60),
        (b"HTTP/1.1 100 Continue\r\n\r\n", 60),
        (ok(b" "), 60),
        (ok(b" "), 0.05),
    ],
)
def test_a_call_ends_in_time(begin, pause):
    """If the answer stops anywhere or its body drips, however often it would be asked again."""
    with sending(begin, begin[-1:], pause=pause) as url:
        began = time.monotonic()
        with pytest.raises(ServiceError) as caught:
            Client(url, retries=100, timeout=1).streams()
        assert time.monotonic() - began < 50
        assert caught.value.code == "unreachable"


def test_an_upload_ends_in_time():
    """To a server that does not read it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        began = time.monotonic()
        with pytest.raises(ServiceError, match="timed out"):
            Client(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=1).classify("one", b"x" * 30_000_000)
        assert time.monotonic() - began < 50


def test_connecting_ends_in_time():
    """To an address whose queue of connections is full: it does not answer at all."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        with ExitStack() as lines:
            for _ in range(3):
                line = lines.enter_context(socket.socket())
                line.setblocking(False)
                line.connect_ex(listening.getsockname())
            began = time.monotonic()
            with pytest.raises(ServiceError, match="timed out"):
                Client(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=1).streams()
            assert time.monotonic() - began < 50


def test_a_too_large_upload_is_reported(client):
    remote = Client(str(client.base_url), retries=0)
    for call in (
        lambda: remote.classify("one", b"x" * 40_000_000),
        lambda: remote.upload_state("one", b"x" * 40_000_000),
        lambda: remote.create("new", ["x" * 100] * 100_000),
    ):
        with pytest.raises(ServiceError) as caught:
            call()
        assert (caught.value.status, caught.value.code) == (413, "too_large")


def test_numbers_of_numpy(remote, pictures):
    (result,) = remote.classify("one", pictures[0])
    assert remote.correct("one", np.int64(result["id"]), LABELS[0]) == result["id"]
    remote.undo("one", np.int32(result["id"]))
    assert remote.rollback("one", np.int64(remote.snapshot("one"))) > 0
    assert remote.create("new", LABELS, unsure=np.float32(0.5))["unsure"] == 0.5


def test_it_needs_httpx_only():
    heavy = "('numpy', 'fastapi', 'PIL', 'pydantic')"
    code = f"import sys, acclimate.serve.client; print([m for m in {heavy} if m in sys.modules])"
    assert run_python(code).stdout == "[]\n"


def test_without_httpx_it_says_what_to_install():
    missing = run_python("import sys; sys.modules['httpx'] = None; import acclimate.serve.client")
    assert missing.stderr.splitlines()[-1].endswith('[client]".')


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)


def test_another_server_at_the_address_is_reported(client):
    with pytest.raises(ServiceError, match="does not answer as acclimate does"):
        Client(f"{client.base_url}/docs#").streams()
