"""Waiting for what happens elsewhere, but not for ever."""

import time


def wait_until(happened, seconds=180.0):
    """Wait until a condition holds; fails if it does not within this time."""
    latest = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < latest, "it did not happen"
        time.sleep(0.01)
