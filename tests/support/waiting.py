"""Waiting for what happens elsewhere, but not for ever."""

import select
import time


def wait_until(happened, seconds=180.0):
    """Wait until a condition holds, and return its value; fails if it does not within this time."""
    latest = time.monotonic() + seconds
    while not (value := happened()):
        assert time.monotonic() < latest, "it did not happen"
        time.sleep(0.01)
    return value


def count_closed(connections, seconds=60.0):
    """Return the number of connections that the other side closes within this time; nothing is read from them."""
    poll = select.poll()
    latest = time.monotonic() + seconds
    waiting = {connection.fileno() for connection in connections}
    for number in waiting:
        poll.register(number, select.POLLRDHUP)
    while waiting and time.monotonic() < latest:
        for number, _ in poll.poll(100):
            poll.unregister(number)
            waiting.remove(number)
    return len(connections) - len(waiting)
