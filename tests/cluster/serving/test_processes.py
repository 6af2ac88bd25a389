"""The processes of the service on Ray, each of them run in this one: what it does when it is called."""

import asyncio
import shutil
from concurrent.futures import CancelledError, Future

import httpx
import pytest
import ray

from acclimate.cluster.serving import encoders as encoders_module
from acclimate.cluster.serving import reports as reports_module
from acclimate.cluster.serving.answers import RemoteFuture, answer, unwrapped, within
from acclimate.cluster.serving.encoders import Encoders
from acclimate.cluster.serving.front import Application, Front
from acclimate.cluster.serving.images import SentImages
from acclimate.cluster.serving.remote_streams import ClusterStreams
from acclimate.cluster.serving.reports import Reports
from acclimate.cluster.serving.service_settings import Settings
from acclimate.cluster.serving.stream_actor import StreamActor
from acclimate.errors import ImageError, InputError, ModelError
from acclimate.serve.http_errors import BusyError, NotFoundError, UnusableError
from acclimate.serve.journal import read_mark
from acclimate.serve.limits import Limits
from acclimate.serve.prometheus import Metrics
from cluster_service import CAMERA, KEEPER, LABELS, bearer

OPTIONS = {"names": ["a.png"], "thumbnails": True, "views": 1, "kind": "augmix", "start": 0, "client": ""}


@pytest.fixture
def settings(cluster):
    """Return the settings of the running service."""
    return cluster.service._settings


@pytest.fixture
def model(settings):
    from ray import serve

    return serve.get_deployment_handle("Encoders", settings.encoders).model.remote().result()


def test_an_encoder_replica(cluster, settings, model, pictures, monkeypatch):
    replica = Encoders(settings, {"name": f"onnx:{cluster.model}", "device": "cpu"})

    known = model.fingerprint

    async def use():
        assert await replica.model() == model
        encoded = await replica.encode(known, SentImages(pictures[:1]), OPTIONS)
        large = await replica.encode(known, SentImages([pictures[0] + bytes(2**17)]), OPTIONS)  # more than an image
        assert (encoded.features == large.features).all()
        assert encoded.thumbnails[0][:2] == b"\xff\xd8"
        assert (await replica.encode_text(known, ["cat", "dog"])).shape == (2, model.dim)
        assert not await replica.full(known)
        await replica.check_views(known, 2, "crop")
        with pytest.raises(ImageError, match=r"image 0 \(a.png\)"):
            await replica.encode(known, [b"not an image"], OPTIONS)
        with pytest.raises(ModelError, match="Copy the same files"):
            await replica.encode("of another model", pictures[:1], OPTIONS)

    asyncio.run(use())
    replica.__del__()
    broken = Encoders(settings, {"name": "onnx:/nowhere"})
    for call in (
        broken.model,
        lambda: broken.encode(known, pictures[:1], OPTIONS),
        lambda: broken.encode_text(known, ["cat"]),
        lambda: broken.full(known),
    ):
        with pytest.raises(ModelError, match="/nowhere"):
            asyncio.run(call())
    broken.check_health()  # not at once: it can say why
    monkeypatch.setattr(encoders_module, "FAILED_REPLICA_S", 0.0)
    with pytest.raises(ModelError, match="/nowhere"):
        broken.check_health()
    broken.__del__()


