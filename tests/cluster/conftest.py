"""A real Ray on this machine."""

import os
from pathlib import Path

import pytest

# Read by Ray when it is imported: it listens on 127.0.0.1 alone, and a busy machine may take its time.
os.environ |= {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_gcs_server_request_timeout_seconds": "180",
    "RAY_gcs_server_port_wait_time_s": "180",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_health_check_timeout_ms": "60000",
}
pytest.importorskip("ray", reason="the cluster needs Ray")
pytest.importorskip("pyarrow", reason="results of a cluster are parquet")

from cluster_bench import Bench
from ray_nodes import HEAD, small_cluster

# Older versions of Ray leave files open, and processes to themselves.
RAY_WARNS = [
    "ignore:unclosed file .*/ray/session_:ResourceWarning",
    "ignore:subprocess [0-9]+ is still running:ResourceWarning",
]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Mark the tests, and put those that start a Ray of their own first, before this process is connected to one."""
    items.sort(key=lambda item: "own_rays" not in item.path.parts)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("ray")
            for warning in RAY_WARNS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="package")
def ray_cluster():
    """Return a cluster of a head node with 4 logical CPUs, to which tests may add nodes that they remove again.

    One for all tests: to start it, and to run its first job, takes as long as several more jobs.
    """
    with small_cluster() as cluster:
        yield cluster


@pytest.fixture
def local_ray(ray_cluster):
    """Return the head node alone."""
    return ray_cluster


@pytest.fixture
def nodes(ray_cluster):
    """Add two nodes of 6 logical CPUs: a request for 5 fits on each of them once, and not on the head node."""
    added = [ray_cluster.add_node(wait=False, **HEAD | {"num_cpus": 6}) for _ in range(2)]
    ray_cluster.wait_for_nodes(timeout=180)
    yield {node.node_id: node for node in added}
    for node in added:
        if node in ray_cluster.worker_nodes:
            ray_cluster.remove_node(node)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)
