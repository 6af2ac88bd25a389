"""A guard against poisoning: where several clients share a stream, it limits what one of them can teach it.

There are two kinds of rules, as there are two kinds of state. What is learnt of every sample, such as sums, cannot be
taken back: a client that has taught too much within a window is refused. Entries of a cache can be replaced: nobody is
refused, but in a full class the entries of clients that hold more than others are evicted.

A client that has a stream to itself is never limited, except by `burst`. Clients without a name, which are calls from
Python and the entries of uploaded states, are neither limited nor counted.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import floor, inf
from time import monotonic

from acclimate.methods.schedule import Queued, last_if_worse

WINDOW_PARTS = 1000  # samples are counted per part of the window, which bounds the memory
MAX_COUNTS = 10_000  # counts kept for all clients together


class Guard:
    """Limits on the number of samples that a stream learns from each client, with counts of the `refusals`.

    Args:
        share: largest share of the samples learnt within the window that may come from one of several clients.
        burst: number of samples of one client that may be learnt within the window; None for any.
        window_s: length of the window in seconds.
        clock: seconds, never going back.

    Examples:
        >>> guard = Guard(burst=3)
        >>> guard.allowed("camera", samples=5, labels=10)
        (3, '3 samples of this client were learnt within 60 s')
    """

    def __init__(
        self,
        share: float = 1.0,
        burst: int | None = None,
        window_s: float = 60.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.refusals = 0
        self._share = share
        self._burst = burst
        self._window_s = window_s
        self._clock = clock
        # Samples by part of the window and client, oldest part first
        self._counts: Counter[tuple[int, str]] = Counter()
        self._taught: Counter[str] = Counter()  # samples within the window by client

    def allowed(self, client: str, samples: int, labels: int) -> tuple[int, str]:
        """Return how many of `samples` may be learnt from `client` now, and the reason if not all.

        With t samples of the client among T within the window, the n-th sample is allowed if
        `t + n <= share * (T + n) + labels`, where a share below that of equal clients is raised to it. So the client
        that has taught least is always allowed.
        """
        if not client:
            return samples, ""
        self._forget()
        taught = self._taught[client]
        total = self._taught.total()
        clients = len(self._taught.keys() | {client})
        share = max(self._share, 1 / clients)
        by_share = inf if share >= 1 else (share * total + labels - taught) / (1 - share) + 1e-9
        by_burst = inf if self._burst is None else self._burst - taught
        allowed = max(0, int(min(samples, by_share, by_burst)))
        self.refusals += samples - allowed
        if allowed == samples:
            return allowed, ""
        window = f"within {self._window_s:g} s"
        if by_burst < by_share:
            return allowed, f"{self._burst} samples of this client were learnt {window}"
        reason = f"{taught} of {total} samples {window} are from this client"
        return allowed, f"{reason}; the guard allows a share of {share:.3g} among {clients} clients"

    def learnt(self, client: str, samples: int, ago: float = 0.0) -> None:
        """Count samples that were learnt; those of some time ago must be counted first, the oldest before others."""
        if not client or not samples:
            return
        self._counts[self._part(ago), client] += samples
        self._taught[client] += samples
        self._forget()

    def _part(self, ago: float) -> int:
        return floor((self._clock() - ago) / self._window_s * WINDOW_PARTS)

    def _forget(self) -> None:
        """Forget what is older than the window, and the oldest counts if there are too many."""
        oldest = self._part(self._window_s)
        while self._counts and (next(iter(self._counts))[0] <= oldest or len(self._counts) > MAX_COUNTS):
            part, client = next(iter(self._counts))
            self._taught[client] -= self._counts.pop((part, client))
            if not self._taught[client]:
                del self._taught[client]


@dataclass(frozen=True)
class FairSlots:
    """Eviction rule of a full class where several clients have entries in a cache.

    Slots move towards clients that hold fewer of a class, whatever the entropies, and never away from them. Between
    clients with as many, and among a client's own entries, lower entropy wins as always. So do entries of no client:
    those of an uploaded state. Entries older than `age` samples of the stream are evicted for any other client.

    Args:
        senders: the client of each entry, by id; entries that are not there are newcomers of this client.
        client: the sender of new entries.
        age: number of samples after which an entry may be evicted by any other client.
    """

    senders: Mapping[int, str]
    client: str
    age: int

    def __call__(self, queue: list[Queued], rank: float, entry_id: int) -> int | None:
        """Return the index of the entry to evict; None to keep all."""
        owners = [self.senders.get(entry.id, self.client) for entry in queue]
        held = Counter(owners)
        worst: int | None = None  # the last entry that lower entropy evicts
        for index in reversed(range(len(queue))):
            owner = owners[index]
            more = held[owner] - held[self.client]
            others = owner not in ("", self.client)
            if others and (more > 1 or queue[index].id < entry_id - self.age):
                return index
            if worst is None and (more == 1 or not others):
                worst = index
        if worst is None or last_if_worse(queue[: worst + 1], rank, entry_id) is None:
            return None
        return worst
