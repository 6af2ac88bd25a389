"""Many streams: made, found, listed, deleted."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from acclimate import Classifier
from acclimate.errors import BusyError, ImageError, InputError, StateError
from acclimate.prompts import head as head_module
from acclimate.serve import storage
from acclimate.serve import stream as stream_module
from acclimate.serve.http_errors import ExistsError, NotFoundError, StorageError, TooManyError, UnusableError
from acclimate.serve.server import log_start
from stream_calls import names

LABELS = ["red circle", "green square", "blue stripes", "cat", "dog"]


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
        ({"method": "stata"}, "does not run 'stata', which tunes prompts or answers a collection as a whole"),
        ({"method": "zero", "views": 65}, "views must be from 1 to 64, got 65; use fewer"),
        ({"views": 0}, "views: Input should be greater than or equal to 1"),
        ({"settings": {"capacity": 1}}, "no setting 'capacity'"),
    ],
)
def test_bad_setups_are_refused_and_leave_nothing(start, arguments, message, tmp_path):
    streams = start(labels=9, prompts=20)
    with pytest.raises(InputError, match=message):
        streams.create("shop", **{"labels": LABELS, **arguments})
    assert names(streams) == list((tmp_path / "state" / "streams").iterdir()) == []


def test_a_folder_is_for_one_service(start, tmp_path):
    start()
    with pytest.raises(InputError, match="another service uses"):
        start()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot store streams in"):
        start("file")


def test_a_stream_of_another_model_is_refused(start, after_a_kill, encoder, monkeypatch):
    start().create("shop", LABELS, skip_duplicates=False)
    monkeypatch.setattr(encoder, "fingerprint", "another")
    with pytest.raises(UnusableError, match="made with another model; start the service with that model"):
        after_a_kill().get("shop")


def test_the_log_says_which_streams_cannot_be_used_and_why(start, after_a_kill, encoder, monkeypatch, tmp_path, caplog):
    """A stream of another model is not called damaged."""
    start().create("shop", LABELS)
    monkeypatch.setattr(encoder, "fingerprint", "another")
    (tmp_path / "state" / "streams" / "worn.sqlite").write_bytes(b"nothing")
    log_start(after_a_kill().target, "a model")
    lines = [record for record in caplog.records if record.message == "stream cannot be used"]
    reasons = {record.fields["stream"]: record.fields["reason"] for record in lines}
    assert "made with another model" in reasons["shop"]
    assert "its file is damaged" in reasons["worn"]
    assert not [record for record in caplog.records if "damaged" in record.message]


def test_calls_after_closing_are_refused(start, images):
    streams = start()
    stream = streams.create("shop", LABELS)
    deleted = streams.create("gone", LABELS)
    stream.classify(images[:5])
    streams.delete("gone")
    for _ in range(2):
        streams.close()
    for each in (stream, deleted):
        for name, arguments in (("reset", ()), ("snapshot", ()), ("correct", ("cat", 0)), ("classify", (images[:1],))):
            with pytest.raises((NotFoundError, BusyError)):
                getattr(each, name)(*arguments)


def test_zero_shot_is_the_models_own_answer(start, images, encoder, tmp_path):
    streams = start()
    classifier = Classifier(["cat", "dog"], encoder, method="zero-shot", templates="the {}", cache=tmp_path)
    for image, other in zip(images[:5], classifier.stream(images[:5]), strict=True):
        mine = streams.zero_shot(image, ["cat", "dog"], "the {}")
        assert mine.label == other.label
        np.testing.assert_allclose(mine.score, other.score, atol=1e-4)
        assert len(mine.top) == 2
    with pytest.raises(ImageError):
        streams.zero_shot(b"no", ["cat", "dog"], "{}")
    with pytest.raises(InputError):
        streams.zero_shot(images[0], ["cat"], "{}")
    assert list((tmp_path / "state").glob("texts/*")) == []
    streams.batcher.close()
    with pytest.raises(BusyError):
        streams.zero_shot(images[0], ["cat", "dog"], "{}")


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
        assert sorted(path.stem for path in (client.folder / "streams").glob("*.sqlite")) == ["one", "two"]
        answer = send(client, "new", pictures[0]).json()["results"][0]
        assert (answer["id"], client.get("/v1/streams/new").json()["samples_seen"]) == (0, 1)
        made = [json.loads(line) for line in (client.folder / "audit" / "service.jsonl").read_text().splitlines()]
        assert [(each["stream"], each["by"]) for each in made if each["action"] == "create_stream"] == [
            ("new", "its first images")
        ]


def test_a_stream_without_labels_is_like_those_of_first_images(serve):
    with serve(defaults={"labels": LABELS, "method": "tda", "settings": {"positive_capacity": 2}}) as client:
        assert client.get("/v1/streams").json()["setup"] == {"method": "tda", "settings": {"positive_capacity": 2}}
        made = client.put("/v1/streams/new", json={"thumbnails": True}).json()
        assert (made["labels"], made["thumbnails"], made["answered"]) == (LABELS, True, 0)
        assert (made["method"], made["settings"]["positive_capacity"]) == ("tda", 2)
        assert client.put("/v1/streams/other", json={"labels": ["cat", "dog"]}).json()["labels"] == ["cat", "dog"]
    with serve() as client:
        refused = client.put("/v1/streams/new", json={})
        assert refused.status_code == 422
        assert "give the `labels`" in refused.json()["error"]["message"]


def test_many_first_images_make_one_stream(serve, pictures):
    with serve(defaults={"labels": LABELS, "skip_duplicates": False}) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: send(client, "new", pictures[i]), range(8)))
        assert [each.status_code for each in answers] == [200] * 8
        assert client.get("/v1/streams/new").json()["samples_seen"] == 8


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


def test_a_delete_that_fails_leaves_the_stream_as_it_was(start, images, monkeypatch, tmp_path):
    streams = start()
    stream = streams.create("shop", LABELS, skip_duplicates=False)
    stream.classify(images[:5])

    def fail(path):
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as failing:
        failing.setattr(stream_module, "remove_file", fail)
        with pytest.raises(StorageError, match="could not be removed: Read-only file system"):
            streams.delete("shop")
    assert streams.get("shop") == stream
    assert stream.classify(images[5:7])[0].id == 5
    with pytest.raises(ExistsError):
        streams.create("shop", LABELS)
    streams.delete("shop")
    assert names(streams) == list((tmp_path / "state" / "streams").iterdir()) == []


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), StateError("damaged"), MemoryError()])
def test_a_stream_that_cannot_be_opened_leaves_its_name_free(start, monkeypatch, tmp_path, error):
    streams = start()

    def fail(*_, **__):
        raise error

    with monkeypatch.context() as failing:
        failing.setattr(storage.StreamFile, "add_snapshot", fail)
        with pytest.raises((StorageError, type(error))):
            streams.create("shop", LABELS)
    assert names(streams) == list((tmp_path / "state" / "streams").iterdir()) == []
    assert streams.create("shop", LABELS).describe()["name"] == "shop"


def test_a_state_that_cannot_be_saved_at_the_end_is_reported(start, images, monkeypatch):
    streams = start()
    for name in ("shop", "idle"):
        streams.create(name, LABELS)
    streams.get("shop").classify(images[:3])

    def fail(*_, **__):
        raise StorageError("the disk is full.")

    monkeypatch.setattr(storage.StreamFile, "add_snapshot", fail)
    streams.close()
    assert streams.unsaved == {"shop": "the disk is full."}


def test_a_stream_whose_file_somebody_removed_can_be_deleted(start, images, tmp_path):
    streams = start()
    streams.create("shop", LABELS)
    (tmp_path / "state" / "streams" / "shop.sqlite").unlink()
    streams.delete("shop")
    streams.create("shop", LABELS).classify(images[:2])


def test_a_name_that_is_created_and_deleted_by_many_at_once(serve, pictures):
    with serve(defaults={"labels": LABELS}) as client, ThreadPoolExecutor(8) as pool:

        def work(i):
            with httpx.Client(base_url=client.base_url, timeout=180) as mine:
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
        assert {path.stem for path in (client.folder / "streams").iterdir()} <= {"one", "two", "hot"}


def test_the_labels_on_disk_are_bounded(start, monkeypatch, tmp_path):
    monkeypatch.setattr(head_module, "CACHE_FILES", 4)
    streams = start()
    texts = tmp_path / "state" / "texts"
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
