"""Attacks on the service: images, bodies, connections, floods of honest-looking work."""

import json
import os
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest

from attacks import bodies, files
from attacks.target import SECRET, Service, parallel
from waiting import count_closed

pytestmark = [pytest.mark.attack, pytest.mark.held_by("service")]

REFUSED = {400, 413, 422, 429}
ANSWERED = {200, *REFUSED, 504}
CLASSIFY = "/v1/streams/mallory/classify"
PICTURE = json.loads(bodies.images_of(files.photo()))["images"][0]


@contextmanager
def sent(service, path, token, body):
    """Open a connection on which a request was sent, and whose answer nobody reads."""
    head = f"POST {path} HTTP/1.1\r\nHost: {service.host}:{service.port}\r\nAuthorization: Bearer {SECRET}{token}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((service.host, service.port)) as connection:
        connection.sendall(head.encode() + body)
        yield


def stop_while_busy(folder, requests):
    """Return the seconds that a service takes to stop while it works on requests: paths, tokens and bodies."""
    folder.mkdir()
    with Service(folder) as service, ExitStack() as opened:
        service.create("mallory", "alice")
        for path, token, body in requests:
            opened.enter_context(sent(service, path, token, body))
        time.sleep(1.0)
        took = service.stop()
    assert took is not None, "SIGTERM did not stop it"
    assert took < 35
    return took


@pytest.mark.held_by("sandbox")
def test_aspect_bombs(attack):
    """Aspect bombs."""
    with attack.on_service() as service:
        answers = [service.classify("mallory", bomb, token="mallory") for bomb in files.wide_bombs()]
        bombs = [each for each in files.wide_bombs() if len(each) < 10_000]
        answers += parallel(lambda each: service.classify("mallory", each, token="mallory"), bombs * 3)
    attack.check(answers, {200, 422})


@pytest.mark.long_attack
def test_long_lists(attack):
    """Wrong types in long JSON lists."""
    answers = []
    with attack.on_service() as service:
        for size in (4 * bodies.MB, 31 * bodies.MB):
            for path, each in bodies.long_lists(size).items():
                token = "nobody" if path == "/classify" else "mallory"
                answers += parallel(lambda body, p=path, t=token: service.call("POST", p, body, token=t), each, 3)
    attack.check(answers, REFUSED | {0})


@pytest.mark.held_by("sandbox")
@pytest.mark.long_attack
def test_many_scans(attack):
    """Progressive JPEGs with many scans, then SIGTERM."""
    with attack.on_service() as service:
        bombs = [files.jpeg_with_scans(scans) for scans in (600, 90, 20)]
        answers = [service.classify("mallory", bomb, bomb, bomb, token="mallory") for bomb in bombs]
    attack.check(answers, {*ANSWERED, 0})
    body = bodies.images_of(*[files.jpeg_with_scans(20)] * 8)
    took = stop_while_busy(attack.folder / "again", [(CLASSIFY, "mallory", body)] * 4)
    attack.note += f"; SIGTERM during decoding: {took:.1f} s"


HALF_BODY = b"POST /v1/streams/mallory/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
HALF_BODY += f"Authorization: Bearer {SECRET}mallory\r\nContent-Length: 9000\r\n\r\n".encode() + b"x" * 4500
FLOODS = [
    pytest.param(520, b"", None, id="520 silent connections"),
    pytest.param(520, b"POST /classify HTTP/1.1\r\nHost: x\r\nX-", None, id="520 connections with half a header"),
    pytest.param(
        520,
        b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 16,
        None,
        id="520 connections that send 16 requests and read nothing",
    ),
    pytest.param(1150, b"", 1024, id="1150 silent connections, 1024 file handles"),
    pytest.param(1150, HALF_BODY, 1024, id="1150 connections with half a body, 1024 file handles"),
]


@pytest.mark.held_by("proxy")
@pytest.mark.long_attack
@pytest.mark.parametrize(("count", "said", "handles"), FLOODS)
def test_connections(attack, count, said, handles):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        with attack.on_service(proxy=True, files=handles, limits={"timeout_s": 10}) as service:
            opened = open_connections(service, count, said)
            closed = count_closed(opened, 40.0)  # a header, a body or a reader may take 10 s
            for connection in opened:
                connection.close()
            lines = service.log().splitlines()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    attack.tries = count
    attack.note = f"{closed} of {len(opened)} closed"
    assert closed > 0.9 * len(opened)
    assert len(lines) < 2_000
    assert all(line.startswith("{") for line in lines)


