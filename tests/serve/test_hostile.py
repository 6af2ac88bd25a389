"""Hostile uploads: each gets a 4xx that says why, and changes nothing."""

import base64
import io
import json
import socket
import struct
import zipfile
import zlib
from contextlib import suppress
from itertools import product

import numpy as np
import pytest
from PIL import Image

from drawn_images import encoded

ONE = "/v1/streams/one"


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png_bomb(width, height, data=b""):
    """Return a small file that says it is a large image."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def part(what):
    return f"--x\r\nContent-Disposition: form-data; {what}\r\n\r\n".encode()


def zipped(content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x", content)
    return buffer.getvalue()


GREY = Image.fromarray(np.full((64, 64, 3), 90, np.uint8))
PNG = encoded(GREY, "PNG")
JPEG = encoded(GREY, "JPEG")
EXIF = Image.Exif()
EXIF[0x0112] = 77  # an orientation that does not exist
CORPUS = {
    "nothing": b"",
    "one byte": b"\x89",
    "text": "un chat, 猫, \u202e.png".encode(),
    "html": b"<html><script>alert(1)</script></html>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 99 99\nshowpage\n",
    "pdf": b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\ntrailer\n<< /Root 1 0 R >>\n",
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93.",
    "archive": zipped(PNG),
    "nested archive": zipped(zipped(b"0" * 10**6)),
    "random": np.random.default_rng(0).bytes(10_000),
    "png signature only": PNG[:8],
    "truncated png": PNG[: len(PNG) // 2],
    "truncated jpeg": JPEG[: len(JPEG) // 2],
    "png with a wrong checksum": PNG[:30] + b"\0" + PNG[31:],
    "png of 2 billion pixels": png_bomb(50_000, 50_000),
    "png of 4 billion columns": png_bomb(2**31 - 1, 2**31 - 1),
    "png without pixels": png_bomb(0, 0),
    "png just beyond the limit": png_bomb(8_000, 5_001),
    "png that inflates": png_bomb(3_000, 3_000, b"\0" * 10**6),
    "png with a huge comment": PNG[:33] + chunk(b"zTXt", b"a\0\0" + zlib.compress(b"x" * 10**8)) + PNG[33:],
    "gif bomb": b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\x00\x00\x00,\0\0\0\0\xff\xff\xff\xff\0\x02\0;",
    "bmp bomb": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 60000, 60000, 1, 24, 0, 0, 0, 0, 0, 0),
    "tiff that points at itself": b"II*\0\x08\0\0\0\x01\0\x00\x01\x03\0\x01\0\0\0\x40\0\0\0\x08\0\0\0",
    "webp head": b"RIFF\xff\xff\xff\xffWEBPVP8 ",
    "ppm without end": b"P6 5000 5000 255\n",
}


@pytest.fixture(scope="module")
def client(serve):
    """Return a client of one service for all tests here: none affects the next, as `unchanged` checks."""
    with serve(snapshot_samples=10**6, snapshot_s=1e6) as client:
        yield client


@pytest.fixture
def unchanged(client, pictures):
    """Check after the test that the service is unchanged and still answers."""

    def look():
        described = client.get(ONE).json()
        return {key: described[key] for key in ("labels", "samples_seen", "entries", "frozen", "snapshots", "broken")}

    client.post(f"{ONE}/classify", files={"image": pictures[0]})
    before = look()
    streams = client.get("/v1/streams").json()
    yield
    assert look() == before
    assert client.get("/v1/streams").json() == streams
    assert client.post(f"{ONE}/classify", files={"image": pictures[1]}).status_code == 200


def refused(answer, *statuses):
    assert answer.status_code in (statuses or (400, 413, 415, 422)), answer.text
    error = answer.json()["error"]
    assert error["code"]
    assert error["message"]
    assert "Traceback" not in answer.text
    assert "/site-packages/" not in answer.text
    return error["message"]


@pytest.mark.usefixtures("unchanged")
def test_files_that_are_no_images(client, pictures):
    for name, content in CORPUS.items():
        message = refused(client.post(f"{ONE}/classify", files={"image": content}), 422)
        assert message.startswith("image 0 (upload) cannot be read: "), (name, message)
        body = {"images": [base64.b64encode(pictures[0]).decode(), base64.b64encode(content).decode()]}
        message = refused(client.post(f"{ONE}/classify", json=body), 422)
        assert message.startswith("image 1 cannot be read: "), (name, message)
        task = {"inputs": base64.b64encode(content).decode(), "parameters": {"candidate_labels": ["cat", "dog"]}}
        refused(client.post("/classify", json=task), 422)


def test_files_that_are_images_and_something_else(client):
    """A polyglot is an image if it begins as one; what follows is not looked at, and nothing of it comes back."""
    for content in (PNG + zipped(b"x"), JPEG + b"<script>alert(1)</script>", encoded(GREY, "JPEG", exif=EXIF)):
        answer = client.post(f"{ONE}/classify", files={"image": content})
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert "script" not in answer.text


@pytest.mark.usefixtures("unchanged")
def test_odd_names_and_types_of_files_mean_nothing(client, pictures):
    before = sorted(client.folder.rglob("*"))
    for name in (
        "../../etc/passwd",
        "/etc/passwd",
        "..\\..\\x",
        "a\u202egnp.exe",
        "x" * 900,
        "猫.png",
        "%00.png",
        "con",
    ):
        files = {"image": (name, pictures[0], "application/x-sh")}
        answer = client.post(f"{ONE}/classify", files=files, params={"adapt": False})
        assert answer.status_code == 200
        assert len(answer.text) < 500
    assert sorted(client.folder.rglob("*")) == before


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"", "", 415),
        (b"x", "text/plain", 415),
        (b"image=abc", "application/x-www-form-urlencoded", 415),
        (b"", "application/json", 422),
        (b"{", "application/json", 422),
        (b"\xff\xfe", "application/json", 422),
        (b"[" * 100_000, "application/json", 422),
        (b'{"images": ' + b"[" * 100_000, "application/json", 422),
        (b'{"images": []}', "application/json", 422),
        (b'{"images": ["http://127.0.0.1/cat.jpg"]}', "application/json", 422),
        (b'{"images": ["file:///etc/passwd"]}', "application/json", 422),
        (b'{"images": ["\\ud800"]}', "application/json", 422),
        (b'{"images": ["AA=="], "\\ud800": 1}', "application/json", 422),
        (b'{"images": ["AA=="], "top_k": ' + b"9" * 10_000 + b"}", "application/json", 422),
        (b'{"images": ["AA=="], "top_k": -1}', "application/json", 422),
        (b'{"images": ["AA=="], "adapt": "perhaps"}', "application/json", 422),
        (json.dumps({"images": ["AA=="] * 65}).encode(), "application/json", 422),
        (b"", "multipart/form-data", 400),
        (b"no form", "multipart/form-data; boundary=x", 400),
        (b"--x\r\n", "multipart/form-data; boundary=" + "x" * 9000, 400),
        (b"--x--\r\n", "multipart/form-data; boundary=x", 422),
        (part('name="image"') + b"abc\r\n--x--\r\n", "multipart/form-data; boundary=x", 400),
        (part('name="file"; filename="a"') + b"\r\n--x--\r\n", "multipart/form-data; boundary=x", 422),
        ((part('name="image"; filename="a"') + b"\r\n") * 70, "multipart/form-data; boundary=x", 400),
    ],
)
def test_bodies_that_cannot_be_understood(client, body, kind, status):
    refused(client.post(f"{ONE}/classify", content=body, headers={"Content-Type": kind} if kind else {}), status)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("query", ["top_k=" + "9" * 5000, "top_k=-1", "top_k=0", "top_k=many", "adapt=perhaps"])
def test_parameters_that_cannot_be_understood(client, query, pictures):
    refused(client.post(f"{ONE}/classify?{query}", files={"image": pictures[0]}), 422)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "name", ["..", "%2e%2e", "..%2fone", "%00", "ONE", "o" * 65, "one%0a", "%F0%9F%90%88", "-one", ".one"]
)
def test_names_of_streams_are_no_paths(client, name, pictures):
    before = sorted((client.folder / "streams").rglob("*"))
    for method, below in (("GET", ""), ("DELETE", ""), ("POST", "/reset"), ("GET", "/state")):
        refused(client.request(method, f"/v1/streams/{name}{below}"), 404, 405, 422)
    refused(client.post(f"/v1/streams/{name}/classify", files={"image": pictures[0]}), 404, 405, 422)
    plain = name.replace("%2e", ".").replace("%2f", "/").replace("%00", "\0").replace("%0a", "\n")
    refused(client.post("/v1/streams", json={"name": plain, "labels": ["cat", "dog"]}), 422)
    assert sorted((client.folder / "streams").rglob("*")) == before


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "change",
    [
        {"labels": []},
        {"labels": ["cat"]},
        {"labels": ["cat", "cat"]},
        {"labels": ["cat", ""]},
        {"labels": ["cat", "x" * 10_000]},
        {"labels": [f"label {i}" for i in range(2001)]},
        {"labels": "cat, dog"},
        {"templates": "/etc/passwd"},
        {"templates": "labels.txt"},
        {"templates": []},
        {"templates": ["a photo"]},
        {"templates": {"cat": ["a cat"]}},
        {"method": "none"},
        {"settings": {"nothing": 1}},
        {"method": "tda", "settings": {"positive_capacity": "3"}},
        {"method": "tda", "settings": {"positive_capacity": 0}},
        {"method": "tda", "settings": {"positive_alpha": 10**400}},
        {"method": "tda", "settings": {"positive_capacity": 10**400}},
        {"more": True},
        {"name": "one"},
    ],
    ids=str,
)
def test_streams_that_cannot_be_made(client, change):
    refused(client.post("/v1/streams", json={"name": "new", "labels": ["cat", "dog"]} | change), 409, 422)


@pytest.mark.filterwarnings("ignore:overflow|invalid value:RuntimeWarning")
def test_settings_that_overflow_are_refused_at_the_first_image(client, pictures):
    setup = {"name": "nowhere", "labels": ["cat", "dog"], "method": "tda", "settings": {"positive_beta": -1e6}}
    made = client.post("/v1/streams", json=setup)
    assert made.status_code == 201
    files = [("image", picture) for picture in pictures]
    assert "not numbers" in refused(client.post("/v1/streams/nowhere/classify", files=files), 422)


@pytest.mark.usefixtures("unchanged")
def test_files_that_are_not_states_are_refused(client):
    state = client.get(f"{ONE}/state").content
    flipped = bytearray(state)
    flipped[100] ^= 0xFF
    for content in (
        b"",
        b"\0" * 100,
        PNG,
        CORPUS["pickle"],
        state[:-10],
        state[: len(state) // 2],
        bytes(flipped),
        state * 2,
    ):
        refused(client.put(f"{ONE}/state", content=content), 422)


@pytest.mark.usefixtures("unchanged")
def test_a_hundred_megabytes(client):
    """Announced, it is refused unread; unannounced, it is cut off on the way."""
    parts = {
        "Content-Length: 100000000": b"x" * 2**16,
        "Transfer-Encoding: chunked": b"10000\r\n" + b"x" * 2**16 + b"\r\n",
    }
    places = {
        "POST /v1/streams": "application/json",
        f"POST {ONE}/classify": "multipart/form-data; boundary=x",
        f"POST {ONE}/classify?": "application/json",
        f"PUT {ONE}/state": "application/octet-stream",
    }
    for (place, kind), (how, block) in product(places.items(), parts.items()):
        with socket.create_connection((client.base_url.host, client.base_url.port), 180) as line:
            line.sendall(f"{place} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{how}\r\n\r\n".encode())
            sent = 0
            with suppress(BrokenPipeError, ConnectionResetError):
                while sent < 100_000_000:
                    line.sendall(block)
                    sent += len(block)
            assert sent < 60_000_000, (place, how)  # 32 MiB and what lies in buffers
    for path in ("/v1/streams", "/classify"):
        refused(client.post(path, content=b" " * (33 * 2**20), headers={"Content-Type": "application/json"}), 413)


def begin(client, size, body):
    """Send the head of a request and a part of its body; gives the connection."""
    line = socket.create_connection((client.base_url.host, client.base_url.port), 180)
    head = f"PUT {ONE}/state HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
    line.sendall(head.encode() + body)
    return line


def test_a_small_body_finds_room_when_others_hold_all_there_is(serve):
    """Callers who each hold half of what is left could leave nothing to the next; a little is always left."""
    with serve(body_bytes=100_000) as client:
        client.gate.held["others"] = 4 * 100_000
        assert client.put(f"{ONE}/state", content=b"x" * 3_000).status_code == 422  # read, and no state
        assert client.put(f"{ONE}/state", content=b"x" * 50_000).status_code == 429


@pytest.mark.usefixtures("unchanged")
def test_clients_that_go_away(client, caplog):
    for body in (b"", b"x" * 50):
        begin(client, 100, body).close()
    assert client.get("/health/ready").status_code == 200
    assert "ERROR" not in caplog.text


def test_limits_are_the_services_own(serve, pictures):
    with serve(body_bytes=20_000, pixels=1000, images=2, labels=3, streams=2, queue=2) as client:
        assert "20000 bytes" in refused(client.post(f"{ONE}/classify", content=b"x" * 20_001), 413)
        assert "60 x 48 pixels" in refused(client.post(f"{ONE}/classify", files={"image": pictures[0]}), 422)
        many = [("image", PNG)] * 3
        refused(client.post(f"{ONE}/classify", files=many), 400)
        refused(client.patch(f"{ONE}/labels", json={"add": ["fox"]}), 422)
        refused(client.post("/v1/streams", json={"name": "three", "labels": ["cat", "dog"]}), 409)
        with client.time_limit(1), begin(client, 100, b"slow") as line:
            assert line.recv(1000).startswith(b"HTTP/1.1 408")
