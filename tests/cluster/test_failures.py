"""Processes and machines that are lost in the middle of a job change nothing in its results."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psutil
import pytest
from acclimate.cluster.output_folder import CHECKPOINT, OutputFolder

from acclimate.cluster import cluster_run, machines
from acclimate.cluster.filesystem import FileSystemError
from acclimate.errors import RunError
from acclimate.methods import load_with_notes, state_to_bytes
from acclimate.sources.source import Sample
from cluster_bench import Place, WaitingGate, read_at
from waiting import wait_until


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "place")


def hold_up(bench, place, row):
    """Make every reader of the image of this row wait at the place."""
    sample = bench.samples[row]
    bench.samples[row] = Sample(sample.name, partial(read_at, place, row), sample.label)


def disturbed(run, place, disturb):
    """Run a job, disturb it when somebody waits at the place, and let it go on; returns whether it is complete."""
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(run.run)
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


def same(bench, run, rows, adapter):
    assert bench.rows() == rows
    assert state_to_bytes(run.classifier.adapter) == state_to_bytes(adapter)


def test_an_encoder_is_killed(local_ray, bench, place):
    rows, _, adapter = bench.alone("tda")
    hold_up(bench, place, 130)
    run = bench.job(method="tda")
    assert disturbed(run, place, kill)
    assert len({process for process, _ in place.waiting}) > 1  # the image was read again
    same(bench, run, rows, adapter)


def test_a_worker_that_adapts_is_killed(local_ray, bench, place):
    rows, _, adapter = bench.alone("dota")
    run = bench.job(method="dota")
    run.classifier.gates.append(WaitingGate(place, after=150))
    assert disturbed(run, place, kill)
    assert len({process for process, _ in place.waiting}) > 1
    same(bench, run, rows, adapter)


@pytest.mark.parametrize("workers", [1, 2])  # the other machine has room for the encoder, or has one of its own
def test_a_machine_is_lost(ray_cluster, nodes, bench, place, workers):
    rows, _, adapter = bench.alone("tda")
    hold_up(bench, place, 130)
    run = bench.job(method="tda", workers=(workers, workers), cpus=5)
    lost = []

    def remove(process, node):
        lost.append(node)
        ray_cluster.remove_node(nodes[node], allow_graceful=False)

    assert disturbed(run, place, remove)
    assert {node for _, node in place.waiting} - set(lost)  # the image was read again elsewhere
    same(bench, run, rows, adapter)


def test_all_machines_with_room_are_lost(ray_cluster, nodes, bench, place, monkeypatch):
    monkeypatch.setattr(machines, "PATIENCE_S", 2.0)
    rows, _, adapter = bench.alone("tda")
    hold_up(bench, place, 130)
    run = bench.job(method="tda", workers=(2, 2), cpus=5)

    def remove(process, node):
        wait_until(lambda: load_with_notes(bench.folder / "out" / CHECKPOINT)[1]["position"])
        for each in nodes.values():
            ray_cluster.remove_node(each, allow_graceful=False)

    with pytest.raises(RunError, match=r"5 CPUs.*--resume"):
        disturbed(run, place, remove)
    again = bench.job(method="tda")
    assert again.run(resume=True)
    assert again.kept >= 40
    same(bench, again, rows, adapter)


def test_a_file_system_that_refuses_for_a_while(local_ray, bench, monkeypatch):
    rows, _, adapter = bench.alone("tda")
    write = OutputFolder.write_checkpoint
    refusals = [1]

    def refuse(out, done):
        if done.position and refusals:
            refusals.pop()
            raise FileSystemError("cannot write the checkpoint: no space left.")
        write(out, done)

    monkeypatch.setattr(OutputFolder, "write_checkpoint", refuse)
    run = bench.job(method="tda")
    assert run.run()
    assert not refusals
    same(bench, run, rows, adapter)
    refusals[:] = [1] * 2
    monkeypatch.setattr(cluster_run, "MAX_FAILURES", 1)
    with pytest.raises(RunError, match=r"failed 2 times .*: cannot write the checkpoint: no space left\. .*--resume"):
        bench.job(method="tda").run(overwrite=True)
