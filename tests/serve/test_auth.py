"""Tokens: who is let in, and what to."""

import re
import socket
from hashlib import sha256

import pytest

from acclimate.errors import InputError
from acclimate.serve.security import Caller, TokenFile, read_tokens
from stream_calls import names

CAMERA = "camera-token-0123456789"
LAB = "lab-token-0123456789"
KEEPER = "keeper-token-0123456789"
NEIGHBOUR = "neighbour-token-0123456789"
SCRAPER = "scraper-token-0123456789"
OPEN = {"/", "/docs", "/openapi.json", "/page", "/health/live", "/health/ready"}
ANY_TOKEN = {("GET", "/v1/streams"), ("GET", "/metrics"), ("POST", "/classify")}  # routes that any token may use
BODIES = {
    ("POST", "/v1/streams"): {"json": {"name": "other", "labels": ["cat", "dog"]}},
    ("PUT", "/v1/streams/{name}"): {"json": {"labels": ["cat", "dog"]}},
    ("POST", "/v1/streams/{name}/classify"): {"json": {"images": [""]}},
    ("PATCH", "/v1/streams/{name}/labels"): {"json": {"add": ["fox"]}},
}


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(
        f"# who        token                what for\n"
        f"camera       {CAMERA}             one=classify\n\n"
        f"lab          sha256:{sha256(LAB.encode()).hexdigest()}  o*=manage lab-*=classify,manage\n"
        f"keeper       {KEEPER}             *=classify,manage\n"
        f"prometheus   {SCRAPER}\n"
        f"neighbour    {NEIGHBOUR}          two=classify,manage\n"
    )
    return path


@pytest.fixture
def guarded(serve, token_file):
    with serve(tokens=TokenFile(token_file)) as client:
        yield client


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def guarded_routes(app):
    """Return (method, path) of every route but the open ones, in any router and mount."""
    found = set()
    for route in app.routes:
        router = getattr(route, "original_router", None)
        for each in [route] if router is None else router.routes:
            found.update((method, each.path) for method in getattr(each, "methods", ["GET"]))
    return sorted((method, path) for method, path in found if path not in OPEN)


def send(client, method, path, headers=None):
    address = path.replace("{name}", "one")
    return client.request(method, address, headers=headers, **BODIES.get((method, path), {}))


def test_every_route_is_closed_to_strangers(guarded, pictures):
    routes = guarded_routes(guarded.app)
    described = guarded.get("/openapi.json").json()["paths"]
    listed = {(method.upper(), path) for path, operations in described.items() for method in operations}
    assert {each for each in listed if each[1] not in OPEN} <= set(routes)
    assert len(routes) >= 17
    guarded.post("/v1/streams/one/classify", files={"image": pictures[0]}, headers=bearer(CAMERA))
    before = guarded.get("/v1/streams/one", headers=bearer(KEEPER)).json()
    for method, path in routes:
        for headers in (
            {},
            bearer("wrong-token-0123456789"),
            {"Authorization": "Bearer"},
            {"Authorization": f"Basic {KEEPER}"},
        ):
            answer = send(guarded, method, path, headers)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "unauthorized"
    for method, path in routes:
        if (method, path) in ANY_TOKEN:
            continue
        answer = send(guarded, method, path, bearer(NEIGHBOUR))
        assert answer.status_code == 403, (method, path)
    assert guarded.get("/v1/streams/one", headers=bearer(KEEPER)).json() == before


def test_unknown_paths_tell_strangers_nothing(guarded):
    assert guarded.get("/v1/secret").status_code == 401
    assert guarded.get("/v1/secret", headers=bearer(KEEPER)).status_code == 404
    for path in ("/page/../v1/streams", "/page/%2e%2e/app.py", "//v1/streams", "/health/live/../../metrics"):
        answer = guarded.get(path)
        assert answer.status_code in (401, 404), path
        assert "streams" not in answer.text


def test_open_routes_are_open(guarded):
    for path in OPEN - {"/page"} | {"/page/style.css"}:
        assert guarded.get(path).status_code == 200, path


