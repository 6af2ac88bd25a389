"""A service that is killed again and again, at random moments, under load."""

import os
import random
import signal
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from math import log2
from time import sleep

import httpx
import pytest

from drawn_images import draw, encoded
from service_nursery import nursery
from service_process import connected, service
from waiting import wait_until

LABELS = ["red circle", "green square", "blue stripes", "cat", "dog"]
STREAMS = ["front", "back", "roof"]
CORRECTED = "roof"  # the stream whose images are corrected, too
KILLS = int(os.environ.get("ACCLIMATE_TEST_KILLS", "20"))
LIMITS = {"history": 4, "snapshot_samples": 9, "snapshot_s": 0.3, "workers": 1, "corrections": 2000}


class Acknowledged:
    """Everything that the services have answered."""

    def __init__(self):
        self.results = {stream: {} for stream in STREAMS}  # id -> result
        self.corrections = {}  # id -> label
        self.unanswered = {}  # id -> label of corrections under way at a kill
        self.made = set()
        self.checked = dict.fromkeys(STREAMS, -1)

    def count(self):
        """Return the number of acknowledged samples."""
        return sum(map(len, self.results.values()))


def picture(seed):
    return encoded(draw(("red", "green", "blue")[seed % 3], seed))


def create_streams(client):
    for name in STREAMS:
        setup = {"name": name, "labels": LABELS, "method": "tda", "skip_duplicates": False}
        assert client.post("/v1/streams", json=setup).status_code == 201


def until_gone(work):
    """Return a function that works until the service is gone."""

    def run(*arguments):
        try:
            while True:
                work(*arguments)
        except httpx.TransportError:
            return

    return run


@until_gone
def send(client, stream, rng, known):
    """Send images, and sometimes ask for a snapshot; note what is acknowledged."""
    images = [picture(rng.randrange(10**6)) for _ in range(rng.choice([1, 1, 1, 3]))]
    answer = client.post(f"/v1/streams/{stream}/classify", files=[("image", each) for each in images])
    assert answer.status_code == 200, answer.text
    for result in answer.json()["results"]:
        assert result["refused"] is None or stream == CORRECTED, result
        if result["id"] is not None:
            assert result["id"] not in known.results[stream]
            known.results[stream][result["id"]] = result
    if rng.random() < 0.1:
        assert client.post(f"/v1/streams/{stream}/snapshot").status_code == 200


@until_gone
def correct(client, stream, rng, known):
    """Correct images that were learnt; note what is acknowledged."""
    if not known.results[stream]:
        assert client.get("/v1/streams").status_code == 200
        return
    sample = rng.choice(list(known.results[stream])[-20:])
    label = rng.choice(LABELS)
    known.unanswered[sample] = label
    answer = client.post(f"/v1/streams/{stream}/corrections", json={"id": sample, "label": label})
    assert answer.status_code == 200, answer.text
    known.corrections[sample] = known.unanswered.pop(sample)
    sleep(0.05)


@until_gone
def make(client, rng, known):
    """Create a stream, and delete it."""
    name = f"made-{rng.randrange(10**9)}"
    assert client.post("/v1/streams", json={"name": name, "labels": LABELS}).status_code == 201
    known.made.add(name)
    sleep(0.05)
    known.made.remove(name)
    assert client.delete(f"/v1/streams/{name}").status_code == 204
    sleep(0.05)


def wait_for(known, enough, sending):
    """Wait until so many samples were acknowledged, or somebody failed."""
    wait_until(lambda: known.count() >= enough or any(each.done() for each in sending))


