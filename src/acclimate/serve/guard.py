"""A guard against poisoning: it limits what one client can teach a stream."""

from collections import deque
from collections.abc import Callable
from time import monotonic

from pydantic import BaseModel, ConfigDict, Field

FORGET_ABOVE = 10_000  # clients whose recent samples are remembered


class GuardRules(BaseModel):
    """Rules against poisoning. What counts are cache entries, or for methods without caches the samples learnt."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Largest share of what was learnt that may come from one client. As many entries (or samples) as "
        "there are labels are always allowed, so that a new stream can start.",
    )
    burst: int | None = Field(
        None, ge=1, le=100_000, description="Samples of one client that may be learnt within the window."
    )
    window_s: float = Field(60.0, gt=0, le=604_800, allow_inf_nan=False, description="Length of the window in seconds.")


class Guard:
    """Decides for each sample whether a stream may learn from its client, and counts the `refusals`."""

    def __init__(self, rules: GuardRules, clock: Callable[[], float] = monotonic) -> None:
        self.rules, self.refusals = rules, 0
        self._clock = clock
        self._recent: dict[str, deque[float]] = {}  # times of each client's last `burst` samples

    def refusal(self, client: str, taught: int, total: int, labels: int) -> str | None:
        """Why the stream must not learn from this client now; None if it may.

        This client has `taught` of a `total` of entries or samples, in a stream with so many labels.
        """
        share = self.rules.share
        reason = None
        if share is not None and taught >= labels and taught + 1 > share * (total + 1):
            reason = f"this client has contributed {taught} of {total}, and the guard allows a share of {share:g}"
        elif self._in_burst(client):
            reason = f"{self.rules.burst} samples of this client were learnt within {self.rules.window_s:g} s"
        self.refusals += reason is not None
        return reason

    def learnt(self, client: str) -> None:
        """Count a sample that entered a cache, or for methods without caches was learnt."""
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
