"""Processes and machines that are lost in the middle of a job change nothing in its results."""

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psutil
import pytest

from acclimate.cluster import encoding
from acclimate.errors import InputError, RunError
from acclimate.sources.source import Sample
from cluster_bench import Place, RefusingFolder, read_at
from waiting import wait_until


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "place")


def hold_up(bench, place, row):
    """Make every reader of the image of this row wait at the place."""
    sample = bench.samples[row]
    bench.samples[row] = Sample(sample.name, partial(read_at, place, row), sample.label)


def disturbed(job, place, disturb):
    """Run a job, disturb it when somebody waits at the place, and let it go on."""
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(job)
        try:
            wait_until(lambda: place.waiting or ended.done(), 240)
            process, node = place.waiting[0]
            disturb(process, node)
            wait_until(lambda: not running(process))  # else it might still answer
        finally:
            place.open.touch()
        return ended.result()


def running(process):
    """Return True if a process runs and is not a zombie."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(process, node):
    os.kill(process, signal.SIGKILL)


def test_an_encoder_is_killed(local_ray, bench, place):
    rows, _, state = bench.alone(method="tda")
    hold_up(bench, place, 130)
    disturbed(partial(bench.job, method="tda"), place, kill)
    assert len({process for process, _ in place.waiting}) > 1  # the image was read again
    assert bench.rows() == rows
    assert bench.state() == state


def encoders():
    """Return the processes of Ray that encode."""
    processes = psutil.process_iter(["cmdline"])
    return [each for each in processes if "MapWorker" in " ".join(each.info["cmdline"] or ()) and running(each.pid)]


@pytest.mark.slow  # each new encoder takes seconds
def test_ten_kills_of_encoders(local_ray, bench):
    rows, _, state = bench.alone(method="tda")
    bench.slow_down()
    moments = random.Random(11)
    killed = []

    def kill_some(job):
        while not job.done() and len(killed) < 10:
            there = encoders()
            if there and moments.random() < 0.3:
                process = moments.choice(there)
                process.kill()
                killed.append(process.pid)
            wait_until(lambda: moments.random() < 0.2, 30)

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(bench.job, method="tda", pool={"encoders": 2, "images": 8})
        kill_some(job)
        job.result()
    assert len(killed) == 10
    assert bench.rows() == rows
    assert bench.state() == state


@pytest.mark.parametrize("encoders", [1, 2])  # the other machine has room for the encoder, or has one of its own
def test_a_machine_is_lost(ray_cluster, nodes, bench, place, monkeypatch, encoders):
    monkeypatch.setattr(encoding, "PATIENCE_S", 10.0)
    rows, _, state = bench.alone(method="tda")
    hold_up(bench, place, 130)
    lost = []

    def remove(process, node):
        lost.append(node)
        ray_cluster.remove_node(nodes[node], allow_graceful=False)

    disturbed(partial(bench.job, method="tda", pool={"encoders": encoders, "cpus": 5}), place, remove)
    assert {node for _, node in place.waiting} - set(lost)  # the image was read again elsewhere
    assert bench.rows() == rows
    assert bench.state() == state


def test_all_machines_with_room_are_lost(ray_cluster, nodes, bench, place, monkeypatch):
    monkeypatch.setattr(encoding, "PATIENCE_S", 5.0)
    rows, _, state = bench.alone(method="tda")
    hold_up(bench, place, 130)

    def remove(process, node):
        for each in nodes.values():
            ray_cluster.remove_node(each, allow_graceful=False)

    with pytest.raises(InputError, match=r"no machine of the cluster has the 5 CPUs.*--resume"):
        disturbed(partial(bench.job, method="tda", pool={"encoders": 2, "cpus": 5}), place, remove)
    bench.job(method="tda", resume=True)
    assert bench.rows() == rows
    assert bench.state() == state


def test_a_file_system_that_refuses_for_a_while(local_ray, bench, monkeypatch):
    rows, _, state = bench.alone(method="tda")
    monkeypatch.setattr("acclimate.cluster.cluster_run.RunFolder", RefusingFolder)
    refusals = bench.folder / "refusals"
    refusals.write_text("xx")
    bench.job(method="tda")
    assert refusals.read_text() == ""
    assert bench.rows() == rows
    assert bench.state() == state
    refusals.write_text("xxx")
    with pytest.raises(RunError, match=r"cannot write 000002.*: no space left\. .*--resume"):
        bench.job("other", method="tda")
    bench.job("other", method="tda", resume=True)
    assert bench.rows("other") == rows


def test_a_pipeline_that_fails_again_and_again_ends_the_job(local_ray, bench, monkeypatch):
    monkeypatch.setattr(encoding.Encoder, "options", lambda *_: {"nonsense": 1})
    with pytest.raises(RunError, match=r"Ray failed 4 times in a row.*--resume"):
        bench.job(method="tda")