def test_the_process_of_a_stream(cluster, settings, model, pictures):
    cluster.create("twin", method="tda", skip_duplicates=False, guard=None)
    cluster.client.get("/v1/streams/twin/state").raise_for_status()
    folder = settings.streams
    shutil.copytree(folder / "twin", folder / "direct")
    stream = StreamActor(settings, "direct", model)

    async def use():
        answers = await stream.classify(SentImages(pictures[:3]), {"client": "me"})
        assert [each.id for each in answers] == [0, 1, 2]
        journal = stream._stream.history._journal
        assert read_mark(journal.path.parent)[1] == journal.size  # it is on the disk before it is acknowledged
        assert (await stream.describe())["samples_seen"] == 3
        assert await stream.correct(LABELS[0], 1) == 1
        assert await stream.correct(LABELS[1], None, pictures[5]) > 3
        head = await stream.head_of(["fox"], [])
        await stream.enqueue("put_labels", (["fox"], [], head), {})
        assert (await stream.describe())["labels"] == [*LABELS, "fox"]
        content = await stream.enqueue_read("state_bytes")
        adapter = await stream.read_state(content)
        await stream.enqueue("reset", (), {})
        await stream.enqueue("continue_from", (adapter,), {})
        assert (await stream.describe())["samples_seen"] == 3
        assert await stream.close() is None
        with pytest.raises(NotFoundError):
            await stream.classify(SentImages(pictures[:1]), {})

    asyncio.run(use())
    again = StreamActor(settings, "direct", model)
    assert asyncio.run(again.describe())["samples_seen"] == 3
    asyncio.run(again.end())
    assert not (folder / "direct").exists()
    with pytest.raises(NotFoundError, match="'direct'"):
        StreamActor(settings, "direct", model)
    (folder / "direct").mkdir()
    damaged = StreamActor(settings, "direct", model)
    assert set(asyncio.run(damaged.describe())) == {"name", "broken"}
    with pytest.raises(UnusableError, match="the stream 'direct' cannot be used: stream"):
        asyncio.run(damaged.enqueue_read("caches"))
    asyncio.run(damaged.end())
    with pytest.raises(NotFoundError, match="no stream 'direct' to delete"):
        asyncio.run(damaged.end())
    cluster.client.delete("/v1/streams/twin").raise_for_status()


def test_a_replica_of_the_front(settings, model, pictures):
    Front(settings, model, True, None, {"labels": LABELS, "skip_duplicates": False})

    async def use():
        transport = httpx.ASGITransport(Application())
        async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=bearer(KEEPER)) as client:
            assert (await client.get("/health/ready")).status_code == 200
            files = [("image", ("a.png", pictures[0], "image/png"))]
            answer = await client.post("/v1/streams/here/classify", files=files)
            assert answer.json()["results"][0]["id"] == 0, answer.text
            assert "x-request-id" not in answer.headers  # Ray Serve's proxy adds it
            large = [("image", ("a.png", pictures[1] + bytes(2**17), "image/png"))]
            assert (await client.post("/v1/streams/here/classify", files=large)).json()["results"][0]["id"] == 1
            again = await client.post("/v1/streams", json={"name": "here", "labels": LABELS})
            assert again.status_code == 409
            views = {"name": "viewed", "labels": LABELS, "views": 2, "method": "tda"}
            assert (await client.post("/v1/streams", json=views)).status_code == 201
            assert (await client.delete("/v1/streams/viewed")).status_code == 204
            state = (await client.get("/v1/streams/here/state")).content
            raw = {"content-type": "application/octet-stream"}
            assert (await client.put("/v1/streams/here/state", content=state, headers=raw)).status_code == 200
            assert (await client.patch("/v1/streams/here/labels", json={"add": ["fox"]})).status_code == 200
            correction = {"id": 1, "label": "fox"}
            assert (await client.post("/v1/streams/here/corrections", json=correction)).status_code in (200, 404)
            assert (await client.get("/v1/streams/here", headers=bearer(CAMERA))).status_code == 403
            assert "here" in [each["name"] for each in (await client.get("/v1/streams")).json()["streams"]]
            assert "acclimate_images_total" in (await client.get("/metrics")).text
            assert (await client.delete("/v1/streams/here")).status_code == 204
            assert (await client.delete("/v1/streams/here")).status_code == 404
            assert (await client.get("/v1/streams/here")).status_code == 404

    asyncio.run(use())
    streams = Application.app.state.streams
    with pytest.raises(NotFoundError):
        streams.get("here")
    streams.close()


