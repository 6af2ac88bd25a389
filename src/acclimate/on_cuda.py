"""What PyTorch tensors need to be fast on a CUDA GPU: copies that do not wait, sums by class in one kernel, graphs.

A small step on a GPU costs what its kernels cost to launch, and the times the host waits for it. Everything here works
on tensors of any device, so that a CPU can test it; only pinned memory, events and graphs are CUDA's own. The module is
imported where a tensor is met, never before.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

HostArray = npt.NDArray[Any]
GRAPHS = 8  # kept per owner, those used last
LARGEST = 2**21  # numbers in an output of a graph; beyond, kernels take longer than their launches
AFTER = 2  # calls with a shape before it is captured: the last batch of a stream does not come back

Owner = TypeVar("Owner")
Work = Callable[[Any, Tensor], tuple[Tensor | None, ...]]


def upload(values: HostArray, device: torch.device) -> Tensor:
    """A copy of host values on a device, without waiting for it."""
    tensor = torch.from_numpy(np.array(values, order="C"))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def upload_integers(arrays: Sequence[HostArray], device: torch.device) -> list[Tensor]:
    """Integers (n,) of several arrays in one copy."""
    whole = upload(np.concatenate(arrays, dtype=np.int64), device)
    return list(whole.split([len(each) for each in arrays]))


class Transfer:
    """A copy of a tensor on its way to the host; `wait` gives it."""

    def __init__(self, tensor: Tensor) -> None:
        self.event: torch.cuda.Event | None = None
        if not tensor.is_cuda:
            self.host = tensor.to("cpu", copy=True)
            return
        self.host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self.host.copy_(tensor, non_blocking=True)
        self.event = torch.cuda.Event()
        self.event.record(torch.cuda.current_stream(tensor.device))

    @property
    def done(self) -> bool:
        """Whether `wait` returns at once."""
        return self.event is None or self.event.query()

    def wait(self) -> HostArray:
        """The values, once they are there."""
        if not self.done:
            self.event.synchronize()  # type: ignore[union-attr]
        self.event = None
        values: HostArray = self.host.numpy()
        return values

    def __deepcopy__(self, memo: object) -> "Transfer":
        return self


@cache
def _constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number (1,) on a device, made once: a kernel less per call."""
    return torch.full((1,), value, dtype=dtype, device=device)


def affinities(keys: Tensor, features: Tensor, beta: float) -> Tensor:
    """Weights (E, B), exp(-beta (1 - q.f)), of keys (E, d) for features (B, d)."""
    offset = _constant(-beta, features.dtype, features.device)
    return torch.addmm(offset, keys, features.T, alpha=beta).exp_()


def add_rows(sums: Tensor, rows: Tensor, layout: Sequence[Tensor], factor: float) -> None:
    """Add rows (E, B) times a factor to sums (K, B), in place and in the same order on every machine.

    The layout is the classes (C,), each once, the rows of the classes one after another (n,), and where those of each
    class start (C,).
    """
    classes, entries, starts = layout
    if classes.shape[0]:
        total = torch.embedding_bag(rows, entries, starts, mode=0)[0]
        sums.index_add_(0, classes, total, alpha=factor)


def best_of(logits: Tensor, count: int, probs: Tensor | None = None) -> list[HostArray]:
    """What `predict.best_of` gives, chosen on the device and brought to the host in one copy."""
    scores = torch.softmax(logits, dim=1)
    best = best_classes(scores, count)
    parts = [best, scores.gather(1, best)]
    if probs is not None:
        own = probs.argmax(dim=1, keepdim=True)
        parts += [own, probs.gather(1, own)]
    values = Transfer(torch.cat([part.to(scores.dtype) for part in parts], dim=1)).wait()
    found = np.split(values, np.cumsum([part.shape[1] for part in parts])[:-1], axis=1)
    return [part if place % 2 else part.astype(np.int64) for place, part in enumerate(found)]


def best_classes(scores: Tensor, count: int) -> Tensor:
    """The classes (n, up to count) of the highest scores (n, K), which are not negative; of equal ones the first.

    `topk` leaves the order of equal scores open. The bits of positive numbers sort as the numbers do, so a score and
    the place of its class make one integer, and no two are equal.
    """
    classes = scores.shape[1]
    bits = scores.float().contiguous().view(torch.int32).long()
    keys = bits * 2**32 + torch.arange(classes - 1, -1, -1, device=scores.device)
    return torch.topk(keys, min(count, classes), dim=1).indices


# Work that repeats with the same shapes, as a CUDA graph

_graphs: "WeakKeyDictionary[Any, OrderedDict[tuple[object, ...], int | _Graph]]" = WeakKeyDictionary()
_lock = threading.RLock()


class _Graph:
    """Work captured for inputs of one shape; a replay overwrites the outputs of the one before."""

    def __init__(self, owner: object, work: Work, x: Tensor) -> None:
        current, side = torch.cuda.current_stream(x.device), _side_stream(x.device)
        self.input = x.clone()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            work(owner, self.input)  # libraries allocate what they need for this stream
            self.graph = torch.cuda.CUDAGraph()
            # Other threads go on allocating while this one captures.
            self.graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.outputs = work(owner, self.input)
            finally:
                self.graph.capture_end()
        current.wait_stream(side)

    def __call__(self, x: Tensor) -> tuple[Tensor | None, ...]:
        self.input.copy_(x)
        self.graph.replay()
        return tuple(None if each is None else each.clone() for each in self.outputs)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def replayed(owner: object, work: Work, x: Tensor, largest: int) -> tuple[Tensor | None, ...]:
    """`work(owner, x)`, on a CUDA GPU as a graph from the third call with a shape on.

    The work must be kernels only, and depend on nothing but the tensors of the owner, which never change, and `x`.
    `largest` is the number of elements of its largest output. What cannot be captured runs as it is.
    """
    if not x.is_cuda or largest > LARGEST or torch.cuda.is_current_stream_capturing():
        return work(owner, x)
    stream = torch.cuda.current_stream(x.device)
    key = (work.__qualname__, tuple(x.shape), x.dtype, stream.cuda_stream)
    with _lock, torch.cuda.device(x.device):
        known = _graphs.setdefault(owner, OrderedDict())
        found = known.pop(key, 0)
        if found == AFTER:
            try:
                found = _Graph(owner, work, x)
            except RuntimeError:
                found = AFTER + 1  # never again
        elif isinstance(found, int) and found < AFTER:
            found += 1
        known[key] = found
        while len(known) > GRAPHS:
            known.popitem(last=False)
        return work(owner, x) if isinstance(found, int) else found(x)
