"""Kills: whenever a run is killed, going on ends with the table and the state of a run that was never stopped."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from acclimate.run import Run
from drawn_images import draw_folder

KILLS = int(os.environ.get("ACCLIMATE_KILLS", "6"))
SUPPORT = Path(__file__).parents[1] / "support"
LABELS = ("red circle", "green square", "blue stripes")
IMAGES = 400
BATCH = 8
KILLED_PER_RUN = 3
STATE = "states/site.safetensors"
WRITTEN = ("answers.run/state.safetensors", STATE)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return draw_folder(tmp_path_factory.mktemp("many"), IMAGES)


def start(folder, photos, model, suffix):
    (folder / "states").mkdir(parents=True, exist_ok=True)
    arguments = [f"answers{suffix}", str(photos), model, STATE, *LABELS]
    return subprocess.Popen(
        [sys.executable, str(SUPPORT / "classify_driver.py"), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"ACCLIMATE_CACHE": str(photos.parent / "cache")},
    )


def finish(folder, photos, model, suffix):
    child = start(folder, photos, model, suffix)
    child.communicate()
    assert child.returncode == 0


def kill(child, when, position, delay_s):
    """Kill a run at a position of a pass, or while it writes its table; returns False if it had ended before."""
    for line in child.stdout:
        which, start = line.split()
        last = int(start) >= IMAGES - BATCH
        if (which == when and int(start) >= position) or (which == "again" and last):
            break
    time.sleep(delay_s)
    child.kill()
    child.stdout.close()
    return child.wait() != 0


def contents(folder, suffix):
    return {name: (folder / name).read_bytes() for name in (f"answers{suffix}", *WRITTEN) if (folder / name).exists()}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_killed_at_random_moments_it_ends_with_the_same_bytes(tiny_onnx, photos, tmp_path):
    rng = random.Random(0)
    model = f"onnx:{tiny_onnx}"
    whole = {}
    for suffix in (".csv", ".parquet"):
        finish(tmp_path / f"whole{suffix}", photos, model, suffix)
        whole[suffix] = contents(tmp_path / f"whole{suffix}", suffix)
        assert len(whole[suffix]) == 3
    kills = {"first": 0, "again": 0, "table": 0}
    runs = 0
    while sum(kills.values()) < KILLS:
        suffix = (".csv", ".parquet")[runs % 2]
        folder = tmp_path / f"run{runs}"
        for when in rng.sample(sorted(kills), KILLED_PER_RUN):
            position = IMAGES if when == "table" else rng.randrange(0, IMAGES, BATCH)
            child = start(folder, photos, model, suffix)
            kills[when] += kill(child, when, position, rng.uniform(0, 0.05 if when == "table" else 0.005))
            if (folder / "answers.run" / "run.json").exists():
                Run.open(folder / "answers.run")  # what was encoded is whole
        finish(folder, photos, model, suffix)
        assert contents(folder, suffix) == whole[suffix]
        assert {path.name for path in folder.iterdir()} == {f"answers{suffix}", "answers.run", "states"}
        runs += 1
    assert min(kills.values()) >= 1
