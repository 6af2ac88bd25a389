"""A sandbox for images of strangers: processes that decode and prepare them, with limits of memory and time.

The caller sends an image and receives the input of the model, or only the cost of an image that is larger than was
asked for. This module is all that such a process imports.
"""

import atexit
import json
import multiprocessing.util  # registers its own exit handler before those of this module
import os
import signal
import sys
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from math import prod
from pathlib import Path
from threading import Lock, Timer
from time import monotonic
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np

from acclimate.arrays import HostArray
from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import ImageError, ModelError
from acclimate.images.opening import MAX_PIXELS, examine_image, limit_pixels, thumbnail
from acclimate.reading.walk import Preparer

# File formats accepted from clients: common ones that Pillow decodes itself, without calling another program.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
KILLED = 9  # the signal of a kill from outside; limits of processor time have another
NICENESS = 5  # the process that uses the images comes first
BYTES_PER_PIXEL = 12  # memory limit of decoding, per pixel
BASE_MEMORY_BYTES = 192 * 2**20  # memory limit beside the pixels: the file itself, views, code
WALL_TIME_FACTOR = 4  # wall time limit = factor * processor time limit, as the machine may be busy
MAX_MESSAGE_BYTES = 2**16  # largest answer without pixels
STARTING = Lock()  # held while a process starts: `no_main` is not made for threads
CONTEXT: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")


@contextmanager
def no_main() -> Iterator[None]:
    """Hide the running program from multiprocessing, which would import it in every process that it starts."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def portable(prepare: Preparer) -> Preparer | None:
    """Return a preparer without the model's weights for a decoder process; None if only this process can prepare."""
    with_pillow = prepare.target is None or (prepare.device is None and prepare.generator is None)
    if not with_pillow or not isinstance(prepare.encoder.prepare, Preprocess):
        return None
    light = copy(prepare)
    light.encoder = cast(Any, SimpleNamespace(prepare=prepare.encoder.prepare))
    return light


class DecodeTask(NamedTuple):
    """An image to decode: a file, or its text in base64."""

    content: bytes | str
    prepare: Preparer | None  # None to return the RGB pixels as they are
    position: int  # index in the stream, on which the views depend
    thumbnail: int  # its longest side in pixels; 0 for none
    most: int  # pixels; an image with a higher cost is not decoded, only its cost is returned
    seconds: float  # processor time limit; wall time limit = WALL_TIME_FACTOR * seconds


class Decoder:
    """A decoder process, seen from its parent, which does not trust its answers: a hostile file may control it.

    It starts when it is needed, is replaced after it has ended or had to be stopped, and ends with `close` or with this
    process. One thread at a time decodes with it.

    Args:
        pixels: cost of the largest image that is decoded.
    """

    def __init__(self, pixels: int) -> None:
        self._pixels = pixels
        self._connection: Any = None
        self._process: Any = None
        self._closed = False
        atexit.register(self.close)  # runs before multiprocessing waits for its children

    def decode(self, task: DecodeTask, again: bool = True) -> tuple[int, HostArray | None, bytes]:
        """Decode an image unless it costs too much; one that takes too long counts as one of the largest cost.

        Returns:
            Its cost in pixels; the input of the model for each view, or RGB pixels (h, w, 3), or None if it was not
            decoded; and its thumbnail.

        Raises:
            ImageError: the image cannot be decoded, or is one of the largest cost and takes too long. A process that
                somebody else has killed, as a system does that is short of memory, is replaced once before that.
            ModelError: the image cannot be prepared, or no process could be started.
        """
        self.start()
        began = monotonic()
        timer = Timer(WALL_TIME_FACTOR * task.seconds, self._process.kill)  # ends half an answer and a full pipe, too
        timer.daemon = True
        timer.start()
        try:
            return self._ask(task)
        except (ImageError, ModelError):
            raise
        except Exception as error:  # the process ended, or what it said makes no sense
            if isinstance(error, (EOFError, ConnectionError)):
                self._process.join(1)
            killed = self._process.exitcode == -KILLED
            self._end()
            late = monotonic() >= began + task.seconds
            if killed and again and not late and not self._closed:
                return self.decode(task, again=False)
            if late and task.most < self._pixels:
                return self._pixels, None, b""
            crashed = "cannot be read: its decoder crashed or ran out of memory"
            raise ImageError(f"took longer than {task.seconds:g} s to decode" if late else crashed) from None
        finally:
            timer.cancel()
            timer.join()
            if monotonic() >= began + WALL_TIME_FACTOR * task.seconds:
                self._end()

    def start(self) -> None:
        """Start a process unless one runs; ModelError if that fails."""
        if self._process is not None and self._process.is_alive():
            return
        self._end()
        CONTEXT.set_forkserver_preload([__name__])
        try:
            self._connection, theirs = CONTEXT.Pipe()
            with theirs, STARTING, no_main():
                process = CONTEXT.Process(target=work, args=(theirs, self._pixels), daemon=True)
                process.start()
                self._process = process
        except (EOFError, OSError) as error:
            raise ModelError(f"no process to decode images could be started ({error}); try again later.") from error

    def close(self) -> None:
        """End the process at once, whatever it does; a thread that waits for its answer gets an ImageError."""
        self._closed = True
        atexit.unregister(self.close)
        with suppress(AttributeError):  # there is none
            self._process.kill()

    def _end(self) -> None:
        """Stop the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process = None  # closed by the garbage collector: multiprocessing may look at it in another thread
            self._connection.close()

    def _ask(self, task: DecodeTask) -> tuple[int, HostArray | None, bytes]:
        """Send a task, and check the answer."""
        self._connection.send(task)
        # JSON: a process that decodes untrusted files must not send pickled objects to this one.
        answer: dict[str, Any] = json.loads(self._connection.recv_bytes(MAX_MESSAGE_BYTES))
        if "image_error" in answer:
            raise ImageError(str(answer["image_error"])[:1000])
        if "error" in answer:
            raise ModelError(f"the model could not prepare an image: {str(answer['error'])[:1000]}")
        cost = answer["cost"]
        if type(cost) is not int or not 0 < cost <= self._pixels:
            raise ValueError(f"a cost of {cost}")
        if cost > task.most:
            return cost, None, b""
        if task.prepare is None:
            pixels = np.frombuffer(self._connection.recv_bytes(3 * cost), np.uint8).reshape(*answer["size"], 3)
        else:
            preprocess: Any = task.prepare.encoder.prepare
            shape = (task.prepare.views, 3, preprocess.height, preprocess.width)
            content = self._connection.recv_bytes(4 * prod(shape))
            pixels = np.frombuffer(content, np.float32).reshape(shape).copy()  # PyTorch wants a writeable array
        return cost, pixels, self._connection.recv_bytes(MAX_MESSAGE_BYTES + 3 * task.thumbnail**2)


def work(connection: Any, pixels: int) -> None:
    """Do tasks until the connection is closed, as it is when the parent has ended; the main function of a process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides when to end
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):  # libraries such as libtiff print warnings, without limit for a hostile file
        os.dup2(nowhere, output)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    limit_pixels(max(pixels, MAX_PIXELS))  # Pillow's own limit; each image is checked before
    with suppress(EOFError, OSError):
        while True:
            for part in do(connection.recv(), pixels):
                connection.send_bytes(part)


