"""Images that arrive in a folder."""

from collections.abc import Callable, Collection
from pathlib import Path, PurePath
from time import monotonic, sleep

from acclimate.errors import InputError
from acclimate.sources.base import Sample, file_sample
from acclimate.sources.folder import list_images, natural_key

TICK = 0.1  # seconds between two looks at whether to stop


class Follow:
    """Waits for images that arrive in a folder or its subfolders.

    An image is taken once it is stable: when its size and its time of change are those of the last look. So one that
    is still being copied is left alone until it is complete.

    Args:
        folder: to look into; images are labelled with their subfolder, as in `open_source`.
        stop: called while waiting; True ends it.
        interval: seconds between two looks.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (8, 8)).save(f"{folder}/a.png")
        ...     [PurePath(sample.name).name for sample in Follow(folder, interval=0.01)(())]
        ['a.png']
    """

    def __init__(self, folder: str, stop: Callable[[], bool] = lambda: False, interval: float = 1.0) -> None:
        if not Path(folder).is_dir():
            raise InputError(f"{folder} is not a folder; only a folder can be followed.")
        self.folder, self.stop, self.interval = folder, stop, interval
        self._seen: dict[str, tuple[int, int]] = {}  # size and time of change of images that were not stable yet

    def __call__(self, known: Collection[str]) -> list[Sample]:
        """The images, besides those of known names, that are there and stable; waits for one. None: it was stopped."""
        while not self.stop():
            if ready := self._look(known):
                return ready
            until = monotonic() + self.interval
            while monotonic() < until and not self.stop():
                sleep(min(TICK, self.interval))
        return []

    def _look(self, known: Collection[str]) -> list[Sample]:
        seen, ready = {}, []
        for file in list_images(self.folder):
            path = PurePath(self.folder, file)
            if path.as_posix() in known:
                continue
            try:
                about = Path(path).stat()
            except OSError:  # it went away, or is a broken link
                continue
            now = about.st_size, about.st_mtime_ns
            if about.st_size and self._seen.get(file) == now:
                ready.append(
                    (about.st_mtime_ns, natural_key(file), file_sample(path, PurePath(file).parent.name or None))
                )
            else:
                seen[file] = now
        self._seen = seen
        return [sample for _, _, sample in sorted(ready, key=lambda each: each[:2])]
