"""A job on a cluster gives what one machine gives."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from acclimate.cluster import cluster_run
from acclimate.cluster.filesystem import Storage
from acclimate.errors import InputError, ModelError, RunError
from acclimate.methods import load_state, merge_states, state_to_bytes
from cluster_bench import same_summary


def canonical(adapter):
    """Return the content of an adapter in a canonical order: the slots of a cache may be in any order."""
    return state_to_bytes(merge_states([adapter]))


@pytest.mark.parametrize(("method", "passes"), [("tda", 1), ("dota", 2), (None, 2)])
def test_ordered_is_classify_row_for_row(local_ray, bench, method, passes):
    rows, summary, adapter = bench.alone(method, passes)
    run = bench.job(method=method, passes=passes, workers=(1, 2))
    assert run.run()
    assert bench.rows() == rows
    assert state_to_bytes(run.classifier.adapter) == state_to_bytes(adapter)
    same_summary(run.summary, summary)
    parts = pyarrow.dataset.dataset(bench.folder / "out").files  # the folder is a data set as it is
    assert len(parts) == 8
    assert sorted(path.name for path in (bench.folder / "out" / "_acclimate").iterdir()) == ["run.json"]


def test_gates_travel_with_the_stream(local_ray, bench):
    bench.samples[100:160] = [bench.samples[100]] * 60
    options = {"skip_duplicates": True, "unsure": 0.9}
    rows, summary, adapter = bench.alone("tda", **options)
    run = bench.job(method="tda", **options)
    assert run.run()
    assert bench.rows() == rows
    assert state_to_bytes(run.classifier.adapter) == state_to_bytes(adapter)
    assert adapter.samples_seen < summary.answered
    assert summary.unsure


def test_a_classifier_that_does_not_learn_answers_as_one_machine(local_ray, bench):
    rows, *_ = bench.alone("zero-shot", passes=1)
    run = bench.job(method="zero-shot", policy="merged", shards=3)
    assert run.run()
    assert bench.rows() == rows


@pytest.mark.parametrize("policy", ["ordered", "merged"])
def test_a_collection_is_answered_as_on_one_machine(local_ray, bench, policy):
    rows, *_ = bench.alone("stata", 2)
    run = bench.job(method="stata", policy=policy)
    assert run.run()
    assert run.passes == 2
    assert bench.rows() == rows


def test_the_bundled_model(local_ray, bench, photos):
    from acclimate import Classifier
    from acclimate.sources.source import open_source

    bench.samples = open_source(str(photos))
    bench.classifier = lambda method, **options: Classifier(["red", "green", "blue"], batch_size=8, reject=True)
    rows, _, adapter = bench.alone()
    state = bench.folder / "state.safetensors"
    run = bench.job(state=str(state), every=16)
    assert run.run()
    assert bench.rows() == rows
    assert state_to_bytes(load_state(state)) == state_to_bytes(adapter)


def test_merged_ends_with_the_cache_of_one_machine(local_ray, bench):
    rows, _, adapter = bench.alone("tda", passes=1)
    for shards, workers, first in ((3, 1, 0), (4, 2, 60)):
        options = {"policy": "merged", "shards": shards, "workers": (1, workers), "ordered_first": first}
        run = bench.job(f"out{shards}", "tda", **options)
        assert run.run()
        assert canonical(run.classifier.adapter) == canonical(adapter)
        mine = bench.rows(f"out{shards}")
        assert [row["zero_shot_label"] for row in mine] == [row["zero_shot_label"] for row in rows]
        ordered = 40 if not first else 120  # the first shard of the first round has not missed anything
        assert mine[:ordered] == rows[:ordered]
        assert mine != rows
    about = json.loads(pq.read_schema(bench.folder / "out4" / "part-000000.parquet").metadata[b"acclimate"])
    assert (about["policy"], about["shards"], about["every"], about["ordered_first"]) == ("merged", 4, 40, 80)


def test_merged_ends_with_the_sums_of_one_machine_and_is_deterministic(local_ray, bench):
    *_, adapter = bench.alone("dota", passes=1)
    runs = [
        bench.job(name, "dota", policy="merged", shards=3, workers=(1, most)) for name, most in (("a", 1), ("b", 2))
    ]
    assert all(run.run() for run in runs)
    assert bench.rows("a") == bench.rows("b")
    one, other = (run.classifier.adapter for run in runs)
    assert state_to_bytes(one) == state_to_bytes(other)
    assert one.seen == adapter.seen
    one.settle()
    adapter.settle()
    for name, values in adapter.dump().items():
        np.testing.assert_allclose(one.dump()[name], values, rtol=1e-5, atol=1e-6)


def test_invalid_runs_are_refused(bench):
    with pytest.raises(InputError, match="--policy ordered"):
        bench.job(method="onzeta", policy="merged", shards=2)
    with pytest.raises(InputError, match="--policy ordered"):
        bench.job(method="tda", policy="merged", shards=2, skip_duplicates=True)
    with pytest.raises(InputError, match="--policy merged"):
        bench.job(method="tda", shards=2)
    with pytest.raises(InputError, match="leave out --passes 1"):
        bench.job(method="stata", passes=1)
    bench.encoder.lines = (line for line in ())  # cannot be pickled
    with pytest.raises(InputError, match="by its name"):
        bench.job(method="tda")


def test_results_that_are_there_are_not_replaced_unless_asked(local_ray, bench):
    (bench.folder / "out").mkdir()
    (bench.folder / "out" / "part-of-mine.parquet").write_bytes(b"mine")
    assert bench.job(method="tda", passes=1).run()
    with pytest.raises(InputError, match="--overwrite"):
        bench.job(method="tda", passes=1).run()
    resumed = bench.job(method="tda", passes=1)
    assert resumed.run(resume=True)  # there is nothing left to do
    assert resumed.kept == resumed.summary.images == 300
    with pytest.raises(InputError, match="number of labels per row"):
        bench.job(method="tda", passes=1, top_k=2).run(resume=True)
    assert bench.job(method="tda", passes=1, every=80).run(overwrite=True)
    assert len(list((bench.folder / "out").glob("part-0*.parquet"))) == 4
    assert (bench.folder / "out" / "part-of-mine.parquet").read_bytes() == b"mine"


def test_a_model_that_a_worker_cannot_load_is_named(local_ray, bench):
    run = bench.job(method="tda")
    run.classifier.encoder.fingerprint = "another"
    run = bench.job(classifier=run.classifier)
    run._setup = replace(run._setup, model="onnx:/nowhere")
    with pytest.raises(ModelError, match="no ONNX model in /nowhere"):
        run.run()


def test_a_model_that_fails_again_and_again_ends_the_job(local_ray, bench, monkeypatch):
    monkeypatch.setattr(cluster_run, "MAX_FAILURES", 1)
    bench.encoder.features = bench.encoder.features[:100]  # no row for the images that follow
    run = bench.job(method="tda", passes=1)
    with pytest.raises(RunError, match=r"failed 2 times.*IndexError.*--resume"):
        run.run()
    assert len(bench.rows()) == 80
    assert Storage(bench.folder / "out").exists("_acclimate/checkpoint.safetensors")
