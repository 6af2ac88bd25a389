"""Videos: frames at regular times, read in any order.

A video is decoded forwards. Threads ask for its frames nearly in order, so a frame that is passed on the way to a later
one waits until it is asked for. Only a request far ahead or behind moves to the nearest key frame before it.
"""

import io
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from math import ceil
from pathlib import PurePath
from threading import Lock
from typing import Any

from PIL import Image

from acclimate.errors import MissingExtraError, lacking
from acclimate.files import open_regular
from acclimate.images.opening import URL, pixel_limit, too_large
from acclimate.sources.source import Sample

SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v")
MAX_FRAMES_AHEAD = 16  # frames that are decoded on the way to a later one rather than skipped, and then kept
MAX_OPEN_VIDEOS = 4
ROUNDING_S = 1e-4  # error of the time of a frame
MAX_TRUSTED_FRAMES = 100_000  # a header that promises more is not believed: the frames are counted


def is_video(name: str) -> bool:
    """Return True if a file name has the suffix of a video, in upper or lower case."""
    return name.lower().endswith(SUFFIXES)


def is_frame(sample: Sample) -> bool:
    """Return True if a sample is a frame of a video."""
    return getattr(sample.read, "func", None) is read_frame


def lacking_for_videos(path: str = "") -> str:
    """Return why a video cannot be read; "" if it can."""
    return "must be on the local disk: copy it there" if URL.match(path) else lacking("av", "PyAV", "video")


def open_video(path: str | PurePath, label: str | None = None, fps: float = 1.0) -> list[Sample]:
    """List the frames of a video at `fps` frames per second, and at most all of them, named `clip.mp4#12.0s`.

    A video that cannot be opened has one sample, which fails when it is read.
    """
    name = PurePath(path).as_posix()
    if why := lacking_for_videos():
        raise MissingExtraError(f"{name} is a video, which {why}.")
    try:
        with _explained():
            container, stream = _open(name)
            with container:
                fps = min(fps, float(stream.average_rate or fps))
                count = max(1, _count(container, stream, fps))
    except OSError:
        return [Sample(name, partial(read_frame, name, fps, 0), label)]
    return [Sample(f"{name}#{round(i / fps, 3)}s", partial(read_frame, name, fps, i), label) for i in range(count)]


def read_frame(path: str, fps: float, index: int) -> bytes:
    """Return the frame of a video that is shown after `index / fps` seconds, as a bitmap; OSError if there is none."""
    buffer = io.BytesIO()
    _decoder(path, fps).read(index).save(buffer, "BMP")
    return buffer.getvalue()


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what PyAV raises into OSError, as a file that cannot be read."""
    import av

    try:
        yield
    except av.FFmpegError as error:
        raise OSError(f"the video cannot be read: {error.strerror}") from error


def _open(path: str) -> tuple[Any, Any]:
    import av

    open_regular(path).close()  # refuses pipes and devices, which may never end
    container = av.open(path)
    stream: Any = next(iter(container.streams.video), None)
    limit = pixel_limit()
    why = "" if stream else "the file has no video stream"
    if stream and limit is not None and stream.width * stream.height > limit:
        why = too_large(f"{stream.width} x {stream.height}", limit)
    if why:
        container.close()
        raise OSError(why)
    stream.thread_type = "AUTO"
    return container, stream


def _count(container: Any, stream: Any, fps: float) -> int:
    """Return the number of frames by the length in the header, or by the packets if that is missing or implausible."""
    import av

    promised = None
    if stream.duration is not None:
        promised = float(stream.duration * stream.time_base)
    elif container.duration is not None:
        promised = container.duration / av.time_base
    if promised is not None and promised * fps <= MAX_TRUSTED_FRAMES:
        return ceil(promised * fps - ROUNDING_S)
    ends = [packet.pts + (packet.duration or 0) for packet in container.demux(stream) if packet.pts is not None]
    length = float((max(ends, default=0) - (stream.start_time or 0)) * stream.time_base)
    return min(ceil(length * fps - ROUNDING_S), max(MAX_TRUSTED_FRAMES, len(ends)))  # times may lie as well


class _Decoder:
    """The frames of one video at regular times, for any number of threads."""

    def __init__(self, path: str, fps: float) -> None:
        with _explained():
            self._container, self._stream = _open(path)
        self._begin = self._stream.start_time or 0
        self._fps = fps
        self._lock = Lock()
        self._next = -MAX_FRAMES_AHEAD - 1  # the index that the position stands at: too far behind for the first move
        self._passed: dict[int, Any] = {}  # frames, or errors in place of them, that may still be asked for

    def read(self, index: int) -> Image.Image:
        """Return the frame that is shown at an index, upright."""
        with self._lock:  # also while it is converted: one frame may be shown at several indices
            if index not in self._passed:
                self._pass(index)
            frame = self._passed.pop(index)
            if isinstance(frame, OSError):
                raise frame
            image: Image.Image = frame.to_image()
            turned = getattr(frame, "rotation", 0)
        return image.rotate(turned, expand=True) if turned else image

    def _pass(self, index: int) -> None:
        """Decode up to and with an index; what fails on the way fails where it is passed, whoever asked."""
        if not self._next <= index <= self._next + MAX_FRAMES_AHEAD:
            with _explained():
                self._move(index)
        for each in range(self._next, index + 1):
            try:
                with _explained():
                    self._passed[each] = self._at(each)
            except OSError as error:
                self._passed[each] = error
            if len(self._passed) > MAX_FRAMES_AHEAD:
                del self._passed[min(self._passed)]
        self._next = index + 1

    def _move(self, index: int) -> None:
        """Go to the key frame before an index; to the beginning if the file leads behind it."""
        self._decoded: deque[Any] = deque()  # frames that are not shown yet
        self._shown: Any = None  # the last frame that is shown
        self._passed.clear()
        self._next = index
        for target in (self._begin + int(index / self._fps / self._stream.time_base), self._begin):
            self._container.seek(target, stream=self._stream)
            self._packets = self._container.demux(self._stream)
            self._decoded.clear()
            if self._pull() and self._time(self._decoded[0]) <= index / self._fps + ROUNDING_S:
                return

    def _at(self, index: int) -> Any:
        """Return the frame that is shown at an index, at or after the position."""
        time = index / self._fps + ROUNDING_S
        while self._pull() and self._time(self._decoded[0]) <= time:
            self._shown = self._decoded.popleft()
        if self._shown is None and self._decoded:  # the first one is late
            return self._decoded[0]
        if self._shown is None:
            raise OSError("no frame of the video can be decoded")
        if not self._decoded:
            duration = float((self._shown.duration or 0) * self._shown.time_base)
            end = self._time(self._shown) + max(1 / self._fps, duration)
            if time > end + 2 * ROUNDING_S:
                raise OSError(f"the video ends after {end:.1f} s; it is truncated or damaged")
        return self._shown

    def _pull(self) -> bool:
        """Decode until there is a frame that is not shown yet; False at the end."""
        while not self._decoded:
            packet = next(self._packets, None)
            if packet is None:
                return False
            self._decoded.extend(packet.decode())
        return True

    def _time(self, frame: Any) -> float:
        """Return the seconds since the beginning; a frame without a time follows the last one."""
        if frame.pts is None:
            after = 0.0 if self._shown is None else self._time(self._shown) + 1 / float(self._stream.average_rate or 25)
            frame.pts = self._begin + round(after / frame.time_base)
        return float((frame.pts - self._begin) * frame.time_base)


_decoder = lru_cache(MAX_OPEN_VIDEOS)(_Decoder)