def do(task: DecodeTask, pixels: int) -> list[Any]:
    """Do one task; returns the parts of the answer: JSON, and for a decoded image its pixels and its thumbnail."""
    try:
        content = file_of(task.content)
        # The decoder of WebP reserves the memory of its pixels when it is opened.
        with bounded(task.seconds, pixels if content.startswith(b"RIFF") else 0):
            examined = examine_image(content, pixels, FORMATS)
        answer: dict[str, Any] = {"cost": examined.pixels}
        if examined.pixels > task.most:
            return [json.dumps(answer).encode()]
        with bounded(task.seconds, examined.pixels):
            image = examined.decode()
            picture = thumbnail(image, task.thumbnail) if task.thumbnail else b""
            inputs = np.asarray(image) if task.prepare is None else np.stack(task.prepare(task.position, image))
        answer["size"] = inputs.shape[:2]
        return [json.dumps(answer).encode(), inputs.reshape(-1).view(np.uint8), picture]
    except ImageError as error:
        answer = {"image_error": f"cannot be read: {error}"[:1000]}
    except (MemoryError, OverflowError):
        answer = {"image_error": "cannot be read: it needs too much memory"}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
    return [json.dumps(answer).encode()]


def file_of(content: bytes | str) -> bytes:
    """Return an image file, which may be given as a text in base64."""
    try:
        return content if isinstance(content, bytes) else b64decode(content, validate=True)
    except ValueError:
        raise ImageError("it is not base64; URLs are not fetched, send the image itself") from None


@contextmanager
def bounded(seconds: float, pixels: int) -> Iterator[None]:
    """Bound processor time and memory within the block, where the system can.

    Too much memory is a MemoryError; too much time ends the process, even if its parent has ended.
    """
    with ExitStack() as end:
        if hasattr(signal, "setitimer"):  # its signal ends the process
            signal.setitimer(signal.ITIMER_PROF, seconds)
            end.callback(signal.setitimer, signal.ITIMER_PROF, 0)
        if sys.platform == "linux":  # other systems do not bound it, or do not tell what is used
            import resource

            limits = resource.getrlimit(resource.RLIMIT_AS)
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            bound = used + BASE_MEMORY_BYTES + BYTES_PER_PIXEL * pixels
            bound = min(bound, *(each for each in (*limits, sys.maxsize) if each != resource.RLIM_INFINITY))
            resource.setrlimit(resource.RLIMIT_AS, (bound, limits[1]))
            end.callback(resource.setrlimit, resource.RLIMIT_AS, limits)
        yield
