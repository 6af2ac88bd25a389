"""A job on a cluster gives what one machine gives, and keeps a run like any other."""

import json
from functools import partial

import pyarrow.dataset
import pytest

from acclimate import Classifier
from acclimate.classify.task import Encoding
from acclimate.cluster import cluster_run
from acclimate.cluster.encoding import Encoder
from acclimate.errors import InputError, RunError
from acclimate.run import Run
from acclimate.sources.source import Sample
from cluster_bench import picture


@pytest.mark.parametrize(("method", "passes"), [("tda", 1), (None, 2), ("stata", 2), ("zero-shot", 1)])
def test_the_rows_and_the_state_of_one_machine(local_ray, bench, method, passes):
    rows, summary, state = bench.alone(method=method, passes=passes)
    answers, finished = bench.job(method=method, passes=passes, pool={"encoders": 2})
    assert finished
    assert bench.rows() == rows
    assert bench.state() == state
    assert answers.summary == summary
    table = pyarrow.dataset.dataset(bench.folder / "out")  # the folder is a data set as it is
    assert table.count_rows() == 300
    assert sorted(path.name for path in (bench.folder / "out").iterdir()) == ["part-000000.parquet"]


def test_gates_see_the_stream_in_order(local_ray, bench):
    bench.samples[100:160] = [bench.samples[100]] * 60
    options = {"method": "tda", "skip_duplicates": True, "unsure": 0.9}
    rows, summary, state = bench.alone(**options)
    bench.job(**options, pool={"encoders": 2})
    assert bench.rows() == rows
    assert bench.state() == state
    assert summary.unsure


def test_the_run_is_one_like_any_other(local_ray, bench):
    bench.job(method="tda", pool={"images": 37})  # not whole batches of 8
    run = Run.open(bench.folder / "out.run")
    assert run.complete
    assert [len(part.names) for part in run.parts] == [40] * 7 + [20]
    assert run.features["device"] == "cpu"
    assert run.features["seconds"] > 0
    others = {path.name for path in run.path.iterdir()} - {part.path.name for part in run.parts}
    assert others == {"run.json", "head.safetensors", "start.safetensors", "state.safetensors"}
    labels = bench.stream.head.class_names[:3]  # other labels: no image is opened, and no encoder is asked
    bench.encoder.features = None
    options = {"labels": labels, "method": "tda", "batch_size": 8, "templates": "{}", "cache": False}
    found = Classifier(encoder=bench.encoder, **options).classify(str(run.path), 1, on_error="skip")
    assert {each.label for each in found if each.error is None} == {*labels}


def test_the_rows_of_large_tables_are_in_several_files(local_ray, bench, monkeypatch):
    rows, *_ = bench.alone(method="tda", passes=1)
    for size, files in ((128, 3), (200, 2)):
        monkeypatch.setattr(cluster_run, "FILE_ROWS", size)
        bench.job(method="tda", passes=1, overwrite=True)
        assert len(list((bench.folder / "out").iterdir())) == files
        assert bench.rows() == rows


def test_the_state_goes_on_from_job_to_job(local_ray, bench):
    state = bench.folder / "site.safetensors"
    bench.alone("one", method="tda", state=bench.folder / "alone.safetensors")
    bench.job("one-more", method="tda", state=state)
    assert state.read_bytes() == (bench.folder / "alone.safetensors").read_bytes()
    rows, *_ = bench.alone("two", method="tda", state=bench.folder / "alone.safetensors")
    bench.job("two-more", method="tda", state=state)
    assert bench.rows("two-more") == rows
    assert state.read_bytes() == (bench.folder / "alone.safetensors").read_bytes()


def test_the_bundled_model(local_ray, bench, photos):
    from acclimate.sources.source import open_source

    bench.samples = open_source(str(photos))
    bench.encoding = Encoding()
    bench.encoder = "bundled"
    bench.task = partial(bench.task, none_of_these=True)
    rows, _, state = bench.alone()
    bench.job(pool={"images": 16})
    assert bench.rows() == rows
    assert bench.state() == state


def test_results_that_are_there_are_not_replaced_unless_asked(local_ray, bench):
    (bench.folder / "out").mkdir()
    (bench.folder / "out" / "part-of-mine.parquet").write_bytes(b"mine")
    bench.job(method="tda", passes=1)
    with pytest.raises(InputError, match=r"out\.run is a run; pass --resume .* --overwrite"):
        bench.job(method="tda", passes=1)
    before = Run.open(bench.folder / "out.run").id
    bench.job(method="dota", passes=1, overwrite=True)
    assert Run.open(bench.folder / "out.run").id != before
    assert bench.rows() == bench.alone(method="dota", passes=1)[0]
    assert (bench.folder / "out" / "part-of-mine.parquet").read_bytes() == b"mine"


def test_results_without_a_run_are_not_mixed_with_others(local_ray, bench):
    (bench.folder / "out").mkdir()
    (bench.folder / "out" / "part-000099.parquet").write_bytes(b"older")
    with pytest.raises(InputError, match="out has results; pass --resume"):
        bench.job(method="tda")
    with pytest.raises(InputError, match="has results, and there is no run"):
        bench.job(method="tda", resume=True)
    bench.job(method="tda", overwrite=True)
    assert len(bench.rows()) == len(bench.samples)


def test_a_job_that_cannot_be_done_says_why(local_ray, bench, monkeypatch):
    monkeypatch.setattr(Encoder, "options", lambda *_: {**options(*_), "model": "onnx:/nowhere"})
    with pytest.raises(RunError, match=r"no ONNX model in /nowhere.*--resume"):
        bench.job(method="tda")
    monkeypatch.undo()
    with pytest.raises(InputError, match="leave out --passes 1"):
        bench.job("collection", method="stata", passes=1)


options = Encoder.options


def test_a_model_that_fails_ends_the_job_and_loses_nothing(local_ray, bench):
    rows, *_ = bench.alone(method="tda")
    whole = bench.encoder.features
    bench.encoder.features = whole[:100]  # no row for the images that follow
    with pytest.raises(RunError, match=r"IndexError.*--resume"):
        bench.job(method="tda")
    kept = {path: path.stat().st_mtime_ns for path in (bench.folder / "out.run").glob("0*")}
    assert len(kept) == 2
    assert not bench.rows()
    bench.encoder.features = whole
    bench.job(method="tda", resume=True)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert bench.rows() == rows


def test_images_that_cannot_be_read_are_listed(local_ray, bench):
    bench.job(method="tda", passes=1)
    errors = [row["index"] for row in bench.rows() if row["error"]]
    assert errors == [index for index in range(300) if index % 37 == 5]
    assert json.dumps(bench.rows()[5]["error"])
    fixed = bench.samples[5]
    bench.samples[5] = Sample(fixed.name, partial(picture, 5), fixed.label)
    bench.samples.append(Sample("image 300", partial(picture, 0), None))
    bench.job(method="tda", passes=1, resume=True)
    found = bench.rows()
    assert len(found) == 301
    assert [row["file"] for row in found[-2:]] == ["image 5", "image 300"]
    assert found[-2]["error"] is None
