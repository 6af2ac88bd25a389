"""Images on their way from the front to an encoder."""

from collections.abc import Sequence
from typing import Any

import ray

INLINE_BYTES = 64 * 2**10  # images up to this size are sent with the request itself


class SentImages(Sequence[Any]):
    """The images of a request: many bytes lie in Ray's object store, and only a reference travels.

    Whoever passes them on knows how many there are; they are fetched where they are decoded.
    """

    def __init__(self, images: Sequence[bytes | str]) -> None:
        self._count = len(images)
        large = self.is_large(images)
        self._here = None if large else list(images)
        self._reference = ray.put(list(images)) if large else None

    @staticmethod
    def is_large(images: Sequence[bytes | str]) -> bool:
        """Return True if images go to the object store, which may take a moment."""
        return sum(map(len, images)) > INLINE_BYTES

    def fetch(self) -> list[bytes | str]:
        """Return the images; may block."""
        if self._here is None:
            found: list[bytes | str] = ray.get(self._reference)
            return found
        return self._here

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self.fetch()[index]
