"""Floods of connections against a real service process: an honest client is answered throughout."""

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

import pytest

from acclimate.serve.app import bind
from acclimate.serve.connections import MAX_PIPELINED_REQUESTS
from service_process import service
from waiting import wait_until

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs file limits and addresses of 127.0.0.0/8")

HEADER_S = 2
MAX_WAIT_S = 10.0  # an honest client's longest wait on a busy machine; `benchmarks/attacks.py` prints the real one
ONE = ("127.0.0.1",)
MANY = tuple(f"127.0.0.{i}" for i in range(1, 30))
GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
OPENAPI = GET.replace(b"/health/live", b"/openapi.json")
UPLOAD = b"POST /v1/streams/honest/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
UPLOAD += b"Content-Length: 9000\r\n\r\n"
SENT = {
    "nothing": b"",
    "half a header": GET[:40],
    "a request, then nothing": GET,
    "half a body": UPLOAD + b"x",
    "requests, and reads nothing": OPENAPI * MAX_PIPELINED_REQUESTS,
}


@contextmanager
def running(tiny_onnx, tmp_path, *options, handles=None):
    data = tmp_path / "state"
    options = ("--labels", "cat,dog", "--header-timeout", str(HEADER_S), *options)
    with service(tiny_onnx, data, *options, handles=handles) as (process, address):
        parts = urlsplit(address)
        process.address = (parts.hostname, parts.port)
        process.log = data.with_suffix(".log")
        yield process


def connect(address, content=b"", source="127.0.0.1"):
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.settimeout(30)
    line.bind((source, 0))
    line.connect(address)
    with suppress(ConnectionError):
        line.sendall(content)
    return line


def flood(lines, address, count, content=b"", sources=ONE):
    return [lines.enter_context(connect(address, content, sources[i % len(sources)])) for i in range(count)]


def ask(address, source="127.0.0.1", path="/health/live", body=None):
    """Return the time that a request on a new connection takes."""
    began = time.monotonic()
    client = HTTPConnection(*address, timeout=30, source_address=(source, 0))
    client.request("POST" if body else "GET", path, body, {"Content-Type": "image/png"} if body else {})
    answer = client.getresponse()
    assert answer.status == 200, answer.read()
    answer.read()
    client.close()
    return time.monotonic() - began


def ask_often(address, picture, count=20):
    """Return the longest of many waits, from the attackers' first address and from another."""
    waited = []
    for i in range(count):
        source = ("127.0.0.1", "127.0.1.1")[i % 2]
        waited.append(ask(address, source))
        waited.append(ask(address, source, "/v1/streams/honest/classify", picture))
    return max(waited)


def closed(lines, timeout):
    """Return the number of connections that the service has closed, now or within some time."""
    waiting = {line.fileno(): line for line in lines}
    latest = time.monotonic() + timeout
    poll = select.poll()
    for number in waiting:
        poll.register(number, select.POLLIN | select.POLLRDHUP)
    while waiting and time.monotonic() < latest:
        for number, events in poll.poll(100):
            if events & (select.POLLRDHUP | select.POLLHUP | select.POLLERR):
                poll.unregister(number)
                del waiting[number]
            else:
                with suppress(OSError):
                    waiting[number].recv(2**16)
    return len(lines) - len(waiting)


def check_log(process, most=2_000_000):
    """Return True if every line is JSON, there are few, and none is an error."""
    content = process.log.read_text()
    assert len(content) < most
    lines = [json.loads(line) for line in content.splitlines()]
    assert not [line for line in lines if line["level"] == "error"]
    return lines


