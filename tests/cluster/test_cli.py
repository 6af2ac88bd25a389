"""`acclimate cluster` as people use it: real runs through the command, its errors, Ctrl-C and what follows."""

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("ray", reason="a cluster needs Ray")
parquet = pytest.importorskip("pyarrow.parquet", reason="results are parquet files")
datasets = pytest.importorskip("pyarrow.dataset")

from acclimate.cli import app  # noqa: E402
from acclimate.cluster.filesystem import Storage  # noqa: E402
from acclimate.cluster.machines import check_access  # noqa: E402
from acclimate.errors import InputError  # noqa: E402
from acclimate.methods import load_state  # noqa: E402
from acclimate.sources import Sample  # noqa: E402
from own_methods import SHARPEN, WAITING  # noqa: E402
from waiting import wait_until  # noqa: E402

LABELS = "red, green, blue"
BLOCKS = ("--labels", LABELS, "--batch-size", "4", "--every", "4")


@pytest.fixture
def command(here, monkeypatch):
    """Run `acclimate` in this process, in an empty folder."""
    monkeypatch.setenv("ACCLIMATE_CACHE", str(here / ".cache"))

    def run(*arguments, exit_code=0):
        result = CliRunner().invoke(app, [str(each) for each in arguments])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == exit_code, result.output
        return result.stderr

    return run


def rows(folder):
    return datasets.dataset(str(folder)).to_table().to_pylist()


def test_the_rows_of_one_machine(local_ray, command, photos, here):
    (here / "more").mkdir()
    (here / "more" / "broken.png").write_bytes(b"not an image")
    arguments = (photos, "more", *BLOCKS[:4], "--unsure", "0.5", "--origin", "here")
    command("classify", *arguments, "--out", "one.parquet", "--state", "one.safetensors")
    run = ("cluster", "classify", *arguments, "--every", "4", "--workers", "1:2", "--out", "many")
    said = command(*run, "--state", "many.safetensors")
    assert rows("many") == parquet.read_table("one.parquet").to_pylist()
    assert (here / "many.safetensors").read_bytes() == (here / "one.safetensors").read_bytes()
    assert "40 images classified, 1 could not be read" in said
    assert f"Results: {here / 'many'}. State: many.safetensors." in said
    assert "Policy ordered: one state, in order, 11 blocks of 4 images." in said
    assert "unsure (score below 0.5)" in said
    assert "has results; pass --resume to complete them, or --overwrite" in command(*run, exit_code=2)
    assert "many was complete; nothing was left to do." in command(*run, "--resume")
    command(*run, "--overwrite", "--state", "many.safetensors")  # it goes on from the state
    assert load_state(here / "many.safetensors").samples_seen == 80
    about = json.loads(parquet.read_schema(here / "many" / "part-000000.parquet").metadata[b"acclimate"])
    assert about["policy"] == "ordered"


def test_states_that_are_merged(nodes, command, photos, here):
    method = ("--method", "tda", "--workers", "2", "--origin", "here")
    run = ("cluster", "classify", photos, *BLOCKS, *method, "--policy", "merged", "--ordered-first", "8")
    said = command(*run, "--out", "many", "--state", "many.safetensors")
    assert "8 shards, states exchanged every 4 images of each, 3 rounds, the first 8 images in order." in said
    command("classify", photos, *BLOCKS[:4], "--method", "tda", "--state", "one.safetensors", "--origin", "here")
    difference = command("state", "diff", "many.safetensors", "one.safetensors")
    assert difference == ""
    assert len(rows("many")) == 40
    said = command(*run, "--out", "shown", "--ray-progress")
    assert re.search("classifying.*: 100%", said)  # older Rays number it
    assert rows("shown") == rows("many")
    said = command(*run[:3], *BLOCKS, "--method", "onzeta", "--policy", "merged", "--out", "no", exit_code=2)
    assert "ordered" in said


