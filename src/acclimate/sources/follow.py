"""Images that arrive in a folder."""

from collections.abc import Callable, Collection
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from acclimate.errors import InputError
from acclimate.sources.folder import open_listed
from acclimate.sources.places import list_files
from acclimate.sources.source import Sample, can_be_read
from acclimate.sources.video import is_video

TICK = 0.1  # seconds between two looks at whether to stop


class Seen(NamedTuple):
    """A file as it was seen."""

    size: int
    changed: int  # the time of its last change, in nanoseconds
    since: float  # the time since when it was seen like this, in seconds


class Follow:
    """Waits for images that arrive in a folder or its subfolders.

    An image is taken once it is stable: when its size and its time of change are those of the last look. One that
    cannot be read then may still be on its way, and is waited for until it has not changed for `patience` seconds.

    Args:
        folder: to look into; images are labelled with their subfolder, as in `open_source`.
        stop: called while waiting; True ends it.
        fps: frames per second that are taken from videos.
        interval: seconds between two looks.
        patience: see above.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (8, 8)).save(f"{folder}/a.png")
        ...     [Path(sample.name).name for sample in Follow(folder, interval=0.01)(())]
        ['a.png']
    """

    def __init__(
        self,
        folder: str,
        stop: Callable[[], bool] = lambda: False,
        fps: float = 1.0,
        interval: float = 1.0,
        patience: float = 60.0,
    ) -> None:
        if not Path(folder).is_dir():
            raise InputError(f"{folder} is not a folder; only a folder can be followed.")
        self.folder = folder
        self.stop = stop
        self.fps = fps
        self.interval = interval
        self.patience = patience
        self._known: set[str] | None = None  # paths of files that were done before
        self._given: set[str] = set()  # files that it gave
        self._waiting: dict[str, Seen] = {}  # files that are not

    def __call__(self, known: Collection[str]) -> list[Sample]:
        """The images that are there and stable, besides those it gave before and those of known names.

        Waits for one; none if it was stopped. The known names are those of the first call.
        """
        if self._known is None:
            videos = (name.rpartition("#")[0] for name in known)  # frames are named "clip.mp4#1.0s"
            self._known = {*known, *filter(is_video, videos)}
        while not self.stop():
            if ready := self._look(self._known):
                return ready
            until = monotonic() + self.interval
            while monotonic() < until and not self.stop():
                sleep(min(TICK, self.interval))
        return []

    @property
    def waiting(self) -> list[str]:
        """The paths of files that were there and not given, as they are still changing or cannot be read."""
        return [Path(self.folder, file).as_posix() for file in sorted(self._waiting)]

    def _look(self, known: Collection[str]) -> list[Sample]:
        waiting: dict[str, Seen] = {}
        ready: list[tuple[int, str, list[Sample]]] = []
        for file in self._files():
            path = Path(self.folder, file)
            if file in self._given or path.as_posix() in known:
                continue
            try:
                about = path.stat()
            except OSError:  # it went away, or is a broken link
                continue
            now = Seen(about.st_size, about.st_mtime_ns, monotonic())
            before = self._waiting.get(file)
            if not about.st_size or before is None or before[:2] != now[:2]:
                waiting[file] = now
                continue
            samples = list(open_listed(self.folder, [file], self.fps))
            if samples and not can_be_read(samples[0]) and now.since - before.since < self.patience:
                waiting[file] = before
            else:
                ready.append((about.st_mtime_ns, file, samples))
        self._waiting = waiting
        self._given |= {file for _, file, _ in ready}
        return [sample for _, _, samples in sorted(ready, key=lambda each: each[:2]) for sample in samples]

    def _files(self) -> list[str]:
        try:
            return list(list_files(self.folder))
        except InputError:  # a folder went away during the look; the next one will do without it
            return []
