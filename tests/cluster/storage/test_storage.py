import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import pytest

from acclimate.cluster.storage import Storage, storage_of
from acclimate.errors import InputError
from acclimate.sources import urls
from acclimate.sources.urls import read_object
from waiting import wait_until

TESTS = Path(__file__).parents[2]


def test_files_are_written_read_listed_and_removed(base):
    storage = pickle.loads(pickle.dumps(Storage(f"{base}/")))
    assert storage.names() == []
    assert storage.names("deep/er") == []
    assert not storage.exists("part.bin")
    with pytest.raises(FileNotFoundError):
        storage.read("part.bin")
    storage.check_writable()
    assert storage.names() == []
    for name in ("part-000010.bin", "part-000002.bin", "deep/er/ä #1 50%?.bin", "part.bin"):
        storage.write(name, name.encode())
    storage.write("part.bin", b"new")
    storage.write("empty", b"")
    assert storage.names() == ["empty", "part-000002.bin", "part-000010.bin", "part.bin"]
    assert storage.names("deep") == []
    assert storage.names("deep/er") == ["ä #1 50%?.bin"]
    assert storage.read("deep/er/ä #1 50%?.bin").decode() == "deep/er/ä #1 50%?.bin"
    assert (storage.read("part.bin"), storage.read("empty")) == (b"new", b"")
    assert storage.exists("part.bin")
    assert not storage.exists("deep")
    for _ in range(2):
        storage.remove("part.bin")
    assert storage.names() == ["empty", "part-000002.bin", "part-000010.bin"]


def test_a_single_file_has_a_storage(base):
    storage, name = storage_of(f"{base}/state.safetensors")
    storage.write(name, b"state")
    assert Storage(base).read("state.safetensors") == b"state"
    with pytest.raises(InputError, match="name a file"):
        storage_of("s3://bucket")


def test_objects_are_read_in_parts_and_are_bounded(base):
    storage = Storage(base)
    storage.write("shard.tar", b"0123456789")
    url = storage.where("shard.tar")
    assert read_object(url) == b"0123456789"
    assert [read_object(url, 2, 3), read_object(url, 0, 1)] == [b"234", b"0"]
    with pytest.raises(OSError, match="truncated"):
        read_object(url, 8, 3)
    with pytest.raises(OSError, match="missing"):
        read_object(storage.where("missing"))
    for part in ((), (0, 10)):
        with pytest.raises(OSError, match=r"10 bytes, more than the 9 allowed"):
            read_object(url, *part, limit_bytes=9)


def test_threads_read_parts_of_one_file(elsewhere):
    storage = Storage(elsewhere)
    storage.write("shard.tar", bytes(range(256)) * 256)
    url = storage.where("shard.tar")
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda place: read_object(url, place, 100), range(256)))
    assert [part[0] for part in parts] == list(range(256))


def test_a_file_whose_connection_was_lost_is_opened_again(elsewhere):
    storage = Storage(elsewhere)
    storage.write("shard.tar", b"0123456789")
    url = storage.where("shard.tar")
    assert read_object(url, 0, 1) == b"0"
    urls._opened(url).close()
    assert read_object(url, 1, 1) == b"1"


def test_a_local_storage_stays_where_it_is(here, monkeypatch):
    storage = Storage("results")
    assert storage.url == (here / "results").as_posix()
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    storage.write("part.bin", b"1")
    assert (here / "results/part.bin").read_bytes() == b"1"


def child(code, **environment):
    path = os.pathsep.join([str(TESTS / "support"), str(TESTS.parent / "src")])
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def test_another_process_opens_it_for_itself(elsewhere):
    storage = Storage(f"{elsewhere}/results")
    storage.write("part.bin", b"here")
    code = f"import pickle; s = pickle.loads({pickle.dumps(storage)!r}); "
    with child(f"{code} print(s.read('part.bin')); s.write('part.bin', b'there')") as process:
        assert process.stdout.read() == "b'here'\n"
    assert storage.read("part.bin") == b"there"


def test_a_killed_writer_leaves_the_old_object(s3, s3_url):
    storage = Storage(f"{s3}/killed")
    storage.write("part.bin", b"old")
    code = f"from acclimate.cluster.storage import Storage; Storage({storage.url!r})"
    with child(f"{code}.write('part.bin', bytes(300 * 2**20))") as process:
        wait_until(lambda: b"<UploadId>" in urlopen(f"{s3_url}/bucket?uploads").read())
        process.kill()
    assert process.returncode != 0  # it did not come to an end
    assert storage.read("part.bin") == b"old"
    assert storage.names() == ["part.bin"]


# What cannot be used says so


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "the name of the folder is empty; pass a path, or a URL"),
        ("s4://bucket/results", "unknown scheme s4:// in .*; write a path, s3://"),
        ("s3:///results", "names no bucket or host; write s3://BUCKET/PATH"),
        ("s3://KEY:PASSWORD@bucket/results", "contains a password.*; put it into the environment"),
        ("hf://datasets/results", "unknown scheme hf://"),
    ],
)
def test_bad_urls_are_refused(url, message):
    with pytest.raises(InputError, match=message) as caught:
        Storage(url).check_writable()
    assert "PASSWORD" not in str(caught.value)


def test_a_missing_bucket_is_named(s3):
    storage = Storage("s3://no-such-bucket/results")
    with pytest.raises(InputError, match=r"cannot write s3://no-such-bucket/.*; check the name of the bucket"):
        storage.check_writable()
    assert storage.names() == []


def test_a_file_in_place_of_a_folder_is_refused(tmp_path):
    Storage(tmp_path).write("file", b"")
    with pytest.raises(InputError, match=r"cannot write .*file/\.acclimate.tmp: "):
        Storage(f"{tmp_path}/file").check_writable()


class Refuses(BaseHTTPRequestHandler):
    def do_HEAD(self):
        body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD  # noqa: N815

    def log_message(self, *_):
        pass


def test_a_refusal_says_what_to_check(s3, monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), Refuses)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        storage = Storage("s3://private/results")
        with pytest.raises(
            InputError, match=r"cannot write .*ACCESS_DENIED.*; check .* the credentials in the environment"
        ):
            storage.check_writable()
        with pytest.raises(OSError, match=r"cannot read s3://private/results/part.bin: .*; check .* the credentials"):
            storage.read("part.bin")
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow  # pyarrow tries several times
def test_a_store_that_does_not_answer(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"cannot write .*; check .* the network, and AWS_ENDPOINT_URL"):
        Storage("s3://bucket/results").check_writable()
