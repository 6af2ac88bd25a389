"""Classifications: what is written, what a stop leaves, and that everything else follows from the features."""

import contextlib
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from acclimate import Classifier, files, load_state
from acclimate import run as run_module
from acclimate.classify.table import read_results, read_table, write_results
from acclimate.classify.task import Encoding, Task, find_run
from acclimate.encoders import load_encoder
from acclimate.errors import AcclimateError, InputError, RunError
from acclimate.run import Run, is_run
from acclimate.sources.follow import Follow
from acclimate.sources.source import open_source
from classify_jobs import begin, classify
from drawn_images import draw, draw_folder
from waiting import wait_until

LABELS = ("red circle", "green square", "blue stripes")
SUFFIXES = [".csv", ".jsonl", ".parquet"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "photos").mkdir()
    return draw_folder(tmp_path / "photos", 24)


@pytest.fixture
def work(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def model(tiny_onnx, monkeypatch, tmp_path):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    return f"onnx:{tiny_onnx}"


@pytest.fixture
def make(work, folder, model):
    """Return a function that classifies the folder, or another source, into a table of this name."""

    def run(name, source=folder, **options):
        labels = {} if is_run(source) else {"labels": LABELS}
        return classify(name and work / name, source, model, **labels | options)

    return run


def stop_after(batches):
    calls = iter(range(1000))
    return lambda: next(calls) >= batches - 1


def assert_same_answers(work, one, other):
    assert (work / other).read_bytes() == (work / one).read_bytes()
    states = [(work / name).with_suffix(".run") / "state.safetensors" for name in (one, other)]
    assert states[0].read_bytes() == states[1].read_bytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_table_and_its_run_are_left_and_nothing_else(make, work, suffix):
    run = make(f"out{suffix}")
    assert run.finished
    assert sorted(path.name for path in work.iterdir()) == [f"out{suffix}", "out.run"] or suffix > ".run"
    names = {path.name for path in (work / "out.run").iterdir()}
    parts = {f"00000{number}.safetensors" for number in range(3)}
    assert names == {"run.json", "head.safetensors", "start.safetensors", "state.safetensors", *parts}
    rows = read_results(work / f"out{suffix}")
    assert [int(row["index"]) for row in rows] == list(range(24))
    assert run.summary.images == 24


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("passes", [1, 2])
def test_stopping_and_going_on_leaves_no_trace(make, work, suffix, passes):
    whole = make(f"whole{suffix}", passes=passes)
    for batches in range(1, 7):
        name = f"parts{batches}{suffix}"
        stopped = make(name, passes=passes, stop=stop_after(batches))
        if not stopped.finished:
            assert Run.open(work / f"parts{batches}.run").answer["answers"] == "online"
            if batches <= 3 and suffix != ".parquet":
                assert len(read_table(work / name)) == 8 * batches
        again = make(name, resume=True)
        assert again.finished
        assert again.summary == whole.summary
        assert_same_answers(work, f"whole{suffix}", name)


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_answers_in_groups(make, work, suffix):
    parents = dict(zip(LABELS, ["round", "square", "square"], strict=True))
    whole = make(f"whole{suffix}", parents=parents)
    make("every.jsonl", top_k=3)
    rows = read_results(work / f"whole{suffix}")
    for row, all_scores in zip(rows, read_results(work / "every.jsonl"), strict=True):
        scores = {each["label"]: each["score"] for each in all_scores["predictions"]}
        sums = {group: sum(scores[x] for x in LABELS if parents[x] == group) for group in ("round", "square")}
        assert row["group"] == max(sums, key=sums.get)
        assert float(row["group_score"]) == pytest.approx(sums[row["group"]], abs=2e-4)
        assert len(row["predictions"]) == 2
    assert whole.summary.groups.total() == 24
    make(f"cut{suffix}", parents=parents, stop=stop_after(2))
    make(f"cut{suffix}", resume=True)
    assert read_results(work / f"cut{suffix}") == rows


class Crash(BaseException):
    """The end of the process, for the sake of the test."""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_crash_at_any_change_to_a_file_leaves_no_trace(make, work, monkeypatch, suffix):
    """The process ends before or after each change to a file; the same command, or --resume, does what is left."""
    make(f"whole{suffix}")
    counted = SimpleNamespace(calls=0, at=0, after=False)

    def ending(change):
        def changed(*arguments, **options):
            counted.calls += 1
            if counted.calls == counted.at and not counted.after:
                raise Crash
            result = change(*arguments, **options)
            if counted.calls == counted.at:
                raise Crash
            return result

        return changed

    monkeypatch.setattr(files.os, "replace", ending(files.os.replace))
    monkeypatch.setattr(Path, "mkdir", ending(Path.mkdir))
    make(f"counted{suffix}")
    changes = counted.calls
    assert changes > 8
    for at in range(1, changes + 1):
        for after in (False, True):
            counted.calls, counted.at, counted.after = 0, at, after
            name = f"x{at}{after}{suffix}"
            with pytest.raises(Crash):
                make(name)
            counted.at = 0
            begun = is_run(work / name.replace(suffix, ".run"))
            make(name, resume=begun, overwrite=not begun)
            assert_same_answers(work, f"whole{suffix}", name)
            assert not list(work.glob("*.edited*"))


def test_a_run_is_a_source(make, work, folder):
    make("photos.csv")
    shutil.rmtree(folder)  # no image is opened
    make("again.csv", work / "photos.run")
    assert_same_answers(work, "photos.csv", "again.csv")
    assert not list((work / "again.run").glob("0*"))
    make("lines.jsonl", work / "again.run", top_k=3, unsure=0.5)
    rows = read_results(work / "lines.jsonl")
    assert [row["label"] for row in rows] == [row["label"] for row in read_results(work / "photos.csv")]
    assert len(rows[0]["predictions"]) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"labels": ("a cat", "a dog", "red circle", "a green box")},
        {"method": "tda"},
        {"method": "stata"},
        {"templates": ["a drawing of {}."]},
        {"passes": 1},
    ],
)
def test_other_answers_of_a_run_are_those_of_the_photos(make, work, options):
    make("first.csv")
    make("photos.csv", **options)
    make("replayed.csv", work / "first.run", **options)
    assert_same_answers(work, "photos.csv", "replayed.csv")
    make("first.csv", work / "first.run", overwrite=True, **options)  # into its own name
    assert_same_answers(work, "photos.csv", "first.csv")
    make("again.csv", work / "first.run", passes=options.get("passes", 2))
    assert_same_answers(work, "photos.csv", "again.csv")


