"""Starting and stopping the service on Ray, and what is refused."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import httpx
import pytest
import ray

from acclimate.cluster.serving.cluster_service import TARGET_REQUESTS, ClusterService
from acclimate.encoders import load_encoder
from acclimate.errors import InputError, ModelError
from acclimate.serve.streams import Streams
from cluster_service import KEEPER, LABELS, bearer
from service_process import service
from waiting import wait_until

DRIVER = """
import sys

import ray

from acclimate.cluster.connection import connect
from acclimate.cluster.serving.cluster_service import ClusterService

with connect(sys.argv[1]):
    data, model, tokens = sys.argv[2:]
    service = ClusterService(data=data, model=model, device="cpu", token_file=tokens, port=0, cpus=0.5)
    service.serve(lambda url: print(url, flush=True))
"""


@contextmanager
def driver(cluster):
    """Start the service on the same Ray from another process; yield the process and the service's address."""
    command = [sys.executable, "-c", DRIVER, ray.get_runtime_context().gcs_address, str(cluster.folder)]
    command += [f"onnx:{cluster.model}", str(cluster.token_file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_invalid_services_are_refused_before_anything_starts(tmp_path):
    for options, message in (
        ({"data": "s3://bucket/streams"}, "object stores cannot do; use a folder on a file system that all nodes see"),
        ({"data": tmp_path, "host": "0.0.0.0"}, "can be reached from other machines; give --token-file"),
        ({"data": tmp_path, "replicas": (2, 1)}, "encoder replicas must be at least 1"),
        ({"data": tmp_path, "fronts": 0}, "at least 1 replica has to answer HTTP"),
        ({"data": tmp_path, "token_file": tmp_path / "none"}, "the token file .* cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            ClusterService(**options)


def test_the_folder_belongs_to_one_service(cluster, tiny_onnx):
    with pytest.raises(InputError, match="another service uses"):
        Streams(cluster.folder, load_encoder(f"onnx:{tiny_onnx}", "cpu"))
    with pytest.raises(InputError, match="another service uses"), ClusterService(data=cluster.folder).running():
        pass


def test_an_address_that_is_taken_is_refused(cluster, tmp_path):
    here = cluster.client.base_url.port
    for name, port, message in (
        ("acclimate", here, f"a service named 'acclimate' over {cluster.folder} runs on this cluster; stop it"),
        ("acclimate", 9, "Ray Serve already runs on this cluster and listens on"),
        ("other", here, "the application 'acclimate' of Ray Serve answers at / of this cluster"),
    ):
        other = ClusterService(data=tmp_path, port=port, name=name)
        with pytest.raises(InputError, match=message), other.running():
            pass
    assert cluster.client.get("/health/ready").status_code == 200


def test_streams_of_one_machine_go_on_here_and_there(cluster, pictures):
    """This ends the service, has `acclimate serve` go on, then a process that is killed, and starts it again."""
    old = cluster.client.get("/v1/streams/old").json()
    first = old["samples_seen"]
    assert first == 5  # learnt by `acclimate serve`
    answers = cluster.classify("old", pictures[5:7]).json()["results"]
    assert [each["id"] for each in answers] == [first, first + 1]
    states = {name: cluster.client.get(f"/v1/streams/{name}/state").content for name in ("old", "shop")}
    cluster.stop()
    with service(cluster.model, cluster.folder, "--token-file", str(cluster.token_file)) as (_, url):
        for name, state in states.items():
            assert httpx.get(f"{url}/v1/streams/{name}/state", headers=bearer(KEEPER)).content == state
        shutdown = httpx.get(f"{url}/v1/streams/old/snapshots", headers=bearer(KEEPER)).json()["snapshots"][0]
        assert (shutdown["reason"], shutdown["samples_seen"]) == ("shutdown", first + 2)
        answer = httpx.post(f"{url}/v1/streams/old/classify", files={"image": pictures[7]}, headers=bearer(KEEPER))
        assert answer.json()["results"][0]["id"] == first + 2
    # `acclimate serve` was killed: what it has acknowledged is in its journal.
    with driver(cluster) as (process, url):
        answer = httpx.post(f"{url}/v1/streams/old/classify", files={"image": pictures[8]}, headers=bearer(KEEPER))
        assert answer.json()["results"][0]["id"] == first + 3
        process.kill()
        process.wait()
        # The process that has started the service is gone, the service is not; the next one takes it over.
        answer = httpx.post(f"{url}/v1/streams/old/classify", files={"image": pictures[9]}, headers=bearer(KEEPER))
        assert answer.json()["results"][0]["id"] == first + 4
        cluster.service.port = int(url.rpartition(":")[2])
        cluster.start()
        assert cluster.client.get("/v1/streams/old").json()["samples_seen"] == first + 5
        assert cluster.client.get("/v1/streams/shop/state").content == states["shop"]


def test_errors_of_the_model_are_reported(running, tmp_path):
    running.stop()
    wrong = ClusterService(data=tmp_path, model="onnx:/nowhere", port=0, cpus=0.1)
    with pytest.raises(ModelError, match="no ONNX model in /nowhere"), wrong.running():
        pass


def test_under_load_there_are_more_encoders(running, pictures, tmp_path):
    """With the bundled model, for which requests wait; Ray Serve watches half a minute before it starts another one."""
    running.stop()
    growing = ClusterService(data=tmp_path, port=0, replicas=(1, 2), cpus=0.5)
    over = Event()
    statuses = []

    def send(url):
        with httpx.Client(base_url=url, timeout=120) as client:
            while not over.is_set():
                statuses.append(client.post("/v1/streams/s/classify", files={"image": pictures[0]}).status_code)

    with growing.running() as url, ThreadPoolExecutor(4 * TARGET_REQUESTS) as pool:
        httpx.post(f"{url}/v1/streams", json={"name": "s", "labels": LABELS}, timeout=60).raise_for_status()
        assert encoders(growing) == 1
        sending = [pool.submit(send, url) for _ in range(4 * TARGET_REQUESTS)]
        try:
            wait_until(lambda: encoders(growing) == 2)
        finally:
            over.set()
        for each in sending:
            each.result(120)
    assert set(statuses) == {200}


def encoders(service):
    """Return the number of encoder replicas that answer."""
    found = ray.serve.status().applications[service._settings.encoders].deployments["Encoders"]
    return found.replica_states.get("RUNNING", 0)
