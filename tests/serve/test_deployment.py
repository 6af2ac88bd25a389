"""Files for running the service elsewhere, as far as they can be tried without containers."""

import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from acclimate.cli.serve import serve
from acclimate.serve.prometheus import Metrics
from acclimate.serve.security import find_caller, read_tokens

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "serve.md"


def block(first):
    """Return the block of code in the document that begins with these words."""
    found = re.search(rf"^```\w*\n({re.escape(first)}.*?)^```$", DOCUMENT.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return found[1]


def test_options_are_those_of_the_command():
    options = set(inspect.signature(serve).parameters)
    for path in (ROOT / "Dockerfile", ROOT / "deploy" / "compose.yaml"):
        named = {name.lower() for name in re.findall(r"ACCLIMATE_SERVE_(\w+)", path.read_text())}
        assert named
        assert named <= options
    assert {name.replace("-", "_") for name in re.findall(r" --([a-z-]+)", block("[Unit]"))} <= options


def test_settings_that_containers_share_agree():
    yaml = pytest.importorskip("yaml", reason="reads the compose file")
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    prometheus = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())
    image = (ROOT / "Dockerfile").read_text()
    (job,) = prometheus["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    service, port = target.split(":")
    assert f"EXPOSE {port}" in image
    assert compose["services"][service]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{compose['services']['prometheus']['secrets'][0]}"
    assert f"TOKEN_FILE=/run/secrets/{compose['services'][service]['secrets'][0]}" in image
    (datasource,) = yaml.safe_load((ROOT / "deploy" / "grafana" / "datasource.yml").read_text())["datasources"]
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "dashboard.json").read_text())
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {datasource["uid"]}
    assert datasource["url"].removeprefix("http://").split(":")[0] in compose["services"]
    (provider,) = yaml.safe_load((ROOT / "deploy" / "grafana" / "provider.yml").read_text())["providers"]
    mounted = [volume.split(":") for volume in compose["services"]["grafana"]["volumes"]]
    assert provider["options"]["path"] in {str(Path(inside).parent) for _, inside, *_ in mounted}
    assert all((ROOT / "deploy" / outside).exists() for outside, *_ in mounted if outside[0] == ".")
    for each in compose["services"].values():
        assert set(each["secrets"]) <= set(compose["secrets"])
        assert {volume.split(":")[0] for volume in each["volumes"] if volume[0] != "."} <= set(compose["volumes"])
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", image, re.MULTILINE)
    kept = (ROOT / ".dockerignore").read_text().split()
    for name in " ".join(copied).split():
        assert (ROOT / name).exists()
        assert f"!{name}" in kept


def test_the_dashboard_shows_metrics_that_the_service_has():
    exported = Metrics().text({"positive": 1}, 0).decode()
    samples = set(re.findall(r"^(acclimate_\w+)", exported, re.MULTILINE))
    about = dict(re.findall(r"^# TYPE (\w+) (\w+)", exported, re.MULTILINE))
    for name, kind in about.items():  # a histogram with labels has no samples before the first
        samples |= {f"{name}{ending}" for ending in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "dashboard.json").read_text())
    shown = set()
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert panel["description"]
        for target in panel["targets"]:
            shown |= set(re.findall(r"acclimate_\w+", target["expr"]))
    assert shown
    assert shown <= samples
    assert {re.sub("_(bucket|sum|count)$", "", each) for each in shown} >= {
        name for name in about if not name.endswith("_created")
    }
    guide = DOCUMENT.read_text("utf-8")
    assert [name for name in about if not name.endswith("_created") and f"`{name}" not in guide] == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_tokens_made_as_the_document_says_are_known(tmp_path):
    lines = [line for line in block("cd deploy").splitlines() if line.startswith(("openssl", "echo"))]
    subprocess.run(["bash", "-euc", "\n".join(lines)], cwd=tmp_path, check=True)
    tokens = read_tokens(tmp_path / "tokens")
    callers = {
        name: find_caller(tokens, b"Bearer " + (tmp_path / f"{name}-token").read_bytes())
        for name in ("camera", "scrape")
    }
    assert callers["camera"].may("classify", "shop-1")
    assert not callers["camera"].may("manage", "shop-1")
    assert callers["scrape"].name == "prometheus"
    assert not callers["scrape"].may("classify", "shop-1")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_the_unit_is_one_that_systemd_takes(tmp_path):
    unit = tmp_path / "acclimate.service"
    unit.write_text(block("[Unit]").replace("/opt/acclimate/bin/acclimate", sys.executable))
    said = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert (said.returncode, [line for line in said.stderr.splitlines() if unit.name in line]) == (0, [])
