"""The shipped proxy in front of real services: what it refuses, what it holds, and which service has which stream."""

import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Event
from urllib.parse import urlsplit

import httpx
import pytest

from ports import free_port
from proxy import NGINX, nginx
from service_process import service
from waiting import count_closed, wait_until

pytestmark = [
    pytest.mark.skipif(NGINX is None, reason="there is no nginx here"),
    pytest.mark.skipif(sys.platform != "linux", reason="clients need several loopback addresses"),
    pytest.mark.untraced,
]

LABELS = ["red circle", "green square", "blue stripes"]
HONEST = "127.0.0.2"
ADDRESSES = [f"127.0.1.{number}" for number in range(1, 11)]
CLASSIFY = b"POST /v1/streams/shop/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


@pytest.fixture(scope="module")
def proxy(tiny_onnx, tmp_path_factory):
    """Return the address of nginx with one service behind it."""
    folder = tmp_path_factory.mktemp("proxy")
    with service(tiny_onnx, folder / "data") as (_, address), nginx(folder, address) as front:
        yield front


@pytest.fixture
def client(proxy):
    with connected(proxy) as client:
        yield client


def connected(address, source=HONEST):
    transport = httpx.HTTPTransport(local_address=source)
    return httpx.Client(base_url=address, transport=transport, timeout=180)


def create(client, name):
    answer = client.put(f"/v1/streams/{name}", json={"labels": LABELS, "skip_duplicates": False})
    assert answer.status_code == 201, answer.text


def classify(client, name, picture):
    return client.post(f"/v1/streams/{name}/classify", content=picture, headers={"Content-Type": "image/png"})


def test_a_stream_is_created_used_and_deleted_through_the_proxy(client, pictures):
    create(client, "first")
    answer = classify(client, "first", pictures[0])
    assert answer.status_code == 200, answer.text
    assert answer.json()["results"][0]["id"] == 0
    assert client.get("/v1/streams").json()["streams"][0]["name"] == "first"
    assert client.get("/").headers["content-type"].startswith("text/html")
    state = client.get("/v1/streams/first/state").content
    assert client.put("/v1/streams/first/state", content=state).status_code == 200
    assert client.delete("/v1/streams/first").status_code == 204
    for path in ("/health/ready", "/page/style.css"):  # the second is cached
        for name in ("of-the-client", "of-another"):
            sent = client.get(path, headers={"X-Request-ID": name})
            assert sent.headers.get_list("x-request-id") == [name]


@pytest.mark.parametrize(
    ("method", "path", "size", "status", "code"),
    [
        ("POST", "/v1/streams", 2, 405, "bad_request"),
        ("GET", "/metrics", 0, 404, "not_found"),
        ("POST", "/v1/streams/first/classify", 33 * 2**20, 413, "too_large"),
        ("GET", "/v1/streams/nothing", 0, 404, "not_found"),
    ],
)
def test_errors_of_the_proxy_look_like_those_of_the_service(client, method, path, size, status, code):
    answer = client.request(method, path, content=b"x" * size)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert set(answer.json()["error"]) == {"code", "message", "request_id"}


def test_a_header_and_a_body_of_the_size_that_the_service_takes_pass(client):
    query = "&".join(f"candidate_labels=thing-{number:05}" for number in range(400))
    answer = client.post(f"/classify?{query}", content=b"x", headers={"Content-Type": "image/png"})
    assert answer.status_code == 422
    assert "image" in answer.json()["error"]["message"]


def test_a_body_of_two_lengths_is_refused_and_the_connection_closed(proxy):
    smuggled = b"GET /v1/streams HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = CLASSIFY + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with socket.create_connection((urlsplit(proxy).hostname, urlsplit(proxy).port), timeout=180) as connection:
        connection.sendall(head + smuggled)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


def test_one_address_has_a_rate_and_others_do_not_notice(proxy):
    def ask(client):
        return [client.get("/health/live") for _ in range(150)]

    with ThreadPoolExecutor(8) as pool, ExitStack() as opened:
        clients = [opened.enter_context(connected(proxy, ADDRESSES[0])) for _ in range(8)]
        honest = opened.enter_context(connected(proxy))
        answers = [answer for each in pool.map(ask, clients) for answer in each]
        assert honest.get("/health/live").status_code == 200
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(refused) < len(answers) - 400
    for answer in refused:
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["code"] == "busy"


