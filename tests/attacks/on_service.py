"""Attacks on the service: images, bodies, connections, floods of honest-looking work."""

import json
import os
import resource
import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

from attacks import bodies, files
from attacks.cases import Seen, attacked, case
from attacks.target import Service, parallel

REFUSED = {400, 413, 422, 429}
ANSWERED = {200, *REFUSED, 504}


@case("aspect bombs")
def aspect_bombs(work):
    seen = Seen()
    with attacked(work, seen, allowed={200, 422}) as (service, answers):
        answers += [service.classify("mallory", bomb, token="mallory") for bomb in files.wide_bombs()]
        bombs = [each for each in files.wide_bombs() if len(each) < 10_000]
        answers += parallel(lambda each: service.classify("mallory", each, token="mallory"), bombs * 3)
    return seen


@case("wrong types in long JSON lists")
def long_lists(work):
    seen = Seen()
    with attacked(work, seen, allowed=REFUSED | {0}) as (service, answers):
        for size in (4 * bodies.MB, 31 * bodies.MB):
            for path, each in bodies.long_lists(size).items():
                token = "nobody" if path == "/classify" else "mallory"
                answers += parallel(lambda body, p=path, t=token: service.call("POST", p, body, token=t), each, 3)
    return seen


@case("progressive JPEGs with many scans, then SIGTERM")
def many_scans(work):
    seen = Seen()
    with attacked(work, seen, allowed={*ANSWERED, 0}) as (service, answers):
        for scans in (600, 90, 20):
            bomb = files.jpeg_with_scans(scans)
            answers += [service.classify("mallory", bomb, bomb, bomb, token="mallory")]
    (work / "again").mkdir()
    service = Service(work / "again")
    try:
        service.create("mallory", "alice")
        bomb = files.jpeg_with_scans(20)
        with ExitStack() as open_calls:
            for _ in range(4):
                open_calls.enter_context(_started(service, bodies.images_of(*[bomb] * 8)))
            time.sleep(2.0)
            took = service.stop()
    finally:
        service.close()
    seen.expect(took is not None and took < 35, f"SIGTERM took {took} s")
    seen.note += f"; SIGTERM during decoding: {took:.1f} s"
    return seen


def _started(service, body):
    """Return a connection on which a request to classify was sent, and whose answer nobody reads."""
    connection = socket.create_connection((service.host, service.port))
    head = f"POST /v1/streams/mallory/classify HTTP/1.1\r\nHost: {service.host}:{service.port}\r\n"
    head += "Authorization: Bearer 0123456789abcdef-mallory\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def _silent(service, count, said=b""):
    """Open connections that send this and read nothing; those that the service does not accept are left out."""
    opened = []
    for _ in range(count):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(5)
        with suppress(OSError):
            connection.connect((service.host, service.port))
            opened.append(connection)
            connection.sendall(said)
    return opened


def _closed(opened, seconds):
    """Return the number of connections the service closes within this time; nothing is read from them."""
    poll = select.poll()
    latest = time.monotonic() + seconds
    waiting = {connection.fileno() for connection in opened}
    for number in waiting:
        poll.register(number, select.POLLRDHUP)
    while waiting and time.monotonic() < latest:
        for number, _ in poll.poll(100):
            poll.unregister(number)
            waiting.remove(number)
    return len(opened) - len(waiting)


def _flood(work, count, said=b"", files=None):
    seen = Seen()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        with attacked(work, seen, "--timeout", "10", files=files) as (service, _):
            opened = _silent(service, count, said)
            closed = _closed(opened, 40.0)  # a header, a body or a reader may take 10 s
            for connection in opened:
                connection.close()
            seen.tries = count
            seen.note = f"{closed} of {count} closed"
            seen.expect(closed > 0.9 * len(opened), f"only {closed} of {len(opened)} were closed")
            lines = service.log().splitlines()
            seen.expect(len(lines) < 2_000, f"{len(lines)} lines in the log")
            seen.expect(all(line.startswith("{") for line in lines), "lines in the log that are not JSON")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return seen


@case("520 silent connections")
def silent_connections(work):
    return _flood(work, 520)


@case("520 connections with half a header")
def half_headers(work):
    return _flood(work, 520, b"POST /classify HTTP/1.1\r\nHost: x\r\nX-")


@case("520 connections that send 16 requests and read nothing")
def unread_responses(work):
    return _flood(work, 520, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 16)


@case("1150 silent connections, 1024 file handles")
def beyond_file_handles(work):
    return _flood(work, 1150, files=1024)


@case("1150 connections with half a body, 1024 file handles")
def half_bodies(work):
    head = b"POST /v1/streams/mallory/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    head += b"Authorization: Bearer 0123456789abcdef-mallory\r\nContent-Length: 9000\r\n\r\n"
    return _flood(work, 1150, head + b"x" * 4500, files=1024)


