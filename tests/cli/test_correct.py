"""`acclimate correct`: fixes teach a state, and the results follow."""

import csv
import shutil

import pytest

from acclimate import load_state
from acclimate.classify.table import read_results, write_results
from acclimate.files import read_snapshot, snapshot_bytes
from own_methods import SHARPEN

LABELS = ("red circle", "green square", "blue stripes")
STATE = "site.safetensors"
ANSWERED = ("label", "score", "predictions", "unsure", "changed")  # columns that begin so are answered again


@pytest.fixture
def model(tiny_onnx):
    return ["--model", f"onnx:{tiny_onnx}"]


@pytest.fixture
def classified(invoke, here, model, photos):
    """Classify the photos; where the results are."""

    def run(suffix=".csv", photos=photos):
        path = here / f"results{suffix}"
        invoke("classify", photos, *model, "--labels", ",".join(LABELS), "--out", path, "--state", STATE)
        return path

    return run


def other(label):
    return LABELS[LABELS.index(label) - 1]


def write_fixes(pairs):
    with open("fixes.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file", "label"), *pairs])


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_fixes_teach_the_state_and_mark_the_results(invoke, classified, model, photos, here, suffix):
    path = classified(suffix)
    before = read_results(path)
    wrong = before[3]
    right = before[7]
    write_fixes([(wrong["file"], other(wrong["label"]).upper()), (right["file"], right["label"])])
    said = invoke("correct", path, "fixes.csv", "--state", STATE, *model).stderr
    assert f"1 corrected, 1 confirmed; 2 corrections in all. {STATE} has 2 corrections" in said
    after = read_results(path)
    assert not any(row["correct_label"] for row in before)
    marks = {3: {"correct_label": other(wrong["label"])}, 7: {"correct_label": right["label"]}}
    for place, (row, old) in enumerate(zip(after, before, strict=True)):
        same = old if place in marks else {name: old[name] for name in old if not name.startswith(ANSWERED)}
        assert row == row | same | marks.get(place, {})  # the model's answers to corrected images stay
    told = {each.name: each.label for each in load_state(STATE).corrections}
    assert told == {wrong["file"]: other(wrong["label"]), right["file"]: right["label"]}

    again = here / "again.csv"
    arguments = ("--labels", ",".join(LABELS), "--out", again, "--state", STATE, "--freeze")
    invoke("classify", photos, *model, *arguments)
    assert read_results(again)[3]["label"] == other(wrong["label"])

    content = path.read_bytes()
    said = invoke("correct", path, "--undo", "nowhere.png", "--state", STATE, exit_code=2).stderr
    assert "no correction of 'nowhere.png'" in said
    assert path.read_bytes() == content
    said = invoke("correct", path, "--undo", wrong["file"], "--state", STATE).stderr
    assert f"1 taken back, 1 left. {STATE} has 1 correction." in said
    assert [row["correct_label"] for row in read_results(path) if row["correct_label"]] == [right["label"]]
    (left,) = load_state(STATE).corrections
    invoke("correct", path, "--undo", left.name, "--state", STATE)
    assert read_results(path) == before
    assert not load_state(STATE).corrections


