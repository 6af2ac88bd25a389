"""The actor of the whole service: the audit log, and the metrics of all processes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any
from uuid import uuid4

import ray

from acclimate.cluster.serving.answers import answer
from acclimate.cluster.serving.service_settings import STREAM, Settings
from acclimate.cluster.serving.sums import Families, add_up, parse
from acclimate.serve.audit import AuditLog
from acclimate.serve.logs import logger

REPORT_S = 2.0  # interval between two reports of a process
SILENT_S = 30.0  # a process that is silent for longer counts as gone; its counters are kept
START_S = 60.0  # time limit for the actor to start
REPORTS = "reports"  # the name of the actor
MAX_PROCESSES = 2000  # processes whose metrics are kept


@dataclass
class _Report:
    about: str  # role of the process; a stream has only one at a time
    families: Families
    degraded: str | None
    heard: float


class Reports:
    """The audit log, and the sums of the metrics of all processes."""

    def __init__(self, settings: Settings) -> None:
        settings.begin()
        self._data = settings.data
        self._audit = AuditLog(settings.data)
        self._reports: dict[str, _Report] = {}  # keys are processes, in the order of their first reports

    def audit(self, action: str, caller: str, outcome: str, details: Mapping[str, Any]) -> None:
        """Append a line to the audit log."""
        self._audit.write(action, caller, outcome, **details)

    def data(self) -> Path:
        """Return the folder of the service."""
        return self._data

    def put(self, process: str, about: str, text: bytes, degraded: str | None) -> None:
        """Take the metrics of a process, and the reason if it cannot write what it has learnt."""
        self._reports[process] = _Report(about, parse(text), degraded, monotonic())
        while len(self._reports) > MAX_PROCESSES:
            del self._reports[min(self._reports, key=lambda each: self._reports[each].heard)]

    def forget(self, about: str) -> None:
        """Drop the gauges of a deleted stream; its counters are kept."""
        for report in self._reports.values():
            if report.about == about:
                report.heard = -SILENT_S

    def metrics(self) -> bytes:
        """Return the metrics of the whole service."""
        current = {id(each) for each in self._current()}
        return add_up(
            family
            for report in self._reports.values()
            for family in report.families
            if id(report) in current or family.type in ("counter", "histogram") or family.name.endswith("_created")
        )

    def degraded(self) -> list[str]:
        """Return the reason why what is learnt cannot be written, for each stream with this problem."""
        return [report.degraded for report in self._current() if report.degraded]

    def _current(self) -> list[_Report]:
        """Return the reports of processes that are there, of each stream the newest."""
        newest: dict[str, _Report] = {}
        for process, report in self._reports.items():
            if monotonic() - report.heard < SILENT_S:
                newest[report.about if report.about.startswith(STREAM) else process] = report
        return list(newest.values())


def start_reports(settings: Settings) -> None:
    """Start the actor of a service. Only the service itself does, when it starts: it would never end otherwise."""
    options = {"name": REPORTS, "namespace": settings.name, "lifetime": "detached", "get_if_exists": True}
    made = ray.remote(Reports).options(num_cpus=0, max_restarts=-1, max_task_retries=3, **options)
    reports = made.remote(settings)
    answer(reports.data.remote(), START_S)


def find_reports(settings: Settings) -> Any:
    """Return the actor of a service; ValueError if it does not run.

    Keep it while it is asked: old versions of Ray forget it at once.
    """
    return ray.get_actor(REPORTS, namespace=settings.name)


class Reporter:
    """A reporter of the metrics of this process, at intervals, until it is closed.

    Args:
        settings: settings of the service.
        about: role of this process.
        text: its metrics.
        degraded: why it cannot write what it has learnt; None if it can.
    """

    def __init__(
        self,
        settings: Settings,
        about: str,
        text: Callable[[], bytes],
        degraded: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._about = about
        self._text = text
        self._degraded = degraded
        self._process = uuid4().hex
        self._closing = Event()
        self._thread = Thread(target=self._run, name="acclimate-report", daemon=True)
        self._thread.start()

    def report(self) -> None:
        """Report now; blocks until the report is there."""
        try:
            reports = find_reports(self._settings)
            answer(reports.put.remote(self._process, self._about, self._text(), self._degraded()))
        except Exception as error:
            logger.warning("metrics could not be reported", extra={"fields": {"reason": str(error)}})

    def close(self) -> None:
        """Report no more."""
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(REPORT_S):
            self.report()


class RemoteAudit:
    """The audit log of the service, for any of its processes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def write(self, action: str, caller: str, outcome: str, **details: Any) -> None:
        """Append a line, as `AuditLog.write` does; blocks until it is on the disk."""
        try:
            reports = find_reports(self._settings)
            answer(reports.audit.remote(action, caller, outcome, details))
        except Exception as error:
            entry = {"action": action, "caller": caller, "outcome": outcome, **details}
            logger.error("audit log cannot be written", extra={"fields": {**entry, "reason": str(error)}})
