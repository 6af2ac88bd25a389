"""A real service on a real local Ray: real HTTP, the tiny model."""

import signal
from pathlib import Path

import httpx
import pytest

pytest.importorskip("ray", reason="a cluster needs Ray")

from cluster_service import CAMERA, KEEPER, LABELS, Running, png
from drawn_images import draw
from ray_nodes import small_cluster
from service_process import service


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="package")
def ray_cluster():
    """Return one cluster for all tests of the service, as it takes long to start."""
    with small_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="package")
def pictures():
    """Return twenty-four drawn images as PNG files."""
    return [png(draw(("red", "green", "blue")[i % 3], i)) for i in range(24)]


@pytest.fixture(scope="package")
def token_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text(f"keeper {KEEPER} *=manage\ncamera {CAMERA} shop=classify\n")
    return path


@pytest.fixture(scope="package")
def running(ray_cluster, tiny_onnx, token_file, pictures, tmp_path_factory):
    """Return the service over a folder in which `acclimate serve` has made the stream `old`."""
    folder = tmp_path_factory.mktemp("cluster") / "state"
    with service(tiny_onnx, folder) as (process, url):
        setup = {"name": "old", "labels": LABELS, "skip_duplicates": False}
        assert httpx.post(f"{url}/v1/streams", json=setup).status_code == 201
        for image in pictures[:5]:
            httpx.post(f"{url}/v1/streams/old/classify", files={"image": image}).raise_for_status()
        process.send_signal(signal.SIGINT)
        process.wait(60)
    service_on_ray = Running(tiny_onnx, folder, token_file)
    yield service_on_ray
    service_on_ray.stop()


@pytest.fixture
def cluster(running):
    """Return the service, with the streams `old` and `shop`; it is started if a test before has stopped it."""
    running.start()
    if running.client.get("/v1/streams/shop").status_code == 404:
        running.create("shop", skip_duplicates=False)
    return running
