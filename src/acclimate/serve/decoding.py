"""Images are decoded and prepared in processes of their own, which can be stopped, run out of memory, or crash.

The service runs one thread per process. It sends an image, is told what decoding it will cost, waits until so many
pixels may be decoded, and receives what the model takes. This module is all that such a process imports.
"""

import atexit
import json
import multiprocessing.util  # first: what it does at exit has to come after what is done here
import os
import signal
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Condition, Lock
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from acclimate.arrays import HostArray
from acclimate.errors import ImageError, ModelError
from acclimate.images import Examined, examine_image, thumbnail
from acclimate.reading import Preparer

# File formats accepted from clients: common ones that Pillow decodes itself, without calling another program.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
START_S = 60.0  # that a process may take to start
NICENESS = 5  # the service itself and its answers come first
BYTES_PER_PIXEL = 12  # of memory that decoding may take
BYTES = 192 * 2**20  # that it may take beside the pixels: the file itself, views, code
TIME_IS_UP = getattr(signal, "SIGPROF", 0)  # ends a process that has worked too long, where there is such a signal
PATIENCE = 4  # times as long as an image may take, on a machine that is busy with other things
MESSAGE_BYTES = 2**16  # of an answer without pixels
CHILDREN = Lock()  # multiprocessing's list of its children is not made for threads
CONTEXT: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")


class Task(NamedTuple):
    """An image to decode: a file, or its text in base64."""

    content: bytes | str
    prepare: Preparer | None  # None to return the RGB pixels as they are
    place: int  # of the image in its stream, on which its views depend
    thumbnail: int  # its longest side in pixels; 0 for none


