"""Runs: what is written, what a stop leaves, and how a run is resumed."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from acclimate.classify.outputs import ResultFile
from acclimate.classify.run import Classification
from hypothesis import given
from hypothesis import strategies as st

from acclimate import Classifier, load_state, predict, refine
from acclimate.classify import outputs
from acclimate.classify import run as run_module
from acclimate.encoders import load_encoder
from acclimate.errors import InputError, MissingExtraError, RunError, StateError
from acclimate.files import from_cell, read_snapshot, snapshot_bytes
from acclimate.predict import Answer, Prediction
from acclimate.sources.source import Sample, open_source

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


def test_a_collection_is_answered_in_two_passes_and_refused_one(make, encoder, tmp_path):
    classifier = Classifier(LABELS, encoder, method="stata", batch_size=8, cache=tmp_path / "cache")
    run = make("out.jsonl", classifier=classifier)
    assert run.run()
    rows = read_rows(tmp_path / "work" / "out.jsonl")
    assert [row["online_label"] for row in rows] == [row["zero_shot_label"] for row in rows]
    whole = classifier.classify(run.samples, top_k=2)
    assert [row["label"] for row in rows] == [each.label for each in whole]
    assert any(row["score"] != row["online_score"] for row in rows)
    for options in ({"passes": 1}, {"more": lambda known: []}):
        with pytest.raises(InputError, match="'stata' answers all images together, in a second pass"):
            make("other.jsonl", classifier=classifier, **options)


def read_rows(path):
    if path.suffix == ".csv":
        rows = csv.DictReader(io.StringIO(path.read_bytes().decode(), newline=""))
        return [{column: from_cell(cell) for column, cell in row.items()} for row in rows]
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
@pytest.mark.parametrize(("passes", "calls_of_stop"), [(1, 5), (2, 5 + 3)])  # one per batch and per block
def test_stopping_and_going_on_leaves_no_trace(make, tmp_path, monkeypatch, suffix, passes, calls_of_stop):
    monkeypatch.setattr(outputs, "ROWS_PER_BLOCK", 16)
    whole = make(f"whole{suffix}", passes=passes)
    whole.run()
    assert whole.summary.passes == passes
    for stops in range(1, calls_of_stop + 2):
        name = f"parts{stops}{suffix}"
        calls = iter(range(1000))
        run = make(name, passes=passes, stop=lambda: next(calls) >= stops - 1)  # noqa: B023 (called in this round)
        finished = run.run()
        assert finished is (stops > calls_of_stop - (passes == 1))
        if not finished:
            assert run.summary.images == min(8 * stops, 40)
            again = make(name, passes=passes)
            assert again.output.checkpoint.is_file()
            assert again.run(resume=True)
            assert vars(again.summary) == vars(whole.summary)
        for one, other in ((f"whole{suffix}", name), (f"whole{suffix}.state", f"{name}.state")):
            assert (tmp_path / "work" / one).read_bytes() == (tmp_path / "work" / other).read_bytes()


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_answers_in_groups_leave_no_trace_of_a_stop(make, tmp_path, suffix):
    parents = dict(zip(LABELS, ["round", "square", "square"], strict=True))
    whole = make(f"whole{suffix}", parents=parents)
    whole.run()
    rows = outputs.read_results(tmp_path / "work" / f"whole{suffix}")
    every = make("every.jsonl", top_k=3, output=ResultFile(tmp_path / "work/every.jsonl", 3))
    every.run()
    for row, all_scores in zip(rows, read_rows(tmp_path / "work/every.jsonl"), strict=True):
        scores = {each["label"]: each["score"] for each in all_scores["predictions"]}
        sums = {group: sum(scores[x] for x in LABELS if parents[x] == group) for group in ("round", "square")}
        assert row["group"] == max(sums, key=sums.get)
        assert float(row["group_score"]) == pytest.approx(sums[row["group"]], abs=2e-4)
        assert row["label"] == all_scores["label"]
        assert len(row["predictions"]) == 2
    assert whole.summary.groups.total() == 40
    for stops in (1, 3, 6):
        calls = iter(range(1000))
        name = f"parts{stops}{suffix}"
        make(name, parents=parents, stop=lambda: next(calls) >= stops - 1).run()  # noqa: B023 (called in this round)
        with pytest.raises(InputError, match="its parents of the labels was different"):
            make(name).run(resume=True)
        again = make(name, parents=parents)
        assert again.run(resume=True)
        assert vars(again.summary) == vars(whole.summary)
        assert outputs.read_results(tmp_path / "work" / name) == rows
        if suffix == ".csv":
            assert (tmp_path / "work" / name).read_bytes() == (tmp_path / "work/whole.csv").read_bytes()


class Crash(BaseException):
    """The end of the process, for the sake of the test."""


@pytest.fixture
def crash_at(monkeypatch):
    """Return a function that sets the number of changes to files at which the process ends, and counts them."""
    state = SimpleNamespace(calls=0, at=0, after=False)

    def wrapped(change):
        def changed(*arguments, **options):
            state.calls += 1
            if state.calls == state.at and not state.after:
                raise Crash
            result = change(*arguments, **options)
            if state.calls == state.at:
                raise Crash
            return result

        return changed

    names = {outputs: ["append", "sync", "replace_file", "write_atomically"], run_module: ["save_state"]}
    names |= {Path: ["unlink", "write_bytes"]}
    for module, functions in names.items():
        for name in functions:
            monkeypatch.setattr(module, name, wrapped(getattr(module, name)))
    return state


@pytest.mark.slow
@pytest.mark.untraced
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_crash_at_any_change_to_a_file_leaves_no_trace(make, photos, tmp_path, monkeypatch, crash_at, suffix):
    monkeypatch.setattr(outputs, "ROWS_PER_BLOCK", 12)
    samples = open_source(str(photos))[:16]
    samples[5] = replace(samples[5], read=lambda: b"")
    make(f"whole{suffix}", samples=samples).run()
    assert crash_at.calls > 15
    for number in range(1, crash_at.calls + 1):
        for after in (False, True):
            crash_at.calls = 0
            crash_at.at = number
            crash_at.after = after
            name = f"{number}-{after}{suffix}"
            with pytest.raises(Crash):
                make(name, samples=samples).run()
            run = make(name, samples=samples)
            if run.output.checkpoint.is_file() or not run.output.path.exists():  # the rule of the command line
                assert run.run(resume=True)
            left = sorted(path.name for path in (tmp_path / "work").glob(f"{number}-{after}*"))
            assert left in ([name, f"{name}.state"], [name, f"{name}.partial.jsonl", f"{name}.state"])
            assert (tmp_path / "work" / name).read_bytes() == (tmp_path / "work" / f"whole{suffix}").read_bytes()


def test_rows_after_the_last_checkpoint_are_done_again(make, tmp_path):
    make("whole.csv").run()
    calls = iter(range(1000))
    make("cut.csv", stop=lambda: next(calls) >= 2).run()
    path = tmp_path / "work" / "cut.csv"
    path.write_bytes(path.read_bytes() + b"photos/torn line,gre")  # what a kill in the middle of a write leaves
    make("cut.csv").run(resume=True)
    assert path.read_bytes() == (tmp_path / "work" / "whole.csv").read_bytes()


def test_features_after_the_last_checkpoint_are_encoded_again(make, tmp_path):
    make("whole.csv").run()
    calls = iter(range(1000))
    make("cut.csv", stop=lambda: next(calls) >= 2).run()
    kept = tmp_path / "work" / "cut.csv.features"
    kept.write_bytes(kept.read_bytes() + b"torn")
    make("cut.csv").run(resume=True)
    assert (tmp_path / "work" / "cut.csv").read_bytes() == (tmp_path / "work" / "whole.csv").read_bytes()
    make("lost.csv", stop=lambda: True).run()
    (tmp_path / "work" / "lost.csv.features").write_bytes(b"")
    with pytest.raises(StateError, match=r"lost.csv.features is shorter than its checkpoint says"):
        make("lost.csv").run(resume=True)


def test_leftovers_of_an_overwritten_run_are_removed(make, tmp_path, monkeypatch):
    make("plain.csv", passes=1).run()
    monkeypatch.setattr(outputs, "ROWS_PER_BLOCK", 16)
    calls = iter(range(1000))
    make("x.csv", stop=lambda: next(calls) >= 6).run()  # stops in the second pass
    names = {path.name for path in (tmp_path / "work").glob("x.csv*")}
    assert names == {"x.csv", "x.csv.checkpoint", "x.csv.features", "x.csv.second"}
    make("x.csv", passes=1).run()
    assert {path.name for path in (tmp_path / "work").glob("x.csv*")} == {"x.csv", "x.csv.state"}
    assert (tmp_path / "work" / "x.csv").read_bytes() == (tmp_path / "work" / "plain.csv").read_bytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("views", [1, 4])
def test_the_second_pass_answers_from_everything_seen(make, encoder, photos, tmp_path, suffix, views):
    samples = list(open_source(str(photos)))
    samples[10] = replace(samples[10], name="broken.jpg", read=lambda: b"")
    kept = []

    def classifier():
        return Classifier(LABELS, encoder, views=views, batch_size=8, cache=tmp_path / "cache")

    online = classifier()
    before = [each for batch in online.batches(samples, 2, "skip", keep=kept.append) for each in batch]
    features = np.concatenate(kept)
    assert (features.dtype, features.shape) == (np.float16, (39, encoder.dim) if views == 1 else (39, 4, encoder.dim))
    logits = refine(online.adapter, features.astype(np.float32))
    expected = [LABELS[c] for c in logits.argmax(axis=1)]
    emitted = []
    run = make(
        f"out{suffix}", classifier=classifier(), samples=samples, emit=lambda rows, final: emitted.append((rows, final))
    )
    assert run.run()
    rows = read_rows(tmp_path / "work" / f"out{suffix}")
    assert rows[10]["error"] == "the file is empty"
    assert not any(rows[10][name] for name in ("label", "online_label", "score", "online_score"))
    answered = rows[:10] + rows[11:]
    assert [row["label"] for row in answered] == expected
    assert [row["online_label"] for row in rows if not row["error"]] == [
        each.label for each in before if not each.error
    ]
    for row, each in zip(answered, (each for each in before if not each.error), strict=True):
        assert float(row["online_score"]) == pytest.approx(each.score, abs=1e-4)
        assert row["changed"] in ((True, "true") if row["label"] != row["zero_shot_label"] else (False, "false"))
    assert run.summary.changed_online == sum(row["online_label"] != row["zero_shot_label"] for row in answered)
    assert run.summary.changed_again == sum(row["online_label"] != row["label"] for row in answered)
    first, second = ([each for rows, final in emitted if final is which for each in rows] for which in (False, True))
    assert [each.index for each in first] == [each.index for each in second] == list(range(40))
    assert [each.label for each in first] == [each.label for each in before]
    assert [each.label for each in second] == [row["label"] or "" for row in rows]


@pytest.mark.parametrize("change", ["passes", "freeze", "method"])
def test_one_pass_where_there_is_nothing_to_add(make, encoder, tmp_path, change):
    method = "zero-shot" if change == "method" else "tda"
    classifier = Classifier(LABELS, encoder, method=method, batch_size=8, cache=tmp_path / "cache")
    if change == "freeze":
        classifier.freeze()
    finals = []
    run = make(
        "out.csv",
        classifier=classifier,
        passes=1 if change == "passes" else 2,
        emit=lambda rows, final: finals.append(final),
    )
    assert run.passes == 1
    assert run.run()
    assert finals == [True] * 5
    rows = read_rows(tmp_path / "work" / "out.csv")
    assert [row["label"] for row in rows] == [row["online_label"] for row in rows]
    assert [row["score"] for row in rows] == [row["online_score"] for row in rows]


def test_there_are_one_or_two_passes(make):
    with pytest.raises(InputError, match="one or two passes, not 3"):
        make("x.csv", passes=3)


@pytest.mark.parametrize("readable", [0, 1])
def test_the_smallest_folders(make, photos, tmp_path, readable):
    samples = [replace(open_source(str(photos))[0], name="broken.jpg", read=lambda: b""), open_source(str(photos))[0]]
    run = make("x.csv", samples=samples[: 1 + readable])
    assert run.run()
    assert (run.summary.answered, run.summary.unreadable, run.summary.passes) == (readable, 1, 2)
    assert len(read_rows(tmp_path / "work" / "x.csv")) == 1 + readable


def test_a_kill_before_the_first_row_is_no_finished_job(make, tmp_path, monkeypatch):
    make("whole.csv").run()
    run = make("early.csv")
    monkeypatch.setattr(run.output, "open", lambda offset: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run.run()
    for leftover in (None, "", "file,la"):  # no output yet, an empty one, a torn header
        if leftover is not None:
            (tmp_path / "work" / "early.csv").write_text(leftover)
        assert make("early.csv").output.checkpoint.is_file()
    assert make("early.csv").run(resume=True)
    assert (tmp_path / "work" / "early.csv").read_bytes() == (tmp_path / "work" / "whole.csv").read_bytes()


def test_another_job_is_not_continued(make, encoder, photos, tmp_path):
    make("x.csv", stop=lambda: True).run()
    with pytest.raises(InputError, match=r"none of its [0-9]+ images is among those of the source"):
        make("x.csv", samples=[Sample("elsewhere.png", bytes)]).run(resume=True)
    with pytest.raises(InputError, match="its number of labels per row was 2, not 1"):
        make("x.csv", top_k=1).run(resume=True)
    with pytest.raises(InputError, match="its number of passes was 2, not 1"):
        make("x.csv", passes=1).run(resume=True)
    views = {"batch_size": 8, "views": 4, "cache": tmp_path / "cache"}
    make("views.csv", classifier=Classifier(LABELS, encoder, **views), stop=lambda: True).run()
    with pytest.raises(InputError, match="its kind of views was augmix, not crop"):
        make("views.csv", classifier=Classifier(LABELS, encoder, **views, views_kind="crop")).run(resume=True)
    other = make("x.csv")
    other.classifier.remove_labels([LABELS[0]])
    with pytest.raises(StateError, match="3 classes against 2"):
        other.run(resume=True)
    (tmp_path / "work" / "x.csv").write_text("")
    with pytest.raises(InputError, match="is not what the stopped run has written"):
        make("x.csv").run(resume=True)


def test_a_run_is_continued_with_its_decoder_and_precision(make, tmp_path, encoder, monkeypatch):
    make("x.csv", stop=lambda: True).run()
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "precision_of", lambda encoder: "float16")
        with pytest.raises(InputError, match="its precision was float32, not float16"):
            make("x.csv").run(resume=True)
    classifier = Classifier(LABELS, encoder, batch_size=8, cache=tmp_path / "cache")
    classifier.decoder = "nvjpeg"
    with pytest.raises(InputError, match="its decoder was pillow, not nvjpeg"):
        make("x.csv", classifier=classifier).run(resume=True)
    assert make("x.csv").run(resume=True)
    assert read_snapshot(tmp_path / "work" / "x.csv.state")[1]["notes"] == {
        "model": encoder.fingerprint,
        "decoder": "pillow",
        "precision": "float32",
    }


def edited(content):
    return content.replace(b"red", b"rot", 1)


def of_another_run(content):
    return content.replace(b"img", b"foreign") + content


@pytest.mark.parametrize("change", [edited, of_another_run, lambda content: b"rubbish\n" * 10_000, lambda content: b""])
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_file_that_was_changed_while_the_run_was_stopped_is_refused_and_kept(make, tmp_path, suffix, change):
    make(f"x.{suffix}", stop=lambda: True).run()
    path = tmp_path / "work" / (f"x.{suffix}" if suffix != "parquet" else "x.parquet.partial.jsonl")
    whole = path.read_bytes()
    path.write_bytes(change(whole))
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    with pytest.raises(InputError, match="is not what the stopped run has written"):
        make(f"x.{suffix}").run(resume=True)
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == before
    path.write_bytes(whole)
    assert make(f"x.{suffix}").run(resume=True)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_run_that_was_killed_before_its_second_checkpoint_is_not_begun_anew_over_a_foreign_file(
    make, tmp_path, suffix
):
    killed = make(f"x.{suffix}", checkpoint_every=1e9, emit=lambda predictions, final: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        killed.run()
    path = tmp_path / "work" / f"x.{suffix}"
    own = path.read_bytes()
    assert own.count(b"\n") > 1
    for foreign in (b"rubbish\n", b"\xff\n", own.replace(b"img", b"foreign")):
        path.write_bytes(foreign)
        with pytest.raises(InputError, match="is not what the stopped run has written"):
            make(f"x.{suffix}").run(resume=True)
        assert path.read_bytes() == foreign
    path.write_bytes(own)
    assert make(f"x.{suffix}").run(resume=True)


def test_a_stopped_run_is_not_continued_with_other_true_labels(make, photos, tmp_path):
    samples = [replace(each, label=LABELS[0]) for each in make("x.csv").samples]
    make("x.csv", samples=samples, stop=lambda: True).run()
    before = (tmp_path / "work" / "x.csv").read_bytes()
    for label in (None, LABELS[1]):
        others = [replace(each, label=label) for each in samples]
        with pytest.raises(InputError, match=r"true label of .* was .*pass the --truth"):
            make("x.csv", samples=others).run(resume=True)
    assert (tmp_path / "work" / "x.csv").read_bytes() == before
    assert make("x.csv", samples=samples).run(resume=True)


@pytest.fixture
def limit_file_size():
    """Return a function that limits the size of files, as on a full disk; the limit is lifted at the end."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_nothing(make, tmp_path, limit_file_size):
    make("whole.csv").run()
    path = tmp_path / "work" / "full.csv"

    def fill(rows, final):
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