def test_an_overwritten_run_stays_until_the_new_one_is_complete(make, work):
    make("x.csv")
    before = {path: path.read_bytes() for path in sorted(work.rglob("*")) if path.is_file()}
    make("x.csv", overwrite=True, stop=stop_after(2))
    assert {path: path.read_bytes() for path in before} == before
    make("x.csv", resume=True)
    assert_same_answers(work, "x.csv", "x.csv")
    assert {path.name for path in work.iterdir()} == {"x.csv", "x.run"}
    assert Run.open(work / "x.run").id not in before[work / "x.run" / "run.json"].decode()


def test_what_would_be_lost_is_refused(make, work):
    make("x.csv")
    with pytest.raises(InputError, match=r"x\.csv exists; pass --resume to continue it, or --overwrite"):
        make("x.csv")
    with pytest.raises(InputError, match=r"x\.run is the run of x\.csv; choose another --out"):
        make("x.parquet", overwrite=True)
    make("y.csv")
    with pytest.raises(InputError, match=r"y\.run has the features of 24 images of its own"):
        make("y.csv", work / "x.run", overwrite=True)
    shutil.rmtree(work / "y.run")
    with pytest.raises(InputError, match="has no run beside it"):
        make("y.csv", resume=True)
    make("z.csv", work / "x.run")
    shutil.rmtree(work / "x.run")
    with pytest.raises(RunError, match=r"answered from the features in .*x\.run, which are gone"):
        make("a.csv", work / "z.run")


