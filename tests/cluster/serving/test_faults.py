"""Killed processes of the service on Ray: nothing that was acknowledged is lost, and a retry is answered."""

import os
import signal
import threading
import time
from functools import partial

import pytest

from cluster_service import kill, pid_of
from waiting import wait_until


def patient(send):
    """Repeat a call while it is refused as busy; return its answer and the number of refusals."""
    refused = 0
    while True:
        answer = send()
        restarting = answer.status_code == 503 and "restarting" in answer.text
        if not restarting and answer.status_code != 504:
            return answer, refused
        if restarting:
            assert int(answer.headers["retry-after"]) >= 1
        refused += 1
        time.sleep(0.1)


def learnt(cluster, name):
    """Return the number of samples that a stream has learnt, once it answers."""
    return patient(lambda: cluster.client.get(f"/v1/streams/{name}"))[0].json()["samples_seen"]


def test_a_stream_survives_its_process(cluster, pictures):
    before = patient(lambda: cluster.classify("shop", pictures[:4]))[0].json()["results"]
    state = cluster.client.get("/v1/streams/shop/state").content
    first = pid_of(cluster.actor("shop"))
    kill(cluster.actor("shop"))
    answer, _ = patient(lambda: cluster.client.get("/v1/streams/shop/state"))
    assert answer.content == state
    after = patient(lambda: cluster.classify("shop", pictures[:1]))[0].json()["results"]
    assert after[0]["id"] == before[-1]["id"] + 1
    assert pid_of(cluster.actor("shop")) != first
    assert cluster.client.get("/v1/streams/shop").json()["broken"] is None


def test_nothing_acknowledged_is_lost_when_a_stream_is_killed_under_load(cluster, pictures):
    cluster.create("busy", method="prior", skip_duplicates=False, guard=None)
    acknowledged = []
    refusals = []
    stop = threading.Event()

    def send(offset):
        place = offset
        while not stop.is_set():
            answer, refused = patient(partial(cluster.classify, "busy", [pictures[place % 24]]))
            assert answer.status_code == 200, answer.text
            acknowledged.append(answer.json()["results"][0]["id"])
            refusals.append(refused)
            place += 1

    threads = [threading.Thread(target=send, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for kills in range(1, 3):
        wait_until(lambda kills=kills: len(acknowledged) > 8 * kills)
        kill(cluster.actor("busy"))
        count = len(acknowledged)
        wait_until(lambda count=count: len(acknowledged) > count + 4)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert len(set(acknowledged)) == len(acknowledged)  # an id is never given twice
    seen = learnt(cluster, "busy")
    # What was learnt but not acknowledged was sent again: at most one image per sender and kill.
    assert len(acknowledged) <= seen <= len(acknowledged) + 6
    assert max(acknowledged) < seen
    cluster.client.delete("/v1/streams/busy").raise_for_status()


def test_an_encoder_that_dies_costs_nothing(cluster, pictures):
    """Encoders keep nothing, so that the stream itself asks another one."""
    cluster.create("steady", skip_duplicates=False, guard=None)
    ids = []
    stop = threading.Event()

    def send():
        while not stop.is_set():
            answer = cluster.classify("steady", pictures[:2])
            assert answer.status_code == 200, answer.text
            ids.extend(each["id"] for each in answer.json()["results"])

    thread = threading.Thread(target=send)
    thread.start()
    wait_until(lambda: len(ids) >= 4)
    kill(cluster.replicas("Encoders")[0])
    count = len(ids)
    wait_until(lambda: len(ids) >= count + 20)
    stop.set()
    thread.join(60)
    assert ids == list(range(len(ids)))
    assert learnt(cluster, "steady") == len(ids)
    cluster.client.delete("/v1/streams/steady").raise_for_status()


def test_a_front_that_dies_is_replaced(cluster, pictures):
    before = learnt(cluster, "shop")
    kill(cluster.replicas("Front")[0])
    answered = 0
    while answered < 6:
        answer = cluster.classify("shop", pictures[:1])
        answered += answer.status_code == 200
        assert answer.status_code in (200, 500, 503)  # Ray Serve's proxy answers for a replica that is gone
    assert before + 6 <= learnt(cluster, "shop") <= before + 8
    wait_until(lambda: len(cluster.replicas("Front")) >= 2, 120)


def test_the_reports_survive_their_process(cluster):
    import ray

    kill(ray.get_actor("reports", namespace="acclimate"))
    wait_until(lambda: cluster.client.get("/metrics").status_code == 200)
    wait_until(lambda: "acclimate_adapt_duration_seconds_count" in cluster.client.get("/metrics").text)
    assert cluster.client.get("/health/ready").status_code == 200


def test_a_damaged_stream_is_described_and_can_be_deleted(cluster):
    cluster.create("damaged")
    for path in (cluster.folder / "streams" / "damaged").glob("*.safetensors"):
        path.write_bytes(b"damaged")
    kill(cluster.actor("damaged"))
    answer, _ = patient(lambda: cluster.client.get("/v1/streams/damaged/state"))
    assert answer.status_code == 503
    assert "cannot be used" in answer.json()["error"]["message"]

    def broken():
        return {each["name"]: each["broken"] for each in cluster.client.get("/v1/streams").json()["streams"]}

    wait_until(lambda: not broken()["shop"])  # it may still be restarting
    assert broken()["damaged"]
    assert cluster.client.delete("/v1/streams/damaged").status_code == 204
    assert cluster.client.get("/v1/streams/damaged").status_code == 404


def test_a_stale_process_cannot_write_to_the_files_of_its_successor(cluster, tmp_path):
    from acclimate.cluster.serving.stream_actor import claim_stream
    from acclimate.serve.http_errors import StorageError

    with pytest.raises(StorageError, match="another process still has the stream 'shop'; try again"):
        claim_stream(cluster.folder / "streams" / "shop", seconds=0.2)
    claim_stream(tmp_path, seconds=0.2).close()
    claim_stream(tmp_path, seconds=0.2).close()


def test_a_stopped_process_keeps_its_stream_until_it_is_gone(cluster, pictures):
    """SIGSTOP stands for a machine that hangs: calls time out or wait, and are answered when it goes on."""
    process = pid_of(cluster.actor("shop"))
    before = learnt(cluster, "shop")
    answers = []
    os.kill(process, signal.SIGSTOP)
    try:
        thread = threading.Thread(target=lambda: answers.append(cluster.classify("shop", pictures[:1])))
        thread.start()
        assert cluster.client.get("/health/live").status_code == 200
        assert cluster.client.get("/v1/streams/old").status_code == 200
        assert not answers
    finally:
        os.kill(process, signal.SIGCONT)
    thread.join(60)
    assert answers[0].status_code == 200
    assert learnt(cluster, "shop") == before + 1
