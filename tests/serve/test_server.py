"""The HTTP server, over raw sockets: smuggled requests, too many requests, slow and vanished clients, signals."""

import json
import re
import signal
import socket
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

import httpx
import pytest

from acclimate.serve.security import TokenFile
from service_process import connected, service
from waiting import wait_until

ONE = "/v1/streams/one"
GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def address(client):
    return client.base_url.host, client.base_url.port


def connect(client, content=b""):
    line = socket.create_connection(address(client), 180)
    line.sendall(content)
    return line


def everything(line):
    """Return what a connection sends until it is closed."""
    got = b""
    with suppress(ConnectionError):
        while part := line.recv(2**16):
            got += part
    return got


CHUNKED = b"5\r\nhello\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked", CHUNKED),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 5", CHUNKED),
        (b"Transfer-Encoding:\tchunked\r\nContent-Length: 20", CHUNKED),
        (b"content-length: 0\r\nTRANSFER-ENCODING: Chunked", CHUNKED),
        (b"Content-Length: 5\r\nContent-Length: 6", b"hello"),
        (b"Content-Length: 5, 6", b"hello"),
        (b"Content-Length: +5", b"hello"),
        (b"Content-Length : 5", b"hello"),
        (b"Transfer-Encoding: xchunked\r\nContent-Length: 5", b"hello"),
        (b"Transfer-Encoding: chunked, identity", CHUNKED),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", CHUNKED),
    ],
    ids=lambda value: value.decode().replace("\r\n", " | ")[:60],
)
def test_smuggled_requests_are_refused_and_nothing_after_them_is_answered(client, headers, body):
    """A proxy in front may see another end of the request than the service, and take the rest for its own."""
    head = b"POST /v1/streams HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + headers
    with connect(client, head + b"\r\n\r\n" + body + GET * 3) as line:
        got = everything(line)
    assert re.match(rb"HTTP/1\.1 (400|501) ", got)
    assert got.count(b"HTTP/1.1 ") == 1
    assert b"live" not in got


def test_a_large_header_is_refused(client):
    with connect(client) as line:
        with suppress(ConnectionError):
            for _ in range(1000):
                line.sendall(b"A" * 1000)
        assert everything(line).count(b"HTTP/1.1 400") <= 1
    assert client.get("/health/live").status_code == 200