@pytest.mark.parametrize(
    ("options", "option"), [({"unsure": 0.9}, "--unsure"), ({"method": "tda"}, "--method"), ({"top_k": 3}, "--top-k")]
)
def test_other_answers_are_asked_for_without_resuming(make, work, options, option):
    make("x.csv", stop=stop_after(1))
    with pytest.raises(InputError, match=rf"{option} asks for other answers; .* acclimate classify .*x\.run"):
        make("x.csv", resume=True, **options)
    make("x.csv", resume=True)


def test_a_run_of_another_model_is_refused(make, work, folder, tmp_path):
    make("x.csv")
    with pytest.raises(InputError, match=r"were made with --model onnx:.*, not bundled"):
        classify(work / "y.csv", work / "x.run", "bundled")
    with pytest.raises(InputError, match=r"were made with another model"):
        list(Classifier(["a", "b"]).batches(work / "x.run"))
    with pytest.raises(InputError, match=r"with --encode decoder pillow, not nvjpeg; leave --encode decoder out"):
        Encoding(decoder="nvjpeg", given=frozenset({"decoder"})).of(Run.open(work / "x.run"), trusted=True)


def test_a_classifier_takes_a_run(make, work, folder, model):
    make("x.csv")
    ours = Classifier(LABELS, load_encoder(model), batch_size=8)
    theirs = Classifier(LABELS, load_encoder(model), batch_size=8)
    assert ours.classify(work / "x.run") == theirs.classify(open_source(str(folder)))


def add_images(folder, count=5):
    for seed in range(100, 100 + count):
        draw("red", seed).save(folder / "red" / f"added{seed}.png")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("passes", [1, 2])
def test_new_images_are_encoded_and_all_are_answered(make, work, folder, suffix, passes):
    name = f"r{suffix}"
    make(name, passes=passes)
    before = read_results(work / name)
    add_images(folder)
    run = make(name, resume=True)
    after = read_results(work / name)
    online = [(row["file"], row["online_label"], row["online_score"]) for row in after]
    assert online[:24] == [(row["file"], row["online_label"], row["online_score"]) for row in before]
    assert [row["file"].rsplit("/", 1)[1] for row in after[24:]] == [f"added{seed}.png" for seed in range(100, 105)]
    assert run.summary.images == 29
    assert load_state(work / "r.run" / "state.safetensors").samples_seen == 29


def test_removed_images_keep_their_rows(make, work, folder):
    make("r.csv", stop=stop_after(1))
    done = [row["file"] for row in read_table(work / "r.csv")]
    add_images(folder, 2)
    Path(done[0]).unlink()
    make("r.csv", resume=True)
    files = [row["file"] for row in read_results(work / "r.csv")]
    assert files[:8] == done
    assert len(files) == len(set(files)) == 26


def test_an_image_that_was_repaired_is_read_again(make, work, folder):
    image = folder / "red" / "img0.png"
    whole = image.read_bytes()
    image.write_bytes(b"broken")
    make("r.csv")
    make("r.csv", resume=True)
    assert [row["file"] for row in read_results(work / "r.csv") if row["error"]] == [image.as_posix()]
    image.write_bytes(whole)
    make("r.csv", resume=True)
    rows = read_results(work / "r.csv")
    assert len(rows) == 24
    assert rows[-1]["file"] == image.as_posix()
    assert not any(row["error"] for row in rows)
    make("r.csv", resume=True)
    assert read_results(work / "r.csv") == rows


def test_what_only_the_table_knows_is_handed_over(make, work, folder):
    make("r.csv")
    rows = read_results(work / "r.csv")
    for row in rows:
        row["my notes"] = f"seen {row['index']}"
    rows[3]["sorted_to"] = "elsewhere/a.png"
    rows[4]["correct_label"] = LABELS[0]
    write_results(work / "r.csv", rows)
    text = (work / "r.csv").read_text().replace(",", ";")
    (work / "r.csv").write_text("\ufeff" + text)
    add_images(folder)
    for how in ({"resume": True}, {"source": work / "r.run", "overwrite": True, "labels": LABELS[:2]}):
        run = make("r.csv", **how)
        assert not run.notes
        after = read_results(work / "r.csv")
        assert [row["my notes"] for row in after[:24]] == [row["my notes"] for row in rows]
        assert (after[3]["sorted_to"], after[4]["correct_label"]) == ("elsewhere/a.png", LABELS[0])
        assert (work / "r.csv").read_text().startswith("\ufefffile;label;")
    shutil.rmtree(work / "r.run")
    shutil.copytree(folder, work / "others")
    for path in sorted((work / "others").rglob("*.png"))[:4]:
        path.unlink()
    with pytest.raises(InputError, match=r"says where .* went, and the new results do not have this image"):
        make("r.csv", work / "others", overwrite=True)
    assert read_table(work / "r.csv") == after


