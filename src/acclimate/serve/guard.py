"""A guard against poisoning: no client may fill a stream's caches alone, or in a hurry."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from time import monotonic

from acclimate.errors import InputError

FORGET_ABOVE = 10_000  # clients whose bursts are remembered


@dataclass(frozen=True)
class GuardRules:
    """What a guard refuses.

    Attributes:
        share: the most of all cache entries that may come from one client, from 0 to 1; None for no such rule. A client
            may always hold as many entries as there are labels, so that a stream can begin.
        burst: the most samples of one client that may enter the caches within `window_s`; None for no such rule.
        window_s: seconds.
    """

    share: float | None = None
    burst: int | None = None
    window_s: float = 60.0

    def __post_init__(self) -> None:
        if self.share is not None and not 0 < self.share <= 1:
            raise InputError(f"a guard's share must be above 0 and at most 1, got {self.share}.")
        if self.burst is not None and self.burst < 1:
            raise InputError(f"a guard's burst must be at least 1, got {self.burst}.")
        if not (isfinite(self.window_s) and self.window_s > 0):
            raise InputError(f"a guard's window_s must be a number of seconds above 0, got {self.window_s}.")


class Guard:
    """Decides, sample by sample, whether a stream may learn from a client.

    Args:
        rules: what to refuse.
        clock: seconds that only grow.

    Attributes:
        refusals: samples refused so far.
    """

    def __init__(self, rules: GuardRules, clock: Callable[[], float] = monotonic) -> None:
        self.rules, self.refusals = rules, 0
        self._clock = clock
        self._admissions: dict[str, deque[float]] = {}

    def refusal(self, client: str, held: int, entries: int, labels: int) -> str | None:
        """Why nothing may be learnt from this client now; None if it may.

        Args:
            client: who sent the sample.
            held: cache entries that came from this client.
            entries: all cache entries.
            labels: of the stream.
        """
        share = self.rules.share
        reason = None
        if share is not None and held >= labels and held + 1 > share * (entries + 1):
            reason = f"this client holds {held} of {entries} cache entries, the guard allows a share of {share:g}"
        elif self._in_a_burst(client):
            reason = f"{self.rules.burst} samples of this client entered the caches within {self.rules.window_s:g} s"
        self.refusals += reason is not None
        return reason

    def admitted(self, client: str) -> None:
        """Count a sample that entered a cache."""
        if self.rules.burst is None:
            return
        now = self._clock()
        if len(self._admissions) >= FORGET_ABOVE:
            since = now - self.rules.window_s
            self._admissions = {name: times for name, times in self._admissions.items() if times[-1] > since}
        self._admissions.setdefault(client, deque(maxlen=self.rules.burst)).append(now)

    def _in_a_burst(self, client: str) -> bool:
        times = self._admissions.get(client, deque())
        return len(times) == self.rules.burst and times[0] > self._clock() - self.rules.window_s