@pytest.mark.parametrize(
    ("count", "handles", "sources"),
    [(520, None, ONE), pytest.param(1150, 1024, MANY, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("content", SENT.values(), ids=SENT)
def test_an_honest_client_is_answered(tiny_onnx, tmp_path, pictures, content, count, handles, sources):
    with running(tiny_onnx, tmp_path, "--timeout", "5", handles=handles) as process, ExitStack() as stack:
        ask_often(process.address, pictures[0], 1)
        lines = flood(stack, process.address, count, content, sources)
        assert ask_often(process.address, pictures[0]) < MAX_WAIT_S
        if content != SENT["requests, and reads nothing"]:  # it would be read now
            assert closed(lines, HEADER_S + 5) == count
        check_log(process)


@pytest.mark.parametrize(("what", "pause_s"), [(what, 0.0 if "header" in what else 0.1) for what in list(SENT)[1:]])
def test_a_flood_that_never_stops(tiny_onnx, tmp_path, pictures, what, pause_s):
    """Six attackers open connections without end: those with requests 60 per second, others as many as they can."""
    over = Event()

    def attack(address, source):
        lines = [connect(address, SENT[what], source) for _ in range(60)]
        while not over.wait(pause_s):
            lines.pop(0).close()
            lines.append(connect(address, SENT[what], source))
        for line in lines:
            line.close()

    with running(tiny_onnx, tmp_path) as process:
        ask_often(process.address, pictures[0], 1)
        threads = [Thread(target=attack, args=(process.address, MANY[i // 3])) for i in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        try:
            assert ask_often(process.address, pictures[0]) < MAX_WAIT_S
        finally:
            over.set()
            for thread in threads:
                thread.join()
        check_log(process)


def test_a_header_has_a_time_limit_however_it_is_sent(tiny_onnx, tmp_path):
    with running(tiny_onnx, tmp_path) as process, ExitStack() as stack:
        first, later = flood(stack, process.address, 2)
        later.sendall(GET)
        assert later.recv(2000).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        sent = iter(GET[i % 30 : i % 30 + 1] for i in range(100))
        while closed([first, later], 0.2) < 2:
            for line in (first, later):
                with suppress(ConnectionError):
                    line.sendall(next(sent))  # ends after 100, if nothing closes the lines
        assert time.monotonic() - began > HEADER_S - 0.5


def test_a_response_that_nobody_reads_is_given_up(tiny_onnx, tmp_path):
    with running(tiny_onnx, tmp_path) as process, ExitStack() as stack:
        ask(process.address)
        before = handles(process)
        lines = flood(stack, process.address, 100, OPENAPI * MAX_PIPELINED_REQUESTS)
        wait_until(lambda: handles(process) > before + 90)
        wait_until(lambda: handles(process) <= before)
        for line in lines:
            with pytest.raises(ConnectionResetError):
                list(iter(lambda line=line: line.recv(2**16), b""))


def handles(process):
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def test_a_client_that_reads_slowly_gets_everything(tiny_onnx, tmp_path):
    with running(tiny_onnx, tmp_path) as process, connect(process.address, OPENAPI * 10) as line:
        got = b""
        latest = time.monotonic() + 30
        while got.count(b"HTTP/1.1 200") < 10 and time.monotonic() < latest:
            got += line.recv(4096)
            time.sleep(0.002)
        assert got.count(b"HTTP/1.1 200") == 10


def test_pipelined_requests_are_bounded(tiny_onnx, tmp_path):
    ahead = b"POST /v1/streams/one/classify HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET * 40_000
    with running(tiny_onnx, tmp_path) as process, connect(process.address) as line:
        with suppress(ConnectionError):
            line.sendall(ahead)
        assert closed([line], 5) == 1
        assert ask(process.address) < MAX_WAIT_S
        assert len(check_log(process)) < 10
        with connect(process.address, GET * (MAX_PIPELINED_REQUESTS + 1)) as line, line.makefile("rb") as reader:
            for _ in range(MAX_PIPELINED_REQUESTS + 1):
                assert reader.readline() == b"HTTP/1.1 200 OK\r\n"
                while reader.readline() != b"\r\n":
                    pass
                assert reader.read(13) == b'{"live":true}'
        with connect(process.address, GET * (MAX_PIPELINED_REQUESTS + 2)) as line:
            assert closed([line], 5) == 1


def test_invalid_http_is_answered_in_json(tiny_onnx, tmp_path):
    bad = [
        b"\x16\x03\x01 hello\r\n\r\n",
        GET.replace(b"localhost", b"a" * 20_000),
        UPLOAD.replace(b"Content-Length: 9000", b"Transfer-Encoding: chunked") + b"zz\r\n",
    ]
    with running(tiny_onnx, tmp_path) as process:
        for content in bad:
            with connect(process.address, content) as line, line.makefile("rb") as reader:
                head, _, body = reader.read().partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 400 ")
                assert json.loads(body)["error"]["code"] == "bad_request"
        check_log(process)


@pytest.mark.parametrize("stuck", ["nothing", "half a body", "requests, and reads nothing"])
def test_stopping_does_not_wait_for_silent_clients(tiny_onnx, tmp_path, stuck):
    with running(tiny_onnx, tmp_path, "--header-timeout", "60") as process, ExitStack() as stack:
        flood(stack, process.address, 500)
        flood(stack, process.address, 20, SENT[stuck])
        ask(process.address)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert check_log(process)[-1]["message"] == "stopped; all states are saved"


EXHAUSTED = """
import asyncio, os, resource, socket
from acclimate.serve.app import bind
failures = []
async def main():
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: failures.append((context["exception"].errno, loop.time())))
    await loop.create_server(asyncio.Protocol, sock=listening, backlog=2048)
    while len(failures) < 2:
        await asyncio.sleep(0.1)
listening = bind("127.0.0.1", 0)
listening.listen(100)
lines = [socket.create_connection(listening.getsockname()) for _ in range(50)]
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, 4096))
asyncio.run(main())
(first, began), (second, again), *_ = failures
print(first, second, again - began > 0.9)
"""


def test_without_handles_it_is_tried_again_after_a_second():
    done = subprocess.run([sys.executable, "-c", EXHAUSTED], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{errno.EMFILE} {errno.EMFILE} True\n"


@pytest.mark.parametrize("host", ["127.0.0.2", "::1", "localhost"])
def test_any_loopback_address_can_be_the_own_one(tiny_onnx, tmp_path, host):
    try:
        bind(host, 0).close()
    except Exception as error:
        pytest.skip(str(error))
    with running(tiny_onnx, tmp_path, "--host", host) as process:
        for name, status in (("", 200), ("evil.example", 400)):
            client = HTTPConnection(*process.address, timeout=30)
            client.request("GET", "/health/live", headers={"Host": name} if name else {})
            assert client.getresponse().status == status
            client.close()
