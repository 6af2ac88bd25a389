import json
import subprocess
import sys

import numpy as np
import pytest

import acclimate
from acclimate import TDA, load_state, read_stream, write_stream
from acclimate.cli.arguments import COMPARED


def rows(output):
    """Return the cells of the first table by (stream, method)."""
    lines = [line.split() for line in output.partition("\n\n")[0].splitlines()]
    return {(line[0], line[1]): line[2:] for line in lines[1:]}


def test_run_prints_a_table_with_zero_shot_beside(invoke, stream_file):
    output = invoke("run", stream_file, "--method", "zero-shot", "--method", "tda", "--order", "stored").stdout
    assert output.split()[:2] == ["stream", "method"]
    table = rows(output)
    assert set(table) == {("shifted", "zero-shot"), ("shifted", "tda")}
    stream = read_stream(stream_file)
    adapter = TDA(stream.head)
    accuracy = 100 * np.mean(adapter.step(stream.features).argmax(axis=1) == stream.targets)
    assert table["shifted", "tda"][1] == f"{accuracy:.2f}"
    gain = float(table["shifted", "tda"][2])
    assert gain == pytest.approx(accuracy - float(table["shifted", "zero-shot"][1]), abs=0.01)


def test_run_over_orders_writes_json(invoke, stream_file, tmp_path):
    options = ["--method", "tda", "--orders", 5, "--out", "out.json", "--per_class"]
    table = rows(invoke("run", stream_file, *options).stdout.partition("\n\n")[0])
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["orders"]["names"] == [f"shuffled:{i}" for i in range(5)]
    assert len(result["orders"]["acc1"]) == 5
    assert result["metrics"]["acc1"] == pytest.approx(np.mean(result["orders"]["acc1"]))
    expected = [f"{100 * result['orders'][name]:.2f}" for name in ("mean", "sd", "worst_tenth")]
    assert table["shifted", "tda"][1:4] == expected


def test_run_takes_settings(invoke, stream_file, tmp_path):
    settings = ["--set", "positive-alpha=0", "--set", "tda.negative=false", "--set", "negative_keep=highest"]
    table = rows(invoke("run", stream_file, "--method", "tda", *settings, "--out", "out.json").stdout)
    config = json.loads((tmp_path / "out.json").read_text())["config"]
    assert (config["positive_alpha"], config["negative"], config["negative_keep"]) == (0, False, "highest")
    name = ["positive_alpha=0", "negative=False", "negative_keep=highest"]
    assert table["shifted", "tda"][:3] == name
    assert table["shifted", "tda"][5:9] == ["+0.00", "+0.00", "to", "+0.00"]


def test_run_on_bare_arrays_that_were_put_together(invoke, stream, tmp_path):
    np.save(tmp_path / "f.npy", stream.features)
    assert "f.npy holds no class_vectors; add it to the file" in invoke("run", "f.npy", exit_code=2).stderr
    beside = {"class_vectors": stream.head.class_vectors, "logit_scale": 10}
    write_stream(read_stream(tmp_path / "f.npy", targets=stream.targets, **beside), tmp_path / "f.npz")
    assert set(rows(invoke("run", "f.npz").stdout)) == {("f", name) for name in COMPARED}
    write_stream(read_stream(tmp_path / "f.npy", **beside), tmp_path / "bare.npz")
    assert rows(invoke("run", "bare.npz").stdout)["bare", "tda"][1:3] == ["-", "-"]


