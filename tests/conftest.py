"""Fixtures of all tests."""

import os
import signal
import sys
import warnings
from collections import Counter
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import settings

import acclimate
from acclimate.checks.synthetic import shifted_stream
from acclimate.methods import registry
from acclimate.stream import read_stream, write_stream

settings.register_profile("acclimate", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("acclimate")

# In the background of a shell SIGINT is ignored, also by the processes that tests start, and stop as Ctrl-C does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Ray lets all other processes go before its workers, which then hardly run beside other tests.
os.environ.setdefault("RAY_worker_niceness", "0")


def pytest_addoption(parser):
    parser.addoption("--fuzz-seconds", type=float, default=4.0, help="seconds to fuzz each target for")
    parser.addoption("--all-attacks", action="store_true", help="run the long attacks as well")
    parser.addoption("--fuzz-seed", type=int, default=0, help="number of the first case")


def pytest_itemcollected(item):
    """Mark the tests that need a browser."""
    if "browser" in item.fixturenames:
        item.add_marker("browser")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Put files with slow or many tests first, so that no process of `--dist loadfile` is left with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -tests[item.path], item.path))


def _tracing():
    """Return the tool that measures coverage; None if there is none."""
    coverage = sys.modules.get("coverage")
    return coverage.Coverage.current() if coverage else None


def pytest_collection_finish():
    """Import what untraced tests would be the first to import while imports are still traced."""
    package = Path(acclimate.__file__).parent
    names = [path.relative_to(package.parent).with_suffix("").parts for path in package.rglob("[!_]*.py")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(names) if _tracing() else ():
            if name[1] != "cluster":  # Ray takes seconds, and its tests are traced
                with suppress(ImportError):  # an extra that is not installed
                    import_module(".".join(name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Neither a test marked as untraced nor its fixtures are traced: both would take up to twice as long."""
    tracing = _tracing()
    if tracing is None or not item.get_closest_marker("untraced"):
        return (yield)
    tracing.stop()
    try:
        return (yield)
    finally:
        tracing.start()


@pytest.fixture(scope="session")
def shared():
    """Return the folder of real data that may lie beside the project."""
    return Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def eurosat():
    """Return the path of 500 real samples of CLIP with its own class vectors, which are part of the project."""
    return Path(__file__).parent / "data" / "eurosat.safetensors"


@pytest.fixture(params=["eurosat", "oxford_pets"])
def clip_stream(request, shared, eurosat):
    """Return a real stream of CLIP: that of the project, and a larger one where it lies beside the project."""
    path = eurosat if request.param == "eurosat" else shared / "clip" / f"{request.param}.safetensors"
    if not path.is_file():
        pytest.skip(f"the features of CLIP are not on this machine ({path.name})")
    return read_stream(path)


@pytest.fixture(params=["numpy", "torch", "cuda"])
def to_backend(request):
    """Return a function that brings NumPy arrays to the array library and device under test."""
    if request.param == "numpy":
        return np.asarray
    torch = pytest.importorskip("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return partial(torch.asarray, device="cuda" if request.param == "cuda" else "cpu")


@pytest.fixture
def own_registry(monkeypatch):
    """Restore the registered methods and the searched folders after the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    registry.own_methods()  # imported now, so that they are registered after the test, too
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    monkeypatch.setattr(registry, "_PLUGINS", [])
    yield
    sys.modules.pop("own_sharpen", None)


@pytest.fixture
def stream():
    return shifted_stream(samples=400, classes=8, dim=32, seed=1)


@pytest.fixture
def stream_file(stream, tmp_path):
    path = tmp_path / "shifted.safetensors"
    write_stream(stream, path)
    return path


@pytest.fixture(scope="session", params=["clip", "siglip"])
def tiny_model(request, tmp_path_factory):
    """Return a folder with a tiny random model, once CLIP and once SigLIP."""
    return _tiny(request.param, tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_clip(tmp_path_factory):
    """Return a folder with a tiny random CLIP."""
    return _tiny("clip", tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_onnx(tiny_clip, tmp_path_factory):
    """Return the tiny CLIP as an ONNX folder."""
    pytest.importorskip("onnxscript", reason="converting needs onnxscript")
    from acclimate.encoders import load_encoder
    from acclimate.encoders.convert import convert

    folder = tmp_path_factory.mktemp("onnx") / "clip"
    convert(load_encoder(f"local:{tiny_clip}", "cpu"), folder)
    return folder


def _tiny(kind, tmp_path_factory):
    pytest.importorskip("transformers", reason="the tiny models are made with transformers")
    from tiny_models import save_tiny_model

    return save_tiny_model(kind, tmp_path_factory.mktemp(kind))


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Return a folder of 40 drawn images in sub-folders named after what they show."""
    from drawn_images import draw_folder

    return draw_folder(tmp_path_factory.mktemp("photos"), 40)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return a fresh working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def _features():
    """Return the features that the ONNX models have computed so far."""
    return {}


@pytest.fixture
def remembering(_features, monkeypatch, tmp_path_factory):
    """Cache the features of ONNX models, so that no image and no text is encoded twice in all tests."""
    _remember(_features, monkeypatch, tmp_path_factory)


class Demo(NamedTuple):
    """The files and the output of `acclimate demo`."""

    folder: Path
    output: str


@pytest.fixture(scope="session")
def demo(_features, tmp_path_factory):
    """Run `acclimate demo` once; copy the folder to change it."""
    from typer.testing import CliRunner

    from acclimate.cli import app

    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        _remember(_features, patch, tmp_path_factory)
        patch.chdir(folder)
        patch.setenv("COLUMNS", "200")
        result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0, result.output
    return Demo(folder / "acclimate-demo", result.stdout)


def _remember(known, patch, tmp_path_factory):
    from acclimate.encoders.onnx import OnnxEncoder

    encode = OnnxEncoder.encode_images

    def encode_images(self, images):
        keys = [(self.fingerprint, sha256(np.ascontiguousarray(image)).digest()) for image in images]
        new = {key: image for key, image in zip(keys, images, strict=True) if key not in known}
        if new:
            known.update(zip(new, encode(self, list(new.values())), strict=True))
        return np.stack([known[key] for key in keys])

    patch.setattr(OnnxEncoder, "encode_images", encode_images)
    patch.setenv("ACCLIMATE_CACHE", str(tmp_path_factory.getbasetemp() / "texts"))
