"""The file of the features that are kept for a second pass."""

from math import prod
from pathlib import Path

import numpy as np

from acclimate.arrays import HostArray
from acclimate.files import append, cut_back, sync, writing

DTYPE = np.dtype(np.float16)
HINT = "It keeps the features for the second pass; free some space and resume, or start again with one pass."


class FeatureFile:
    """Float16 features, appended batch by batch, and read through a memory map: they need not fit in memory.

    Args:
        path: the file, of rows and nothing else.
        shape: shape of a row: (d,), or (V, d) for V views.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = FeatureFile(Path(folder) / "features", (3,))
        ...     file.open()
        ...     file.write(np.eye(3))
        ...     file.open(rows=2)
        ...     file.read().tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self.path = path
        self.shape = shape
        self._row_size = DTYPE.itemsize * prod(shape)

    def open(self, rows: int = 0) -> None:
        """Begin a new file, or cut the file back to a number of rows."""
        with writing(self.path, hint=HINT):
            if rows:
                cut_back(self.path, rows * self._row_size)
            else:
                self.path.write_bytes(b"")

    def write(self, features: HostArray) -> None:
        """Append rows, all or none."""
        with writing(self.path, hint=HINT):
            append(self.path, np.ascontiguousarray(features, DTYPE).tobytes())

    def sync(self) -> None:
        """Make the rows durable."""
        with writing(self.path, hint=HINT):
            sync(self.path)

    def read(self) -> HostArray:
        """Return all rows (n, d) or (n, V, d) as float16."""
        shape = (self.path.stat().st_size // self._row_size, *self.shape)
        return np.asarray(np.memmap(self.path, DTYPE, "r", shape=shape)) if shape[0] else np.empty(shape, DTYPE)
