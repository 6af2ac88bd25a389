"""Runs: what is written, what a stop leaves, and how a run is resumed."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import Classifier, load_state
from acclimate.classify.outputs import ResultFile
from acclimate.classify.run import Classification
from acclimate.encoders import load_encoder
from acclimate.errors import InputError, MissingExtraError, RunError, StateError
from acclimate.predict import Answer, Prediction
from acclimate.sources.base import open_source

LABELS = ["red circle", "green square", "blue stripes"]
SUFFIXES = [".csv", ".jsonl", ".parquet"]


@pytest.fixture(scope="module")
def encoder(tiny_onnx):
    return load_encoder(f"onnx:{tiny_onnx}")


@pytest.fixture
def make(encoder, photos, tmp_path):
    (tmp_path / "work").mkdir()

    def run(name, **options):
        defaults = {
            "classifier": Classifier(LABELS, encoder, batch_size=8, cache=tmp_path / "cache"),
            "samples": open_source(str(photos)),
            "output": ResultFile(tmp_path / "work" / name, top_k=2),
            "top_k": 2,
            "checkpoint_every": 0.0,
            "state": tmp_path / "work" / f"{name}.state",
        }
        return Classification(**defaults | options)

    return run


def read_rows(path):
    if path.suffix == ".csv":
        return list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline="")))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_finished_job_leaves_its_results_and_nothing_else(make, tmp_path, suffix):
    run = make(f"out{suffix}")
    assert run.run()
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == sorted([f"out{suffix}", f"out{suffix}.state"])
    rows = read_rows(tmp_path / "work" / f"out{suffix}")
    assert [int(row["index"]) for row in rows] == list(range(40))
    assert {row["label"] for row in rows} <= set(LABELS)
    assert run.summary.images == 40


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_stopping_and_going_on_leaves_no_trace(make, tmp_path, suffix):
    whole = make(f"whole{suffix}")
    whole.run()
    for stops in range(1, 6):
        name = f"parts{stops}{suffix}"
        calls = iter(range(1000))
        run = make(name, stop=lambda: next(calls) >= stops - 1)  # noqa: B023 (called before the loop goes on)
        assert run.run() is (stops == 5)
        if stops < 5:
            assert run.summary.images == 8 * stops
            again = make(name)
            assert again.output.checkpoint.is_file()
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
    run = make("early.csv")
    monkeypatch.setattr(run.output, "open", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run.run()
    for leftover in (None, "", "file,la"):  # no output yet, an empty one, a torn header
        if leftover is not None:
            (tmp_path / "work" / "early.csv").write_text(leftover)
        assert make("early.csv").output.checkpoint.is_file()
    assert make("early.csv").run(resume=True)
    assert (tmp_path / "work" / "early.csv").read_bytes() == (tmp_path / "work" / "whole.csv").read_bytes()


def test_another_job_is_not_continued(make, photos, tmp_path):
    make("x.csv", stop=lambda: True).run()
    with pytest.raises(InputError, match="its list of images was different"):
        make("x.csv", samples=open_source(str(photos))[:-1]).run(resume=True)
    with pytest.raises(InputError, match="its number of labels per row was different"):
        make("x.csv", top_k=1).run(resume=True)
    other = make("x.csv")
    other.classifier.remove_labels([LABELS[0]])
    with pytest.raises(StateError, match="3 classes against 2"):
        other.run(resume=True)
    (tmp_path / "work" / "x.csv").write_text("")
    with pytest.raises(StateError, match="shorter than its checkpoint says"):
        make("x.csv").run(resume=True)


@pytest.fixture
def limit_file_size():
    """Sets the size that files cannot grow over, as on a full disk; the limit is lifted again at the end."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_nothing(make, tmp_path, limit_file_size):
    make("whole.csv").run()
    path = tmp_path / "work" / "full.csv"

    def fill(rows):
        if rows[-1].index == 15:
            run.checkpoint_every = 1e9  # the checkpoint of the first batch is the last one
            limit_file_size(path.stat().st_size + 300)  # a part of the third batch can be written

    run = make("full.csv", emit=fill)
    with pytest.raises(RunError, match=r"full.csv: File too large\. The rows written so far are complete; .* resume"):
        run.run()
    limit_file_size(-1)
    assert len(read_rows(path)) == 16
    make("full.csv").run(resume=True)
    assert path.read_bytes() == (tmp_path / "work" / "whole.csv").read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_write_that_fails_says_why(tmp_path):
    output = ResultFile(tmp_path / "x.jsonl", 1)
    output.open()
    output.lines = Path("/dev/full")
    with pytest.raises(RunError, match=r"cannot write .*x\.jsonl: No space left on device\. The rows written so far"):
        output.write([Prediction(1, name="b", error="x")])


