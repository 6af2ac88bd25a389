"""A service under attack: a real process, another client who is watched, and a watch on memory."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil

from attacks.bodies import images_of
from attacks.files import photo

LABELS = ("cat", "dog", "horse", "house", "guitar", "person", "elephant")
TOKENS = {"alice": "*=manage", **dict.fromkeys(("mallory", "mallory-2", "mallory-3"), "mallory*=manage"), "nobody": ""}
SECRET = "0123456789abcdef-"
TIMEOUT_S = 180.0
FATAL_MB = 3000.0
HONEST = ("127.0.0.2", 0)  # the address of the client who is watched; attackers have others
GONE = (psutil.Error, OSError, StopIteration)  # a process has ended


class Answer(NamedTuple):
    """An answer; its status is 0 if the connection was closed without one."""

    status: int
    seconds: float
    content: bytes

    def json(self):
        return json.loads(self.content)


class Service:
    """`acclimate serve` with the bundled model, in a process of its own, with a token for each of `TOKENS`.

    `files` is the number of file handles that it may have; `limits` are settings of its table of limits.
    """

    def __init__(self, work, *options, tokens=True, host="127.0.0.1", files=None, limits=None):
        self.work = Path(work)
        self.data = Path(work) / "data"
        command = [sys.executable, "-m", "acclimate", "serve", "--data", str(self.data), "--port", "0", "--host", host]
        if tokens:
            path = self.work / "tokens"
            path.write_text("".join(f"{name} {SECRET}{name} {grant}\n" for name, grant in TOKENS.items()))
            path.chmod(0o600)
            command += ["--token-file", str(path)]
        if files is not None:
            command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *command]
        settings = {f"ACCLIMATE_SERVE_LIMITS__{name.upper()}": str(value) for name, value in (limits or {}).items()}
        self.process = subprocess.Popen(
            [*command, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,  # not a file, which a full disk would end, too
            text=True,
            env={**os.environ, **settings},
        )
        self._reader = Thread(target=self._keep_log)
        self._reader.start()
        line = self.process.stdout.readline()
        if not line.startswith("serving on "):
            self.close()
            raise AssertionError((line, (self.work / "log").read_text()[-2000:]))
        self.host = urlsplit(line.split()[2]).hostname
        self.port = urlsplit(line.split()[2]).port

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def call(self, method, path, body=None, kind="application/json", token=None, timeout=TIMEOUT_S, source=None):
        """Send a request; what the service has answered before it closed the connection counts as an answer."""
        began = time.monotonic()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout, source_address=source)
        headers = {"Content-Type": kind} if body is not None else {}
        if token:
            headers["Authorization"] = f"Bearer {SECRET}{token}"
        status = 0
        content = b""
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # refused while it was sent; the answer may be there
                connection.request(method, path, body, headers)
            answer = connection.getresponse()
            status = answer.status
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            content = repr(error).encode()
        finally:
            connection.close()
        return Answer(status, time.monotonic() - began, content)

    def create(self, name, token=None, **options):
        answer = self.call("POST", "/v1/streams", json.dumps({"name": name, "labels": LABELS, **options}), token=token)
        assert answer.status == 201, answer
        return answer.json()

    def classify(self, stream, *images, token=None, source=None, **options):
        if len(images) == 1:
            body = images[0]
            kind = "application/octet-stream"
        else:
            body = images_of(*images)
            kind = "application/json"
        return self.call("POST", f"/v1/streams/{stream}/classify", body, kind, token, source=source, **options)

    def learn_some(self, name, token, **setup):
        """Create a stream that has learnt from a few images."""
        self.create(name, token, skip_duplicates=False, **setup)
        for seed in range(6):
            assert self.classify(name, photo(seed), token=token).status == 200

    def state(self, name, token):
        """Return the state file of a stream."""
        return self.call("GET", f"/v1/streams/{name}/state", token=token).content

    def upload(self, name, content, token):
        """Upload a state file to a stream."""
        return self.call("PUT", f"/v1/streams/{name}/state", content, "application/octet-stream", token)

    def memory_mb(self):
        """Return the memory of the process and of all it has started; shared memory counts once."""
        total = 0
        with suppress(*GONE):
            parent = psutil.Process(self.process.pid)
            for each in [parent, *parent.children(recursive=True)]:
                with suppress(*GONE):
                    text = Path(f"/proc/{each.pid}/smaps_rollup").read_text()
                    total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
        return total / 1024

    def _keep_log(self):
        with open(self.work / "log", "a") as log:
            for line in self.process.stderr:
                log.write(line)
                log.flush()

    def log(self):
        """Return its log so far."""
        time.sleep(0.5)  # it is written by another thread
        return (self.work / "log").read_text(errors="replace")

    def kill(self):
        """End it at once, as a power failure would."""
        self.process.kill()
        self.process.wait()

    def stop(self, seconds=90.0):
        """End it with SIGTERM; returns how long that took, or None if it had to be killed."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
            return time.monotonic() - began
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.close()

    def close(self):
        if self.process.poll() is None:
            self.kill()
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()


class Watch:
    """While it lasts, another client sends single images and asks for health, and memory is measured.

    Attributes:
        waits: seconds that each of the client's calls took.
        statuses: how often each status came back.
        peak_mb: the most memory that was seen.
    """

    def __init__(self, service, token="alice", stream="alice", pause_s=0.1):
        self.service = service
        self.token = token
        self.stream = stream
        self.pause_s = pause_s
        self.waits = []
        self.statuses = Counter()
        self.peak_mb = 0.0
        self._over = Event()
        self._threads = [Thread(target=self._ask), Thread(target=self._measure)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        time.sleep(2 * self.pause_s)
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def longest(self):
        return max(self.waits, default=0.0)

    @property
    def failed(self):
        """The answers other than 200."""
        return {status: count for status, count in self.statuses.items() if status != 200}

    def _ask(self):
        pictures = [photo(seed) for seed in range(4)]
        for turn, picture in enumerate(cycle(pictures)):
            if turn % 3 == 2:
                answer = self.service.call("GET", "/health/live", source=HONEST)
            else:
                answer = self.service.classify(self.stream, picture, token=self.token, source=HONEST)
            self.waits.append(answer.seconds)
            self.statuses[answer.status] += 1
            if self._over.wait(self.pause_s) or self.service.process.poll() is not None:
                return

    def _measure(self):
        while not self._over.wait(0.03):
            self.peak_mb = max(self.peak_mb, self.service.memory_mb())
            if self.peak_mb > FATAL_MB:  # the machine itself would run out of memory
                self.service.kill()
                return


def parallel(work, items, threads=16):
    """Do work for every item, in threads; the results in order."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


def command_line(*arguments, seconds=600.0, memory_mb=2000, cwd=None, stdin=subprocess.DEVNULL):
    """Run `acclimate` in a process whose memory is watched; returns exit code, output, peak in MB and seconds.

    The exit code is None if it took too long or too much.
    """
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "acclimate", *map(str, arguments)],
        stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=cwd, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    peak = 0.0
    over = False

    def watch():
        nonlocal peak, over
        while process.poll() is None:
            with suppress(*GONE):
                peak = max(peak, psutil.Process(process.pid).memory_info().rss / 2**20)
            if peak > memory_mb or time.monotonic() - began > seconds:
                over = True
                process.kill()
            time.sleep(0.02)

    watcher = Thread(target=watch)
    watcher.start()
    output = process.communicate()[0].decode(errors="replace")
    watcher.join()
    return (None if over else process.returncode), output, peak, time.monotonic() - began
