"""`acclimate cluster` as people use it: real runs through the command, its errors, Ctrl-C and what follows."""

import os
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
from acclimate.cluster.machines import check_machines  # noqa: E402
from acclimate.cluster.storage import Storage  # noqa: E402
from acclimate.errors import InputError  # noqa: E402
from acclimate.methods import load_state  # noqa: E402
from acclimate.sources import Sample  # noqa: E402
from own_methods import SHARPEN, WAITING  # noqa: E402
from waiting import wait_until  # noqa: E402

LABELS = "red, green, blue"
BATCH = ("--encode", "batch_size=4")
TASK = ("--labels", LABELS, *BATCH)


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
    arguments = (photos, "more", *TASK, "--order", "path", "--unsure", "0.5")
    command("classify", *arguments, "--out", "one.parquet", "--state", "site.safetensors")
    (here / "site.safetensors").rename("one.safetensors")
    run = ("cluster", "classify", *arguments, "--workers", "2", "--out", "many")
    said = command(*run, "--state", "site.safetensors")
    assert rows("many") == parquet.read_table("one.parquet").to_pylist()
    assert (here / "site.safetensors").read_bytes() == (here / "one.safetensors").read_bytes()
    assert "40 images classified, 1 could not be read" in said
    assert f"Results: {here / 'many'}. Run: {here / 'many.run'}. State: site.safetensors." in said
    assert "unsure (score below 0.5)" in said
    assert "many.run is a run; pass --resume to go on with it, or --overwrite" in command(*run, exit_code=2)
    before = rows("many")
    command(*run, "--resume")  # there is nothing new
    assert rows("many") == before
    assert (here / "site.safetensors").read_bytes() == (here / "one.safetensors").read_bytes()
    command(*run, "--overwrite", "--state", "site.safetensors")  # it goes on from the state
    assert load_state(here / "site.safetensors").samples_seen == 80
    # Other labels, without a cluster, from the features
    command("classify", "many.run", "--labels", "dark, bright", "--out", "other.parquet")
    command("classify", photos, "more", "--labels", "dark, bright", *BATCH, "--out", "alone.parquet")
    assert parquet.read_table("other.parquet") == parquet.read_table("alone.parquet")


def test_a_method_of_a_plugin(local_ray, command, own_registry, photos, here):
    (here / "own.py").write_text(SHARPEN)
    command("cluster", "classify", photos, *TASK, "--plugin", "own.py", "--method", "sharpen", "--out", "own")
    command("classify", photos, *TASK, "--plugin", "own.py", "--method", "sharpen", "--out", "one.parquet")
    assert rows("own") == parquet.read_table("one.parquet").to_pylist()


def test_requests_beyond_the_cluster_are_refused(local_ray, command, photos, here):
    run = ("cluster", "classify", photos, *TASK, "--out", "out")
    assert "has the 5 CPUs that an encoder asks for; lower" in command(*run, "--cpus", "5", exit_code=2)
    assert "has the 1 CPUs and 1 GPUs" in command(*run, "--gpus", "1", exit_code=2)
    (here / "file").touch()
    assert "cannot write" in command(*run, "--state", "file/state.safetensors", exit_code=2)


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs a name that is another folder elsewhere")
def test_folders_that_are_not_shared(local_ray, here, monkeypatch):
    def content(process):  # within a function, as it is then sent whole
        if process not in (None, os.getpid()):
            raise FileNotFoundError("not here")
        return b""

    monkeypatch.setattr("acclimate.cluster.storage.FILE_DELAY_S", 0.1)
    check_machines(Storage(here), Sample("image", partial(content, None)))
    check_machines(Storage(here), Sample("broken", partial(content, -1)))  # it is broken on every node
    with pytest.raises(InputError, match=r"the node 127\.0\.0\.1 .* cannot read image, the first image \(not here"):
        check_machines(Storage(here), Sample("image", partial(content, os.getpid())))
    # The processes of Ray were started in another folder.
    with pytest.raises(InputError, match=r"the node 127\.0\.0\.1 .* does not see .* share .* for --out"):
        check_machines(Storage("/proc/self/cwd"), Sample("image", partial(content, None)))
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--resume", "--overwrite"], "pass one of them"),
        (["--workers", "many"], "should be a valid integer"),
        (["--out", "nowhere://results/today"], "unknown scheme"),
        (["--out", "s3://bucket"], "is a folder; name a file in it"),
    ],
)
def test_invalid_options_are_refused(command, photos, arguments, said):
    assert said in command("cluster", "classify", photos, *TASK, "--out", "out", *arguments, exit_code=2)


def test_the_run_of_another_table_is_not_replaced(command, photos, here):
    command("classify", photos, *TASK, "--out", "many.csv")
    before = (here / "many.run" / "run.json").read_bytes()
    for how, said in ((), "many.run is a run"), (["--resume"], "of many.csv"), (["--overwrite"], "of many.csv"):
        assert said in command("cluster", "classify", photos, *TASK, "--out", "many", *how, exit_code=2)
    assert (here / "many.run" / "run.json").read_bytes() == before


def test_help_does_not_wait_for_ray():
    script = "import sys; from acclimate.cli import app; sys.exit('ray' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_ctrl_c_stops_and_resume_goes_on(local_ray, photos, here):
    (here / "own.py").write_text(WAITING)
    arguments = ["cluster", "classify", photos, *TASK, "--plugin", "own.py", "--method", "waiting"]
    arguments += ["--set", f"folder={here}", "--out", "out", "--workers", "1"]
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
    arguments = ["classify", photos, *TASK, "--method", "tda", "--out", here / "one.parquet"]
    assert CliRunner().invoke(app, [*map(str, arguments)]).exit_code == 0
    assert rows("out") == parquet.read_table(here / "one.parquet").to_pylist()