FLOODS = (
    b"",
    b"POST /classify HTTP/1.1\r\nHost: x\r\nX-",  # half a header
    CLASSIFY + b"Content-Length: 9000\r\n\r\n" + b"x" * 4500,  # half a body
    b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 16,  # responses that nobody reads
)


@contextmanager
def flood(address, count=600):
    """Open connections from several addresses that send one of `FLOODS` each and read nothing."""
    place = (urlsplit(address).hostname, urlsplit(address).port)
    with ExitStack() as opened:
        connections = []
        for number in range(count):
            connection = opened.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.bind((ADDRESSES[number % len(ADDRESSES)], 0))
            connection.settimeout(180)
            connection.connect(place)
            connection.sendall(FLOODS[number % len(FLOODS)])
            connections.append(connection)
        yield connections


@pytest.mark.slow
def test_hundreds_of_hostile_connections_are_closed_and_an_honest_client_is_answered(proxy, pictures):
    with connected(proxy) as client, flood(proxy) as connections:
        create(client, "shop")
        for number in range(20):
            with connected(proxy) as new:
                answer = classify(new, "shop", pictures[number % 12])
            assert answer.status_code == 200
        assert count_closed(connections, 180) == len(connections)


def streams_of(addresses):
    """Return the names of the streams that each service has."""
    return [{each["name"] for each in httpx.get(f"{address}/v1/streams").json()["streams"]} for address in addresses]


def assert_nothing_is_lost(client, name, ids, unanswered):
    """Check that a stream has learnt what was acknowledged, and at most one image more if its service was killed."""
    seen = client.get(f"/v1/streams/{name}").json()["samples_seen"]
    assert ids == sorted(set(ids))
    assert ids[-1] == seen - 1
    assert seen - len(ids) <= unanswered


@pytest.mark.slow
def test_a_killed_service_takes_only_its_own_streams_and_loses_nothing(tiny_onnx, tmp_path, pictures):
    """Two services, 20 streams, four writers; one service is killed and started again."""
    streams = [f"shop-{number}" for number in range(20)]
    places = [(tmp_path / f"data-{number}", str(free_port())) for number in range(2)]
    acknowledged = {name: [] for name in streams}
    statuses = {name: set() for name in streams}
    over = Event()

    def start(place):
        return service(tiny_onnx, place[0], "--port", place[1])

    def write(first):
        with connected(front, ADDRESSES[first]) as client:
            while not over.is_set():
                for number, name in enumerate(streams[first::4]):
                    try:
                        answer = classify(client, name, pictures[number % 12])
                    except httpx.TransportError:  # cut off when the service was killed
                        statuses[name].add("cut off")
                        continue
                    statuses[name].add(answer.status_code)
                    if answer.status_code == 200:
                        acknowledged[name].append(answer.json()["results"][0]["id"])
                    else:
                        over.wait(0.05)

    def wait_for_answers(names, count):
        goals = {name: len(acknowledged[name]) + count for name in names}
        wait_until(lambda: all(len(acknowledged[name]) >= goal for name, goal in goals.items()), 300)

    with ThreadPoolExecutor(4) as pool, ExitStack() as running:
        running.callback(over.set)
        killed, address = running.enter_context(start(places[0]))
        _, other = running.enter_context(start(places[1]))
        front = running.enter_context(nginx(tmp_path, address, other))
        with connected(front) as client:
            for name in streams:
                create(client, name)
        lost, kept = streams_of([address, other])
        assert lost
        assert kept
        assert not lost & kept
        assert lost | kept == set(streams)

        writers = [pool.submit(write, first) for first in range(4)]
        wait_for_answers(streams, 3)
        killed.kill()
        killed.wait()
        wait_for_answers(kept, 5)
        restarted, _ = running.enter_context(start(places[0]))
        wait_for_answers(streams, 3)
        over.set()
        for writer in writers:
            writer.result()
        assert restarted.poll() is None
        assert set.union(*(statuses[name] for name in kept)) == {200}
        assert set.union(*(statuses[name] for name in lost)) - {"cut off"} == {200, 502}
        with connected(front) as client:
            for name in streams:
                assert_nothing_is_lost(client, name, acknowledged[name], unanswered=name in lost)
