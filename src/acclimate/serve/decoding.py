"""Decoder processes, which decode and prepare images, and can be stopped, run out of memory, or crash.

The service runs one thread per process. It sends an image, receives the cost of decoding it, waits until so many pixels
may be decoded, and receives the input of the model. This module is all that such a process imports.
"""

import atexit
import json
import multiprocessing.util  # registers its own exit handler before those of this module
import os
import signal
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from math import inf, prod
from threading import Condition, Lock, Thread, current_thread
from time import monotonic
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
from PIL import Image

from acclimate.arrays import HostArray
from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import ImageError, ModelError
from acclimate.images.opening import MAX_PIXELS, Examined, examine_image, limit_pixels, thumbnail
from acclimate.reading.walk import Preparer
from acclimate.serve.budget import Budget

# File formats accepted from clients: common ones that Pillow decodes itself, without calling another program.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
START_S = 60.0  # time limit for a process to start
NICENESS = 5  # the service itself and its answers come first
BYTES_PER_PIXEL = 12  # memory limit of decoding, per pixel
BASE_MEMORY_BYTES = 192 * 2**20  # memory limit beside the pixels: the file itself, views, code
TIME_IS_UP = getattr(signal, "SIGPROF", 0)  # ends a process that has worked too long, where there is such a signal
WATCH_S = 0.1  # interval between checks for processes that have taken too long
WALL_TIME_FACTOR = 4  # wall time limit = factor * processor time limit, as the machine may be busy
MAX_MESSAGE_BYTES = 2**16  # largest answer without pixels
CHILDREN = Lock()  # multiprocessing's list of its children is not made for threads
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


class Decoders:
    """The processes. They start when they are needed, and end with `close` or with this process.

    Args:
        pixels: size of the largest image that is decoded.
        decode_s: seconds of a processor that an image may take; four times as many on a busy machine.
        budget: pixels that are decoded at the same time.
    """

    def __init__(self, pixels: int, decode_s: float, budget: int) -> None:
        self._pixels = pixels
        self._decode_s = decode_s
        self._budget = Budget(budget)
        self._lock = Lock()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._closed = False
        atexit.register(self.close)  # runs before multiprocessing waits for its children

    def warm_up(self) -> None:
        """Start a process, so that the first image does not wait for it; the others start quickly then."""
        self._give_back(self._take())

    def decode(
        self,
        task: DecodeTask,
        prepare: Preparer,
        client: str,
        admit: Callable[[int], None],
        unwanted: Callable[[], bool] = lambda: False,
    ) -> tuple[list[Any], bytes]:
        """Return what the model takes for an image, and its thumbnail; may be called from many threads.

        `admit` is called with the pixels that decoding costs, before it is decoded; what it raises is raised. While
        the image waits for others to be decoded, it is given up once it is `unwanted`.

        Raises:
            ImageError: the image cannot be decoded, or takes too long or too much; "cannot be read: ...".
        """
        process = self._take()
        try:
            cost = process.examine(task)
            with ExitStack() as budget:
                try:
                    admit(cost)
                    budget.enter_context(self._budget.hold(client, cost, unwanted))
                except ImageError:
                    process.leave()
                    raise
                pixels, picture = process.decode(task, cost)
                inputs = prepare(task.position, Image.fromarray(pixels)) if task.prepare is None else list(pixels)
                return inputs, picture
        finally:
            self._give_back(process)

    def close(self) -> None:
        """End all processes at once, whatever they do."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            idle = self._idle
            self._idle = []
            for process in self._busy:
                process.kill()  # the thread that waits for it ends it
        for process in idle:
            process.end()

    def _take(self) -> "_Process":
        process = self._take_idle()
        if process is None:
            try:
                process = _Process(self._pixels, self._decode_s)
            except (ImageError, EOFError, OSError) as error:
                raise ModelError(f"no process to decode images could be started ({error}); try again later.") from error
        with self._lock:
            self._busy.add(process)
            if self._closed:
                process.kill()
        return process

    def _take_idle(self) -> "_Process | None":
        """Return an idle process that still runs; processes that have ended are dropped."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                process = self._idle.pop()
            if process.runs:
                return process
            process.end()

    def _give_back(self, process: "_Process") -> None:
        with self._lock:
            self._busy.discard(process)
            kept = process.alive and not self._closed
            if kept:
                self._idle.append(process)
        if not kept:
            process.end()