def assert_nothing_is_lost(client, known):
    listed = client.get("/v1/streams").json()["streams"]
    names = {each["name"] for each in listed}
    assert names >= known.made | set(STREAMS)
    assert [each for each in listed if each["broken"] or each["degraded"]] == []
    for name in names - known.made - set(STREAMS):  # creating or deleting it was under way
        assert client.delete(f"/v1/streams/{name}").status_code == 204
    for stream in STREAMS:
        assert_samples_are_there(client, stream, known)
    held = {
        each["id"]: each["label"] for each in client.get(f"/v1/streams/{CORRECTED}/corrections").json()["corrections"]
    }
    expected = known.corrections | {each: held.get(each) for each in known.unanswered}
    assert held == {each: label for each, label in expected.items() if label is not None}
    for each, label in known.unanswered.items():
        assert held.get(each) in (label, known.corrections.get(each))
    known.corrections = held
    known.unanswered = {}


def assert_samples_are_there(client, stream, known):
    """Check that what the stream has learnt since the last check is what was acknowledged, and a little more."""
    url = f"/v1/streams/{stream}/answers"
    answers = client.get(url, params={"after": known.checked[stream], "limit": 1000}).json()["answers"]
    found = {each["id"]: each["label"] for each in answers}
    results = known.results[stream]
    fresh = [number for number in results if number > known.checked[stream]]
    assert {number: found[number] for number in fresh} == {n: results[n]["predictions"][0]["label"] for n in fresh}
    assert len(found) - len(fresh) <= 2 * 3  # requests under way at a kill
    known.checked[stream] = max(found, default=known.checked[stream])
    assert client.get(f"/v1/streams/{stream}").json()["samples_seen"] == known.checked[stream] + 1


def assert_caches_hold_the_best(client, stream, known):
    """Check that the caches hold what the acknowledged samples, and those under way at each kill, lead to."""
    entries = client.get(f"/v1/streams/{stream}/caches").json()["entries"]
    for cache, capacity in (("positive", 3), ("negative", 2)):
        held = defaultdict(set)
        offered = defaultdict(set)
        for entry in (each for each in entries if each["cache"] == cache):
            held[entry["label"]].add((entry["entropy"], entry["id"]))
            if entry["id"] not in known.results[stream]:  # learnt, but the service was killed before it could say so
                offered[entry["label"]].add((entry["entropy"], entry["id"]))
        for result in known.results[stream].values():
            if cache == "positive" or 0.2 < result["entropy"] / log2(len(LABELS)) < 0.5:
                offered[result["zero_shot"]["label"]].add((result["entropy"], result["id"]))
        assert held == {label: set(sorted(samples)[:capacity]) for label, samples in offered.items()}


@pytest.mark.slow
@pytest.mark.untraced
def test_no_kill_loses_what_was_acknowledged(tiny_onnx, tmp_path):
    rng = random.Random()
    known = Acknowledged()
    arguments = ["--model", f"onnx:{tiny_onnx}", "--data", str(tmp_path / "state"), "--port", "0"]
    with nursery(tmp_path / "log", **LIMITS) as services, ThreadPoolExecutor(16) as writers:
        for number in range(KILLS):
            with services.service(*arguments) as (pid, address), connected(address) as client:
                if number == 0:
                    create_streams(client)
                assert_nothing_is_lost(client, known)
                if number % 10 == 0:
                    for name in set(STREAMS) - {CORRECTED}:
                        assert_caches_hold_the_best(client, name, known)
                own = [random.Random(rng.random()) for _ in range(8)]
                sending = [writers.submit(send, client, name, own.pop(), known) for name in STREAMS * 2]
                sending.append(writers.submit(correct, client, CORRECTED, own.pop(), known))
                sending.append(writers.submit(make, client, own.pop(), known))
                if number % 3:  # the others may be killed before anything is answered
                    wait_for(known, known.count() + rng.randrange(15), sending)
                sleep(rng.uniform(0.0, 0.1))
                os.kill(pid, signal.SIGKILL)
                for each in sending:
                    each.result(180)
    assert known.corrections
    assert known.count() > KILLS
    with service(tiny_onnx, tmp_path / "state") as (process, address):
        with connected(address) as client:
            assert_nothing_is_lost(client, known)
        process.send_signal(signal.SIGTERM)
        assert process.wait(180) == 0