def test_requests_on_one_connection_are_answered_in_order(client):
    with connect(client, GET * 20 + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")) as line:
        assert everything(line).count(b'{"live":true}') == 21


def test_answers_are_sent_at_once(client):
    """Without waiting until the client has acknowledged the first packet of an answer."""
    assert client.get("/health/live").status_code == 200
    (connection,) = client.server.server_state.connections
    sending = connection.transport.get_extra_info("socket")
    assert sending.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_idle_connection_is_closed(serve):
    with serve(keep_alive_s=1) as client, connect(client, GET) as line:
        assert everything(line).endswith(b'{"live":true}')


@contextmanager
def stuck(client, count, headers=""):
    """Send requests that wait for the rest of their body."""
    with ExitStack() as lines:
        head = f"PUT {ONE}/state HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n{headers}\r\n"
        yield [lines.enter_context(connect(client, head.encode())) for _ in range(count)]


def test_requests_at_a_time_are_bounded(serve, tmp_path):
    (tmp_path / "tokens").write_text("".join(f"{name} {name * 20} *=manage\n" for name in "ab"))
    mine, theirs = ({"Authorization": f"Bearer {name * 20}"} for name in "ab")
    with serve(tokens=TokenFile(tmp_path / "tokens"), requests=20) as client:
        with stuck(client, 10, f"Authorization: Bearer {'a' * 20}\r\n"):
            wait_until(lambda: client.gate.running["a"] == 10)
            refused = client.get("/v1/streams", headers=mine)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert "too many requests" in refused.json()["error"]["message"]
            assert client.get("/v1/streams", headers=theirs).status_code == 200
            assert client.get("/health/live").status_code == client.get("/health/ready").status_code == 200
        wait_until(lambda: not client.gate.running)
        assert client.get("/v1/streams", headers=mine).status_code == 200


def test_strangers_leave_room_for_tokens(serve, tmp_path):
    (tmp_path / "tokens").write_text(f"a {'a' * 20} *=manage\n")
    with serve(tokens=TokenFile(tmp_path / "tokens"), requests=20) as client:
        client.gate.running[""] = 10
        assert client.get("/docs").status_code == 429
        assert client.get("/v1/streams", headers={"Authorization": f"Bearer {'a' * 20}"}).status_code == 200


def test_slow_bodies_and_late_answers(serve, encoder, pictures, monkeypatch):
    go_on = Event()
    encode = encoder.encode_images
    monkeypatch.setattr(encoder, "encode_images", lambda images: go_on.wait() and encode(images))
    with serve() as client, ExitStack() as finally_:
        finally_.callback(go_on.set)
        with client.time_limit(1):
            with stuck(client, 1) as (line,):
                assert everything(line).startswith(b"HTTP/1.1 408")
            late = client.post(f"{ONE}/classify", files={"image": pictures[0]})
        assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
        assert "it may still be carried out" in late.json()["error"]["message"]
        wait_until(lambda: not client.gate.running and not client.gate.held)
        go_on.set()
        assert client.post(f"{ONE}/classify", files={"image": pictures[0]}).json()["results"][0]["id"] == 0


def test_the_work_of_a_client_that_has_gone_is_not_done(serve, encoder, pictures, monkeypatch):
    go_on = Event()
    encode = encoder.encode_images
    monkeypatch.setattr(encoder, "encode_images", lambda images: go_on.wait() and encode(images))
    head = f"POST {ONE}/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    request = f"{head}Content-Length: {len(pictures[0])}\r\n\r\n".encode() + pictures[0]
    with serve(batch=1) as client, ExitStack() as finally_:
        finally_.callback(go_on.set)
        for _ in range(5):
            connect(client, request).close()
        ended = 'acclimate_request_duration_seconds_count{method="POST",route=.*,status="499"} 5.0'
        wait_until(lambda: re.search(ended, client.get("/metrics").text))
        go_on.set()
        assert client.post(f"{ONE}/classify", files={"image": pictures[1]}).json()["results"][0]["id"] == 0
        assert client.get(ONE).json()["samples_seen"] == 1


def test_a_deed_of_a_client_that_has_gone_is_in_the_audit_log(serve, pictures):
    """Disconnecting must not hide what was done."""
    with serve() as client:
        for _ in range(3):
            head = f"POST {ONE}/freeze HTTP/1.1\r\nHost: localhost\r\n\r\n"
            connect(client, head.encode()).close()
        path = client.folder / "audit" / "service.jsonl"
        wait_until(lambda: path.exists() and len(path.read_text().splitlines()) == 3)
        outcomes = {json.loads(line)["outcome"] for line in path.read_text().splitlines()}
        assert outcomes <= {"done", "disconnected"}


@contextmanager
def sending_tiny_chunks(client):
    """Send a body of chunks of one byte for as long as the service reads it; yields the thread that does."""
    head = f"PUT {ONE}/state HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(client, head.encode()) as line:

        def send():
            with suppress(OSError):
                while True:
                    line.sendall(b"1\r\nx\r\n" * 1000)

        sender = Thread(target=send)
        sender.start()
        try:
            yield sender
        finally:
            with suppress(OSError):  # the service may have closed it
                line.shutdown(socket.SHUT_RDWR)
            sender.join()


def test_tiny_chunks_are_read_within_the_time_limit(client):
    """Each chunk of one byte costs as much as a large one; others are answered meanwhile."""
    with sending_tiny_chunks(client) as sender:
        for _ in range(3):
            assert client.get("/health/live").status_code == 200
        assert sender.is_alive()
    with client.time_limit(1), sending_tiny_chunks(client) as sender:
        sender.join(180)
        assert not sender.is_alive()


@contextmanager
def running(tiny_onnx, tmp_path, *options, **limits):
    with service(tiny_onnx, tmp_path / "state", "--labels", "cat,dog", *options, **limits) as (process, url):
        process.url = url
        process.address = (urlsplit(url).hostname, urlsplit(url).port)
        wait_until(lambda: httpx.get(f"{url}/health/ready").status_code == 200)
        yield process


def accepts(address):
    with socket.socket() as line:
        return line.connect_ex(address) == 0


def log_of(tmp_path):
    return [json.loads(line) for line in (tmp_path / "state.log").read_text().splitlines()]


def test_an_honest_client_is_answered_beside_500_silent_connections(tiny_onnx, tmp_path, pictures):
    said = (b"", GET[:30], f"PUT {ONE}/state HTTP/1.1\r\nHost: localhost\r\n".encode() + b"Content-Length: 9\r\n\r\n")
    with running(tiny_onnx, tmp_path, timeout_s=600) as process, ExitStack() as lines:
        for number in range(500):
            line = lines.enter_context(socket.create_connection(process.address, 180))
            line.sendall(said[0 if number < 200 else 1 if number < 400 else 2])
        for path, content in (("/health/live", None), ("/v1/streams/honest/classify", pictures[0])) * 5:
            headers = {"Content-Type": "image/png"}
            method = "POST" if content else "GET"
            answer = httpx.request(method, process.url + path, content=content, headers=headers, timeout=180)
            assert answer.status_code == 200
        process.send_signal(signal.SIGTERM)
        lines.close()
        assert process.wait(180) == 0
    assert "stopped; all states are saved" in [line["message"] for line in log_of(tmp_path)[-2:]]


def test_running_requests_are_finished_at_the_end(tiny_onnx, tmp_path, pictures):
    """Nothing new is accepted, silent clients are not waited for, and a body that is on its way is read."""
    head = "POST /v1/streams/shop/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    head += f"Content-Length: {len(pictures[0])}\r\nExpect: 100-continue\r\n\r\n"
    with running(tiny_onnx, tmp_path) as process, ExitStack() as lines:
        kind = {"Content-Type": "image/png"}
        url = f"{process.url}/v1/streams/shop/classify"
        httpx.post(url, content=pictures[1], headers=kind, timeout=180).raise_for_status()
        for _ in range(20):
            lines.enter_context(socket.create_connection(process.address))
        line = lines.enter_context(socket.create_connection(process.address))
        line.sendall(head.encode())
        assert line.recv(2**16).startswith(b"HTTP/1.1 100 ")  # the body is being read
        line.sendall(pictures[0][:100])
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: not accepts(process.address))
        line.sendall(pictures[0][100:])
        assert everything(line).startswith(b"HTTP/1.1 200")
        assert process.wait(180) == 0


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="the limit is read from /proc")
def test_running_out_of_file_handles_is_named_as_that(tiny_onnx, tmp_path):
    """The streams that fit keep working; `ready` says what is short, and nobody is told to free disk space."""
    with service(tiny_onnx, tmp_path / "state", handles=96) as (_, address), connected(address) as client:
        assert client.get("/health/ready").status_code == 200
        for number in range(60):
            made = client.put(f"/v1/streams/shop-{number}", json={"labels": ["cat", "dog"]})
            if made.status_code != 201:
                break
        assert made.status_code == 503, made.text
        ready = client.get("/health/ready")
        assert ready.status_code == 503
        for answer in (made, ready):
            assert "raise the limit on open files" in answer.json()["error"]["message"]
        assert client.get("/v1/streams/shop-0").json()["samples_seen"] == 0


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="the limit is read from /proc")
def test_file_handles_are_raised(tiny_onnx, tmp_path):
    with running(tiny_onnx, tmp_path) as process:
        found = re.search(r"Max open files\s+(\d+)\s+(\d+)", Path(f"/proc/{process.pid}/limits").read_text())
        assert found[1] == found[2]
