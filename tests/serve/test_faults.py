"""A service that is killed again and again, at random moments, under load."""

import io
import os
import random
import signal
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from math import log2
from time import sleep

import httpx
import pytest

from acclimate.serve.streams import Streams
from drawn_images import draw
from service_process import service
from waiting import wait_until

LABELS = ["red circle", "green square", "blue stripes", "cat", "dog"]
STREAMS = ["front", "back", "roof"]
KILLS = 10


OPTIONS = ["--labels", ",".join(LABELS), "--no-skip-duplicates", "--history", "3"]
OPTIONS += ["--snapshot-every", "9", "--snapshot-seconds", "0.3", "--method", "tda"]


def send(address, stream, rng, acknowledged):
    """Send images one after another until the service is gone; note what it acknowledged."""
    with httpx.Client(base_url=f"{address}/v1/streams/{stream}", timeout=30) as client:
        try:
            while True:
                pictures = [picture(rng.randrange(10**6)) for _ in range(rng.choice([1, 1, 1, 3]))]
                answer = client.post("/classify", files=[("image", each) for each in pictures])
                assert answer.status_code == 200, answer.text
                for result in answer.json()["results"]:
                    assert result["refused"] is None
                    acknowledged[stream].append(result)
                if rng.random() < 0.1:
                    assert client.post("/snapshot").status_code == 200
        except httpx.TransportError:
            return


def picture(seed):
    buffer = io.BytesIO()
    draw(("red", "green", "blue")[seed % 3], seed).save(buffer, "PNG")
    return buffer.getvalue()


def assert_nothing_is_lost(client, stream, acknowledged):
    """Check that the caches hold what the acknowledged samples, and those under way at each kill, lead to."""
    about = client.get(f"/v1/streams/{stream}").json()
    assert (about["broken"], about["degraded"]) == (None, None)
    ids = [result["id"] for result in acknowledged]
    assert len(set(ids)) == len(ids)
    assert max(ids, default=-1) < about["samples_seen"]
    entries = client.get(f"/v1/streams/{stream}/caches").json()["entries"]
    for cache, capacity in (("positive", 3), ("negative", 2)):
        held = defaultdict(set)
        offered = defaultdict(set)
        for entry in (each for each in entries if each["cache"] == cache):
            held[entry["label"]].add((entry["entropy"], entry["id"]))
            if entry["id"] not in ids:  # learnt, but the service was killed before it could say so
                offered[entry["label"]].add((entry["entropy"], entry["id"]))
        for result in acknowledged:
            if cache == "positive" or 0.2 < result["entropy"] / log2(len(LABELS)) < 0.5:
                offered[result["zero_shot"]["label"]].add((result["entropy"], result["id"]))
        assert held == {label: set(sorted(samples)[:capacity]) for label, samples in offered.items()}
    return about["samples_seen"] - len(ids)


@pytest.mark.slow
def test_no_kill_loses_what_was_acknowledged(tiny_onnx, encoder, tmp_path):
    rng = random.Random()
    acknowledged = {stream: [] for stream in STREAMS}
    data = tmp_path / "state"
    for number in range(KILLS):
        with service(tiny_onnx, data, *OPTIONS) as (process, address), ThreadPoolExecutor(2 * len(STREAMS)) as clients:
            with httpx.Client(base_url=address, timeout=30) as client:
                known = {each["name"] for each in client.get("/v1/streams").json()["streams"]}
                assert known >= {stream for stream in STREAMS if acknowledged[stream]}
                for stream in known:
                    assert_nothing_is_lost(client, stream, acknowledged[stream])
            sending = [
                clients.submit(send, address, stream, random.Random(rng.random()), acknowledged)
                for stream in STREAMS
                for _ in range(2)
            ]
            if number % 2:  # the others may be killed before anything is answered
                enough = {stream: len(acknowledged[stream]) + 3 for stream in STREAMS}
                wait_until(lambda enough=enough: all(len(acknowledged[each]) >= enough[each] for each in STREAMS))
            sleep(rng.uniform(0.0, 1.0))
            os.kill(process.pid, signal.SIGKILL)
            for each in sending:
                each.result(60)
    with service(tiny_onnx, data, *OPTIONS) as (process, address):
        with httpx.Client(base_url=address, timeout=30) as client:
            unsaid = [assert_nothing_is_lost(client, stream, acknowledged[stream]) for stream in STREAMS]
            assert all(0 <= count <= 2 * 3 * KILLS for count in unsaid)  # only requests under way at a kill
            answer = client.post("/v1/streams/front/classify", files={"image": picture(1)}).json()["results"][0]
            assert answer["id"] >= len(acknowledged["front"]) > KILLS
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    streams = Streams(data, encoder)
    assert [each["broken"] for each in streams.describe()] == [None] * len(STREAMS)
    streams.close()
