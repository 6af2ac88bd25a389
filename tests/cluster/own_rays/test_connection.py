"""The connection to a Ray cluster, and what is said if there is none."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import acclimate
from acclimate.cluster.connection import LOOPBACK_ONLY, connect
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
        with connect(num_cpus=3, object_store_memory=100 * 2**20):
            assert ray.cluster_resources()["CPU"] == 3
            with connect():  # what is connected stays so
                assert ray.cluster_resources()["CPU"] == 3
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
    shutil.copytree(Path(acclimate.__file__).parent, other / "acclimate")
    script = """if True:
        from acclimate.cluster.connection import connect
        with connect('auto'):
            from acclimate.cluster.storage import Storage
            from acclimate.cluster.machines import alive, check_machines
            from acclimate.sources.source import Sample
            check_machines(Storage('.'), Sample('a', bytes))
            print(len(alive()))
    """
    # Python would take a compiled module for that of a file of the same size from the same second.
    environment = {"PYTHONPATH": str(other), "PYTHONDONTWRITEBYTECODE": "1", "RAY_AUTH_MODE": "disabled"}
    about = other / "acclimate" / "__init__.py"
    whole = about.read_text()
    with short_folder() as folder, node(folder, **environment) as known:
        known["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        for content, said in (
            (f'{whole}\n__version__ = "0.0.1"\n', "it has acclimate 0.0.1 (here "),
            ("import no_such_module", "No module named 'no_such_module'"),
            (whole, ""),
            (whole, ""),  # it runs on
        ):
            about.write_text(content)
            done = subprocess.run(
                [sys.executable, "-c", script], capture_output=True, text=True, env=known, cwd=tmp_path
            )
            assert said in done.stderr
            assert done.stdout == ("" if said else "1\n"), done.stderr


def test_no_server_at_the_address():
    with pytest.raises(InputError, match=r"no Ray cluster answers at 127.0.0.1:\d+: Connection refused; .* --address"):
        connect(f"127.0.0.1:{free_port()}").__enter__()


def test_another_server_at_the_address(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr("acclimate.cluster.connection.ANSWER_TIMEOUT_S", 0.1)
        with pytest.raises(InputError, match="timed out"):
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


def test_errors_of_ray_say_what_to_do(monkeypatch):
    import ray

    def refuse(*_, **__):
        raise ConnectionError("Failed to connect") from RuntimeError("Version mismatch:\n  started with Ray 2.50.0.")

    monkeypatch.setattr(ray, "init", refuse)
    said = "at auto: Failed to connect Version mismatch: started with Ray 2.50.0; .*ray start --head.*RAY_AUTH_TOKEN"
    with pytest.raises(InputError, match=f"cannot connect to the Ray cluster {said}"):
        connect("auto").__enter__()


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"needs Ray: .*\[ray\]"):
        connect().__enter__()
