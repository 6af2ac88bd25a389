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
from acclimate.serve.limits import Limits
from acclimate.serve.prometheus import Metrics
from acclimate.serve.security import find_caller, read_tokens

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCUMENT = ROOT / "docs" / "serve.md"


def block(first):
    """Return the block of code in the document that begins with these words."""
    found = re.search(rf"^```\w*\n({re.escape(first)}.*?)^```$", DOCUMENT.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return found[1]


def test_options_are_those_of_the_command():
    options = set(inspect.signature(serve).parameters) | {f"limits__{name}" for name in Limits.model_fields}
    for path in (ROOT / "Dockerfile", DEPLOY / "compose.yaml", DEPLOY / "kubernetes.yaml"):
        named = {name.lower() for name in re.findall(r"ACCLIMATE_SERVE_(\w+)", path.read_text())}
        assert named
        assert named <= options
    assert {name.replace("-", "_") for name in re.findall(r" --([a-z-]+)", block("[Unit]"))} <= options


def load_yaml(name):
    yaml = pytest.importorskip("yaml", reason="reads files of containers")
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def proxied():
    """Return the services in the configuration of the proxy as NAME:PORT, and its port."""
    text = (DEPLOY / "nginx.conf").read_text()
    (port,) = re.findall(r"^ +listen (\d+)", text, re.MULTILINE)
    return re.findall(r"^ +server (\S+) max_fails=0;$", text, re.MULTILINE), int(port)


def test_the_proxy_waits_and_takes_as_long_and_as_much_as_the_services():
    text = (DEPLOY / "nginx.conf").read_text()
    limits = Limits()
    (kept,) = re.findall(r"^ {8}keepalive_timeout (\d+)s;.* services", text, re.MULTILINE)
    (answer,) = re.findall(r"proxy_read_timeout (\d+)s;", text)
    (body,) = re.findall(r"client_max_body_size (\d+)m;", text)
    assert int(kept) < limits.keep_alive_s  # a connection that the service closes meanwhile would lose a request
    assert int(answer) > limits.timeout_s
    assert int(body) * 2**20 == limits.body_bytes


def image_settings():
    """Return the port and the folder of secrets that the image has."""
    image = (ROOT / "Dockerfile").read_text()
    return int(re.search(r"^EXPOSE (\d+)$", image, re.MULTILINE)[1]), re.search(r"TOKEN_FILE=(\S+)/tokens", image)[1]


def test_settings_that_containers_share_agree():
    (compose,) = load_yaml("compose.yaml")
    (prometheus,) = load_yaml("prometheus.yml")
    services = compose["services"]
    port, secrets = image_settings()
    names, public = proxied()
    (job,) = prometheus["scrape_configs"]
    assert job["static_configs"][0]["targets"] == names
    assert services["nginx"]["ports"] == [f"{public}:{public}"]
    addresses = dict(each.split(":") for each in services["nginx"]["extra_hosts"])
    assert {f"{name}:{port}" for name in addresses} == set(names)
    for name, address in addresses.items():
        assert services[name]["networks"]["default"]["ipv4_address"] == address
        assert services[name]["secrets"] == ["tokens"]
    volumes = [volume for name in addresses for volume in services[name]["volumes"] if volume.endswith(":/data")]
    assert len(set(volumes)) == len(names)
    assert job["authorization"]["credentials_file"] == f"{secrets}/{services['prometheus']['secrets'][0]}"
    for each in services.values():
        mounted = [volume.split(":") for volume in each["volumes"]]
        assert {outside for outside, *_ in mounted if outside[0] != "."} <= set(compose["volumes"])
        made = {"./labels.txt"}  # the guide says how
        assert all((DEPLOY / outside).exists() for outside, *_ in mounted if outside[0] == "." and outside not in made)
        assert set(each.get("secrets", ())) <= set(compose["secrets"])


def test_the_dashboard_is_where_grafana_looks():
    (compose,) = load_yaml("compose.yaml")
    (datasources,) = load_yaml("grafana/datasource.yml")
    (providers,) = load_yaml("grafana/provider.yml")
    (datasource,) = datasources["datasources"]
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {datasource["uid"]}
    assert datasource["url"].removeprefix("http://").split(":")[0] in compose["services"]
    mounted = [volume.split(":")[1] for volume in compose["services"]["grafana"]["volumes"]]
    assert providers["providers"][0]["options"]["path"] in {str(Path(inside).parent) for inside in mounted}


def test_kubernetes_runs_the_services_that_the_proxy_knows():
    found = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in load_yaml("kubernetes.yaml")}
    port, secrets = image_settings()
    names, public = proxied()
    pods = found["StatefulSet", "acclimate"]
    assert found["Service", pods["serviceName"]]["clusterIP"] == "None"
    assert [f"acclimate-{number}:{port}" for number in range(pods["replicas"])] == names
    for name in names:
        pod = name.split(":")[0]
        spec = found["Service", pod]
        assert spec["selector"] == {"statefulset.kubernetes.io/pod-name": pod}
        assert spec["ports"][0]["port"] == port
    (container,) = pods["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": port}]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert (mounts["state"], mounts["tokens"]) == ("/data", secrets)
    assert container["env"][0]["value"] == f"{mounts['labels']}/labels.txt"
    assert {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")} == {
        "/health/live",
        "/health/ready",
    }
    proxy = found["Deployment", "acclimate-nginx"]["template"]
    (nginx,) = proxy["spec"]["containers"]
    assert nginx["ports"][0]["containerPort"] == public
    assert found["Service", "acclimate-nginx"]["selector"] == proxy["metadata"]["labels"]
    for template in (pods["template"], proxy):
        claimed = [each["metadata"]["name"] for each in pods["volumeClaimTemplates"]]
        volumes = {each["name"] for each in template["spec"]["volumes"]} | set(claimed)
        for each in template["spec"]["containers"]:
            assert {mount["name"] for mount in each["volumeMounts"]} <= volumes
    made = re.findall(r"kubectl create (?:configmap|secret generic) (\S+)", (DEPLOY / "kubernetes.yaml").read_text())
    used = {each["configMap"]["name"] for each in pods["template"]["spec"]["volumes"] if "configMap" in each}
    assert {"acclimate-nginx", "acclimate-tokens", *used} == set(made)


def test_the_image_is_built_from_files_that_are_there():
    image = (ROOT / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", image, re.MULTILINE)
    kept = (ROOT / ".dockerignore").read_text().split()
    for name in " ".join(copied).split():
        assert (ROOT / name).exists()
        assert f"!{name}" in kept


def test_the_dashboard_shows_metrics_that_the_service_has():
    exported = Metrics().text({"positive": 1}, 0, 0).decode()
    samples = set(re.findall(r"^(acclimate_\w+)", exported, re.MULTILINE))
    about = dict(re.findall(r"^# TYPE (\w+) (\w+)", exported, re.MULTILINE))
    for name, kind in about.items():  # a histogram with labels has no samples before the first
        samples |= {f"{name}{ending}" for ending in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
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
