"""The connection to a Ray cluster, and what is said if there is none."""

import os
import socket
import subprocess
import sys

import psutil
import pytest

from acclimate.cluster.connection import LOOPBACK_ONLY, _refusal, connect, parse_address
from acclimate.cluster.machines import Cluster
from acclimate.errors import InputError, MissingExtraError, RunError
from ports import free_port
from ray_nodes import node, short_folder
from waiting import wait_until

pytest.importorskip("ray", reason="a cluster needs Ray")


def test_a_local_ray_is_this_machines_alone_and_ends_with_the_block():
    import ray

    started = []
    others = psutil.Process().children(recursive=True)

    def use():
        with connect(num_cpus=3, object_store_memory=100 * 2**20) as cluster:
            assert cluster.total("CPU") == cluster.room(1, 0) == 3
            with connect() as same:  # what is connected stays so
                assert same.total("CPU") == 3
            assert ray.is_initialized()
            with pytest.raises(InputError, match="connected to a Ray already"), connect("127.0.0.1:6379"):
                pass
            started.extend(each for each in psutil.Process().children(recursive=True) if each not in others)
            listening = [line.laddr.ip for each in started for line in _connections(each) if line.status == "LISTEN"]
            assert listening
            assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use()
    assert not ray.is_initialized()
    wait_until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in started))


def _connections(process):
    try:
        return process.net_connections() if hasattr(process, "net_connections") else process.connections()
    except psutil.Error:
        return []


def test_a_cluster_that_runs_is_joined_and_left(tmp_path):
    # The node has another acclimate than this process: what it answers shows that it was asked.
    other = tmp_path / "other"
    (other / "acclimate").mkdir(parents=True)
    script = "from acclimate.cluster.connection import connect\nwith connect('auto') as c: print(c.room(1, 0))"
    # Python would take a compiled module for that of a file of the same size from the same second.
    environment = {"PYTHONPATH": str(other), "PYTHONDONTWRITEBYTECODE": "1", "RAY_AUTH_MODE": "disabled"}
    with short_folder() as folder, node(folder, **environment) as known:
        address = known["RAY_ADDRESS"]
        for content, said in (
            ('__version__ = "0.0.1"', r"the node 127\.0\.0\.1 .* has acclimate 0\.0\.1 \(here .*\); install the same"),
            ("import no_such_module", r"has acclimate none \(No module named 'no_such_module'\)"),
        ):
            (other / "acclimate" / "__init__.py").write_text(content)
            with pytest.raises(Exception, match=said), connect(address):
                pass
        (other / "acclimate" / "__init__.py").write_text(f'__version__ = "{_version()}"')
        for _ in range(2):  # it runs on
            with connect(address) as cluster:
                assert (len(cluster.nodes), cluster.room(1, 0)) == (1, 1)
        known["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=known)
        assert done.stdout == "1\n", done.stderr


def _version():
    from acclimate import __version__

    return __version__


def test_no_server_at_the_address():
    with pytest.raises(InputError, match=r"no Ray cluster answers at 127.0.0.1:\d+: Connection refused; .* --address"):
        connect(f"127.0.0.1:{free_port()}").__enter__()


def test_another_server_at_the_address(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr("acclimate.cluster.connection.ANSWER_TIMEOUT_S", 0.1)
        with pytest.raises(InputError, match=r"it does not answer within 0\.1 seconds"):
            connect(address).__enter__()


def test_a_ray_that_others_could_reach_is_not_started(monkeypatch):
    monkeypatch.delenv(LOOPBACK_ONLY)
    with pytest.raises(RunError, match=f"set {LOOPBACK_ONLY}=0 before Ray is imported"):
        connect().__enter__()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ray://10.0.0.1:10001", "is not an address.*Ray client.*ray job submit"),
        ("https://10.0.0.1:8265", "is not an address.*dashboard.*ray job submit"),
        ("10.0.0.1", "is not an address; give auto or HOST:PORT"),
        ("10.0.0.1:x", "is not an address"),
        (":6379", "is not an address"),
        ("10.0.0.1:66000", "is not an address"),
    ],
)
def test_addresses_of_other_things(address, said):
    with pytest.raises(InputError, match=said):
        connect(address).__enter__()


def test_addresses_are_parsed():
    assert parse_address("head:6379") == ("head", 6379)
    assert parse_address("[::1]:6379") == ("::1", 6379)


def test_errors_of_ray_about_versions_and_tokens():
    other = (
        "Version mismatch: The cluster was started with:\n    Ray: 2.50.0\n    Python: 3.12.1\nThis process on node "
    )
    other += "was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n"
    assert "runs Ray 2.50.0 on Python 3.12.1, and this is Ray 2.60.0 on Python 3.11.7; install" in str(
        _refusal("head:6379", RuntimeError(other))
    )
    nothing = ConnectionError("Could not find any running Ray instance. Please specify")
    assert "no Ray cluster runs on this machine; start one" in str(_refusal("auto", nothing))
    assert "RAY_AUTH_TOKEN" in str(_refusal("head:6379", RuntimeError("Authentication token is missing")))
    elsewhere = ConnectionError("Failed to connect")
    elsewhere.__cause__ = RuntimeError("No node info found matching attributes")
    assert "is not a node of the cluster" in str(_refusal("head:6379", elsewhere))
    assert "cannot connect" in str(_refusal("head:6379", RuntimeError("?")))


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"needs Ray: .*\[ray\]"):
        connect().__enter__()


def test_resources_that_no_node_has_are_refused():
    cluster = Cluster(({"CPU": 4.0}, {"CPU": 8.0, "GPU": 2.0}))
    assert cluster.room(0, 0) == 12
    assert cluster.room(0.1, 0) == 120
    cluster.check(1, 0, 12)
    cluster.check(4, 1, 2)
    with pytest.raises(
        InputError, match=r"1 worker of 10 CPUs .* the largest 8 CPUs and 2 GPUs, and room for 0; lower"
    ):
        cluster.check(10, 0)
    with pytest.raises(InputError, match=r"12 CPUs and 2 GPUs on 2 nodes, .* room for 2; lower --workers"):
        cluster.check(1, 1, 3)
    with pytest.warns(UserWarning, match="waits up to 300 seconds for nodes"):  # a node may be added
        Cluster(cluster.nodes, grows=True).check(100, 100)
