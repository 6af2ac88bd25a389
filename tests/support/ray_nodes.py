"""Nodes of Ray clusters on 127.0.0.1, started as people start theirs."""

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from acclimate.cluster.connection import LOOPBACK_ONLY, connect, import_ray
from ports import free_port
from waiting import wait_until

RAY = str(Path(sys.executable).with_name("ray"))
HEAD = {"num_cpus": 4, "object_store_memory": 150 * 2**20, "include_dashboard": False}
SMALL = {"--num-cpus": "1", "--object-store-memory": "100000000", "--include-dashboard": "false"}


def short_folder():
    """Return a folder with a short name, as those of sockets must be."""
    return TemporaryDirectory(prefix="r")


@contextmanager
def small_cluster():
    """Start a cluster of a head node with 4 logical CPUs, to which this process is connected while the block runs."""
    ray = import_ray()  # has the settings of a Ray that is started by a command
    from ray.cluster_utils import Cluster

    ray.shutdown()  # what a test that failed may have left
    with pytest.MonkeyPatch.context() as patch:
        paths = (Path(__file__).parent, *sys.path)
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))  # inherited by all processes of Ray
        # A lost node is noticed after 5 of these, and not after 15 seconds; a busy one still has its time to answer.
        patch.setenv("RAY_health_check_period_ms", "500")
        cluster = Cluster(initialize_head=True, head_node_args=HEAD)
        try:
            with connect(cluster.address):
                yield cluster
        finally:
            cluster.shutdown()


@contextmanager
def node(folder, options=("--head", "--disable-usage-stats"), **environment):
    """Start a node while the block runs, on a port of its own and with one CPU; yields the environment it has.

    The address is in RAY_ADDRESS there.
    """
    folder = Path(folder)
    address = f"127.0.0.1:{free_port()}"
    known = {**os.environ, LOOPBACK_ONLY: "0", "RAY_TMPDIR": str(folder), **environment}
    own = SMALL | {"--port": address.split(":")[1]}
    command = [RAY, "start", *(each for each in options if each.partition("=")[0] not in own), "--block"]
    command += [f"{name}={value}" for name, value in own.items()]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, env=known, stdout=log, stderr=log)
    try:
        wait_until(lambda: "--block" in (folder / "log").read_text() or process.poll() is not None, seconds=180)
        assert process.poll() is None, (folder / "log").read_text()
        yield known | {"RAY_ADDRESS": address}
    finally:
        with suppress(psutil.NoSuchProcess):  # its own message says more if it did not start
            started = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for each in started:  # asked to end, it would wait half a minute for what Ray Data leaves
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        process.wait(180)