@case("64 WebP of 40 million pixels in one request")
def tiny_large_images(work):
    seen = Seen()
    with attacked(work, seen, allowed=ANSWERED) as (service, answers):
        bomb = files.flat(8000, 5000, "WEBP", lossless=True)
        body = bodies.images_of(*[bomb] * 64)
        path = "/v1/streams/mallory/classify"
        answers += parallel(lambda _: service.call("POST", path, body, token="mallory"), range(6))
        answers += parallel(lambda _: service.classify("mallory", bomb, token="mallory"), range(24))
    return seen


@case("a backlog of honest images")
def backlog(work):
    seen = Seen()
    with attacked(work, seen, allowed=ANSWERED) as (service, answers):
        body = bodies.images_of(*[files.photo(seed) for seed in range(64)])
        path = "/v1/streams/mallory/classify"
        answers += parallel(lambda _: service.call("POST", path, body, token="mallory"), range(16))
        seen.note = f"Retry-After sent to {sum(answer.status == 429 for answer in answers)} of 16"
    return seen


@case("TIFF with a tile of 400 million pixels")
def tiff_tile(work):
    seen = Seen()
    with attacked(work, seen, allowed={422}) as (service, answers):
        answers += [service.classify("mallory", files.tiff_with_tile(), token="mallory") for _ in range(3)]
    return seen


@case("thousands of new labels at POST /classify, then SIGTERM")
def many_labels(work):
    seen = Seen()
    with attacked(work, seen, allowed=ANSWERED) as (service, answers):

        def ask(turn, count):
            labels = [f"thing {turn} {i}" for i in range(count)]
            task = {"inputs": PICTURE, "parameters": {"candidate_labels": labels}}
            return service.call("POST", "/classify", json.dumps(task), token="nobody")

        answers += parallel(lambda turn: ask(turn, 2000), range(12), 12)
        answers += parallel(lambda turn: ask(100 + turn, 500), range(40), 40)
    (work / "again").mkdir()
    service = Service(work / "again")
    try:
        task = {"inputs": PICTURE, "parameters": {"candidate_labels": [f"label {i}" for i in range(500)]}}
        with ExitStack() as open_calls:
            for _ in range(20):
                connection = open_calls.enter_context(socket.create_connection((service.host, service.port)))
                body = json.dumps(task).encode()
                head = (
                    f"POST /classify HTTP/1.1\r\nHost: {service.host}:{service.port}\r\nContent-Type: application/json"
                )
                head += f"\r\nAuthorization: Bearer 0123456789abcdef-nobody\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)
            time.sleep(0.5)
            took = service.stop()
    finally:
        service.close()
    seen.expect(took is not None and took < 35, f"SIGTERM took {took} s")
    seen.note += f"; SIGTERM during text encoding: {took:.1f} s"
    return seen


PICTURE = json.loads(bodies.images_of(files.photo()))["images"][0]


@case("garbage makes no streams")
def garbage_streams(work):
    seen = Seen()
    labels = ",".join(("cat", "dog"))
    with attacked(work, seen, "--labels", labels, allowed={409, 422, 429}) as (service, answers):

        def post(number):
            return service.classify(f"mallory-{number}", b"x", token="mallory")

        answers += parallel(post, range(500))
        left = service.call("GET", "/v1/streams", token="alice").json()["streams"]
        seen.expect(len(left) == 2, f"{len(left)} streams")
        fresh = service.classify("new-shop", files.photo(), token="alice")
        seen.expect(fresh.status == 200, f"an honest new stream got {fresh.status}")

        def real(number):
            return service.classify(f"mallory-r{number}", files.photo(number), token="mallory")

        made = parallel(real, range(150))
        seen.expect(any(answer.status == 409 for answer in made), "one client may make any number of streams")
    return seen


@case("60 addresses of one host are one client")
def sixty_addresses(work):
    seen = Seen()
    service = Service(work, tokens=False)
    try:
        service.create("shared", skip_duplicates=False)
        for number in range(60):
            source = (f"127.0.0.{number + 2}", 0)
            seen.expect(service.classify("shared", files.photo(number), source=source).status == 200, "not answered")
        clients = service.call("GET", "/v1/streams/shared/learnt").json()["clients"]
        seen.tries = 60
        seen.note = f"{len(clients)} client"
        seen.expect(len(clients) == 1, f"{len(clients)} clients")
    finally:
        service.close()
    return seen


@case("lone surrogates")
def surrogates(work):
    seen = Seen()
    with attacked(work, seen, allowed=REFUSED) as (service, answers):
        for path, texts in bodies.SURROGATES.items():
            for text in texts:
                answers.append(service.call("POST", path, text.replace("%s", PICTURE), token="alice"))
        change = f'{{"add":["{bodies.LONE}"]}}'
        answers.append(service.call("PATCH", "/v1/streams/alice/labels", change, token="alice"))
        query = "/classify?candidate_labels=cat&candidate_labels="
        for wrong in ("%ed%a0%80", "%ff", "%00"):
            answers.append(service.call("POST", query + wrong, files.photo(), "image/png", token="alice"))
        body = f'{{"id":0,"label":"{bodies.LONE}"}}'
        answers.append(service.call("POST", "/v1/streams/alice/corrections", body, token="alice"))
    return seen