def test_a_disk_that_is_too_small_for_the_features_loses_nothing(make, encoder, tmp_path, limit_file_size):
    def options():
        classifier = Classifier(LABELS, encoder, views=8, batch_size=64, cache=tmp_path / "cache")
        return {"classifier": classifier, "checkpoint_every": 1e9}

    make("whole.csv", **options()).run()

    def fill(rows, final):
        if rows[-1].index == 15:
            limit_file_size((tmp_path / "work" / "full.csv.features").stat().st_size + 100)

    with pytest.raises(
        RunError, match=r"full.csv.features: File too large\. It keeps the features to answer once more"
    ):
        make("full.csv", emit=fill, **options()).run()
    limit_file_size(-1)
    make("full.csv", **options()).run(resume=True)
    assert (tmp_path / "work" / "full.csv").read_bytes() == (tmp_path / "work" / "whole.csv").read_bytes()


def test_a_disk_that_is_full_in_the_second_pass_loses_nothing(make, tmp_path, limit_file_size, monkeypatch):
    monkeypatch.setattr(outputs, "ROWS_PER_BLOCK", 16)
    make("whole.csv").run()

    def fill(rows, final):
        if final:
            limit_file_size((tmp_path / "work" / "full.csv.second").stat().st_size + 100)

    with pytest.raises(RunError, match=r"full.csv: File too large\. The rows written so far are complete"):
        make("full.csv", emit=fill).run()
    limit_file_size(-1)
    assert len(read_rows(tmp_path / "work" / "full.csv")) == 40  # the online answers
    make("full.csv").run(resume=True)
    assert (tmp_path / "work" / "full.csv").read_bytes() == (tmp_path / "work" / "whole.csv").read_bytes()


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
    second.classifier.continue_from(tmp_path / "work" / "one.csv.state")
    second = replace(second)  # the ids follow from the state
    assert second.first_id == 40
    second.run()
    assert second.classifier.adapter.samples_seen == 80


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