class _Process:
    """A decoder process, seen from the service, which does not trust its answers: a hostile file may control it."""

    def __init__(self, pixels: int, decode_s: float) -> None:
        self._connection, theirs = CONTEXT.Pipe()
        self._pixels = pixels
        self._decode_s = decode_s
        self.alive = True
        self.latest = inf  # deadline for its answer, after which it is stopped
        CONTEXT.set_forkserver_preload([__name__])
        with theirs, CHILDREN, no_main():
            self._process = CONTEXT.Process(target=work, args=(theirs, pixels, decode_s), daemon=True)
            self._process.start()
        WATCH.add(self)
        try:
            with self._within(START_S):
                self._answer()
        except BaseException:
            self.end()
            raise

    def examine(self, task: DecodeTask) -> int:
        """Send a task; returns what it costs, in pixels."""
        with self._within(self._wall_time_s):
            self._connection.send(task)
            cost = self._answer()["cost"]
            if type(cost) is not int or not 0 < cost <= self._pixels:
                raise ValueError(f"a cost of {cost}")
            return cost

    def leave(self) -> None:
        """Do not go on with the task."""
        with self._within(self._wall_time_s):
            self._connection.send(None)
            self._answer()

    def decode(self, task: DecodeTask, cost: int) -> tuple[HostArray, bytes]:
        """Go on with the task; returns what the model takes for each view, or the pixels, and the thumbnail."""
        with self._within(self._wall_time_s):
            self._connection.send(cost)
            shape = tuple(self._answer()["shape"])
            if task.prepare is None:
                dtype: np.dtype[Any] = np.dtype(np.uint8)
                allowed = min(shape) > 0 and shape[2:] == (3,) and prod(shape) <= 3 * cost
            else:
                preprocess: Any = task.prepare.encoder.prepare
                dtype = np.dtype(np.float32)
                allowed = shape == (task.prepare.views, 3, preprocess.height, preprocess.width)
            if not allowed:
                raise ValueError(f"an array of shape {shape}")
            pixels = np.frombuffer(self._connection.recv_bytes(dtype.itemsize * prod(shape)), dtype)
            picture = self._connection.recv_bytes(MAX_MESSAGE_BYTES + 3 * task.thumbnail**2)
            return pixels.reshape(shape).copy(), picture  # PyTorch warns of arrays that are not writeable

    @property
    def _wall_time_s(self) -> float:
        return self._decode_s * (WALL_TIME_FACTOR if TIME_IS_UP else 1)

    @property
    def runs(self) -> bool:
        """True if nothing has ended it."""
        with CHILDREN:
            return bool(self._process.is_alive())

    def kill(self) -> None:
        """Stop it at once; a thread that waits for its answer gets an ImageError."""
        self.alive = False
        self._process.kill()

    def end(self) -> None:
        """Stop it, and release what it used."""
        WATCH.discard(self)
        self.kill()
        self._connection.close()
        with CHILDREN:
            self._process.join()
            self._process.close()

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """Talk to it for so long: then it is stopped, whatever it has sent or received by then.

        ImageError if that takes too long, if the process ends, or if what it says makes no sense.
        """
        self.latest = latest = monotonic() + seconds
        try:
            yield
        except (ImageError, ModelError):
            raise
        except Exception:
            self.kill()
            with CHILDREN:
                self._process.join()
            if self._process.exitcode == -TIME_IS_UP or monotonic() >= latest:
                raise ImageError(f"took longer than {self._decode_s:g} s to decode") from None
            raise ImageError("cannot be read: its decoder crashed or ran out of memory") from None
        finally:
            self.latest = inf

    def _answer(self) -> dict[str, Any]:
        # JSON: a process that decodes untrusted files must not send pickled objects to this one.
        answer: dict[str, Any] = json.loads(self._connection.recv_bytes(MAX_MESSAGE_BYTES))
        if "image_error" in answer:
            raise ImageError(str(answer["image_error"])[:1000])
        if "error" in answer:
            raise ModelError(f"the model could not prepare an image: {str(answer['error'])[:1000]}")
        return answer


