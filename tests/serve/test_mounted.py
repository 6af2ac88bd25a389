"""The service within somebody else's application."""

from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI, Request
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from acclimate.errors import InputError
from acclimate.serve.app import create_app
from acclimate.serve.limits import Limits
from acclimate.serve.security import TokenFile
from acclimate.serve.streams import Streams
from service_process import PATIENT

LABELS = ["red circle", "green square"]
TOKEN = "keeper-token-0123456789"


def make_service(folder, encoder, tokens=None):
    streams = Streams(folder, encoder, Limits(**PATIENT, sync_s=0.05))
    return create_app(streams, tokens)


def with_lifespan_of(service):
    @asynccontextmanager
    async def lifespan(app):
        async with service.router.lifespan_context(service):
            yield

    return lifespan


def classify(client, name, image):
    answer = client.post(f"/images/v1/streams/{name}/classify", files={"image": image})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"][0]


def test_a_mounted_service_serves_and_saves_everything_at_shutdown(encoder, pictures, tmp_path):
    service = make_service(tmp_path, encoder)
    host = FastAPI(lifespan=with_lifespan_of(service))
    host.mount("/images", service)

    @host.middleware("http")
    async def remember(request: Request, call_next):
        request.state.mine = "kept"
        answer = await call_next(request)
        answer.headers["x-mine"] = request.scope["state"]["mine"]
        return answer

    @host.get("/own")
    async def own():
        return {"own": True}

    with TestClient(host) as client:
        assert client.get("/own").json() == {"own": True}
        body = {"labels": LABELS, "method": "tda", "skip_duplicates": False}
        assert client.put("/images/v1/streams/shop", json=body).status_code == 201
        assert [classify(client, "shop", each)["id"] for each in pictures[:3]] == [0, 1, 2]
        answer = client.get("/images/v1/streams/shop")
        assert answer.json()["answered"] == 3
        assert answer.headers["x-mine"] == "kept"  # the state of the request is still that of the host
        assert client.get("/images/health/ready").json() == {"ready": True}
        page = client.get("/images/")
        assert (page.headers["content-type"], page.headers["cache-control"]) == ("text/html; charset=utf-8", "no-cache")
        assert client.get("/images/page/app.js").status_code == 200
        schemas = client.get("/images/openapi.json").json()["components"]["schemas"]
        assert "tda" in schemas["StreamRequest"]["properties"]["method"]["enum"]
        assert "there is no GET" in client.get("/images/none").json()["error"]["message"]
        with pytest.raises(InputError, match="another service uses"):
            make_service(tmp_path, encoder)
    again = make_service(tmp_path, encoder)  # the folder was released
    with TestClient(Starlette(routes=[Mount("/images", again)], lifespan=with_lifespan_of(again))) as client:
        described = client.get("/images/v1/streams/shop").json()
        assert (described["samples_seen"], described["snapshots"]) == (3, 2)  # the second was taken at shutdown


def test_a_mounted_service_with_tokens_is_open_where_one_of_its_own_is(encoder, tmp_path):
    (tmp_path / "tokens").write_text(f"keeper {TOKEN} *=manage\n")
    service = make_service(tmp_path / "state", encoder, TokenFile(tmp_path / "tokens"))
    host = FastAPI(lifespan=with_lifespan_of(service))
    host.mount("/images", service)
    with TestClient(host) as client:
        for path in ("/images/", "/images/docs", "/images/openapi.json", "/images/health/live", "/images/page/app.js"):
            assert client.get(path).status_code == 200, path
        assert client.get("/images/v1/streams").status_code == 401
        assert client.get("/images/v1/streams", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
