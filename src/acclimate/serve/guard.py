"""A guard against poisoning: it limits what one client can teach a stream."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from time import monotonic

from acclimate.errors import InputError

FORGET_ABOVE = 10_000  # clients whose recent samples are remembered


@dataclass(frozen=True)
class GuardRules:
    """What a guard refuses.

    Attributes:
        share: the largest share of all cache entries that may come from one client, above 0 and at most 1; None for no
            such rule. Every client may have as many entries as there are labels, so that a new stream can start.
        burst: how many samples of one client may enter the caches within `window_s`; None for no such rule.
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
    """Decides for each sample whether a stream may learn from its client.

    Args:
        rules: what to refuse.
        clock: monotonic seconds.

    Attributes:
        refusals: number of samples refused so far.
    """

    def __init__(self, rules: GuardRules, clock: Callable[[], float] = monotonic) -> None:
        self.rules, self.refusals = rules, 0
        self._clock = clock
        self._recent: dict[str, deque[float]] = {}

    def refusal(self, client: str, taught: int, total: int, labels: int) -> str | None:
        """Why the stream must not learn from this client now; None if it may.

        Args:
            client: who sent the sample.
            taught: cache entries that came from this client.
            total: all cache entries.
            labels: number of labels of the stream.
        """
        share = self.rules.share
        reason = None
        if share is not None and taught >= labels and taught + 1 > share * (total + 1):
            reason = f"{taught} of {total} cache entries are from this client; the guard allows a share of {share:g}"
        elif self._in_burst(client):
            reason = f"{self.rules.burst} samples of this client entered the caches within {self.rules.window_s:g} s"
        self.refusals += reason is not None
        return reason

    def admitted(self, client: str) -> None:
        """Count a sample that entered a cache."""
        if self.rules.burst is None:
            return
        now = self._clock()
        if len(self._recent) >= FORGET_ABOVE:
            since = now - self.rules.window_s
            self._recent = {name: times for name, times in self._recent.items() if times[-1] > since}
        self._recent.setdefault(client, deque(maxlen=self.rules.burst)).append(now)

    def _in_burst(self, client: str) -> bool:
        times = self._recent.get(client, deque())
        return len(times) == self.rules.burst and times[0] > self._clock() - self.rules.window_s