@given(st.lists(st.tuples(texts, texts, st.floats(0, 1), st.booleans()), min_size=1, max_size=5))
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_results_can_be_read_by_other_programs(suffix, tmp_path_factory, drawn):
    path = tmp_path_factory.mktemp("rows") / f"rows{suffix}"
    predictions = []
    for i, (name, label, score, broken) in enumerate(drawn):
        top = (Answer(label, score), Answer("b", 0.25))
        answered = Prediction(i, top, Answer("b", 0.5), 1.25, name=name, online=Answer("c", 0.75))
        predictions.append(Prediction(i, name=name, error=label) if broken else answered)
    output = ResultFile(path, top_k=2)
    output.open()
    output.write(predictions)
    rounded = [
        replace(each, top=tuple(Answer(answer.label, round(answer.score, 4)) for answer in each.top))
        for each in predictions
    ]
    assert [each for block in output.read() for each in block] == rounded
    output.finish()
    assert list(path.parent.iterdir()) == [path]
    for row, prediction in zip(read_rows(path), predictions, strict=True):
        assert (row["file"], int(row["index"])) == (prediction.name, prediction.index)
        if prediction.error is not None:
            assert row["error"] == prediction.error
            assert not any(row[name] for name in ("label", "score", "zero_shot_label", "changed", "entropy"))
            continue
        assert not row["error"]
        assert (row["label"], float(row["score"])) == (prediction.label, round(prediction.score, 4))
        second = row["predictions"][1] if "predictions" in row else {"label": row["label_2"], "score": row["score_2"]}
        assert (second["label"], float(second["score"])) == ("b", 0.25)
        assert (row["zero_shot_label"], float(row["zero_shot_score"]), float(row["entropy"])) == ("b", 0.5, 1.25)
        assert (row["online_label"], float(row["online_score"])) == ("c", 0.75)
        assert row["changed"] in ((True, "true") if prediction.changed else (False, "false"))


