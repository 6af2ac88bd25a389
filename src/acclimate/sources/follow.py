"""Images that arrive in a folder."""

from collections.abc import Callable, Collection
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from time import monotonic, sleep

from acclimate.errors import InputError
from acclimate.sources.folder import open_listed
from acclimate.sources.source import LOCAL, Sample, can_be_read
from acclimate.sources.video import is_video

STOP_CHECK_S = 0.1


class Follow:
    """Images that arrive in a folder or its subfolders, as they arrive.

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
        # File -> its size, its time of change in nanoseconds, and the time in seconds since when it is like this.
        self._pending: dict[str, tuple[int, int, float]] = {}

    def __call__(self, known: Collection[str]) -> list[Sample]:
        """Return the images that are there and stable, besides those it gave before and those of known names.

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
                sleep(min(STOP_CHECK_S, self.interval))
        return []

    @property
    def pending(self) -> list[str]:
        """The paths of files that were there and not given, as they are still changing or cannot be read."""
        return [Path(self.folder, file).as_posix() for file in sorted(self._pending)]

    def _look(self, known: Collection[str]) -> list[Sample]:
        files: list[str] = []
        with suppress(InputError):  # a folder went away during the look; the next one will do without it
            files = list(LOCAL.list_files(self.folder))
        before = self._pending
        self._pending = {}
        ready: list[tuple[int, str, list[Sample]]] = []
        for file in files:
            path = Path(self.folder, file)
            if file in self._given or path.as_posix() in known:
                continue
            try:
                about = path.stat()
            except OSError:  # it went away, or is a broken link
                continue
            size, changed, since = before.get(file, (0, 0, 0.0))
            if not size or (size, changed) != (about.st_size, about.st_mtime_ns):
                self._pending[file] = (about.st_size, about.st_mtime_ns, monotonic())
                continue
            samples = open_listed(self.folder, [file], self.fps)
            if samples and not can_be_read(samples[0]) and monotonic() - since < self.patience:
                self._pending[file] = before[file]
            else:
                ready.append((changed, file, samples))
                self._given.add(file)
        return [sample for _, _, samples in sorted(ready, key=itemgetter(0, 1)) for sample in samples]
