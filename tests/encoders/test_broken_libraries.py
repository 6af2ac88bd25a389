"""Libraries that are installed and cannot be imported: the message names them and what failed."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
FAILURE = "operator torchvision::nms does not exist"


@pytest.fixture
def broken(tmp_path):
    """Return the environment of a process whose torchvision does not fit its torch."""
    write(tmp_path, "torchvision", "0.28.0", f"raise RuntimeError({FAILURE!r})")
    return environment(tmp_path)


def environment(folder):
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def write(folder, package, version, code):
    """Write a package with its metadata, as pip installs it."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text(f"{code}\n")
    about = folder / f"{package}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def load(name, environment):
    """Return the error of a process that loads an encoder."""
    code = f"""
from acclimate.encoders import load_encoder
from acclimate.errors import MissingExtraError, ModelError
try:
    load_encoder({name!r}, "cpu")
except (MissingExtraError, ModelError) as error:
    print(type(error).__name__, error)
"""
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return ended.stdout


def test_a_broken_torchvision_is_named_and_the_folder_is_not_blamed(broken, tiny_clip):
    message = load(f"local:{tiny_clip}", broken)
    assert message.startswith(f"ModelError cannot load {tiny_clip}: transformers cannot import what it needs")
    assert FAILURE in message
    assert "acclimate doctor" in message
    assert "folder must contain" not in message


@pytest.mark.parametrize(
    ("needed", "message"),
    [
        ("torchvision", FAILURE),
        ("no_such_package", "No module named 'no_such_package'"),
    ],
)
def test_an_open_clip_that_cannot_be_imported_is_not_called_missing(broken, tmp_path, needed, message):
    write(tmp_path, "open_clip", "3.3.0", f"import {needed}")
    assert load("open_clip:ViT-B-32/openai", broken) == (
        "ModelError open_clip:ViT-B-32/openai needs open_clip, and open_clip cannot be imported: "
        f"{message}; see `acclimate doctor`.\n"
    )


def test_doctor_imports_what_it_lists(broken):
    command = [sys.executable, "-m", "acclimate", "doctor"]
    ended = subprocess.run(command, env=broken, capture_output=True, text=True, check=True)
    lines = {line.split()[0]: line for line in ended.stdout.splitlines()[1:]}
    purpose = "open_clip: models, images decoded on a GPU"
    assert lines["torchvision"] == f"  {'torchvision':16} {'0.28.0':12} {purpose}; cannot be imported: {FAILURE}"
    assert lines["transformers"].endswith(f"; cannot be imported: {FAILURE}")
    assert lines["numpy"].endswith("everything")
    assert "accelerators" in lines
