"""A job that was stopped, or whose driver was killed, ends with the same results."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from acclimate.cluster.output_folder import CHECKPOINT

from acclimate.errors import InputError, RunError, StateError
from acclimate.methods import state_to_bytes
from cluster_bench import Place, same_summary
from waiting import wait_until

DRIVER = Path(__file__).parents[1] / "support" / "cluster_driver.py"


def same(bench, run, rows, adapter):
    assert bench.rows() == rows
    assert state_to_bytes(run.classifier.adapter) == state_to_bytes(adapter)
    assert sorted(path.name for path in (bench.folder / "out" / "_acclimate").iterdir()) == ["run.json"]


@pytest.mark.parametrize("stage", ["classifying", "answering once more"])
def test_a_killed_driver(ray_cluster, bench, tmp_path, stage):
    rows, summary, adapter = bench.alone("dota")
    place = Place(tmp_path / "place")
    command = [sys.executable, str(DRIVER), str(tmp_path), ray_cluster.address, stage]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as driver:
        try:
            wait_until(lambda: place.waiting or driver.poll() is not None, 240)
        finally:
            driver.kill()
        assert place.waiting, driver.stderr.read().decode()
    assert len(bench.rows()) >= 80
    assert (bench.folder / "out" / CHECKPOINT).is_file()
    with pytest.raises(InputError, match="--resume"):
        bench.job(method="dota").run()
    run = bench.job(method="dota")
    assert run.run(resume=True)
    assert run.kept == (300 if stage == "answering once more" else run.kept)
    assert not run.was_complete
    same_summary(run.summary, summary)
    same(bench, run, rows, adapter)


@pytest.mark.parametrize("stage", ["classifying", "answering once more"])
def test_a_job_that_is_stopped(local_ray, bench, stage):
    rows, summary, adapter = bench.alone("tda")
    seen = []
    stopped = bench.job(
        method="tda",
        progress=lambda now, images: seen.append(images) if now == stage else None,
        stop=lambda: bool(seen),
    )
    assert not stopped.run()
    assert 0 < stopped.summary.images < 300 if stage == "classifying" else stopped.summary.images == 300
    run = bench.job(method="tda")
    assert run.run(resume=True)
    assert run.kept == stopped.summary.images
    assert not run.was_complete
    again = bench.job(method="tda")
    assert again.run(resume=True)
    assert again.was_complete
    same_summary(run.summary, summary)
    same(bench, run, rows, adapter)


def test_another_job_is_not_resumed(local_ray, bench):
    run = bench.job(method="tda", stop=lambda: True)
    assert not run.run()
    for name, options in {
        "policy": {"policy": "merged"},
        "number of images between two exchanges": {"every": 80},
        "number of passes": {"passes": 1},
        "threshold of --unsure": {"unsure": 0.5},
    }.items():
        with pytest.raises(InputError, match=name):
            bench.job(method="tda", **{"passes": 2, **options}).run(resume=True)
    with pytest.raises(StateError, match="method 'tda' against 'dota'"):
        bench.job(method="dota").run(resume=True)
    bench.samples.pop()
    with pytest.raises(InputError, match=r"list of images.*--overwrite"):
        bench.job(method="tda").run(resume=True)
    (bench.folder / "out" / CHECKPOINT).write_bytes(b"damaged")
    with pytest.raises(StateError, match="damaged"):
        bench.job(method="tda").run(resume=True)


def test_parts_of_an_unknown_job_are_not_mixed_with_others(local_ray, bench):
    """As they are left by a job that was killed while --overwrite removed older results."""
    out = bench.folder / "out"
    out.mkdir()
    (out / "part-000099.parquet").write_bytes(b"older")
    for resume in (False, True):
        with pytest.raises(InputError, match="--overwrite"):
            bench.job(method="tda").run(resume=resume)
    assert bench.job(method="tda").run(overwrite=True)
    assert len(bench.rows()) == len(bench.samples)


def test_differences_from_the_job_are_reported(local_ray, bench):
    assert not bench.job(method="tda", policy="merged", shards=2, stop=lambda: True).run()
    with pytest.raises(InputError, match="its number of shards was 2, not 3; pass"):
        bench.job(method="tda", policy="merged", shards=3).run(resume=True)


@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_two_runs_into_one_folder_do_not_mix(local_ray, bench, how):
    method = "tda" if how == "resume" else "dota"
    rows, _, adapter = bench.alone(method)
    others = []

    def other(stage, images):
        if not others:
            others.append(bench.job(method=method))
            assert others[0].run(**{how: True})

    first = bench.job(method="tda", progress=other)
    with pytest.raises(RunError, match="another run writes"):
        first.run()
    same(bench, others[0], rows, adapter)


def test_a_run_stops_when_its_results_are_removed_in_the_second_pass(local_ray, bench):
    def other(stage, images):
        if stage == "answering once more" or images == len(bench.samples):
            assert bench.job(method="tda").run(resume=True)

    with pytest.raises(RunError, match="another run writes"):
        bench.job(method="tda", progress=other).run()


def test_complete_results_of_another_job_are_not_taken_for_this_ones(local_ray, bench):
    assert bench.job(method="tda").run()
    again = bench.job(method="tda")
    assert again.run(resume=True)
    assert again.was_complete
    for name, options in {
        "method": {"method": "dota"},
        "settings": {"method": "tda", "positive_capacity": 2},
        "templates": {"method": "tda", "templates": ["{}"]},
    }.items():
        with pytest.raises(InputError, match=f"its .*{name} was "):
            bench.job(**options).run(resume=True)
    classifier = bench.classifier("tda")
    classifier.remove_labels(classifier.labels[-1:])
    with pytest.raises(InputError, match="list of labels was "):
        bench.job(classifier=classifier).run(resume=True)