def test_a_method_of_a_plugin(local_ray, command, own_registry, photos, here):
    (here / "own.py").write_text(SHARPEN)
    command("cluster", "classify", photos, *BLOCKS, "--plugin", "own.py", "--method", "sharpen", "--out", "own")
    command("classify", photos, *BLOCKS[:4], "--plugin", "own.py", "--method", "sharpen", "--out", "one.parquet")
    assert rows("own") == parquet.read_table("one.parquet").to_pylist()


def test_requests_beyond_the_cluster_are_refused(local_ray, command, photos):
    run = ("cluster", "classify", photos, *BLOCKS, "--out", "out")
    assert "and room for 4; lower --workers" in command(*run, "--workers", "5", exit_code=2)
    assert "the largest 4 CPUs, and room for 0; lower" in command(*run, "--gpus", "1", exit_code=2)
    said = command(*run, "--freeze", "--state", "none.safetensors", exit_code=2)
    assert "there is none at none.safetensors" in said
    assert "--state . is a folder; name a file" in command(*run, "--state", ".", exit_code=2)


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs a name that is another folder elsewhere")
def test_folders_that_are_not_shared(local_ray, here, monkeypatch):
    def content(process):  # within a function, as it is then sent whole
        if process not in (None, os.getpid()):
            raise FileNotFoundError("not here")
        return b""

    monkeypatch.setattr("acclimate.cluster.machines.FILE_DELAY_S", 0.0)
    check_access(Storage(here), Sample("image", partial(content, None)))
    check_access(Storage(here), Sample("broken", partial(content, -1)))  # it is broken on every node
    with pytest.raises(InputError, match=r"the node 127\.0\.0\.1 .* cannot read image, the first image \(not here"):
        check_access(Storage(here), Sample("image", partial(content, os.getpid())))
    # The processes of Ray were started in another folder.
    with pytest.raises(InputError, match=r"the node 127\.0\.0\.1 .* does not see .* share .* for --out"):
        check_access(Storage("/proc/self/cwd"), Sample("image", partial(content, None)))
    assert list((here / "_acclimate").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shards", "2"], "--shards is for --policy merged"),
        (["--resume", "--overwrite"], "pass one of them"),
        (["--workers", "2:1"], "--workers takes a number, or LEAST:MOST such as 2:8, got '2:1'"),
        (["--workers", "many"], "--workers takes a number"),
        (["--device", "cuda", "--gpus", "0"], "pass --gpus 1"),
        (["--out", "nowhere://results"], "unknown scheme"),
    ],
)
def test_invalid_options_are_refused(command, photos, arguments, said):
    assert said in command("cluster", "classify", photos, *BLOCKS, "--out", "out", *arguments, exit_code=2)


def test_help_does_not_wait_for_ray():
    script = "import sys; from acclimate.cli import app; sys.exit('ray' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_ctrl_c_stops_and_resume_goes_on(local_ray, photos, here):
    (here / "own.py").write_text(WAITING)
    arguments = ["cluster", "classify", photos, *BLOCKS, "--plugin", "own.py", "--method", "waiting"]
    arguments += ["--set", f"folder={here}", "--out", "out", "--checkpoint-every", "0", "--workers", "1"]
    run = [sys.executable, "-m", "acclimate", *map(str, arguments)]
    environment = {**os.environ, "ACCLIMATE_CACHE": str(here / ".cache")}
    process = subprocess.Popen(
        run, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_until(lambda: (here / "begun").exists() or process.poll() is not None, seconds=240)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all processes
        (here / "go").touch()
        said = process.communicate(timeout=240)[1]
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "images; run the command again with --resume to continue." in said
    assert "Traceback" not in said
    environment["RAY_ADDRESS"] = local_ray.address  # another number of machines than before
    done = subprocess.run([*run, "--resume"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "40 images classified" in done.stderr
    arguments = ["classify", photos, *BLOCKS[:4], "--method", "tda", "--out", here / "one.parquet"]
    assert CliRunner().invoke(app, [*map(str, arguments)]).exit_code == 0
    assert rows("out") == parquet.read_table(here / "one.parquet").to_pylist()
