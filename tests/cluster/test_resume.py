"""A job that was stopped, or whose driver was killed, ends with the same results."""

import itertools
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from acclimate.errors import InputError, RunError
from acclimate.run import Run
from cluster_bench import Place
from waiting import wait_until

DRIVER = Path(__file__).parents[1] / "support" / "cluster_driver.py"


def parts(bench):
    """Return the parts of the run of a job, and when each was written."""
    return {path: path.stat().st_mtime_ns for path in (bench.folder / "out.run").glob("0*.safetensors")}


def start_driver(bench, address, method, images):
    command = [sys.executable, str(DRIVER), str(bench.folder), address, method, str(images)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


def test_a_killed_driver(ray_cluster, bench):
    rows, summary, state = bench.alone(method="dota")
    place = Place(bench.folder / "place")
    with start_driver(bench, ray_cluster.address, "dota", 40) as driver:
        try:
            wait_until(lambda: place.waiting or driver.poll() is not None, 240)
        finally:
            driver.kill()
        assert place.waiting, driver.stderr.read().decode()
    kept = parts(bench)
    assert kept
    with pytest.raises(InputError, match="--resume"):
        bench.job(method="dota")
    answers, finished = bench.job(method="dota", resume=True)
    assert finished
    assert answers.summary == summary
    assert {path: written for path, written in parts(bench).items() if path in kept} == kept
    assert bench.rows() == rows
    assert bench.state() == state


@pytest.mark.slow  # ten drivers, each of which connects to a Ray
def test_ten_kills_of_the_driver(ray_cluster, bench):
    rows, _, state = bench.alone(method="tda")
    moments = random.Random(7)
    for kill in range(10):
        with start_driver(bench, ray_cluster.address, "tda", 8) as driver:
            try:
                wanted = moments.randint(0, 2) + len(parts(bench))
                while len(parts(bench)) < wanted and driver.poll() is None:
                    time.sleep(0.01)
                wait_until(lambda: moments.random() < 0.2, 30)
            finally:
                driver.kill()
            assert driver.wait() in (-9, 0), f"kill {kill}: {driver.stderr.read().decode()}"
    bench.job(method="tda", resume=True, pool={"images": 8})
    assert bench.rows() == rows
    assert bench.state() == state


@pytest.mark.parametrize("images", [80, 300])  # in the first pass, in the second one
def test_a_job_that_is_stopped(local_ray, bench, images):
    rows, summary, state = bench.alone(method="tda")
    seen = []
    asked = itertools.count()
    _, finished = bench.job(
        method="tda",
        emit=lambda predictions, final: seen.extend(predictions.names),
        stop=lambda: len(seen) >= images and next(asked) > 0,
    )
    assert not finished
    assert len(seen) in (88, 300)
    assert not (bench.folder / "out").exists() or not bench.rows()
    answers, finished = bench.job(method="tda", resume=True)
    assert finished
    assert answers.summary == summary
    assert bench.rows() == rows
    assert bench.state() == state


def test_a_part_that_is_gone_is_made_again_and_no_other(local_ray, bench):
    rows, _, state = bench.alone(method="tda")
    bench.job(method="tda")
    before = parts(bench)
    gone = bench.folder / "out.run" / "000003.safetensors"
    gone.unlink()
    bench.job(method="tda", resume=True)
    after = parts(bench)
    assert after.pop(gone) != before.pop(gone)
    assert after == before
    assert bench.rows() == rows
    assert bench.state() == state
    gone.write_bytes(gone.read_bytes()[:-100])
    with pytest.raises(RunError, match=r"000003\.safetensors.*remove it .*--resume"):
        bench.job(method="tda", resume=True)


def test_another_job_is_not_resumed(local_ray, bench):
    bench.job(method="tda")
    for options in ({"method": "dota"}, {"top_k": 2}, {"unsure": 0.5}):
        with pytest.raises(InputError, match="--resume continues what"):
            bench.job(**options, resume=True)
    bench.encoder.fingerprint = "another"
    with pytest.raises(InputError, match="made with another model"):
        bench.job(method="tda", resume=True)
    assert Run.open(bench.folder / "out.run").complete


@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_two_jobs_into_one_folder_do_not_mix(local_ray, bench, how):
    method = "tda" if how == "resume" else "dota"
    rows, _, state = bench.alone(method=method)
    others = []

    def other(predictions, final):
        if not others:
            others.append(bench.job(method=method, **{how: True}))

    bench.slow_down()
    with pytest.raises(RunError, match="another command writes"):
        bench.job(method="tda", emit=other)
    assert bench.rows() == rows
    assert bench.state() == state
