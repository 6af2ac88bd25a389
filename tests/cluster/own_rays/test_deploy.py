"""Files that start a cluster elsewhere, as far as they can be tried without containers and other machines."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from acclimate.cli import app
from ray_nodes import RAY, node, short_folder

pytest.importorskip("ray", reason="a cluster needs Ray")
yaml = pytest.importorskip("yaml", reason="reads the files")
ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "ray"


def read(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def all_commands():
    """Return all commands of the files, those in comments too."""
    text = "\n".join(path.read_text() for path in sorted(FOLDER.iterdir()))
    text = re.sub(r"\n#? +(?=--)", " ", text)  # arguments on a line of their own
    found = re.findall(r"\b(?:acclimate cluster|ray start)\b[^\n&'\"]*", text)
    return [re.sub(r"\\?$", "", each.strip()) for each in found]


def test_commands_have_the_options_that_are_given():
    commands = [shlex.split(each, comments=True) for each in all_commands()]
    assert sum(each[0] == "acclimate" for each in commands) == 3
    help_of_ray = subprocess.run([RAY, "start", "--help"], capture_output=True, text=True, check=True).stdout
    for program, *words in commands:
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert options, words
        if program == "ray":
            assert options <= set(re.findall(r"--[a-z-]+", help_of_ray)), words
        else:
            group = get_command(app).commands["cluster"]
            context = group.commands[words[1]].make_context(words[1], list(words[2:]))
            assert context.params["address"] == "auto"


def test_the_image_is_the_same_everywhere():
    image = (FOLDER / "Dockerfile").read_text()
    single = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"^FROM (\S+)", image, re.MULTILINE) == re.findall(r"^FROM (\S+)", single, re.MULTILINE)
    ray = re.search(r"^ray==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    claim, job = read("kuberay.yaml")
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == ray
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    pods = [group["template"]["spec"] for group in groups]
    assert len({pod["containers"][0]["image"] for pod in pods}) == 1
    assert {f"uid {pod['securityContext']['runAsUser']}" for pod in pods} == set(re.findall(r"uid \d+", image))
    for pod in pods:
        names = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} <= names
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_settings_that_containers_share_agree():
    (compose,) = read("compose.yaml")
    for service in compose["services"].values():
        assert set(service["secrets"]) <= set(compose["secrets"])
        assert set(service["networks"]) <= set(compose["networks"])
        assert {volume.split(":")[0] for volume in service["volumes"] if volume[0] != "."} <= set(compose["volumes"])
        assert service["environment"]["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray-token"
        assert (ROOT / service["build"]["dockerfile"]).exists()
    assert not any("ports" in service for service in compose["services"].values())  # Ray runs the code of everyone
    ignored = (ROOT / "deploy" / ".gitignore").read_text().split()
    for secret in compose["secrets"].values():
        assert any(Path(secret["file"]).match(pattern) for pattern in ignored)


def test_the_files_are_made_as_the_comments_say(tmp_path):
    lines = re.findall(r"^#   ((?:openssl|echo|printf)[^#\n]*)", (FOLDER / "compose.yaml").read_text(), re.MULTILINE)
    subprocess.run(["bash", "-euc", "\n".join(lines)], cwd=tmp_path, check=True)
    assert len((tmp_path / "ray-token").read_text().strip()) == 64
    assert (tmp_path / "labels.txt").read_text().split() == ["cat", "dog"]


def test_ray_takes_the_configuration():
    from ray.autoscaler._private.util import prepare_config, validate_config

    (config,) = read("cluster.yaml")
    validate_config(prepare_config(config))


def test_the_head_and_its_job_as_processes(photos, here):
    """Start what compose starts, with its commands and a token, on 127.0.0.1, where Ray refuses a second node."""
    (compose,) = read("compose.yaml")
    head = compose["services"]["head"]["command"].removesuffix(" --block")
    (job,) = [each for each in all_commands() if "/data/photos" in each and "--resume" not in each]
    (here / "ray-token").write_text("0123456789abcdef" * 4)
    environment = compose["services"]["head"]["environment"] | {"RAY_AUTH_TOKEN_PATH": str(here / "ray-token")}
    environment["ACCLIMATE_CACHE"] = str(here / ".cache")
    with short_folder() as folder, node(folder, shlex.split(head)[2:], **environment) as known:
        words = shlex.split(job.replace("/data/", f"{here}/").replace(f"{here}/photos", str(photos)))
        words = ["red, green, blue" if word == "/labels.txt" else word for word in words]
        done = subprocess.run([sys.executable, "-m", *words], env=known, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "40 images classified" in done.stderr
