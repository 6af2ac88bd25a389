"""Bound on the pixels that are decoded at the same time, in all and per client."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition

from acclimate.errors import ImageError

POLL_S = 0.2  # interval at which a waiting image is checked for being still wanted


class Budget:
    """Pixels that may be decoded at the same time; a client gets two thirds at most, so that others find room.

    First come, first served, per client. The image of another client may start before one that waits if both fit beside
    all that came after that one: a small image does not wait for a large one, and many small ones do not delay it.
    """

    def __init__(self, pixels: int) -> None:
        self._total = pixels
        self._per_client = max(1, pixels * 2 // 3)
        self._waiting: dict[int, tuple[str, int]] = {}  # client and pixels of images, by their order
        self._held: dict[int, tuple[str, int]] = {}
        self._came = 0
        self._change = Condition()

    @contextmanager
    def hold(self, client: str, pixels: int, unwanted: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Wait until so many pixels are free, and hold them. A larger image waits until its client holds no others.

        ImageError if the image is not wanted any more before it may start.
        """
        image = client, min(pixels, self._per_client)
        with self._change:
            self._came += 1
            number = self._came
            self._waiting[number] = image
            try:
                while not unwanted() and not self._fits(number):
                    self._change.wait(POLL_S)
                if unwanted():
                    raise ImageError("is not wanted any more")
                self._held[number] = image
            finally:
                del self._waiting[number]
                self._change.notify_all()
        try:
            yield
        finally:
            with self._change:
                del self._held[number]
                self._change.notify_all()

    def _fits(self, number: int) -> bool:
        """Return True if an image may start: its pixels are free, and every earlier one still finds room."""
        client, pixels = self._waiting[number]
        if not self._in_share(client, pixels) or self._used() + pixels > self._total:
            return False
        for earlier, (other, needed) in self._waiting.items():
            if earlier == number:
                break
            room = self._used(after=earlier) + needed + pixels <= self._total
            if other == client or (self._in_share(other, needed) and not room):
                return False
        return True

    def _in_share(self, client: str, pixels: int) -> bool:
        return sum(each for other, each in self._held.values() if other == client) + pixels <= self._per_client

    def _used(self, after: int = 0) -> int:
        return sum(pixels for number, (_, pixels) in self._held.items() if number > after)
