"""Images that arrive in a folder."""

from collections.abc import Callable, Collection
from pathlib import Path
from time import monotonic, sleep

from acclimate.errors import InputError
from acclimate.sources.base import Sample
from acclimate.sources.folder import list_files, open_listed

TICK = 0.1  # seconds between two looks at whether to stop


class Follow:
    """Waits for images that arrive in a folder or its subfolders.

    An image is taken once it is stable: when its size and its time of change are those of the last look. So one that
    is still being copied is left alone until it is complete.

    Args:
        folder: to look into; images are labelled with their subfolder, as in `open_source`.
        stop: called while waiting; True ends it.
        fps: frames per second that are taken from videos.
        interval: seconds between two looks.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (8, 8)).save(f"{folder}/a.png")
        ...     [Path(sample.name).name for sample in Follow(folder, interval=0.01)(())]
        ['a.png']
    """

    def __init__(
        self, folder: str, stop: Callable[[], bool] = lambda: False, fps: float = 1.0, interval: float = 1.0
    ) -> None:
        if not Path(folder).is_dir():
            raise InputError(f"{folder} is not a folder; only a folder can be followed.")
        self.folder, self.stop, self.fps, self.interval = folder, stop, fps, interval
        self._given: set[str] = set()  # files that are done
        self._waiting: dict[str, tuple[int, int]] = {}  # size and time of change of files that were not stable yet

    def __call__(self, known: Collection[str]) -> list[Sample]:
        """The images, besides those of known names, that are there and stable; waits for one. None: it was stopped."""
        known = {*known, *(name.rpartition("#")[0] for name in known)}  # frames are named "clip.mp4#1.0s"
        while not self.stop():
            if ready := self._look(known):
                return ready
            until = monotonic() + self.interval
            while monotonic() < until and not self.stop():
                sleep(min(TICK, self.interval))
        return []

    def _look(self, known: Collection[str]) -> list[Sample]:
        waiting, ready = {}, []
        for file in list_files(self.folder):
            path = Path(self.folder, file)
            if file in self._given or path.as_posix() in known:
                continue
            try:
                about = path.stat()
            except OSError:  # it went away, or is a broken link
                continue
            now = about.st_size, about.st_mtime_ns
            if about.st_size and self._waiting.get(file) == now:
                ready.append((about.st_mtime_ns, file))
            else:
                waiting[file] = now
        self._waiting = waiting
        self._given |= {file for _, file in ready}
        return [sample for _, file in sorted(ready) for sample in open_listed(self.folder, [file], self.fps)]