def test_one_command_corrects_and_answers_the_others_again(invoke, model, photos, here):
    """Neither state nor model is named; the accuracy is that of the others, wherever it is printed."""
    path = here / "results.csv"
    command = ["classify", photos, *model, "--labels", "red, green, blue", "--out", path, "--unsure", "0.5"]
    invoke(*command)
    before = read_results(path)
    wrong = [row for row in before if row["label"] != row["true_label"]]
    write_fixes([(row["file"], row["true_label"]) for row in wrong[:20]])
    said = invoke("correct", path, "fixes.csv").stderr
    after = read_results(path)
    left = [(old, new) for old, new in zip(before, after, strict=True) if not new["correct_label"]]
    changed = sum(old["label"] != new["label"] for old, new in left)
    right = [sum(row["label"] == row["true_label"] for row in rows) for rows in zip(*left, strict=True)]
    shares = [f"{100 * number / 20:.1f} %" for number in right]
    assert "20 corrected, 0 confirmed; 20 corrections in all." in said
    assert f"Answered again: {changed} of the 20 other images have another answer." in said
    assert f"Accuracy on these 20 images: {shares[0]} before, {shares[1]} now" in said
    assert changed
    for old, new in zip(before, after, strict=True):
        if new["correct_label"]:  # the answer of the model stays
            assert new == old | {"correct_label": old["true_label"]}
        else:
            assert new["unsure"] == str(float(new["score"]) < 0.5).lower()
            assert new["changed"] == str(new["label"] != new["zero_shot_label"]).lower()
            assert (new["online_label"], new["sorted_to"]) == (old["online_label"], old["sorted_to"])

    again = invoke("classify", "--out", path, "--resume", "--report", "report.html").stderr
    assert "Accuracy on 20 images, without 20 corrected ones: " in again
    assert f"adapted {shares[1]}" in again
    assert "without 20 images that you corrected" in (here / "report.html").read_text(encoding="utf-8")
    invoke(*command[:-4], "--out", "other.csv", "--state", "results.run/state.safetensors", "--freeze")
    assert sum(bool(row["correct_label"]) for row in read_results(here / "other.csv")) == 20

    invoke("correct", path, *(argument for row in wrong[:20] for argument in ("--undo", row["file"])))
    assert read_results(path) == before


def test_results_that_a_spreadsheet_has_sorted_are_corrected(invoke, classified):
    path = classified()
    records = read_results(path)
    write_fixes([(records[3]["file"], other(records[3]["label"]))])
    write_results(path, records[::-1])
    invoke("correct", path, "fixes.csv")
    assert [row["file"] for row in read_results(path) if row["correct_label"]] == [records[3]["file"]]


def test_corrections_stay_when_labels_change(invoke, classified, model, photos, here):
    path = classified()
    records = read_results(path)
    write_fixes([(records[0]["file"], "red circle"), (records[1]["file"], "green square")])
    invoke("correct", path, "fixes.csv", "--state", STATE)
    labels = "blue stripes, plain grey, red circle"  # one is gone, one is new, the order is another
    command = ["classify", photos, *model, "--labels", labels, "--out", "other.csv", "--state", STATE]
    with pytest.warns(UserWarning, match="have changed since site.safetensors; new: plain grey; gone: green square"):
        invoke(*command)
    assert [each.label for each in load_state(STATE).corrections] == ["red circle"]
    assert [row["correct_label"] for row in read_results(here / "other.csv")[:2]] == ["red circle", ""]