@pytest.mark.parametrize("stopped", [False, True])
def test_answers_that_a_person_edited_are_not_overwritten_without_a_word(make, work, folder, stopped):
    make("r.csv", stop=stop_after(2) if stopped else lambda: False)
    path = work / "r.csv"
    edited = path.read_text().replace("blue stripes", "red circle", 1).replace("green square", "red circle", 1)
    path.write_text(edited)
    add_images(folder, 1)
    run = make("r.csv", resume=True)
    assert (work / "r.edited.csv").read_text() == edited
    assert "were edited" in run.notes[0]
    assert len(read_results(path)) == 25


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_foreign_file_in_the_place_of_the_table_is_put_aside(make, work, suffix):
    make(f"r{suffix}")
    before = (work / f"r{suffix}").read_bytes()
    (work / f"r{suffix}").write_bytes(b"rubbish\n" * 10)
    run = make(f"r{suffix}", resume=True)
    assert (work / f"r.edited{suffix}").read_bytes() == b"rubbish\n" * 10
    assert "were edited" in run.notes[0]
    assert (work / f"r{suffix}").read_bytes() == before


def test_true_labels_that_come_later_are_counted(make, work, folder, model):
    make("r.csv")
    names = [row["file"] for row in read_results(work / "r.csv")]
    run = begin(work / "r.csv", folder, model, resume=True)
    run.truths = dict.fromkeys(names, LABELS[0])
    run.answer()
    assert {row["true_label"] for row in read_results(work / "r.csv")} == {LABELS[0]}
    assert run.summary.accuracy.known == 24


@pytest.mark.parametrize("passes", [1, 2])
def test_corrections_are_replayed_and_taken_back(make, work, passes):
    make("r.csv", passes=passes)
    before = (work / "r.csv").read_bytes()
    rows = read_results(work / "r.csv")
    run = Run.open(work / "r.run")
    run.corrections = {row["file"]: LABELS[int(row["index"]) % 3] for row in rows[:4]}
    first = make("r.csv", resume=True)
    after = read_results(work / "r.csv")
    assert [row["correct_label"] for row in after[:5]] == [LABELS[0], LABELS[1], LABELS[2], LABELS[0], ""]
    for name in ("online_label", "online_score", "zero_shot_label"):
        assert [row[name] for row in after] == [row[name] for row in rows]
    assert [row["label"] for row in after[:4]] == [row["label"] for row in rows[:4]]
    assert first.effect.others == 20
    assert first.effect.changed == sum(old["label"] != new["label"] for old, new in zip(rows, after, strict=True))
    assert len(load_state(work / "r.run" / "state.safetensors").corrections) == 4
    make("other.csv", work / "r.run", labels=LABELS[:2])  # takes those whose label it has
    assert [row["correct_label"] for row in read_results(work / "other.csv")[:3]] == [*LABELS[:2], ""]
    run.corrections = {}
    make("r.csv", resume=True, forget=[row["file"] for row in rows[:4]])
    assert (work / "r.csv").read_bytes() == before


def test_what_others_learnt_into_a_state_stays(make, work, folder, tmp_path):
    state = work / "site.safetensors"
    make("monday.csv", state=state)
    make("tuesday.csv", state=state)
    assert load_state(state).samples_seen == 48
    both = state.read_bytes()
    add_images(folder)
    run = make("monday.csv", resume=True, state=state)
    assert state.read_bytes() == both
    assert "another run has learnt into" in run.notes[0]
    make("tuesday.csv", resume=True, state=state)
    assert load_state(state).samples_seen == 53


def test_ids_go_on_above_those_of_a_loaded_state(make, work):
    state = work / "site.safetensors"
    make("one.csv", state=state)
    run = make("two.csv", state=state)
    assert run.first_id == 24
    assert run.classifier.adapter.samples_seen == 48