class Budget:
    """Pixels that may be decoded at the same time; a client gets two thirds at most, so that others find room."""

    def __init__(self, pixels: int) -> None:
        self._total, self._per_client = pixels, max(1, pixels * 2 // 3)
        self._held: Counter[str] = Counter()
        self._change = Condition()

    @contextmanager
    def hold(self, client: str, pixels: int) -> Iterator[None]:
        """Wait until so many pixels are free, and hold them. A larger image waits until its client holds no others."""
        pixels = min(pixels, self._per_client)
        with self._change:
            self._change.wait_for(lambda: self._fits(client, pixels))
            self._held[client] += pixels
        try:
            yield
        finally:
            with self._change:
                self._held -= Counter({client: pixels})  # drops clients that hold nothing
                self._change.notify_all()

    def _fits(self, client: str, pixels: int) -> bool:
        return self._held[client] + pixels <= self._per_client and self._held.total() + pixels <= self._total


class Decoders:
    """The processes. They start when they are needed, and end with `close` or with this process.

    Args:
        pixels: of the largest image that is decoded.
        decode_s: seconds of a processor that an image may take; four times as many on a busy machine.
        budget: pixels that are decoded at the same time.
    """

    def __init__(self, pixels: int, decode_s: float, budget: int) -> None:
        self._pixels, self._decode_s, self._budget = pixels, decode_s, Budget(budget)
        self._lock = Lock()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._closed = False
        atexit.register(self.close)  # before multiprocessing waits for its children

    def decode(
        self, task: Task, prepare: Preparer, client: str, admit: Callable[[int], None]
    ) -> tuple[list[Any], bytes]:
        """What the model takes for an image, and its thumbnail; may be called from many threads.

        `admit` is called with the pixels that decoding costs, before it is decoded; what it raises is raised.

        Raises:
            ImageError: the image cannot be decoded, or takes too long or too much; "cannot be read: ...".
        """
        process = self._take()
        try:
            cost = process.ask(task)["cost"]
            try:
                admit(cost)
            except ImageError:
                process.ask(None)
                raise
            with self._budget.hold(client, cost):
                answer = process.ask(cost)
                if task.prepare is None:
                    return prepare(task.place, Image.fromarray(answer["pixels"])), answer["thumbnail"]
                return list(answer["pixels"]), answer["thumbnail"]
        finally:
            with self._lock:
                self._busy.discard(process)
                if process.alive and not self._closed:
                    self._idle.append(process)
                else:
                    process.end()

    def close(self) -> None:
        """End all processes at once, whatever they do."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            for process in self._idle:
                process.end()
            for process in self._busy:
                process.kill()  # the thread that waits for it ends it
            self._idle.clear()

    def _take(self) -> "_Process":
        with self._lock:
            process = self._idle.pop() if self._idle else None
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


class _Process:
    """A process that decodes, seen from the service."""

    def __init__(self, pixels: int, decode_s: float) -> None:
        self._connection, theirs = CONTEXT.Pipe()
        self._decode_s, self.alive = decode_s, True
        CONTEXT.set_forkserver_preload([__name__])
        with theirs, CHILDREN, _no_main():
            self._process = CONTEXT.Process(target=work, args=(theirs, pixels, decode_s), daemon=True)
            self._process.start()
        self._answer(START_S)

    def ask(self, message: Any) -> dict[str, Any]:
        """Send a task, or the cost of the task to go on, or None to leave it; returns the answer.

        ImageError if that says so, if it takes too long, or if the process ends.
        """
        try:
            self._connection.send(message)
            answer = self._answer(self._decode_s * (PATIENCE if TIME_IS_UP else 1))
            if "shape" in answer:
                answer["pixels"] = np.empty(answer["shape"], answer["dtype"])
                self._connection.recv_bytes_into(answer["pixels"].reshape(-1))
                answer["thumbnail"] = self._connection.recv_bytes()
        except (EOFError, OSError, ValueError, TypeError):
            self.kill()
            with CHILDREN:
                self._process.join()
            if self._process.exitcode == -TIME_IS_UP:
                raise self._too_slow() from None
            raise ImageError("cannot be read: its decoder crashed or ran out of memory") from None
        if "image_error" in answer:
            raise ImageError(answer["image_error"])
        if "error" in answer:
            raise ModelError(f"the model could not prepare an image: {answer['error']}")
        return answer

    def kill(self) -> None:
        """Stop it at once; whoever waits for its answer gets an ImageError."""
        self.alive = False
        self._process.kill()

    def end(self) -> None:
        """Stop it, and release what it used."""
        self.kill()
        self._connection.close()
        with CHILDREN:
            self._process.join()
            self._process.close()

    def _too_slow(self) -> ImageError:
        return ImageError(f"took longer than {self._decode_s:g} s to decode")

    def _answer(self, seconds: float) -> dict[str, Any]:
        if not self._connection.poll(seconds):
            self.kill()
            raise self._too_slow()
        # JSON, as what decodes strangers' files must not send objects to this process.
        answer: dict[str, Any] = json.loads(self._connection.recv_bytes(MESSAGE_BYTES))
        return answer


@contextmanager
def _no_main() -> Iterator[None]:
    """Hide the running program from multiprocessing, which would import it in every process that it starts."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def work(connection: Any, pixels: int, decode_s: float) -> None:
    """What runs in a process: tasks are done until the connection is closed, as it is when the service has ended."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the service decides when to end
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):  # libraries such as libtiff print what they find wrong, as much as a stranger likes
        os.dup2(nowhere, output)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    connection.send_bytes(b"{}")  # it is ready
    with suppress(EOFError, OSError):
        while True:
            do(connection, pixels, decode_s)


def do(connection: Any, pixels: int, decode_s: float) -> None:
    """Do one task."""
    task: Task = connection.recv()
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
        answer = {"shape": prepared.shape, "dtype": prepared.dtype.name}
        for part in (json.dumps(answer).encode(), prepared.reshape(-1).view(np.uint8), picture):
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


def decode(examined: Examined, task: Task) -> tuple[HostArray, bytes]:
    """Decode an image: what the model takes for each of its views, or its pixels (h, w, 3), and its thumbnail."""
    try:
        image = examined.decode()
    except ImageError as error:
        raise ImageError(f"cannot be read: {error}") from error
    picture = thumbnail(image, task.thumbnail) if task.thumbnail else b""
    return np.asarray(image) if task.prepare is None else np.stack(task.prepare(task.place, image)), picture


@contextmanager
def bounded(seconds: float, pixels: int) -> Iterator[None]:
    """Bound the time and the memory of what is done inside, where the system can.

    Too much memory is a MemoryError; too much time, of the processor, ends the process, though its service be gone.
    """
    if TIME_IS_UP:
        signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        with _bounded_memory(BYTES + BYTES_PER_PIXEL * pixels):
            yield
    finally:
        if TIME_IS_UP:
            signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def _bounded_memory(more: int) -> Iterator[None]:
    """Bound the memory to that in use now, and so many bytes more."""
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