def test_a_stream_that_another_replica_has_deleted_and_made_anew(cluster, settings, model, pictures):
    here = ClusterStreams(settings, model)
    cluster.create("anew", skip_duplicates=False, guard=None)
    assert here.get("anew").described().result(60)["samples_seen"] == 0  # the actor is known here from now on
    cluster.client.delete("/v1/streams/anew").raise_for_status()
    here.create("anew", LABELS, skip_duplicates=False, guard=None)
    assert len(here.get("anew").classify(pictures[:1]).result(60)) == 1
    cluster.client.delete("/v1/streams/anew").raise_for_status()
    cluster.create("anew")
    here.delete("anew").result(60)
    assert not (settings.streams / "anew").exists()
    here.close()


def test_the_reports_of_all_processes(tmp_path, monkeypatch):
    reports = Reports(Settings("test", tmp_path, Limits()))
    reports.audit("create_stream", "keeper", "done", {"stream": "shop"})
    assert '"stream": "shop"' in (tmp_path / "audit.jsonl").read_text()
    metrics = Metrics()
    metrics.unreadable()
    metrics.watch_degraded(lambda: 1)
    for process in ("first", "second"):  # a stream that was started again: what it holds counts once
        reports.put(process, "stream:shop", metrics.text({"positive": 5}, 2), "the disk is full.")
    reports.put("other", "encoders", metrics.text({}, 0), None)
    text = reports.metrics().decode()
    assert 'acclimate_images_total{outcome="unreadable"} 3.0' in text
    assert 'acclimate_cache_entries{kind="positive"} 5.0' in text
    assert "acclimate_corrections 2.0" in text
    assert reports.degraded() == ["the disk is full."]
    reports.forget("stream:shop")
    assert reports.degraded() == []
    text = reports.metrics().decode()
    assert 'acclimate_images_total{outcome="unreadable"} 3.0' in text
    assert "acclimate_corrections 0.0" in text
    monkeypatch.setattr(reports_module, "MAX_PROCESSES", 1)
    reports.put("newest", "front", metrics.text({}, 0), None)
    assert 'acclimate_images_total{outcome="unreadable"} 1.0' in reports.metrics().decode()


def test_errors_of_ray_are_explained():
    """503 and 429 for what a retry may answer, 504 for what took too long; never 500."""
    from ray.exceptions import ActorUnavailableError, GetTimeoutError, ObjectLostError, TaskCancelledError
    from ray.serve.exceptions import BackPressureError, RayServeException

    for error, kind, message in (
        (ActorUnavailableError("gone", b"1" * 16), UnusableError, "the stream 'shop' is restarting; try again"),
        (ObjectLostError("00", None, ""), UnusableError, "the images were lost on the way"),
        (BackPressureError(num_queued_requests=1, max_queued_requests=2), BusyError, "too many requests are waiting"),
        (RayServeException("no application"), UnusableError, "the model is not served at the moment"),
        (GetTimeoutError(), TimeoutError, ""),
        (TaskCancelledError(), CancelledError, ""),
        (KeyError("bug"), KeyError, "bug"),
    ):
        found = unwrapped(error, "the stream 'shop'")
        assert isinstance(found, kind)
        assert message in str(found)
    with pytest.raises(TimeoutError):
        within(0.01, Future())


def test_errors_of_other_processes_come_back_as_themselves(local_ray):
    @ray.remote
    def fail(error):
        raise error

    for error in (BusyError("full", 7), ImageError("image 0 is bad"), InputError("no"), ModelError("broken")):
        with pytest.raises(type(error), match=str(error)) as raised:
            answer(fail.remote(error), 60)
        assert vars(raised.value) == vars(error)
    asked = RemoteFuture()
    asked.follow(fail.remote(BusyError("full", 7)), unwrapped)
    assert not asked.cancel()  # nobody can promise that it will not be done
    with pytest.raises((BusyError, Exception)):
        asked.result(60)