def open_connections(service, count, said):
    """Open connections from ten addresses that send this and read nothing; those that are refused are left out."""
    opened = []
    for number in range(count):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(5)
        with suppress(OSError):
            connection.bind((f"127.0.1.{number % 10 + 1}", 0))
            connection.connect((service.host, service.port))
            opened.append(connection)
            connection.sendall(said)
    return opened


@pytest.mark.held_by("sandbox")
def test_tiny_large_images(attack):
    """64 WebP of 40 million pixels in one request."""
    with attack.on_service() as service:
        bomb = files.flat(8000, 5000, "WEBP", lossless=True)
        body = bodies.images_of(*[bomb] * 64)
        answers = parallel(lambda _: service.call("POST", CLASSIFY, body, token="mallory"), range(6))
        answers += parallel(lambda _: service.classify("mallory", bomb, token="mallory"), range(24))
    attack.check(answers, ANSWERED)


@pytest.mark.long_attack
def test_large_images(attack):
    """Three clients that send large images without pause."""
    images = [
        files.flat(8000, 5000, "JPEG", progressive=True),
        files.png(6000, 6000, bytes(36_011_250), colour=0, interlaced=1),
    ]
    images = [images[0], images[0], images[1]]
    clients = ("mallory", "mallory-2", "mallory-3")
    over = time.monotonic() + 15

    def send(number):
        sent = []
        while time.monotonic() < over:
            sent.append(service.classify("mallory", images[number % 3], token=clients[number % 3]))
        return sent

    with attack.on_service() as service:
        answers = [answer for each in parallel(send, range(12)) for answer in each]
    attack.check(answers, ANSWERED)


@pytest.mark.long_attack
def test_backlog(attack):
    """A backlog of honest images."""
    with attack.on_service() as service:
        body = bodies.images_of(*[files.photo(seed) for seed in range(64)])
        answers = parallel(lambda _: service.call("POST", CLASSIFY, body, token="mallory"), range(16))
    attack.check(answers, ANSWERED)


@pytest.mark.held_by("sandbox")
def test_tiff_tile(attack):
    """TIFF with a tile of 400 million pixels."""
    with attack.on_service() as service:
        answers = [service.classify("mallory", files.tiff_with_tile(), token="mallory") for _ in range(3)]
    attack.check(answers, {422})


@pytest.mark.long_attack
def test_many_labels(attack):
    """Thousands of new labels at POST /classify, then SIGTERM."""

    def task(turn, count):
        labels = [f"thing {turn} {i}" for i in range(count)]
        return json.dumps({"inputs": PICTURE, "parameters": {"candidate_labels": labels}}).encode()

    with attack.on_service() as service:

        def ask(body):
            return service.call("POST", "/classify", body, token="nobody")

        answers = parallel(ask, [task(turn, 2000) for turn in range(12)], 12)
        answers += parallel(ask, [task(100 + turn, 500) for turn in range(40)], 40)
    attack.check(answers, ANSWERED)
    took = stop_while_busy(attack.folder / "again", [("/classify", "nobody", task(0, 500))] * 20)
    attack.note += f"; SIGTERM during text encoding: {took:.1f} s"


@pytest.mark.long_attack
def test_garbage_streams(attack):
    """Garbage makes no streams."""
    with attack.on_service("--labels", "cat,dog") as service:

        def post(number):
            return service.classify(f"mallory-{number}", b"x", token="mallory")

        def post_photo(number):
            return service.classify(f"mallory-r{number}", files.photo(number), token="mallory")

        answers = parallel(post, range(500))
        assert len(service.call("GET", "/v1/streams", token="alice").json()["streams"]) == 2
        assert service.classify("new-shop", files.photo(), token="alice").status == 200
        made = parallel(post_photo, range(150))
        assert any(answer.status == 409 for answer in made), "one client may make any number of streams"
    attack.check(answers, {409, 422, 429})


@pytest.mark.long_attack
def test_sixty_addresses(attack):
    """60 addresses of one host are one client."""
    with Service(attack.folder, tokens=False) as service:
        service.create("shared", skip_duplicates=False)
        for number in range(60):
            source = (f"127.0.0.{number + 2}", 0)
            assert service.classify("shared", files.photo(number), source=source).status == 200
        clients = service.call("GET", "/v1/streams/shared/learnt").json()["clients"]
    attack.tries = 60
    assert len(clients) == 1