class _Watch:
    """A watchdog that stops processes whose time is over: one thread, which ends when there are no processes.

    One that answers just then may be stopped as well; a process is looked at before it gets another image.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._processes: set[_Process] = set()
        self._thread: Thread | None = None

    def add(self, process: _Process) -> None:
        with self._changed:
            self._processes.add(process)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="acclimate-watch", daemon=True)
                self._thread.start()

    def discard(self, process: _Process) -> None:
        """Watch it no longer; after the last one the thread has ended."""
        with self._changed:
            self._processes.discard(process)
            if self._processes or self._thread is None:
                return
            thread = self._thread
            self._thread = None
            self._changed.notify_all()
        thread.join()

    def _run(self) -> None:
        with self._changed:
            while self._thread is current_thread():
                self._changed.wait(WATCH_S)
                for process in self._processes:
                    if monotonic() >= process.latest:
                        process.kill()


WATCH = _Watch()


def work(connection: Any, pixels: int, decode_s: float) -> None:
    """Do tasks until the connection is closed, as it is when the service has ended; the main function of a process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the service decides when to end
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):  # libraries such as libtiff print warnings, without limit for a hostile file
        os.dup2(nowhere, output)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    connection.send_bytes(b"{}")  # it is ready
    limit_pixels(max(pixels, MAX_PIXELS))  # Pillow's own limit; each image was checked before
    with suppress(EOFError, OSError):
        while True:
            do(connection, pixels, decode_s)


def do(connection: Any, pixels: int, decode_s: float) -> None:
    """Do one task."""
    task: DecodeTask = connection.recv()
    try:
        with bounded(decode_s, 0):
            examined = examine(task.content, pixels)
        connection.send_bytes(json.dumps({"cost": examined.pixels}).encode())
        cost = connection.recv()
        if cost is None:
            connection.send_bytes(b"{}")
            return
        with bounded(decode_s, cost):
            prepared, picture = decode(examined, task)
        answer = json.dumps({"shape": prepared.shape}).encode()
        for part in (answer, prepared.reshape(-1).view(np.uint8), picture):
            connection.send_bytes(part)
    except (ImageError, MemoryError, OverflowError) as error:
        why = str(error) if isinstance(error, ImageError) else "cannot be read: it needs too much memory"
        connection.send_bytes(json.dumps({"image_error": why[:1000]}).encode())
    except Exception as error:
        connection.send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"[:1000]}).encode())


def examine(content: bytes | str, pixels: int) -> Examined:
    """Look at an image file, or its text in base64, without decoding it."""
    if isinstance(content, str):
        try:
            content = b64decode(content, validate=True)
        except ValueError:
            raise ImageError("is not base64; URLs are not fetched, send the image itself") from None
    try:
        return examine_image(content, pixels, FORMATS)
    except ImageError as error:
        raise ImageError(f"cannot be read: {error}") from error


def decode(examined: Examined, task: DecodeTask) -> tuple[HostArray, bytes]:
    """Decode an image: what the model takes for each of its views, or its pixels (h, w, 3), and its thumbnail."""
    try:
        image = examined.decode()
    except ImageError as error:
        raise ImageError(f"cannot be read: {error}") from error
    picture = thumbnail(image, task.thumbnail) if task.thumbnail else b""
    return np.asarray(image) if task.prepare is None else np.stack(task.prepare(task.position, image)), picture


@contextmanager
def bounded(seconds: float, pixels: int) -> Iterator[None]:
    """Bound the time and the memory of what is done inside, where the system can.

    Too much memory is a MemoryError; too much time, of the processor, ends the process, even if its service has ended.
    """
    if TIME_IS_UP:
        signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        with _bounded_memory(BASE_MEMORY_BYTES + BYTES_PER_PIXEL * pixels):
            yield
    finally:
        if TIME_IS_UP:
            signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def _bounded_memory(more: int) -> Iterator[None]:
    """Bound the memory to that in use now plus `more` bytes."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # other systems do not bound it, or do not tell
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    bounds = [used + more, *(each for each in (soft, hard) if each != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