def test_run_draws_and_saves(invoke, stream_file, tmp_path):
    pytest.importorskip("matplotlib")
    invoke("run", stream_file, "--method", "tda", "--out", "curve.png", "--save-state", "state.safetensors")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert load_state(tmp_path / "state.safetensors").samples_seen == 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere.npz"], "no run or feature file at nowhere.npz"),
        (["run", "STREAM", "--method", "tad"], "unknown method 'tad'; did you mean 'tda'"),
        (["run", "STREAM", "--order", "random"], "unknown order 'random'"),
        (["run", "STREAM", "--set", "alpha"], "--set takes KEY=VALUE, got 'alpha'"),
        (["run", "STREAM", "--method", "tda", "--set", "alpa=1"], "'tda' has no setting 'alpa'"),
        (["run", "STREAM", "--set", "positive_alpha=much"], "positive_alpha must be a number, got 'much'"),
        (["run", "STREAM", "--method", "zero-shot", "--set", "alpha=1"], "--set is for the methods of --method"),
        (["run", "STREAM", "--set", "onzeta.a=1"], "'onzeta' is not among the methods of this run"),
        (["run", "STREAM", "--out", "no/such/folder.json"], "cannot write no/such/folder.json"),
        (["run", "STREAM", "--out", "no/such/folder.csv"], "cannot write no/such/folder.csv"),
        (["run", "STREAM", "--orders", "2", "--save-state", "s"], "--save-state needs one file and one order"),
        (["run", "STREAM", "--set", "tda.positive_alpha=1,,2"], "there is no value between two commas"),
        (["run", "STREAM", "--set", f"positive_capacity={','.join('1' * 300)}"], "300 combinations; take at most 256"),
        (["run", "STREAM", "--plugin", "nowhere.py"], "no plugin at nowhere.py"),
        (
            ["run", "STREAM", "--method", "zero-shot", "--save-state", "s"],
            "state of one method; name one with --method",
        ),
        (["run", "STREAM", "--out", "x.foo"], "cannot draw x.foo; use one of the suffixes .png, .svg, .pdf"),
        (["run", "STREAM", "--device", "toaster"], "cannot use device 'toaster'"),
        (["state", "inspect", "STREAM"], "is a safetensors file but not an acclimate state"),
        (["state", "merge", "nowhere", "-o", "out"], "no state file at nowhere"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(invoke, stream_file, tmp_path, arguments, message):
    before = sorted(tmp_path.iterdir())
    arguments = [str(stream_file) if argument == "STREAM" else argument for argument in arguments]
    result = invoke(*arguments, exit_code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_that_the_system_refuses_is_one_line(invoke):
    name = "f" * 300
    result = invoke("classify", name, "--labels", "a, b", exit_code=1)
    assert result.stderr == f"error: {name} cannot be used: File name too long.\n"


def test_no_labels_no_accuracy_to_draw(invoke, stream, tmp_path):
    pytest.importorskip("matplotlib")
    np.savez(tmp_path / "s.npz", features=stream.features, class_vectors=stream.head.class_vectors, logit_scale=10.0)
    for option in ("--out=x.png", "--out=x.csv", "--out=x.tex", "--per-class"):
        said = invoke("run", "s.npz", option, "--out", "out.json", exit_code=2).stderr
        assert "s.npz has no labels, so there are no scores to write or to draw" in said
    assert [path.name for path in tmp_path.iterdir()] == ["s.npz"]


@pytest.mark.slow
def test_demo_adapts_draws_and_reports(invoke, demo, tmp_path):
    folder, output = demo
    lines = [line.split() for line in output.splitlines()]
    gains = {line[0]: [float(row[-7]) for row in lines if row[:2] == [line[0], "accord,"]] for line in lines if line}
    assert gains["pacs"][0] > 6
    assert gains["pacs_noise"][0] > 6
    assert abs(gains["cifar10_clean"][0]) < 2  # shown because adapting does not help there
    heads = (["model", "alone"], ["adapted,", "as"], ["adapted,", "at"])
    zero_shot, online, again = (next(line for line in lines if line[:2] == head and "of" in line) for head in heads)
    corrected, broken = map(int, again[-2:])
    assert corrected > 3 * broken
    assert float(zero_shot[-4]) + 3 < float(online[-4]) < float(again[-4])
    assert "report.html" in output
    assert len(read_stream(folder / "pacs.safetensors")) == 700
    assert len((folder / "results.csv").read_text().splitlines()) == 1 + 240
    assert "<html" in (folder / "report.html").read_text()
    (tmp_path / "taken").write_text("")
    assert "--out" in invoke("demo", "--out", "taken", exit_code=2).stderr


def test_version(invoke):
    assert invoke("--version").stdout.strip() == acclimate.__version__


@pytest.mark.slow
def test_the_command_itself(stream_file):
    """The installed entry point, in a process of its own: data on stdout, nothing else there, no traceback."""
    command = [sys.executable, "-m", "acclimate", "run"]
    done = subprocess.run([*command, str(stream_file)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("stream")
    assert done.stderr == ""
    failed = subprocess.run([*command, "nowhere.npy"], capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == "error: no run or feature file at nowhere.npy.\n"


@pytest.mark.slow
def test_help_imports_nothing_heavy():
    code = (
        "import sys; from acclimate.cli import app; print([m for m in ('numpy', 'torch', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
