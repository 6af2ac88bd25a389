"""Jobs: what is written, what a stop leaves, and how it goes on."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import Classifier, load
from acclimate.classify.outputs import CsvOutput, JsonlOutput, open_output
from acclimate.classify.rows import Row
from acclimate.classify.run import Job
from acclimate.encoders import load_encoder
from acclimate.errors import InputError, MissingExtraError, RunError, StateError
from acclimate.sources.base import open_source

LABELS = ["red circle", "green square", "blue stripes"]
SUFFIXES = [".csv", ".jsonl", ".parquet"]


@pytest.fixture(scope="module")
def encoder(tiny_onnx):
    return load_encoder(f"onnx:{tiny_onnx}")


@pytest.fixture
def make(encoder, photos, tmp_path):
    (tmp_path / "work").mkdir()

    def job(name, **options):
        classifier = Classifier(LABELS, encoder, batch_size=8, cache=tmp_path / "cache")
        output = open_output(tmp_path / "work" / name, 2)
        options = {"samples": open_source(str(photos)), "top_k": 2, "checkpoint_every": 0.0} | options
        return Job(classifier, output=output, state=tmp_path / "work" / f"{name}.state", **options)

    return job


def read_rows(path):
    if path.suffix == ".csv":
        return list(csv.DictReader(io.StringIO(path.read_text())))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_finished_job_leaves_its_results_and_nothing_else(make, tmp_path, suffix):
    job = make(f"out{suffix}")
    assert job.run()
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == sorted([f"out{suffix}", f"out{suffix}.state"])
    rows = read_rows(tmp_path / "work" / f"out{suffix}")
    assert [int(row["index"]) for row in rows] == list(range(40))
    assert {row["label"] for row in rows} <= set(LABELS)
    assert job.summary.images == 40


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_stopping_and_going_on_leaves_no_trace(make, tmp_path, suffix):
    whole = make(f"whole{suffix}")
    whole.run()
    for stops in range(1, 6):
        name = f"parts{stops}{suffix}"
        calls = iter(range(1000))
        job = make(name, stop=lambda: next(calls) >= stops - 1)  # noqa: B023 (called before the loop goes on)
        assert job.run() is (stops == 5)
        if stops < 5:
            assert job.done == 8 * stops
            again = make(name)
            assert again.can_resume()
            assert again.run(resume=True)
            assert vars(again.summary) == vars(whole.summary)
        for one, other in ((f"whole{suffix}", name), (f"whole{suffix}.state", f"{name}.state")):
            assert (tmp_path / "work" / one).read_bytes() == (tmp_path / "work" / other).read_bytes()


def test_rows_after_the_last_checkpoint_are_done_again(make, tmp_path):
    make("whole.csv").run()
    calls = iter(range(1000))
    make("cut.csv", stop=lambda: next(calls) >= 2).run()
    path = tmp_path / "work" / "cut.csv"
    path.write_bytes(path.read_bytes() + b"photos/torn line,gre")  # what a kill in the middle of a write leaves
    make("cut.csv").run(resume=True)
    assert path.read_bytes() == (tmp_path / "work" / "whole.csv").read_bytes()


def test_a_kill_before_the_first_row_is_no_finished_job(make, tmp_path, monkeypatch):
    make("whole.csv").run()
    job = make("early.csv")
    monkeypatch.setattr(job.output, "start", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        job.run()
    for leftover in (None, "", "file,la"):  # no output yet, an empty one, a torn header
        if leftover is not None:
            (tmp_path / "work" / "early.csv").write_text(leftover)
        assert make("early.csv").can_resume()
    assert make("early.csv").run(resume=True)
    assert (tmp_path / "work" / "early.csv").read_bytes() == (tmp_path / "work" / "whole.csv").read_bytes()


def test_another_job_is_not_continued(make, photos, tmp_path):
    make("x.csv", stop=lambda: True).run()
    with pytest.raises(InputError, match="its list of images was another"):
        make("x.csv", samples=open_source(str(photos))[:-1]).run(resume=True)
    with pytest.raises(InputError, match="its top-k was another"):
        make("x.csv", top_k=1).run(resume=True)
    other = make("x.csv")
    other.classifier.remove_labels([LABELS[0]])
    with pytest.raises(StateError, match="3 classes against 2"):
        other.run(resume=True)
    (tmp_path / "work" / "x.csv").write_text("")
    with pytest.raises(StateError, match="shorter than its checkpoint says"):
        make("x.csv").run(resume=True)


def test_a_full_disk_loses_nothing(make, tmp_path, monkeypatch):
    make("whole.csv").run()
    job = make("full.csv")
    real, written = job.output._append, []

    def append(text):
        if len(written) == 3:
            real(text[: len(text) // 2])
            job.output._file.truncate(written[-1])
            raise OSError(28, "No space left on device")
        real(text)
        written.append(job.output._file.tell())

    monkeypatch.setattr(job.output, "_append", append)
    with pytest.raises(RunError, match=r"No space left on device\. The rows so far are whole; .* --resume"):
        job.run()
    assert len(read_rows(tmp_path / "work" / "full.csv")) == 16
    make("full.csv").run(resume=True)
    assert (tmp_path / "work" / "full.csv").read_bytes() == (tmp_path / "work" / "whole.csv").read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_write_that_fails_is_taken_back(tmp_path):
    output = JsonlOutput(tmp_path / "x.jsonl", 1)
    output.start()
    output.write([Row(0, "a", error="x")])
    before = (tmp_path / "x.jsonl").read_bytes()
    output._file.close()
    output._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with pytest.raises(OSError, match="No space left"):
        output.write([Row(1, "b", error="x")])
    output.close()
    assert (tmp_path / "x.jsonl").read_bytes() == before


def test_unreadable_images_are_named_or_stop_the_job(make, photos, tmp_path):
    samples = list(open_source(str(photos)))
    samples[10] = replace(samples[10], name="broken.jpg", read=lambda: b"")
    assert make("skip.csv", samples=samples).run()
    rows = read_rows(tmp_path / "work" / "skip.csv")
    assert (rows[10]["file"], rows[10]["label"], rows[10]["error"]) == ("broken.jpg", "", "the file is empty")
    assert len(rows) == 40
    with pytest.raises(RunError, match=r"broken.jpg: image 10 cannot be read: the file is empty"):
        make("fail.csv", samples=samples, on_error="fail").run()
    assert len(read_rows(tmp_path / "work" / "fail.csv")) == 8
    assert make("fail.csv", samples=samples).run(resume=True)
    assert (tmp_path / "work" / "fail.csv").read_bytes() == (tmp_path / "work" / "skip.csv").read_bytes()


def test_ids_go_on_above_those_of_a_loaded_state(make, tmp_path):
    make("one.csv").run()
    second = make("two.csv")
    second.classifier.load(tmp_path / "work" / "one.csv.state")
    second = replace(second)
    assert second.first_id == 40
    second.run()
    assert second.classifier.adapter.samples_seen == 80


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


@given(st.lists(st.tuples(texts, texts, st.floats(0, 1), st.booleans()), min_size=1, max_size=5))
@pytest.mark.parametrize("kind", [CsvOutput, JsonlOutput])
def test_what_is_written_is_read_back(kind, tmp_path_factory, drawn):
    path = tmp_path_factory.mktemp("rows") / "rows"
    rows = []
    for i, (file, label, score, broken) in enumerate(drawn):
        score = round(score, 6)
        answered = Row(i, file, label, score, ((label, score), ("b", 0.25)), "b", 0.5, label != "b", 1.25)
        rows.append(Row(i, file, error=label) if broken else answered)
    output = kind(path, 2)
    output.start()
    output.write(rows)
    offset = output.sync()
    output.close()
    again = kind(path, 2)
    assert list(again.resume(offset)) == rows
    again.close()


def test_formats_that_are_unknown_or_need_a_package(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"results end in .csv, .jsonl, .parquet"):
        open_output(tmp_path / "x.xlsx", 1)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'acclimate\[parquet\]'"):
        open_output(tmp_path / "x.parquet", 1)


def test_stopped_without_an_output_the_state_is_kept(make, tmp_path):
    job = replace(make("x.csv"), output=None, stop=lambda: True)
    assert job.run() is False
    assert load(tmp_path / "work" / "x.csv.state").samples_seen == 8
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["x.csv.state"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_that_are_no_unicode_can_be_written(make, photos, tmp_path, suffix):
    samples = [replace(sample, name=f"caf\udce9-{i}.png") for i, sample in enumerate(open_source(str(photos)))]
    assert make(f"out{suffix}", samples=samples).run()
    assert read_rows(tmp_path / "work" / f"out{suffix}")[3]["file"] == r"caf\udce9-3.png"
