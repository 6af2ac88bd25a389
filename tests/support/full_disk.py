"""A full disk, nearly: no file may grow beyond a length, and what tries fails as it would there."""

import resource
from contextlib import contextmanager


@contextmanager
def files_end_at(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
