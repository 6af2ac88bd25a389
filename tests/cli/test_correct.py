"""`acclimate correct`: fixes teach a state, and the results follow."""

import csv

import pytest

from acclimate import load_state
from acclimate.classify.outputs import read_results, write_results

LABELS = ("red circle", "green square", "blue stripes")
STATE = "site.safetensors"


@pytest.fixture
def model(tiny_onnx):
    return ["--model", f"onnx:{tiny_onnx}"]


@pytest.fixture
def classified(invoke, here, model, photos):
    """Classify the photos; where the results are."""

    def run(suffix=".csv"):
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
    wrong, right = before[3], before[7]
    write_fixes([(wrong["file"], other(wrong["label"]).upper()), (right["file"], right["label"])])
    said = invoke("correct", path, "fixes.csv", "--state", STATE, *model).stderr
    assert f"1 corrected, 1 confirmed; {STATE} has 2 corrections" in said
    after = read_results(path)
    assert after[3]["label"] == after[3]["true_label"] == after[3]["predictions"][0]["label"] == other(wrong["label"])
    assert float(after[3]["score"]) == 1
    assert len(after[3]["predictions"]) == 3
    assert after[3]["online_label"] == wrong["online_label"]
    assert [after[i] for i in range(40) if i not in (3, 7)] == [before[i] for i in range(40) if i not in (3, 7)]
    told = {each.name: each.label for each in load_state(STATE).corrections}
    assert told == {wrong["file"]: other(wrong["label"]), right["file"]: right["label"]}

    again = here / "again.csv"
    arguments = ("--labels", ",".join(LABELS), "--out", again, "--state", STATE, "--freeze")
    invoke("classify", photos, *model, *arguments)
    assert read_results(again)[3]["label"] == other(wrong["label"])


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


def test_edited_results_are_fixes_and_short_names_will_do(invoke, classified, model):
    path = classified()
    records = read_results(path)
    text = path.read_text(encoding="utf-8").splitlines()
    rows = [f"{line},{'correct_label' if number == 0 else ''}" for number, line in enumerate(text)]
    rows[5] += other(records[4]["label"])
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert "1 corrected, 0 confirmed" in invoke("correct", path, "--state", STATE, *model).stderr
    assert read_results(path)[4]["label"] == other(records[4]["label"])
    write_fixes([(records[9]["file"].rpartition("/")[2], other(records[9]["label"]))])
    assert "1 corrected" in invoke("correct", path, "fixes.csv", "--state", STATE, *model).stderr
    assert {each.name for each in load_state(STATE).corrections} == {records[4]["file"], records[9]["file"]}


def test_images_of_other_sources_are_found_by_name(invoke, classified, model, photos):
    path = classified()
    records = read_results(path)
    write_fixes([(records[0]["file"], LABELS[0])])
    invoke("correct", path, "fixes.csv", "--state", STATE, *model, "--source", photos)
    records[1]["file"] = "nowhere/img.png"
    write_results(path, records)
    write_fixes([("nowhere/img.png", LABELS[0])])
    for more, message in ((["--source", photos], "no image 'nowhere/img.png' in"), ([], "No such file")):
        said = invoke("correct", path, "fixes.csv", "--state", STATE, *model, *more, exit_code=2).stderr
        assert message in said
    assert len(load_state(STATE).corrections) == 1


BAD_FIXES = {
    "file,label\nphotos/img999.png,red circle\n": "no file 'photos/img999.png' in the results; ",
    "file,label\nFIRST,red cirle\n": "which is not a label; did you mean 'red circle'?",
    "file,label\nFIRST,\n": "gives no label for",
    "file,label\nFIRST,red circle\nFIRST,green square\n": "two labels: 'red circle' and 'green square'",
    "name,answer\nFIRST,red circle\n": "must name the columns file and label",
    "file,label\n": "has no fixes",
    "": "must name the columns",
}


def test_bad_fixes_are_refused_and_nothing_is_written(invoke, classified, model, here):
    path = classified()
    first = read_results(path)[0]["file"]
    before = path.read_bytes(), (here / STATE).read_bytes()
    for fixes, message in BAD_FIXES.items():
        (here / "fixes.csv").write_text(fixes.replace("FIRST", first), encoding="utf-8")
        assert message in invoke("correct", path, "fixes.csv", "--state", STATE, *model, exit_code=2).stderr
    assert before == (path.read_bytes(), (here / STATE).read_bytes())


def test_what_else_can_go_wrong(invoke, classified, model):
    path = classified()
    for arguments, message in [
        ([path, "--state", STATE, *model], "add a column correct_label to the results"),
        ([path, "nowhere.csv", "--state", STATE, *model], "no fixes at nowhere.csv"),
        (["--state", STATE], "give either results with fixes, or --list or --undo"),
        ([path, "--list", "--state", STATE], "give either results with fixes, or --list or --undo"),
        (["--list", "--state", "nowhere.safetensors"], "no state file at nowhere.safetensors"),
        ([path, path, "--state", STATE], "use the --model that it was made with"),
    ]:
        assert message in invoke("correct", *arguments, exit_code=2).stderr