@case("settings and guards beyond reason")
def beyond_reason(work):
    seen = Seen()
    with attacked(work, seen, allowed={201, *REFUSED}) as (service, answers):
        odd = [
            {"guard": {"burst": 10**30}},
            {"guard": {"share": 1e-300, "burst": 10**18}},
            {"guard": {"window_s": 1e300, "burst": 1}},
            {"settings": {"alpha": 1e6}},
            {"settings": {"beta": 1e6}},
            {"settings": {"positive_capacity": 10**6}},
            {"views": 10**9},
            {"unsure": 1e-300},
        ]
        for number, options in enumerate(odd):
            name = f"mallory-{number}"
            body = {"name": name, "labels": ["cat", "dog"], **options}
            answers.append(service.call("POST", "/v1/streams", json.dumps(body), token="mallory"))
            if answers[-1].status == 201:
                got = service.classify(name, files.photo(), token="mallory")
                seen.expect(got.status in (200, 422), f"{options}: {got.status}")
    return seen


@case("comments in thumbnails")
def comments(work):
    seen = Seen()
    with attacked(work, seen, allowed={200, 422}) as (service, answers):
        service.create("mallory-t", "mallory", method="tda", thumbnails=True, skip_duplicates=False)
        for content in (files.jpeg_with_comment(60_000), files.gif_with_comment(100_000), files.png_with_text(900_000)):
            answers.append(service.classify("mallory-t", content, token="mallory"))
        stored = service.call("GET", "/v1/streams/mallory-t/caches?thumbnails=true", token="mallory")
        sizes = [len(each["thumbnail"] or "") for each in stored.json()["entries"]]
        seen.expect(sizes and max(sizes) < 20_000, f"thumbnails of {sizes} characters")
    stores = [path.read_bytes() for path in (work / "data").rglob("*") if path.is_file()]
    seen.expect(not any(b"private" in each for each in stores), "a comment is on the disk")
    return seen


@case("45 waiting management calls behind slow images")
def waiting_management(work):
    seen = Seen()
    with attacked(work, seen, allowed=ANSWERED) as (service, answers):
        body = bodies.images_of(*[files.photo(seed, (3000, 2000)) for seed in range(4)] * 8)

        def work_of(turn):
            if turn < 4:
                return service.call("POST", "/v1/streams/mallory/classify", body, token="mallory")
            time.sleep(0.2)
            return service.call("POST", "/v1/streams/mallory/freeze", b"", token="mallory")

        def look(_):
            return service.call("GET", "/v1/streams/alice", token="alice").seconds

        with ThreadPoolExecutor(60) as pool:
            calls = [pool.submit(work_of, turn) for turn in range(49)]
            time.sleep(0.5)
            longest = max(map(look, range(20)))
            answers += [call.result() for call in calls]
        seen.longest_s = longest
    return seen


@case("a full disk shows in the log and in readiness")
def full_disk(work):
    seen = Seen()
    service = Service(work)
    try:
        service.create("alice", "alice", skip_duplicates=False)
        before = service.classify("alice", files.photo(), token="alice").json()["results"][0]["id"]
        limits = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (64, limits[1]))
        full = service.classify("alice", files.photo(1), token="alice")
        seen.expect(full.status == 200, f"answered {full.status}")
        seen.expect(full.json()["results"][0]["refused"], "nothing says that it was not learnt")
        ready = service.call("GET", "/health/ready")
        seen.expect(ready.status == 503, f"ready {ready.status}")
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, limits)
        after = service.classify("alice", files.photo(2), token="alice").json()["results"][0]
        seen.expect(after["id"] == before + 1, f"learns again: {after}")
        ready = service.call("GET", "/health/ready")
        seen.expect(ready.status == 200, f"ready {ready.status} afterwards")
        log = [json.loads(line) for line in service.log().splitlines()]
        warned = [line for line in log if line["level"] in ("warning", "error")]
        seen.tries = 3
        seen.note = f"{len(warned)} warnings"
        seen.expect(1 <= len(warned) <= 6, f"{len(warned)} warnings")
    finally:
        service.close()
    return seen


@case("any loopback address as --host")
def loopback_hosts(work):
    seen = Seen()
    for number, host in enumerate(("127.0.0.2", "127.9.9.9", "localhost", "::1")):
        (work / str(number)).mkdir()
        if host == "::1" and not os.path.exists("/proc/net/if_inet6"):  # noqa: PTH110
            continue
        service = Service(work / str(number), tokens=False, host=host)
        seen.tries += 1
        try:
            answer = service.call("GET", "/v1/streams")
            seen.expect(answer.status == 200, f"{host}: {answer.status}")
        finally:
            service.close()
    return seen


@case("slow formats")
def slow_formats(work):
    seen = Seen()
    with attacked(work, seen, allowed={200, 422, 429}) as (service, answers):
        slow = [
            files.ppm_with_comment(30_000_000),
            files.plain_ppm(),
            files.png_with_chunks(1_200_000),
            files.png_with_text(100_000_000),
            files.jpeg_with_comment(20_000_000),
        ]
        answers += parallel(lambda each: service.classify("mallory", each, token="mallory"), slow * 2, 10)
    return seen
