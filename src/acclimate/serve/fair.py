"""Fair queues: a client that sends much waits longer, and the others do not."""

from collections import deque
from collections.abc import Callable, Container, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


def leaves_enough(mine: int, total: int, room: int, least: int = 0) -> bool:
    """Return True if a client that holds `mine` of the `total` leaves at least as much room for the others.

    Each client may always hold the `least`, however much the others hold.

    Examples:
        >>> leaves_enough(8, total=8, room=16), leaves_enough(9, total=9, room=16), leaves_enough(4, total=12, room=16)
        (True, False, True)
        >>> leaves_enough(1, total=17, room=16, least=1)
        True
    """
    return mine <= max(least, room - total)


class FairQueue(Generic[Item]):
    """A queue, first come, first served per client; the clients that wait take turns. Its user holds a lock.

    Examples:
        >>> queue = FairQueue()
        >>> for client, item in [("a", 1), ("a", 2), ("a", 3), ("b", 4)]:
        ...     queue.put(client, item)
        >>> [queue.take() for _ in range(len(queue))]
        [1, 4, 2, 3]
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Item]] = {}  # items by waiting client; the first client is next
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Item]:
        return (item for items in self._waiting.values() for item in items)

    def put(self, client: str, item: Item) -> None:
        """Add an item at the end of its client's queue."""
        self._waiting.setdefault(client, deque()).append(item)
        self._count += 1

    def take(self, allowed: Callable[[Item], bool] = lambda _: True, pausing: Container[str] = ()) -> Item | None:
        """Remove and return the first allowed item of the client whose turn it is, or of the next; None without one.

        Clients that are `pausing` keep their turn.
        """
        for client, items in self._waiting.items():
            if client in pausing:
                continue
            for index, item in enumerate(items):
                if allowed(item):
                    del items[index], self._waiting[client]
                    self._count -= 1
                    if items:
                        self._waiting[client] = items  # moves to the end: the others are next
                    return item
        return None

    def pass_turn(self, client: str) -> None:
        """Move this client behind all others that wait now."""
        if client in self._waiting:
            self._waiting[client] = self._waiting.pop(client)

    def drop(self, client: str, unwanted: Callable[[Item], bool]) -> int:
        """Remove a client's unwanted items; returns their number."""
        items = self._waiting.get(client, deque())
        kept = deque(item for item in items if not unwanted(item))
        if kept:
            self._waiting[client] = kept
        else:
            self._waiting.pop(client, None)
        self._count -= len(items) - len(kept)
        return len(items) - len(kept)
