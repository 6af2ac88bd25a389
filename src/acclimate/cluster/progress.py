"""Progress among the bars of Ray, which a bar of another kind would disturb."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ray_bar(total: int, verb: str, things: str) -> Iterator[Callable[..., None]]:
    """A progress bar that Ray draws together with its own.

    Yields a function to call with the number of things done since its last call, and how many more an earlier run had
    done.
    """
    from ray.experimental import tqdm_ray

    bar = tqdm_ray.tqdm(desc=verb, total=total, unit=things)
    try:
        yield lambda done, note="", earlier=0: bar.update(done + earlier)
    finally:
        bar.close()
