"""The log: nothing is lost in normal use, and nothing that is logged can fill a disk or stop the service."""

import json
import logging
import os
import subprocess
import sys
from threading import Thread

import pytest

from acclimate.serve.client import Client
from acclimate.serve.stderr import BURST_S, MAX_WAITING_LINES, BoundedLog, JsonLines


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


@pytest.fixture
def bounded():
    """Return a function that makes logs that write to a descriptor."""
    made = []

    def make(descriptor, per_second=10):
        handler = BoundedLog(descriptor, per_second)
        handler.setFormatter(JsonLines())
        logger = logging.Logger("test")
        logger.addHandler(handler)
        made.append(handler)
        return logger, handler

    yield make
    for handler in made:
        handler.close()


def test_lines_are_bounded_per_place_and_counted(bounded, tmp_path):
    with open(tmp_path / "log", "wb") as file:
        logger, handler = bounded(file.fileno())
        for i in range(1000):
            logger.info("many %d", i)
        logger.info("one")
        handler.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    many = [line["message"] for line in lines if line["message"].startswith("many")]
    assert many[: 10 * BURST_S] == [f"many {i}" for i in range(10 * BURST_S)]
    assert sum(line["message"] == "one" for line in lines) == 1
    assert lines[-1]["message"] == "log lines left out"
    assert len(many) + lines[-1]["lines"] == 1000


def test_a_line_is_bounded(bounded, tmp_path):
    def fail(depth):
        if depth == 0:
            raise ValueError("x" * 10**6)
        fail(depth - 1)

    with open(tmp_path / "log", "wb") as file:
        logger, handler = bounded(file.fileno())
        try:
            fail(500)
        except ValueError:
            logger.exception("y" * 10**6, extra={"fields": {"path": "z" * 10**6}})
        logger.info("%d", "no number")  # counted, not printed by Python
        handler.close()
    first, last = (json.loads(line) for line in (tmp_path / "log").read_text().splitlines())
    assert len(json.dumps(first)) < 15_000
    assert first["traceback"].startswith("Traceback")
    assert last["lines"] == 1


def test_a_reader_that_stops_reading_stops_nothing(bounded, pipe):
    reader, writer = pipe
    logger, handler = bounded(writer, 10**6)
    for i in range(10 * MAX_WAITING_LINES):
        logger.info("%d %s", i, "x" * 100)
    got = b""
    drain = Thread(target=handler.close)
    drain.start()
    while b"log lines left out" not in got:
        got += os.read(reader, 2**16)
    drain.join()
    lines = [json.loads(line) for line in got.splitlines()]
    assert len(lines) - 1 + lines[-1]["lines"] == 10 * MAX_WAITING_LINES


PROGRAM = """
import sys, threading, warnings
from acclimate.serve.stderr import log_to_stderr
import asyncio, logging
class Bad:
    def __del__(self):
        raise RuntimeError("removed")
def fail():
    raise RuntimeError("in a thread")
async def main():
    asyncio.get_running_loop().call_exception_handler({"message": "in a loop"})
with log_to_stderr(100):
    warnings.warn("a warning")
    thread = threading.Thread(target=fail); thread.start(); thread.join()
    Bad()
    asyncio.run(main())
    logging.getLogger("uvicorn.error").info("from the server")
"""


def test_everything_is_json():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    text = done.stderr
    assert len(lines) == 5
    for each in ("a warning", "in a thread", "removed", "in a loop", "from the server"):
        assert each in text


def test_a_service_whose_log_nobody_reads_answers(tiny_onnx, tmp_path):
    command = [sys.executable, "-m", "acclimate", "serve", "--model", f"onnx:{tiny_onnx}", "--port", "0"]
    command += ["--data", str(tmp_path / "state"), "--max-log-lines", "100000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        client = Client(process.stdout.readline().split()[2])
        for _ in range(600):  # more than a pipe holds
            assert client.streams() == []
        process.terminate()
        assert process.wait(30) == 0