def test_a_token_does_what_it_is_for_and_no_more(guarded, pictures):
    image = {"image": pictures[0]}
    assert guarded.post("/v1/streams/one/classify", files=image, headers=bearer(CAMERA)).status_code == 200
    assert guarded.get("/v1/streams/one", headers=bearer(CAMERA)).status_code == 200
    for method, path in guarded_routes(guarded.app):
        if "{name}/" in path and not path.endswith("/classify"):
            answer = send(guarded, method, path, bearer(CAMERA))
            assert answer.status_code == 403, (method, path)
            assert answer.json()["error"]["message"] == "the token 'camera' may not manage the stream 'one'."
    assert guarded.get("/v1/streams/one/caches", headers=bearer(LAB)).json()["entries"][0]["client"] == "camera"
    assert guarded.get("/v1/streams/two", headers=bearer(LAB)).status_code == 403


def test_a_token_for_no_stream_reads_the_metrics(guarded):
    assert guarded.get("/metrics", headers=bearer(SCRAPER)).status_code == 200
    assert guarded.get("/v1/streams", headers=bearer(SCRAPER)).json() == {"streams": [], "labels": [], "setup": {}}
    assert guarded.get("/v1/streams/one", headers=bearer(SCRAPER)).status_code == 403


def test_streams_of_others_look_like_missing_streams(guarded):
    listed = guarded.get("/v1/streams", headers=bearer(CAMERA)).json()["streams"]
    assert [each["name"] for each in listed] == ["one"]
    for name in ("two", "nowhere"):
        assert guarded.get(f"/v1/streams/{name}", headers=bearer(CAMERA)).status_code == 403
    made = {"name": "lab-7", "labels": ["cat", "dog"]}
    assert guarded.post("/v1/streams", json=made, headers=bearer(CAMERA)).status_code == 403
    assert guarded.post("/v1/streams", json=made, headers=bearer(LAB)).status_code == 201


def test_images_make_no_stream_for_a_token_that_has_none(serve, token_file, pictures):
    with serve(tokens=TokenFile(token_file), defaults={"labels": ("cat", "dog")}) as client:
        image = {"image": pictures[0]}
        assert client.post("/v1/streams/new/classify", files=image, headers=bearer(CAMERA)).status_code == 403
        assert client.post("/v1/streams/lab-1/classify", files=image, headers=bearer(LAB)).status_code == 200
        assert "new" not in names(client.streams)


def test_a_stranger_is_turned_away_before_the_body_is_read(guarded):
    head = (
        "POST /v1/streams HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 20000000\r\n"
    )
    with socket.create_connection((guarded.base_url.host, guarded.base_url.port), 180) as line:
        line.sendall(f"{head}\r\n{{".encode())
        assert line.recv(1000).startswith(b"HTTP/1.1 401")


def test_permissions_of_callers():
    caller = Caller("x", (("shop-*", "classify"), ("lab", "manage")))
    assert caller.may("classify", "shop-1")
    assert not caller.may("manage", "shop-1")
    assert caller.may("classify", "lab")
    assert not caller.may("classify", "laboratory")
    assert Caller("anybody").may("manage", "anything")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "there are no tokens"),
        ("camera", "the format of a line is NAME TOKEN"),
        ("camera short one=classify", "too short to be safe"),
        ("camera sha256:12 one=classify", "64 hexadecimal digits"),
        (f"camera sha256:{'x' * 64} one=classify", "64 hexadecimal digits"),
        (f"camera {CAMERA} one=clasify", "'one=clasify' is not"),
        (f"camera {CAMERA} one", "'one' is not"),
        (f"camera {CAMERA} =classify", "'=classify' is not"),
        (f"a {CAMERA} one=manage\nb {CAMERA} two=manage", "line 2: the name 'b' or its token is duplicated"),
        (f"a {CAMERA} one=manage\na {LAB} two=manage", "is duplicated"),
    ],
)
def test_a_token_file_that_cannot_be_used(tmp_path, line, message):
    path = tmp_path / "tokens"
    path.write_text(line)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read_tokens(path)
    assert CAMERA not in str(caught.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_tokens(tmp_path / "none")
