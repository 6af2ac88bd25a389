"""All attacks by name: functions of an empty folder that attack and report what happened."""

from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from attacks.target import Service, Watch

MAX_MEMORY_MB = 1024.0
MAX_WAIT_S = 2.0
CASES: dict[str, "Case"] = {}


@dataclass
class Seen:
    """The results of an attack.

    Attributes:
        tries: requests, files or connections.
        problems: effects that should not have happened; empty if the attack was held.
        peak_mb: memory of everything the attacked command or service had started, at its peak.
        longest_s: the longest time that another client waited; None where there is none.
        note: further details.
    """

    tries: int = 0
    problems: list[str] = field(default_factory=list)
    peak_mb: float = 0.0
    longest_s: float | None = None
    note: str = ""

    def expect(self, fine, what):
        """Note a problem unless it is fine."""
        if not fine:
            self.problems.append(what)

    def slow(self):
        """Return True if another client waited too long, which may also be due to a busy machine."""
        return self.longest_s is not None and self.longest_s > MAX_WAIT_S


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable[[Path], Seen]


def case(name):
    """Decorator: register an attack."""

    def register(run):
        CASES[run.__name__] = Case(name, run)
        return run

    return register


@contextmanager
def attacked(work, seen, *options, allowed=None, streams=("alice", "mallory"), **settings):
    """Run a service with these streams, watched while it is attacked; it must be alive afterwards and answer.

    Yields the service and a list for the answers to the attacker, whose statuses must be `allowed`, if that is given.
    """
    service = Service(work, *options, **settings)
    answers = []
    token = "alice" if settings.get("tokens", True) else None
    try:
        for name in streams:
            service.create(name, token)
        with Watch(service, token) as watch:
            yield service, answers
        alive = service.process.poll() is None
        seen.expect(alive, "the service died")
        if alive:
            seen.expect(service.call("GET", "/health/ready").status == 200, "not ready afterwards")
    finally:
        service.close()
    statuses = Counter(answer.status for answer in answers)
    seen.tries = seen.tries or len(answers)
    seen.peak_mb = max(seen.peak_mb, watch.peak_mb)
    seen.longest_s = max(seen.longest_s or 0.0, watch.longest)
    seen.expect(not watch.failed, f"another client got {watch.failed}")
    seen.expect(watch.peak_mb < MAX_MEMORY_MB, f"{watch.peak_mb:.0f} MB")
    if allowed is not None:
        seen.expect(set(statuses) <= set(allowed), f"answers {dict(statuses)}")
    seen.note = seen.note or ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