def test_corrections_are_listed_taken_back_inspected_and_merged(invoke, classified, model):
    path = classified()
    untaught = load_state(STATE).dump()
    records = read_results(path)
    write_fixes([(record["file"], other(record["label"])) for record in records[:3]])
    assert "no corrections" in invoke("correct", "--state", STATE, "--list").stdout
    invoke("correct", path, "fixes.csv", "--state", STATE, *model)
    listed = invoke("correct", "--state", STATE, "--list").stdout
    assert all(record["file"] in listed for record in records[:3])
    assert "corrections: 3" in invoke("state", "inspect", STATE).stdout
    ids = {each.name: each.id for each in load_state(STATE).corrections}
    said = invoke("correct", "--state", STATE, "--undo", records[0]["file"], "--undo", ids[records[1]["file"]]).stderr
    assert f"2 taken back, 1 left in {STATE}" in said
    said = invoke("correct", "--state", STATE, "--undo", records[0]["file"], exit_code=2).stderr
    assert "no correction of" in said
    invoke("correct", "--state", STATE, "--undo", records[2]["file"])
    for name, values in load_state(STATE).dump().items():
        assert (values == untaught[name]).all(), name


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_edited_results_are_fixes_and_short_names_will_do(invoke, classified, model, suffix):
    path = classified(suffix)
    records = read_results(path)
    records[4]["correct_label"] = other(records[4]["label"])
    write_results(path, records)
    if suffix == ".csv":  # the format of spreadsheets
        path.write_text(path.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert "1 corrected, 0 confirmed" in invoke("correct", path, "--state", STATE, *model).stderr
    assert read_results(path)[4] == records[4]
    write_fixes([(records[9]["file"].rpartition("/")[2], other(records[9]["label"]))])
    assert "1 corrected" in invoke("correct", path, "fixes.csv", "--state", STATE, *model).stderr
    assert {each.name for each in load_state(STATE).corrections} == {records[4]["file"], records[9]["file"]}


def test_images_that_were_sorted_are_read_from_where_they_are(invoke, classified, model, photos, here):
    moved = here / "photos"
    shutil.copytree(photos, moved)
    path = classified(photos=moved)
    before = read_results(path)
    invoke("sort", path, "sorted", "--how", "move")
    write_fixes([(before[0]["file"], other(before[0]["label"]))])
    invoke("correct", path, "fixes.csv", "--state", STATE, *model)
    (told,) = load_state(STATE).corrections
    assert (told.name, told.label) == (before[0]["file"], other(before[0]["label"]))
    invoke("sort", path, "--undo")
    invoke("sort", path, "sorted")
    assert read_results(path)[0]["sorted_to"].startswith(f"sorted/{told.label}/")


@pytest.mark.usefixtures("own_registry")
def test_a_state_of_an_own_method_is_taught(invoke, model, photos, here):
    (here / "sharpen.py").write_text(SHARPEN)
    own = [*model, "--state", STATE, "--plugin", "sharpen.py"]
    path = here / "results.csv"
    invoke("classify", photos, "--labels", ",".join(LABELS), "--method", "sharpen", "--out", path, *own)
    write_fixes([(read_results(path)[0]["file"], LABELS[0])])
    assert f"{STATE} has 1 correction." in invoke("correct", path, "fixes.csv", *own).stderr


BAD_FIXES = {
    "file,label\nphotos/img999.png,red circle\n": "line 2: photos/img999.png is not among the images of this run; ",
    "file,label\n?,red circle\n": ", ... (20 of 40).",
    "file,label\nFIRST,red cirle\n": "line 2: 'red cirle' is not a label of this run; did you mean 'red circle'?",
    "file,label\nFIRST,\n": "gives no label; write the right label",
    "file,label\nFIRST,red circle\nFIRST,green square\n": "already has the label 'red circle'; leave one of them",
    "name,answer\nFIRST,red circle\n": "name is not among the images of this run",
    "file,label\n": "gives no label",
    "": "gives no label",
    "file,label,online_label\nFIRST,red circle,red circle\n": "none of correct_label, label, class is among file",
}


def test_bad_fixes_are_refused_and_nothing_is_written(invoke, classified, model, here):
    path = classified()
    first = read_results(path)[0]["file"]
    before = path.read_bytes(), (here / STATE).read_bytes()
    for fixes, message in BAD_FIXES.items():
        (here / "fixes.csv").write_text(fixes.replace("FIRST", first), encoding="utf-8")
        assert message in invoke("correct", path, "fixes.csv", "--state", STATE, *model, exit_code=2).stderr
    assert before == (path.read_bytes(), (here / STATE).read_bytes())


def test_invalid_corrections_are_refused(invoke, classified, model):
    path = classified()
    for arguments, message in [
        ([path, "--state", STATE, *model], "write the right label of each wrong answer into correct_label"),
        ([path, "nowhere.csv", "--state", STATE, *model], "cannot read the labels in nowhere.csv"),
        (["--state", STATE], "give results with fixes, or --list, or --undo"),
        (["--list"], "name the results, or the --state whose corrections are meant"),
        ([path, path, "--list"], "give results with fixes, or --list, or --undo"),
        ([path, path, "--undo", "1", "--state", STATE], "give results with fixes, or --list, or --undo"),
        (["--list", "--state", "nowhere.safetensors"], "no state file at nowhere.safetensors"),
    ]:
        assert message in invoke("correct", *arguments, exit_code=2).stderr


def test_a_state_of_another_model_is_not_taught(invoke, classified, model, here):
    path = classified()
    arrays, description = read_snapshot(here / STATE)
    assert description["notes"]["model"]
    (here / STATE).write_bytes(snapshot_bytes(arrays, description | {"notes": {"model": "another"}}))
    before = (here / STATE).read_bytes()
    row = read_results(path)[0]
    write_fixes([(row["file"], other(row["label"]))])
    said = invoke("correct", path, "fixes.csv", "--state", STATE, *model, exit_code=2).stderr
    assert "was made with another model" in said
    assert (here / STATE).read_bytes() == before
