"""Nobody waits for what others ask for: management, metrics and lists beside slow streams and long lists of labels."""

import base64
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest

from acclimate.serve.security import TokenFile
from waiting import wait_until

ONE = "/v1/streams/one"
TWO = "/v1/streams/two"
ATTACKER = "attacker-token-0123456789"
VICTIM = "victim-token-0123456789"
LISTS = ("/caches", "/learnt", "/snapshots", "/state", "/corrections", "/answers")


class Held:
    """A switch that holds back images and texts of all services until its events are set; keeps batches of prompts."""

    def __init__(self):
        self.images = Event()
        self.texts = Event()
        self.began = Event()
        self.batches = []
        self.images.set()
        self.texts.set()


@pytest.fixture
def held(encoder, monkeypatch):
    held = Held()
    images = encoder.encode_images
    texts = encoder.encode_text

    def encode_images(inputs):
        assert held.images.wait(180)
        return images(inputs)

    def encode_text(prompts):
        held.batches.append(prompts[0])
        held.began.set()
        assert held.texts.wait(180)
        return texts(prompts)

    monkeypatch.setattr(encoder, "encode_images", encode_images)
    monkeypatch.setattr(encoder, "encode_text", encode_text)
    yield held
    held.images.set()
    held.texts.set()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(64) as pool:
        yield pool


@pytest.fixture
def two_clients(serve, tmp_path):
    """Return a service, and headers of an attacker who may use no stream, and of a victim who may use all."""
    (tmp_path / "tokens").write_text(f"attacker {ATTACKER}\nvictim {VICTIM} *=manage\n")
    with serve(tokens=TokenFile(tmp_path / "tokens")) as client:
        yield client, *({"Authorization": f"Bearer {token}"} for token in (ATTACKER, VICTIM))


def task(picture, labels):
    return {"inputs": base64.b64encode(picture).decode(), "parameters": {"candidate_labels": labels}}


def waiting_for(client, name, count):
    """Wait until so many calls of a stream wait or work."""
    turn = client.streams._streams[name]._turn
    wait_until(lambda: turn.locked() + len(turn._waiters or ()) >= count)


@contextmanager
def working(client, name):
    """Keep a stream busy."""
    stream = client.streams._streams[name]
    began = Event()
    gate = Event()
    do = stream._do
    stream._do = lambda *arguments: began.set() or (gate.wait(180) and do(*arguments))
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(client.post, f"/v1/streams/{name}/snapshot")
        try:
            assert began.wait(180)
            del stream._do
            yield
        finally:
            gate.set()
            assert work.result().status_code == 200


def test_calls_that_wait_for_one_stream_delay_no_other(client, pictures, held, pool):
    held.images.clear()
    slow = pool.submit(client.post, f"{ONE}/classify", files={"image": pictures[0]})
    waiting_for(client, "one", 1)
    freezing = [pool.submit(client.post, f"{ONE}/freeze") for _ in range(45)]
    waiting_for(client, "one", 46)
    assert client.get(TWO).json()["name"] == "two"
    for path in ("freeze", "unfreeze", "reset", "snapshot"):
        assert client.post(f"{TWO}/{path}").status_code == 200
    for path in ("", *LISTS):
        assert client.get(f"{TWO}{path}").status_code == 200
    assert client.post("/v1/streams", json={"name": "new", "labels": ["cat", "dog"]}).status_code == 201
    assert client.delete("/v1/streams/new").status_code == 204
    assert not any(each.done() for each in (slow, *freezing))
    held.images.set()
    assert {each.result().status_code for each in freezing} == {200}
    assert slow.result().json()["results"][0]["id"] == 0  # it was before them
    assert client.get(ONE).json()["frozen"]


def test_too_many_calls_are_refused(serve, pictures, held, pool):
    with serve(calls=3) as client:
        held.images.clear()
        slow = pool.submit(client.post, f"{ONE}/classify", files={"image": pictures[0]})
        waiting_for(client, "one", 1)
        waiting = [pool.submit(client.post, f"{ONE}/freeze") for _ in range(3)]
        waiting_for(client, "one", 4)
        refused = client.post(f"{ONE}/freeze")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert client.post(f"{TWO}/freeze").status_code == 200
        held.images.set()
        assert {each.result().status_code for each in (slow, *waiting)} == {200}
        assert client.post(f"{ONE}/unfreeze").status_code == 200


def test_descriptions_and_lists_wait_for_no_stream(client, pool):
    before = client.get(ONE).json()
    with working(client, "one"):
        reading = [pool.submit(client.get, f"{ONE}{path}") for path in LISTS * 4]
        waiting_for(client, "one", 1 + len(reading))
        assert client.get(ONE).json() == before
        assert [each["name"] for each in client.get("/v1/streams").json()["streams"]] == ["one", "two"]
        assert "acclimate_cache_entries" in client.get("/metrics").text
        for path in LISTS:
            assert client.get(f"{TWO}{path}").status_code == 200
        assert client.post("/v1/streams", json={"name": "new", "labels": ["cat", "dog"]}).status_code == 201
        assert not any(each.done() for each in reading)
    assert {each.result().status_code for each in reading} == {200}