def test_surrogates(attack):
    """Lone surrogates."""
    answers = []
    with attack.on_service() as service:
        for path, texts in bodies.SURROGATES.items():
            answers += [service.call("POST", path, text.replace("%s", PICTURE), token="alice") for text in texts]
        change = f'{{"add":["{bodies.LONE}"]}}'
        answers.append(service.call("PATCH", "/v1/streams/alice/labels", change, token="alice"))
        query = "/classify?candidate_labels=cat&candidate_labels="
        wrong = [query + each for each in ("%ed%a0%80", "%ff", "%00")]
        answers += [service.call("POST", each, files.photo(), "image/png", token="alice") for each in wrong]
        body = f'{{"id":0,"label":"{bodies.LONE}"}}'
        answers.append(service.call("POST", "/v1/streams/alice/corrections", body, token="alice"))
    attack.check(answers, REFUSED)


@pytest.mark.long_attack
def test_beyond_reason(attack):
    """Settings beyond reason."""
    odd = [
        {"settings": {"alpha": 1e6}},
        {"settings": {"beta": 1e6}},
        {"settings": {"positive_capacity": 10**6}},
        {"views": 10**9},
        {"unsure": 1e-300},
    ]
    answers = []
    with attack.on_service() as service:
        for number, options in enumerate(odd):
            name = f"mallory-{number}"
            body = {"name": name, "labels": ["cat", "dog"], **options}
            answers.append(service.call("POST", "/v1/streams", json.dumps(body), token="mallory"))
            if answers[-1].status == 201:
                assert service.classify(name, files.photo(), token="mallory").status in (200, 422), options
    attack.check(answers, {201, *REFUSED})


@pytest.mark.held_by("sandbox")
@pytest.mark.long_attack
def test_comments(attack):
    """Comments in thumbnails."""
    hostile = [files.jpeg_with_comment(60_000), files.gif_with_comment(100_000), files.png_with_text(900_000)]
    with attack.on_service() as service:
        service.create("mallory-t", "mallory", method="tda", thumbnails=True, skip_duplicates=False)
        answers = [service.classify("mallory-t", content, token="mallory") for content in hostile]
        stored = service.call("GET", "/v1/streams/mallory-t/caches?thumbnails=true", token="mallory")
        sizes = [len(each["thumbnail"] or "") for each in stored.json()["entries"]]
        assert max(sizes) < 20_000
    attack.check(answers, {200, 422})
    stored = [path.read_bytes() for path in (attack.folder / "data").rglob("*") if path.is_file()]
    assert not any(b"private" in each for each in stored), "a comment is on the disk"


@pytest.mark.long_attack
def test_waiting_management(attack):
    """45 waiting management calls behind slow images."""
    body = bodies.images_of(*[files.photo(seed, (3000, 2000)) for seed in range(4)] * 8)
    with attack.on_service() as service:

        def call(turn):
            if turn < 4:
                return service.call("POST", CLASSIFY, body, token="mallory")
            time.sleep(0.2)
            return service.call("POST", "/v1/streams/mallory/freeze", b"", token="mallory")

        def look(_):
            return service.call("GET", "/v1/streams/alice", token="alice").seconds

        with ThreadPoolExecutor(60) as pool:
            calls = [pool.submit(call, turn) for turn in range(49)]
            time.sleep(0.5)
            attack.longest_s = max(map(look, range(20)))
            answers = [call.result() for call in calls]
    attack.check(answers, ANSWERED)


def test_loopback_hosts(attack):
    """Any loopback address as --host."""
    for number, host in enumerate(("127.0.0.2", "127.9.9.9", "localhost", "::1")):
        if host == "::1" and not os.path.exists("/proc/net/if_inet6"):  # noqa: PTH110
            continue
        folder = attack.folder / str(number)
        folder.mkdir()
        with Service(folder, tokens=False, host=host) as service:
            assert service.call("GET", "/v1/streams").status == 200, host
        attack.tries += 1


@pytest.mark.held_by("sandbox")
@pytest.mark.long_attack
def test_slow_formats(attack):
    """Slow formats."""
    slow = [
        files.ppm_with_comment(30_000_000),
        files.plain_ppm(),
        files.png_with_chunks(1_200_000),
        files.png_with_text(100_000_000),
        files.jpeg_with_comment(20_000_000),
    ]
    with attack.on_service() as service:
        answers = parallel(lambda each: service.classify("mallory", each, token="mallory"), slow * 2, 10)
    attack.check(answers, {200, 422, 429})
