"""A whole job whose images, results and state are in a bucket."""

import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from acclimate.cli import app
from acclimate.cluster.storage import Storage
from acclimate.methods import load_state, state_to_bytes
from small_images import encoded


def acclimate(*arguments):
    ran = subprocess.run(
        [sys.executable, "-m", "acclimate", *arguments], capture_output=True, text=True, env=os.environ
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow  # starts a Ray
def test_a_job_in_a_bucket_is_that_on_disk(s3, here):
    pytest.importorskip("ray")
    (here / "labels.txt").write_text("red\nblue\n")
    for number in range(20):
        Storage(s3).write(f"job/photos/{number}.png", encoded(12 * number))
        Storage(here).write(f"photos/{number}.png", encoded(12 * number))
    (here / "alone").mkdir()
    task = ["--labels", "labels.txt", "--method", "tda"]
    alone = ["classify", "photos", *task, "--out", "alone.parquet", "--state", "alone/state.safetensors"]
    assert CliRunner().invoke(app, alone).exit_code == 0
    url = f"{s3}/job"
    acclimate(
        "cluster", "classify", f"{url}/photos", *task, "--out", f"{url}/out", "--state", f"{url}/state.safetensors"
    )
    rows = pq.read_table("alone.parquet").to_pylist()
    part = Storage(f"{url}/out").read("part-000000.parquet")
    found = pq.read_table(pa.BufferReader(part)).to_pylist()
    assert found == [{**row, "file": f"{url}/{row['file']}", "folder": f"{url}/{row['folder']}"} for row in rows]
    Storage(here).write("cluster/state.safetensors", Storage(url).read("state.safetensors"))
    states = [state_to_bytes(load_state(f"{where}/state.safetensors")) for where in ("alone", "cluster")]
    assert states[0] == states[1]
