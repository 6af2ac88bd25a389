"""`acclimate serve` as a process of its own."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import pytest
from typer.testing import CliRunner

from acclimate import Classifier, list_methods
from acclimate.cli import app
from own_methods import SHARPEN

pytestmark = pytest.mark.slow

LABELS = "red circle, green square, blue stripes"
LEARN_ALL = {"ACCLIMATE_SERVE_STREAMS__SKIP_DUPLICATES": "false"}  # the drawn images look much alike
TOKEN = "a-token-of-the-keeper-0123456789"


@contextmanager
def running(folder, *options, variables=None):
    """Run a service in its own process; yield a client, stop it as Ctrl-C does, and keep its log."""
    command = [sys.executable, "-m", "acclimate", "serve", "--data", str(folder / "state"), "--port", "0", *options]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | (variables or {})
        )
    line = process.stdout.readline()
    match = re.match(r"serving on (http://\S+) ", line)
    assert match, (folder / "log").read_text()
    try:
        with httpx.Client(base_url=match[1], timeout=180) as client:
            client.process = process
            yield client
        process.send_signal(signal.SIGINT)
        assert process.wait(180) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def read_log(folder):
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_stopped_as_soon_as_it_says_that_it_serves(tiny_onnx, tmp_path, number):
    with running(tmp_path, "--model", f"onnx:{tiny_onnx}") as client:
        client.process.send_signal(number)
        assert client.process.wait(180) == 0
    assert read_log(tmp_path)[-1]["message"] == "stopped; all states are saved"


def test_a_storm_of_interrupts_prints_no_traceback(tiny_onnx, tmp_path):
    with running(tmp_path, "--model", f"onnx:{tiny_onnx}", "--labels", LABELS) as client:
        client.put("/v1/streams/shop-1", json={})
        while client.process.poll() is None:
            client.process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        assert client.process.returncode == 0
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert read_log(tmp_path)[-1]["message"].startswith("stopped")


def test_from_the_first_image_to_the_next_start(tiny_onnx, photos, tmp_path):
    options = ["--model", f"onnx:{tiny_onnx}", "--labels", LABELS]
    images = [path.read_bytes() for path in sorted(photos.rglob("*.png"))[:6]]
    method = ["--thumbnails", "--method", "tda", "--set", "positive_capacity=2"]
    with running(tmp_path, *options, *method, variables=LEARN_ALL) as client:
        for i, image in enumerate(images):
            (result,) = client.post("/v1/streams/shop-1/classify", files={"image": image}).json()["results"]
            assert result["id"] == i
        described = client.get("/v1/streams/shop-1").json()
        assert described["settings"]["positive_capacity"] == 2
        entries = client.get("/v1/streams/shop-1/caches", params={"thumbnails": True}).json()
        assert entries["entries"][0]["thumbnail"]
    log = read_log(tmp_path)
    assert next(line["path"] for line in log if line["message"] == "request") == "/v1/streams/shop-1/classify"
    assert log[-1]["message"] == "stopped; all states are saved"
    with running(tmp_path, *options) as client:
        again = client.get("/v1/streams/shop-1").json()
        for key in ("labels", "settings", "samples_seen", "entries"):
            assert again[key] == described[key]
        assert client.get("/v1/streams/shop-1/caches", params={"thumbnails": True}).json() == entries


def test_the_methods_that_are_offered_are_those_that_streams_can_have(tiny_onnx, tmp_path):
    """Every method of the menu, that of a plugin included, makes a stream; every other one is refused."""
    (tmp_path / "plugin.py").write_text(SHARPEN)
    options = ["--model", f"onnx:{tiny_onnx}", "--plugin", str(tmp_path / "plugin.py")]
    with running(tmp_path, *options) as client:
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
        offered = schemas["StreamRequest"]["properties"]["method"]["enum"]
        assert schemas["NamelessStreamRequest"]["properties"]["method"]["enum"] == offered
        assert {"sharpen", "accord", "tda", "zero"} <= set(offered)
        assert not {"stata", "tpt", "coop", "tip-adapter"} & set(offered)
        for method in sorted({*list_methods(), "sharpen"}):
            for views in (1, 2):
                body = {"labels": ["cat", "dog"], "method": method, "views": views}
                made = client.put(f"/v1/streams/{method}-{views}", json=body)
                assert made.status_code in (201, 422), made.text
            assert (made.status_code == 201) == (method in offered), (method, made.text)


def test_options_as_variables_and_tokens(tiny_onnx, tmp_path):
    (tmp_path / "tokens").write_text(f"keeper {TOKEN} *=manage\n")
    variables = {
        "ACCLIMATE_SERVE_MODEL": f"onnx:{tiny_onnx}",
        "ACCLIMATE_SERVE_LABELS": LABELS,
        "ACCLIMATE_SERVE_HOST": "0.0.0.0",
        "ACCLIMATE_SERVE_TOKEN_FILE": str(tmp_path / "tokens"),
        "ACCLIMATE_SERVE_METHOD": "tda",
        "ACCLIMATE_SERVE_SET": "positive_capacity=2 negative=false",
        "ACCLIMATE_SERVE_LIMITS__BODY_BYTES": "1000",
    }
    with running(tmp_path, variables=variables) as client:
        assert client.get("/v1/streams").status_code == 401
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        assert client.get("/v1/streams", headers={"Host": "anything.example"}).json()["streams"] == []
        assert client.post("/classify", content=b"x" * 1001).status_code == 413
    assert TOKEN not in (tmp_path / "log").read_text()


@pytest.fixture
def invoke(tiny_onnx, tmp_path):
    def run(*options, exit_code=2):
        given = ["--model", f"onnx:{tiny_onnx}", "--data", str(tmp_path / "state"), "--port", "0", *options]
        result = CliRunner().invoke(app, ["serve", *given])
        assert result.exit_code == exit_code, result.output
        return result.stderr

    return run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "give --token-file"),
        (["--host", "nowhere.invalid"], "cannot listen on nowhere.invalid"),
        (["--token-file", "none"], "cannot be read"),
        (["--thumbnails"], "need --labels or --fitted"),
        (["--labels", "cat"], "2 to 2000 labels"),
        (["--labels", "cat, dog", "--set", "nothing=1"], "no setting 'nothing'"),
        (["--labels", "cat, dog", "--method", "tpt"], "the service does not run 'tpt'"),
        (["--model", "onnx:none"], "no ONNX model in none"),
    ],
)
def test_invalid_services_are_refused_at_once(invoke, options, message, tmp_path):
    assert message in invoke(*options)
    assert not (tmp_path / "state").exists()


def test_a_service_needs_a_folder():
    refused = CliRunner().invoke(app, ["serve", "--labels", "cat, dog"])
    assert (refused.exit_code, refused.stderr.count("--data")) == (2, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("[streams]\nthumbnails = true", "need --labels or --fitted"),
        ("[streams]\nlabels = ['cat', 'dog']\ntemplates = 'a photo'", "no {} for the class name"),
        ("[streams]\nlabels = ['cat']", "2 to 2000 labels"),
        ("[streams]\nlabels = ['cat', 'dog']\nsettings = {nothing = 1}", "no setting 'nothing'"),
        ("plugin = ['nowhere.py']", "no plugin at nowhere.py"),
    ],
)
def test_settings_that_make_no_service_are_refused_at_once(invoke, settings, message, tmp_path):
    (tmp_path / "serve.toml").write_text(settings)
    assert message in invoke("--config", str(tmp_path / "serve.toml"))
    assert not (tmp_path / "state").exists()


def test_learned_prompts_that_no_stream_could_have(invoke, tiny_clip, tiny_onnx, photos, tmp_path, monkeypatch):
    paths = [next((photos / colour).iterdir()) for colour in ("red", "blue")]
    learner = Classifier(["red", "blue"], f"local:{tiny_clip}", method="coop", epochs=1, context_tokens=2, cache=False)
    learner.fit(paths, ["red", "blue"])
    learner.save(tmp_path / "coop")
    monkeypatch.setenv("ACCLIMATE_SERVE_STREAMS__TEMPLATES", f"learned:{tmp_path / 'coop'}")
    assert "learned prompts need a text tower that takes embeddings" in invoke("--labels", "cat, dog")
    assert not (tmp_path / "state").exists()


def test_a_port_or_a_folder_that_is_taken(invoke, tiny_onnx, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1, port {port}" in invoke("--port", port)
    with running(tmp_path, "--model", f"onnx:{tiny_onnx}"):
        assert "another service uses" in invoke()


def test_without_the_extra_it_says_what_to_install(invoke, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert '[serve]"' in invoke()


def test_streams_from_a_fitted_file(tiny_onnx, photos, tmp_path):
    model = ["--model", f"onnx:{tiny_onnx}"]
    fitted = tmp_path / "fitted.safetensors"
    made = CliRunner().invoke(app, ["fit", str(photos), "--out", str(fitted), "--shots", "4", "--views", "1", *model])
    assert made.exit_code == 0, made.output
    image = next((photos / "red").iterdir()).read_bytes()
    with running(tmp_path, *model, "--fitted", str(fitted)) as client:
        first = client.post("/v1/streams/shop/classify", files={"image": image}).json()
        described = client.get("/v1/streams/shop").json()
        assert (described["method"], described["labels"]) == ("tip-adapter-f", ["blue", "green", "red"])
    fitted.unlink()
    with running(tmp_path, *model) as client:
        assert client.post("/v1/streams/shop/classify", files={"image": image}).json() == first
    for wrong in (["--method", "tda"], ["--set", "rounds=1"]):
        refused = CliRunner().invoke(app, ["serve", "--data", str(tmp_path), "--fitted", "f", *wrong])
        assert refused.exit_code == 2
        assert "a fitted file has the method and its settings" in refused.output
