"""The log: nothing of importance is lost, and nothing that is logged can fill a disk or stop the service."""

import json
import logging
import os
import socket
import subprocess
import sys
from threading import Thread
from urllib.parse import urlsplit

import httpx
import pytest

from acclimate.serve.client import Client
from acclimate.serve.logs import MAX_WAITING_LINES, JsonLines, LogQueue
from service_process import service
from waiting import wait_until

KEEPER = "keeper-token-0123456789"


@pytest.fixture
def queue():
    """Return a queue of log lines that nobody reads, and a logger that writes to it."""
    handler = LogQueue()
    logger = logging.Logger("acclimate.test")
    logger.addHandler(handler)
    return handler, logger


def waiting(handler):
    return [json.loads(handler.queue.get_nowait().getMessage()) for _ in range(handler.queue.qsize())]


def test_a_line_is_bounded():
    def fail(depth):
        if depth == 0:
            raise ValueError("x" * 10**6)
        fail(depth - 1)

    try:
        fail(500)
    except ValueError:
        fields = {"path": "z" * 10**6, "list": ["\ud800"] * 10**5}
        record = logging.Logger("test").makeRecord("test", 20, "", 0, "y" * 10**6, (), sys.exc_info())
        record.fields = fields
    line = JsonLines().format(record)
    assert len(line) < 15_000
    assert json.loads(line)["traceback"].startswith("Traceback")
    assert json.loads(line)["path"].startswith('"zzz')


def test_a_reader_that_stops_reading_stops_nothing(queue):
    handler, logger = queue
    for i in range(10 * MAX_WAITING_LINES):
        logger.info("%d", i)
    logger.info("%d", "no number")  # counted, not printed by Python
    lines = waiting(handler)
    assert [line["message"] for line in lines] == [str(i) for i in range(MAX_WAITING_LINES)]
    logger.info("read again")
    logger.info("and again")
    lines = waiting(handler)
    assert [line["message"] for line in lines] == ["log lines left out", "read again", "and again"]
    assert lines[0]["lines"] == 9 * MAX_WAITING_LINES + 1


PROGRAM = """
import sys, threading, warnings
from acclimate.serve.logs import log_to_stderr
import asyncio, logging
class Bad:
    def __del__(self):
        raise RuntimeError("removed")
def fail():
    raise RuntimeError("in a thread")
async def main():
    asyncio.get_running_loop().call_exception_handler({"message": "in a loop"})
with log_to_stderr():
    warnings.warn("a warning")
    thread = threading.Thread(target=fail); thread.start(); thread.join()
    Bad()
    asyncio.run(main())
    logging.getLogger("uvicorn.error").warning("from the server")
"""


def test_everything_is_json():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert len(lines) == 5
    for each in ("a warning", "in a thread", "removed", "in a loop", "from the server"):
        assert each in done.stderr


def test_a_service_whose_log_nobody_reads_answers_and_stops(tiny_onnx, tmp_path):
    command = [sys.executable, "-m", "acclimate", "serve", "--model", f"onnx:{tiny_onnx}", "--port", "0"]
    command += ["--data", str(tmp_path / "state")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        client = Client(process.stdout.readline().split()[2])
        for _ in range(600):  # more than a pipe holds
            assert client.streams() == []
        process.terminate()
        assert process.wait(180) == 0


def test_strangers_do_not_blind_the_log(tiny_onnx, tmp_path):
    """Every call of a token is in the log, and every refusal of a request without one is there or counted."""
    (tmp_path / "tokens").write_text(f"keeper {KEEPER} *=manage\n")
    options = ("--token-file", str(tmp_path / "tokens"))
    flood = b"GET /v1/streams HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with service(tiny_onnx, tmp_path / "state", *options) as (process, url):
        parts = urlsplit(url)
        over = False
        refused = [0, 0]

        def attack(number):
            while not over:
                with socket.create_connection((parts.hostname, parts.port)) as line:
                    line.sendall(flood)
                    assert line.recv(2**16).startswith(b"HTTP/1.1 401")
                    refused[number] += 1

        threads = [Thread(target=attack, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEEPER}"}, timeout=180) as keeper:
            wait_until(lambda: min(refused) > 100)
            for i in range(40):
                assert keeper.get("/v1/streams", headers={"X-Request-ID": f"keeper-{i}"}).status_code == 200
            wait_until(lambda: sum(refused) > 600)
        over = True
        for thread in threads:
            thread.join()
        process.terminate()
        assert process.wait(180) == 0
    lines = [json.loads(line) for line in (tmp_path / "state.log").read_text().splitlines()]
    ids = [line.get("request_id") for line in lines]
    assert [each for each in ids if str(each).startswith("keeper-")] == [f"keeper-{i}" for i in range(40)]
    listed = sum(line.get("status") == 401 for line in lines)
    left_out = sum(line["lines"] for line in lines if line["message"] == "log lines left out")
    assert listed + left_out == sum(refused)


def test_a_closed_stderr_stops_nothing(tiny_onnx, tmp_path):
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "acclimate", "serve", "--model", f"onnx:{tiny_onnx}", "--port", "0"]
    command += ["--data", str(tmp_path / "state")]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=writer) as process:
        os.close(writer)
        os.close(reader)
        client = Client(process.stdout.readline().split()[2])
        assert client.streams() == []
        process.terminate()
        assert process.wait(180) == 0
