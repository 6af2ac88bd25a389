"""Many streams: made, found, listed, deleted."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx
import numpy as np
import pytest

from acclimate import Classifier
from acclimate.errors import ImageError, InputError, StateError
from acclimate.prompts import head as head_module
from acclimate.serve import service as service_module
from acclimate.serve import streams as streams_module
from acclimate.serve.app import log_stop
from acclimate.serve.http_errors import (
    BusyError,
    ExistsError,
    NotFoundError,
    StorageError,
    TooManyError,
    UnusableError,
)
from acclimate.serve.logs import logger
from acclimate.serve.streams import Streams
from stream_calls import names

LABELS = ["red circle", "green square", "blue stripes", "cat", "dog"]


def test_streams_are_made_found_listed_and_deleted(start, images, tmp_path):
    streams = start()
    shop = streams.create("shop", LABELS, method="tda")
    lab = streams.create("lab.2_b-c", LABELS[:2], method="tda", thumbnails=True)
    assert names(streams) == ["lab.2_b-c", "shop"]
    assert streams.get("shop") is shop
    assert [each["name"] for each in streams.describe()] == names(streams)
    shop.classify(images[:5]).result(60)
    lab.classify(images[:5]).result(60)
    assert streams.entries()["positive"] == shop.history.entries()["positive"] + lab.history.entries()["positive"] > 2
    with pytest.raises(ExistsError, match="already is a stream 'shop'"):
        streams.create("shop", LABELS, skip_duplicates=False)
    streams.delete("shop").result(60)
    assert sorted(path.name for path in (tmp_path / "state" / "streams").iterdir()) == ["lab.2_b-c"]
    for action in (streams.get, lambda name: streams.delete(name).result(60)):
        with pytest.raises(NotFoundError, match="no stream 'shop'"):
            action("shop")
    for action in (shop.reset, shop.snapshot, lambda: shop.classify(images[:1])):
        with pytest.raises(NotFoundError, match="stream 'shop' does not exist any more"):
            action()
    assert streams.create("shop", LABELS, skip_duplicates=False).describe()["samples_seen"] == 0


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", "A", "-a", ".a", "a" * 65, "a\n", "a\0", "ä", "a b", "%2e", "con:"]
)
def test_names_that_could_be_paths_are_refused(start, name, tmp_path):
    streams = start()
    with pytest.raises(InputError, match="for instance pets-2024"):
        streams.create(name, LABELS, skip_duplicates=False)
    with pytest.raises(NotFoundError):
        streams.get(name)
    with pytest.raises(NotFoundError):
        streams.delete(name).result(60)
    assert list((tmp_path / "state" / "streams").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": ["one"]}, "2 to 9 labels, got 1"),
        ({"labels": [str(i) for i in range(10)]}, "2 to 9 labels, got 10"),
        ({"labels": ["cat", "Katze " * 50]}, "longer than 200 characters"),
        ({"labels": ["cat", "cat "]}, "the same class"),
        (
            {"templates": ["{} {}".format(i, "{}") for i in range(5)]},
            "make more than 20 prompts",
        ),
        ({"templates": "no place"}, "has no {} for the class name"),
        ({"templates": 3}, "Input should be a valid string"),
        ({"method": "magic"}, "unknown method 'magic'"),
        ({"method": "tda", "settings": {"positive_capacity": 0}}, "at least 1"),
        ({"method": "tda", "settings": {"negative_capacity": 65}}, "settings keep 68 samples per label; lower"),
        ({"method": "zero"}, "'zero' needs several views"),
        ({"method": "zero", "views": 65}, "views must be from 1 to 64, got 65; use fewer"),
        ({"views": 0}, "views: Input should be greater than or equal to 1"),
        ({"guard": {"share": 0.0}}, "guard.share: Input should be greater than 0"),
        ({"settings": {"capacity": 1}}, "no setting 'capacity'"),
    ],
)
def test_bad_setups_are_refused_and_leave_nothing(start, arguments, message, tmp_path):
    streams = start(labels=9, prompts=20)
    with pytest.raises(InputError, match=message):
        streams.create("shop", **{"labels": LABELS, **arguments})
    assert names(streams) == list((tmp_path / "state" / "streams").iterdir()) == []


def test_the_number_of_streams_is_limited(start):
    streams = start(streams=2)
    streams.create("a", LABELS, skip_duplicates=False)
    streams.create("b", LABELS, skip_duplicates=False)
    with pytest.raises(TooManyError, match="the maximum of 2 streams is reached"):
        streams.create("c", LABELS, skip_duplicates=False)
    streams.delete("a").result(60)
    streams.create("c", LABELS, skip_duplicates=False)


def test_a_folder_is_for_one_service(start, encoder, tmp_path):
    start()
    with pytest.raises(InputError, match="another service uses"):
        Streams(tmp_path / "state", encoder)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot store streams in"):
        Streams(tmp_path / "file", encoder)


def test_a_stream_of_another_model_is_refused(start, after_a_kill, encoder, monkeypatch):
    start().create("shop", LABELS, skip_duplicates=False)
    monkeypatch.setattr(encoder, "fingerprint", "another")
    with pytest.raises(UnusableError, match="made with another model; start the service with that model"):
        after_a_kill().get("shop")


@pytest.mark.parametrize(
    "change",
    [
        {"templates": "a photo of {} " + "x" * 3000},
        {"templates": {label * 500: ["x" * 3000] for label in LABELS}},
        {"guard": {"share": None, "burst": 10**6, "window_s": 1e9}},
        {"settings": {"x" * 300: "y" * 300} | {str(number): 1e9 for number in range(200)}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_streams_from_before_there_were_bounds_go_on(serve, pictures, tmp_path, change):
    with serve() as client:
        folder = client.folder
    path = folder / "streams" / "one" / "stream.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"setup": content["setup"] | change}))
    with serve(folder=folder) as client:
        answer = client.post("/v1/streams/one/classify", content=pictures[0], headers={"content-type": "image/png"})
        assert answer.status_code == 200, answer.text
        described = client.get("/v1/streams/one").json()
        assert described["samples_seen"] == 1
        if "templates" in change:
            assert described["templates"] == change["templates"]


def test_calls_after_closing_return(start, images):
    streams = start()
    stream = streams.create("shop", LABELS)
    deleted = streams.create("gone", LABELS)
    stream.classify(images[:5]).result(60)
    streams.delete("gone").result(60)
    for each in (stream, stream, deleted):
        each.close().result(60)
    for _ in range(2):
        streams.close()
    snapshots = stream.snapshots()
    for each in (stream, deleted):
        each.close().result(60)
        each.tick()
        for call in (each.reset, each.snapshot, lambda each=each: each.correct("cat", 0).result(60)):
            with pytest.raises(NotFoundError, match="does not exist any more"):
                call()
        with pytest.raises((NotFoundError, BusyError)):
            each.classify(images[:1])
    assert stream.snapshots() == snapshots


def test_zero_shot_is_the_models_own_answer(start, images, encoder, tmp_path):
    streams = start()
    classifier = Classifier(["cat", "dog"], encoder, method="zero-shot", templates="the {}", cache=tmp_path)
    for image, other in zip(images[:5], classifier.stream(images[:5]), strict=True):
        mine = asyncio.run(streams.zero_shot(image, ["cat", "dog"], "the {}"))
        assert mine.label == other.label
        np.testing.assert_allclose(mine.score, other.score, atol=1e-4)
        assert len(mine.top) == 2
    with pytest.raises(ImageError):
        asyncio.run(streams.zero_shot(b"no", ["cat", "dog"], "{}"))
    with pytest.raises(InputError):
        asyncio.run(streams.zero_shot(images[0], ["cat"], "{}"))
    assert list((tmp_path / "state").glob("texts/*")) == []
    streams.batcher.close()
    with pytest.raises(BusyError):
        asyncio.run(streams.zero_shot(images[0], ["cat", "dog"], "{}"))


def send(client, name, content):
    return client.post(f"/v1/streams/{name}/classify", content=content, headers={"content-type": "image/png"})


def test_only_images_that_can_be_read_make_a_stream(serve, pictures):
    with serve(defaults={"labels": LABELS, "skip_duplicates": False}) as client:
        for content in (b"x", b"", pictures[0][:100], b"\x89PNG\r\n\x1a\n"):
            for i in range(3):
                assert send(client, f"new{i}", content).status_code == 422
        for body in ({"images": []}, {"images": ["eA=="]}, {"images": ["x"]}):
            assert client.post("/v1/streams/new/classify", json=body).status_code == 422
        files = [("image", ("good.png", pictures[0])), ("image", ("bad.png", b"x"))]
        assert "bad.png" in client.post("/v1/streams/new/classify", files=files).json()["error"]["message"]
        assert names(client.streams) == ["one", "two"]
        assert sorted(path.name for path in (client.folder / "streams").iterdir()) == ["one", "two"]
        answer = send(client, "new", pictures[0]).json()["results"][0]
        assert (answer["id"], client.streams.get("new").describe()["samples_seen"]) == (0, 1)
        made = [json.loads(line) for line in (client.folder / "audit.jsonl").read_text().splitlines()]
        assert [(each["stream"], each["by"]) for each in made if each["action"] == "create_stream"] == [
            ("new", "its first images")
        ]


def test_many_first_images_make_one_stream(serve, pictures):
    with serve(defaults={"labels": LABELS, "skip_duplicates": False}) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: send(client, "new", pictures[i]), range(8)))
        assert [each.status_code for each in answers] == [200] * 8
        assert client.streams.get("new").describe()["samples_seen"] == 8


def test_a_client_makes_so_many_streams(start, serve, pictures, after_a_kill):
    with serve(defaults={"labels": LABELS}, client_streams=2) as client:
        body = {"name": "posted", "labels": LABELS}
        assert client.post("/v1/streams", json=body).status_code == 201
        assert send(client, "sent", pictures[0]).status_code == 200
        for refused in (
            client.post("/v1/streams", json={**body, "name": "more"}),
            send(client, "more", pictures[0]),
        ):
            assert refused.status_code == 409
            assert "'127.0.0.1' has made the maximum of 2 streams for one client" in refused.json()["error"]["message"]
        assert client.delete("/v1/streams/sent").status_code == 204
        assert send(client, "more", pictures[0]).status_code == 200
    streams = start(client_streams=1)
    streams.create("a", LABELS, client="camera")
    streams.create("b", LABELS, client="phone")
    for each in (streams, after_a_kill(client_streams=1)):  # who made a stream is on disk
        with pytest.raises(TooManyError, match="'camera' has made the maximum of 1 streams"):
            each.create("c", LABELS, client="camera")
        each.create("c", LABELS)  # no client: the operator made it


def test_a_delete_that_fails_leaves_the_stream_as_it_was(start, images, monkeypatch):
    streams = start()
    stream = streams.create("shop", LABELS, skip_duplicates=False)
    stream.classify(images[:5]).result(60)
    with monkeypatch.context() as longer:
        longer.setattr(service_module, "DELETED", "." + "x" * 300)  # longer than a name may be
        with pytest.raises(StorageError, match="'shop' could not be removed: File name too long"):
            streams.delete("shop").result(60)
    assert streams.get("shop") is stream
    assert stream.classify(images[5:7]).result(60)[0].id == 5
    with pytest.raises(ExistsError):
        streams.create("shop", LABELS)
    streams.delete("shop").result(60)
    assert names(streams) == list(streams._folder.iterdir()) == []


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), StateError("stream.json ..."), MemoryError()])
def test_a_stream_that_cannot_be_opened_leaves_its_name_free(start, monkeypatch, error):
    streams = start()

    def fail(*_):
        raise error

    with monkeypatch.context() as failing:
        failing.setattr(streams_module, "Stream", fail)
        with pytest.raises(StorageError, match="'shop' could not be opened: "):
            streams.create("shop", LABELS)
    assert names(streams) == list(streams._folder.iterdir()) == []
    assert streams.create("shop", LABELS).describe()["name"] == "shop"


def test_a_delete_can_be_taken_back_while_it_waits(start):
    streams = start()
    gate = Event()
    stream = streams.create("shop", LABELS)
    working = stream.queue.put(lambda _: gate.wait(60))
    deleting = streams.delete("shop")
    assert deleting.cancel()
    gate.set()
    assert working.result(60)
    stream.snapshot()  # behind it
    assert streams.get("shop") is stream


def test_a_state_that_cannot_be_saved_at_the_end_is_reported(start, images, monkeypatch, caplog):
    streams = start()
    for name in ("shop", "lab", "idle"):
        streams.create(name, LABELS)
    for name in ("shop", "lab"):
        streams.get(name).classify(images[:3]).result(60)

    def fail(*_):
        raise StateError("it has too many items.")

    monkeypatch.setattr(streams.get("shop").history, "snapshot", fail)
    monkeypatch.setattr(streams.get("lab").history, "sync", lambda: 1 / 0)
    streams.close()
    assert streams.unsaved["shop"] == "it has too many items."
    assert "ZeroDivisionError" in streams.unsaved["lab"]
    assert "idle" not in streams.unsaved
    caplog.set_level("INFO", "acclimate")
    monkeypatch.setattr(logger, "propagate", True)
    log_stop(streams)
    streams.unsaved.clear()
    log_stop(streams)
    bad, good = caplog.records[-2:]
    assert (bad.levelname, bad.message) == ("ERROR", "stopped; not all states could be saved")
    assert bad.fields["reasons"]["shop"] == "it has too many items."
    assert (good.levelname, good.message) == ("INFO", "stopped; all states are saved")


def test_a_stream_whose_files_somebody_removed_can_be_deleted(start, images):
    streams = start()
    streams.create("shop", LABELS)
    (streams._folder / "shop").rename(streams._folder.parent / "elsewhere")
    streams.delete("shop").result(60)
    streams.create("shop", LABELS).classify(images[:2]).result(60)


def test_a_name_that_is_created_and_deleted_by_many_at_once(serve, pictures):
    with serve(defaults={"labels": LABELS}) as client, ThreadPoolExecutor(8) as pool:

        def work(i):
            with httpx.Client(base_url=client.base_url, timeout=60) as mine:
                for _ in range(12):
                    if i % 3 == 0:
                        yield mine.delete("/v1/streams/hot")
                    elif i % 3 == 1:
                        yield mine.post("/v1/streams", json={"name": "hot", "labels": LABELS})
                    else:
                        yield send(mine, "hot", pictures[i])

        answers = [answer for each in pool.map(lambda i: list(work(i)), range(8)) for answer in each]
        assert {answer.status_code for answer in answers} <= {200, 201, 204, 404, 409}, [
            answer.text for answer in answers if answer.status_code >= 500
        ]
        assert {path.name for path in (client.folder / "streams").iterdir()} <= {"one", "two", "hot"}


def test_the_labels_on_disk_are_bounded(start, monkeypatch):
    monkeypatch.setattr(head_module, "CACHE_FILES", 4)
    streams = start()
    texts = streams._folder.parent / "texts"
    streams.create("first", LABELS)
    (first,) = texts.iterdir()
    for i in range(8):
        streams.create(f"s{i}", [f"thing {i}", "cat"])
        streams.create(f"again{i}", LABELS)  # uses the first
    assert len(list(texts.iterdir())) == 4
    assert first.exists()
    monkeypatch.setattr(head_module, "CACHE_BYTES", first.stat().st_size + 10)
    streams.create("large", [*LABELS, "fox"])
    assert len(list(texts.iterdir())) <= 1