def test_formats_that_are_unknown_or_need_a_package(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"results end in .csv, .jsonl, .parquet or .xlsx"):
        ResultFile(tmp_path / "x.ods", 1)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"install .*\[parquet\]"):
        ResultFile(tmp_path / "x.parquet", 1)


@pytest.mark.parametrize("passes", [1, 2])
def test_stopped_without_an_output_the_state_is_kept(make, tmp_path, passes):
    final = []
    run = make(
        "x.csv",
        output=None,
        passes=passes,
        stop=lambda: True,
        emit=lambda rows, last: final.extend(rows if last else []),
    )
    assert run.run() is False
    assert [each.index for each in final] == list(range(8))  # what was seen has its final answer
    assert run.summary.passes == passes
    assert load_state(tmp_path / "work" / "x.csv.state").samples_seen == 8
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["x.csv.state"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_that_are_no_unicode_can_be_written(make, photos, tmp_path, suffix):
    samples = [replace(sample, name=f"caf\udce9-{i}.png") for i, sample in enumerate(open_source(str(photos)))]
    assert make(f"out{suffix}", samples=samples).run()
    assert read_rows(tmp_path / "work" / f"out{suffix}")[3]["file"] == r"caf\udce9-3.png"


def test_a_damaged_checkpoint_is_refused(make, tmp_path):
    stops = iter([False, True])
    assert not make("x.csv", stop=lambda: next(stops)).run()
    checkpoint = tmp_path / "work" / "x.csv.checkpoint"
    rows = (tmp_path / "work" / "x.csv").read_bytes()
    content = checkpoint.read_bytes()
    tensors, description = read_snapshot(checkpoint)
    damaged = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(0, len(content), 997)]
    state = snapshot_bytes(tensors, {**description, "notes": {}})  # an adapter's state without a run
    for other in (*damaged, state, b""):
        checkpoint.write_bytes(other)
        with pytest.raises(StateError):
            make("x.csv").run(resume=True)
        assert (tmp_path / "work" / "x.csv").read_bytes() == rows
    checkpoint.write_bytes(content)
    assert make("x.csv").run(resume=True)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("passes", [1, 2])
def test_rows_that_an_earlier_version_has_begun_are_continued(make, tmp_path, monkeypatch, suffix, passes):
    """They lack columns that were added since."""
    with monkeypatch.context() as earlier:
        added = ("sorted_to", "none_score", "unsure")
        columns = {name: kind for name, kind in predict.COLUMNS.items() if name not in added}
        earlier.setattr(predict, "COLUMNS", columns)
        earlier.setattr(outputs, "COLUMNS", columns)
        make(f"x{suffix}", passes=passes, stop=lambda: True).run()
    assert make(f"x{suffix}", passes=passes).run(resume=True)
    make(f"whole{suffix}", passes=passes).run()
    rows = read_rows(tmp_path / "work" / f"x{suffix}")
    assert len(rows) == 40
    for row, other in zip(rows, read_rows(tmp_path / "work" / f"whole{suffix}"), strict=True):
        assert {name: other[name] for name in row} == row