def test_deletes_of_busy_streams_delay_no_other_call(client, pool):
    with working(client, "one"):
        deleting = [pool.submit(client.delete, ONE) for _ in range(4)]
        waiting_for(client, "one", 5)
        assert client.post("/v1/streams", json={"name": "new", "labels": ["cat", "dog"]}).status_code == 201
        assert client.delete("/v1/streams/new").status_code == 204
        assert not any(each.done() for each in deleting)
    assert sorted(each.result().status_code for each in deleting) == [204] + [404] * 3


def test_corrections_count_as_calls(serve, pictures, pool):
    with serve(calls=3) as client:
        assert client.post(f"{ONE}/classify", files={"image": pictures[0]}).json()["results"][0]["id"] == 0
        body = {"label": "red circle", "id": 0}
        with working(client, "one"):
            waiting = [pool.submit(client.post, f"{ONE}/corrections", json=body) for _ in range(2)]
            waiting_for(client, "one", 3)
            image = {"label": "red circle", "image": base64.b64encode(pictures[1]).decode()}
            for each in (body, image):
                assert client.post(f"{ONE}/corrections", json=each).status_code == 429
            wait_until(lambda: client.streams.batcher.waiting == 0)  # nothing is encoded for what is refused
        assert {each.result().status_code for each in waiting} == {200}
        assert client.post(f"{ONE}/corrections", json={"label": "red circle", "image": "eA=="}).status_code == 422
        for _ in range(4):  # what fails gives its place back
            assert client.post(f"{ONE}/corrections", json=body).status_code == 200


def test_a_call_that_came_too_late_is_never_made(serve, pool):
    with serve() as client:
        stream = client.streams._streams["one"]
        began = Event()
        gate = Event()
        do = stream._do
        stream._do = lambda *arguments: began.set() or (gate.wait(180) and do(*arguments))
        with client.time_limit(3):
            begun = pool.submit(client.post, f"{ONE}/freeze")
            assert began.wait(180)
            late = client.post(f"{ONE}/reset")
            assert (begun.result().status_code, late.status_code) == (504, 504)
        assert "no answer within 3 s" in late.json()["error"]["message"]
        gate.set()
        assert client.get(f"{ONE}/snapshots").json()["snapshots"][0]["reason"] == "created"  # there was no reset
        assert client.get(ONE).json()["frozen"]  # what had begun was done


def test_many_new_labels_delay_nobody_else(two_clients, pictures, held, pool):
    """Forty requests with 500 new labels each: the other client is answered before any of them."""
    client, attacker, victim = two_clients
    held.texts.clear()
    held.began.clear()
    held.batches.clear()
    bodies = [task(pictures[0], [f"kind {kind} of {i}" for i in range(500)]) for kind in range(40)]
    attack = [pool.submit(client.post, "/classify", json=body, headers=attacker) for body in bodies]
    assert held.began.wait(180)
    files = {"image": pictures[0]}
    assert client.post(f"{ONE}/classify", files=files, headers=victim).status_code == 200  # has its labels
    wait_until(lambda: sum(each.done() for each in attack) == 24)  # 16 may wait
    refused = [each.result() for each in attack if each.done()]
    assert {(each.status_code, each.headers["retry-after"]) for each in refused} == {(429, "1")}
    few = pool.submit(client.post, "/classify", json=task(pictures[0], ["cat", "dog"]), headers=victim)
    new = {"name": "new", "labels": ["fox", "hen"]}
    making = pool.submit(client.post, "/v1/streams", json=new, headers=victim)
    labels = pool.submit(client.patch, f"{TWO}/labels", json={"add": ["owl", "elk"]}, headers=victim)
    wait_until(lambda: client.streams.texts.pool._unfinished["victim"] == 3)
    assert client.post(f"{TWO}/classify", files=files, headers=victim).status_code == 200  # does not wait for labels
    held.texts.set()
    assert [each.result().status_code for each in (few, making, labels)] == [200, 201, 200]
    assert sorted(each.result().status_code for each in attack) == [200] * 16 + [429] * 24
    short = [place for place, first in enumerate(held.batches) if "kind" not in first]
    assert max(short) < 40  # 259 in all; the threads take turns, as far as a busy machine lets both run


def test_a_request_may_bring_fewer_labels_than_a_stream_has(client, pictures):
    answer = client.post("/classify", json=task(pictures[0], [f"kind {i}" for i in range(501)]))
    assert answer.status_code == 422
    assert "2 to 500 labels" in answer.json()["error"]["message"]


def test_a_thousand_streams_are_listed_from_memory(client, monkeypatch):
    """Nothing is computed per stream and label: adapters are not asked, files are not read."""
    streams = client.streams._streams
    one = streams["one"]
    for i in range(1000):
        streams[f"copy-{i}"] = one
    monkeypatch.setattr(type(one), "learner", property(lambda self: 1 / 0))
    assert len(client.get("/v1/streams").json()["streams"]) == 1002
    assert client.get("/metrics").status_code == 200
    monkeypatch.undo()
    for i in range(1000):
        del streams[f"copy-{i}"]