def test_unreadable_images_are_named_or_stop_the_job(make, photos, tmp_path):
    samples = list(open_source(str(photos)))
    samples[10] = replace(samples[10], name="broken.jpg", read=lambda: b"")
    assert make("skip.csv", samples=samples).run()
    rows = read_rows(tmp_path / "work" / "skip.csv")
    assert (rows[10]["file"], rows[10]["label"], rows[10]["error"]) == ("broken.jpg", "", "the file is empty")
    assert len(rows) == 40
    with pytest.raises(RunError, match=r"^broken.jpg cannot be read: the file is empty\.$"):
        make("fail.csv", samples=samples, on_error="raise").run()
    assert len(read_rows(tmp_path / "work" / "fail.csv")) == 8
    assert make("fail.csv", samples=samples).run(resume=True)
    assert (tmp_path / "work" / "fail.csv").read_bytes() == (tmp_path / "work" / "skip.csv").read_bytes()


def test_ids_go_on_above_those_of_a_loaded_state(make, tmp_path):
    make("one.csv").run()
    second = make("two.csv")
    second.classifier.load(tmp_path / "work" / "one.csv.state")
    second = replace(second)  # the ids follow from the state
    assert second.first_id == 40
    second.run()
    assert second.classifier.adapter.samples_seen == 80


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


@given(st.lists(st.tuples(texts, texts, st.floats(0, 1), st.booleans()), min_size=1, max_size=5))
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_written_can_be_read_by_others(suffix, tmp_path_factory, drawn):
    path = tmp_path_factory.mktemp("rows") / f"rows{suffix}"
    predictions = []
    for i, (name, label, score, broken) in enumerate(drawn):
        top = (Answer(label, score), Answer("b", 0.25))
        answered = Prediction(i, top, Answer("b", 0.5), 1.25, name=name)
        predictions.append(Prediction(i, name=name, error=label) if broken else answered)
    output = ResultFile(path, top_k=2)
    output.open()
    output.write(predictions)
    output.finish()
    assert list(path.parent.iterdir()) == [path]
    for row, prediction in zip(read_rows(path), predictions, strict=True):
        assert (row["file"], int(row["index"])) == (prediction.name, prediction.index)
        if prediction.error is not None:
            assert row["error"] == prediction.error
            assert not any(row[name] for name in ("label", "score", "zero_shot_label", "changed", "entropy"))
            continue
        assert not row["error"]
        assert (row["label"], float(row["score"])) == (prediction.label, round(prediction.score, 6))
        second = row["predictions"][1] if "predictions" in row else {"label": row["label_2"], "score": row["score_2"]}
        assert (second["label"], float(second["score"])) == ("b", 0.25)
        assert (row["zero_shot_label"], float(row["zero_shot_score"]), float(row["entropy"])) == ("b", 0.5, 1.25)
        assert row["changed"] in ((True, "true") if prediction.changed else (False, "false"))


def test_formats_that_are_unknown_or_need_a_package(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"results end in .csv, .jsonl or .parquet"):
        ResultFile(tmp_path / "x.xlsx", 1)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'acclimate\[parquet\]'"):
        ResultFile(tmp_path / "x.parquet", 1)


def test_other_views_are_not_continued(make, encoder, tmp_path):
    def classifier(views):
        return Classifier(LABELS, encoder, views=views, batch_size=8, cache=tmp_path / "cache")

    make("whole.csv", classifier=classifier(2)).run()
    make("x.csv", classifier=classifier(2), stop=lambda: True).run()
    with pytest.raises(InputError, match="its number of views was different"):
        make("x.csv", classifier=classifier(4)).run(resume=True)
    make("x.csv", classifier=classifier(2)).run(resume=True)
    assert (tmp_path / "work" / "x.csv").read_bytes() == (tmp_path / "work" / "whole.csv").read_bytes()


def test_stopped_without_an_output_the_state_is_kept(make, tmp_path):
    run = make("x.csv", output=None, stop=lambda: True)
    assert run.run() is False
    assert load_state(tmp_path / "work" / "x.csv.state").samples_seen == 8
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["x.csv.state"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_that_are_no_unicode_can_be_written(make, photos, tmp_path, suffix):
    samples = [replace(sample, name=f"caf\udce9-{i}.png") for i, sample in enumerate(open_source(str(photos)))]
    assert make(f"out{suffix}", samples=samples).run()
    assert read_rows(tmp_path / "work" / f"out{suffix}")[3]["file"] == r"caf\udce9-3.png"