def test_a_followed_folder_is_classified_as_images_arrive(make, work, folder, model):
    stopped = threading.Event()
    options = {"follow": True, "passes": 1, "labels": LABELS}
    follow = Follow(str(folder), stopped.is_set, interval=0.05)
    run = begin(work / "r.csv", folder, model, more=follow, stop=stopped.is_set, **options)
    worker = threading.Thread(target=run.answer)
    worker.start()
    try:
        wait_until(lambda: run.images == 24)
        add_images(folder, 3)
        wait_until(lambda: run.images == 27)
    finally:
        stopped.set()
        worker.join(180)
    assert len(read_results(work / "r.csv")) == 27
    add_images(folder, 6)
    again = SimpleNamespace(images=0)
    follow = Follow(str(folder), lambda: again.images >= 30, interval=0.05)
    again = begin(work / "r.csv", folder, model, more=follow, resume=True, samples=())
    again.answer()
    rows = read_results(work / "r.csv")
    assert len({row["file"] for row in rows}) == len(rows) == 30
    assert load_state(work / "r.run" / "state.safetensors").samples_seen == 30


@pytest.fixture
def limit_file_size():
    """Return a function that limits the size of files, as on a full disk; the limit is lifted at the end."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("when", ["first pass", "second pass"])
def test_a_full_disk_loses_nothing(make, work, limit_file_size, when):
    make("whole.csv")

    def fill(predictions, final):
        if final is (when == "second pass") and predictions.start == 8:
            limit_file_size(300)

    with pytest.raises(RunError, match=r"File too large\. What was encoded .*kept; .* --resume"):
        make("full.csv", emit=fill)
    limit_file_size(-1)
    make("full.csv", resume=True)
    assert_same_answers(work, "whole.csv", "full.csv")


@pytest.mark.parametrize("readable", [0, 1])
def test_the_smallest_folders(make, work, folder, readable):
    [image, *_] = samples = open_source(str(folder))
    samples[:] = [replace(image, name="broken.jpg", read=lambda: b""), image][: 1 + readable]
    run = make("x.csv", samples=samples)
    assert (run.summary.answered, run.summary.unreadable, run.summary.passes) == (readable, 1, 2)
    rows = read_results(work / "x.csv")
    assert rows[0]["error"] == "the file is empty"
    assert len(rows) == 1 + readable
    make("y.csv", work / "x.run")
    assert (work / "y.csv").read_bytes() == (work / "x.csv").read_bytes()


@pytest.mark.parametrize("passes", [1, 2])
def test_stopped_without_a_table_what_was_seen_is_answered(folder, model, work, passes):
    final = []
    state = work / "s.safetensors"
    run = classify(
        None, folder, model, labels=LABELS, passes=passes, state=state, stop=lambda: True,
        emit=lambda rows, last: final.extend(rows if last else []),
    )  # fmt: skip
    assert not run.finished
    assert [each.index for each in final] == list(range(8))
    assert load_state(state).samples_seen == 8
    assert [path.name for path in work.iterdir()] == ["s.safetensors"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_that_are_no_unicode(make, work, folder, suffix):
    samples = [replace(each, name=f"caf\udce9-{i}.png") for i, each in enumerate(open_source(str(folder)))]
    make(f"out{suffix}", samples=samples, stop=stop_after(2))
    make(f"out{suffix}", samples=samples, resume=True)
    assert read_results(work / f"out{suffix}")[3]["file"] == r"caf\udce9-3.png"
    make(f"again{suffix}", work / "out.run")
    assert read_results(work / f"again{suffix}") == read_results(work / f"out{suffix}")


def test_a_collection_is_answered_in_two_passes_and_refused_one(make, work, folder, model):
    make("out.jsonl", method="stata")
    rows = read_results(work / "out.jsonl")
    assert [row["online_label"] for row in rows] == [row["zero_shot_label"] for row in rows]
    whole = Classifier(LABELS, load_encoder(model), method="stata", batch_size=8).classify(open_source(str(folder)))
    assert [row["label"] for row in rows] == [each.label for each in whole]
    with pytest.raises(InputError, match="'stata' answers all images together, in a second pass"):
        make("other.jsonl", method="stata", passes=1)


@pytest.mark.parametrize("freeze", [False, True])
def test_one_pass_where_there_is_nothing_to_add(make, work, freeze):
    make("first.csv")
    options = {"freeze": True, "state": work / "first.run" / "state.safetensors"} if freeze else {"method": "zero-shot"}
    finals = []
    run = make("out.csv", emit=lambda rows, final: finals.append(final), **options)
    assert run.passes == 1
    assert finals == [True] * 3
    rows = read_results(work / "out.csv")
    assert [(row["label"], row["score"]) for row in rows] == [
        (row["online_label"], row["online_score"]) for row in rows
    ]


def test_a_damaged_run_is_named_and_nothing_is_lost(make, work):
    make("x.csv", stop=stop_after(2))
    part = work / "x.run" / "000001.safetensors"
    whole = part.read_bytes()
    part.write_bytes(whole[:-8] + bytes(8))
    with pytest.raises(RunError, match=r"000001.safetensors is damaged.* put another copy"):
        make("x.csv", resume=True)
    part.write_bytes(whole)
    assert make("x.csv", resume=True).finished
    about = json.loads((work / "x.run" / "run.json").read_text())
    (work / "x.run" / "run.json").write_text(json.dumps(about | {"version": 99}))
    with pytest.raises(RunError, match="another version"):
        make("x.csv", resume=True)


@pytest.mark.parametrize("number", [1, 2])
def test_a_missing_part_is_named_and_encoded_again_where_it_is_the_last(make, work, number):
    make("x.csv")
    make("whole.csv")
    part = work / "x.run" / f"00000{number}.safetensors"
    kept = part.read_bytes()
    part.unlink()
    with pytest.raises(RunError, match=rf"{part.name} is missing; put it back"):
        make("y.csv", work / "x.run")
    if number == 1:
        with pytest.raises(RunError, match="parts after it are there; put it back, or remove these"):
            make("x.csv", resume=True)
        part.write_bytes(kept)
    make("x.csv", resume=True)
    assert_same_answers(work, "whole.csv", "x.csv")


WRONG = (None, True, -1, 2.5, "../..", ["a", 1], {"a": 1}, 10**30)


@pytest.mark.slow
def test_whatever_a_strangers_run_says_is_an_answer_or_an_error(make, work, model):
    """Its values are data: no model, plugin or file that it names is loaded, and no traceback follows."""
    make("x.csv")
    about = json.loads((work / "x.run" / "run.json").read_text())
    names = sorted(path.name for path in work.iterdir())
    with pytest.raises(InputError, match=r"were made by onnx:.*; name the model again: --model"):
        find_run(Task(source=(str(work / "x.run"),)), Encoding(), None, resume=False)
    for half in ("features", "answer"):
        for name in about[half]:
            for value in WRONG:
                changed = about | {half: about[half] | {name: value}}
                (work / "x.run" / "run.json").write_text(json.dumps(changed))
                with contextlib.suppress(AcclimateError):
                    make(None, work / "x.run")
    assert sorted(path.name for path in work.iterdir()) == names


def test_a_second_process_stops_the_first(make, work, folder, model):
    first = begin(work / "x.csv", folder, model, labels=LABELS)
    first.emit = lambda rows, final: make("x.csv", resume=True) if rows.start == 0 and not final else None
    with pytest.raises(RunError, match="another process writes"):
        first.answer()
    make("whole.csv")
    assert_same_answers(work, "whole.csv", "x.csv")


def test_memory_of_the_second_pass_is_a_slice(make, work, monkeypatch):
    make("x.csv")
    rows = []
    slices = run_module.StoredFeatures.__getitem__
    monkeypatch.setattr(
        run_module.StoredFeatures, "__getitem__", lambda self, part: rows.append(found := slices(self, part)) or found
    )
    monkeypatch.setattr("acclimate.methods.adapter.block_size", lambda head, features: 5)
    make("y.csv", work / "x.run", method="tda")
    assert max(map(len, rows)) == 5
    assert np.concatenate(rows[:5]).shape == (24, rows[0].shape[1])
