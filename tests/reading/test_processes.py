"""Processes: they start on demand, survive each other, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from acclimate.errors import RunError
from acclimate.reading.processes import Processes
from process_work import Echo, nothing
from waiting import wait_until


@pytest.fixture
def processes():
    started = Processes(Echo(), nothing, slots=4, size=8)
    yield started
    started.close()


def test_tasks_are_answered_in_order_and_slots_are_seen_here(processes):
    answers = processes([("a", 0), ("bc", 3), ("d", None)])
    assert [text for text, _ in answers] == ["a", "bc", "d"]
    assert bytes(processes.memory[:1]) + bytes(processes.memory[24:26]) == b"abc"
    assert len({pid for _, pid in answers}) == 1
    assert answers[0][1] != os.getpid()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_has_no_name_that_could_be_left_behind(processes):
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/pym-" in line]
    assert mapped
    assert all(line.endswith("(deleted)") for line in mapped)


def test_one_process_is_started_for_each_thread_that_works(processes):
    assert len({pid for _ in range(5) for _, pid in processes([("x", None)])}) == 1
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: processes([("sleep", None)]), range(4)))
    assert len({pid for answers in found for _, pid in answers}) == 2


def test_quick_work_of_many_threads_is_done_by_few(processes):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: processes([(str(number), None)]), range(200)))
    assert [text for [(text, _)] in found] == [str(number) for number in range(200)]
    assert 1 <= len({pid for [(_, pid)] in found}) <= len(processes._all) <= 8
    assert not processes._waiting
    assert not processes._starting


def test_a_task_that_ends_its_process_harms_no_other(processes):
    tasks = [("a", 0), ("exit", 1), ("b", 2), ("exit", None), ("c", None)]
    assert [answer and answer[0] for answer in processes(tasks)] == ["a", None, "b", None, "c"]
    assert processes([("d", None)])[0][0] == "d"


def test_work_that_fails_is_an_error_that_says_why(processes):
    with pytest.raises(RunError, match="could not be prepared: ValueError: of no value"):
        processes([("a", None), ("fail", None)])
    assert processes([("a", None)])[0][0] == "a"


def test_closing_does_not_wait_for_what_is_done(processes):
    with ThreadPoolExecutor(1) as pool:
        [(_, pid)] = processes([("x", None)])
        waiting = pool.submit(processes, [("sleep for ever", None)])
        wait_until(lambda: not processes._idle)
        processes.close()
        assert waiting.exception() is None or isinstance(waiting.exception(), RunError)
    wait_until(lambda: not _runs(pid))
    with pytest.raises(RunError, match="ended"):
        processes([("a", None)])


def test_processes_that_cannot_be_started_are_an_error(monkeypatch, processes):
    def refuse(*arguments):
        raise OSError("Resource temporarily unavailable")

    monkeypatch.setattr("acclimate.reading.processes._Process", refuse)
    with pytest.raises(RunError, match=r"could be started \(Resource .*\); choose fewer with --workers"):
        processes([("a", None)])


SCRIPT = """
import os, sys
print("imported")
from acclimate.reading.processes import Processes
from process_work import Echo, nothing
processes = Processes(Echo(), nothing, 2, 8)
print(processes([("a", 0)])[0][1], flush=True)
{then}
"""


def _run(then):
    """A program without a guard of its main part, which multiprocessing would import again."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "error"}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(then=then)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("then", "signals"),
    [
        ("processes.close()", []),
        ("", []),  # not closed
        ("print(processes([('sleep', None)])[0][0])", [signal.SIGINT]),
        ("processes([('sleep', None)])", [signal.SIGKILL]),
        ("import time; time.sleep(60)", [signal.SIGKILL]),
    ],
    ids=["closed", "forgotten", "Ctrl-C", "killed while working", "killed while idle"],
)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals of Unix")
def test_nothing_is_left_behind(then, signals):
    with _run(then) as program:
        assert program.stdout.readline() == "imported\n"
        worker = int(program.stdout.readline())
        for number in signals:
            if number == signal.SIGINT:
                os.killpg(program.pid, number)
            else:
                program.send_signal(number)
        _, errors = program.communicate(timeout=60)
    ours = signals == [signal.SIGINT]
    assert "Traceback" not in errors.replace("Traceback", "", ours), errors
    assert "resource_tracker" not in errors
    wait_until(lambda: not _runs(worker))  # one that works notices at the end of its work


def test_no_thread_is_started(processes):
    before = threading.active_count()
    processes([("a", None)])
    assert threading.active_count() == before
