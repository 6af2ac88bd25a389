"""The fixture of an attack: services to attack, another client who is watched, and the figures for the table."""

from collections import Counter
from contextlib import ExitStack, contextmanager

import pytest

from attacks.target import Service, Watch
from proxy import NGINX, nginx
from waiting import wait_until

MAX_MEMORY_MB = 1024.0


def pytest_collection_modifyitems(config, items):
    """Leave out the long attacks unless all are wanted, as `benchmarks/attacks.py` does."""
    if not config.getoption("--all-attacks"):
        long = [item for item in items if item.get_closest_marker("long_attack")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


class Attack:
    """An attack in progress.

    Attributes:
        folder: an empty folder.
        tries: requests, files or connections.
        peak_mb: memory of everything the attacked command or service had started, at its peak; 0 if not measured.
        longest_s: the longest time that another client waited; None where there is none.
        note: further details.
    """

    def __init__(self, folder):
        self.folder = folder
        self.tries = 0
        self.peak_mb = 0.0
        self.longest_s = None
        self.note = ""

    @contextmanager
    def on_service(self, *options, proxy=False, streams=("alice", "mallory"), **settings):
        """Run a service with these streams, watched while it is attacked; it must be alive afterwards and answer.

        With `proxy`, the attack and the other client meet the shipped proxy, and the service is behind it.
        """
        with Service(self.folder, *options, **settings) as service, ExitStack() as running:
            for name in streams:
                service.create(name, "alice")
            if proxy:
                if NGINX is None:
                    pytest.skip("there is no nginx here")
                front = running.enter_context(nginx(self.folder, f"http://{service.host}:{service.port}"))
                service.port = int(front.rpartition(":")[2])
            with Watch(service) as watch:
                yield service
            assert service.process.poll() is None, "the service died"
            wait_until(lambda: service.call("GET", "/health/ready").status == 200)
        self.peak_mb = max(self.peak_mb, watch.peak_mb)
        self.longest_s = max(self.longest_s or 0.0, watch.longest)
        assert not watch.failed, f"another client got {watch.failed}"
        assert watch.peak_mb < MAX_MEMORY_MB

    def check(self, answers, allowed):
        """Fail if the attacker got other answers than these; status 0 is a closed connection."""
        statuses = Counter(answer.status for answer in answers)
        self.tries += len(answers)
        self.note = self.note or ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
        assert set(statuses) <= set(allowed), f"answers {dict(statuses)}"


@pytest.fixture
def attack(tmp_path, record_property):
    made = Attack(tmp_path)
    yield made
    record_property("attack", {key: value for key, value in vars(made).items() if key != "folder"})
