"""What PyTorch tensors need to be fast on a CUDA GPU: copies that do not wait, sums by class in one kernel, graphs.

A small step on a GPU costs what its kernels cost to launch, and the times the host waits for it. Everything here works
on tensors of any device, so that a CPU can test it; only pinned memory, events and graphs are CUDA's own. The module is
imported where a tensor is met, never before.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

HostArray = npt.NDArray[Any]
GRAPHS = 8  # kept per owner, those used last
LARGEST = 2**21  # numbers in an output of a graph; beyond, kernels take longer than their launches
AFTER = 2  # calls with a shape before it is captured: the last batch of a stream does not come back


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


def affinities(keys: Tensor, features: Tensor, beta: float) -> Tensor:
    """Weights (E, B), exp(-beta (1 - q.f)), of keys (E, d) for features (B, d)."""
    return torch.mm(keys, (beta * features).T).sub_(beta).exp_()


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

Outputs = Mapping[str, Tensor | None]
Work = Callable[..., Outputs]
_graphs: "WeakKeyDictionary[Any, OrderedDict[tuple[object, ...], int | _Graph]]" = WeakKeyDictionary()
_lock = threading.RLock()


class _Graph:
    """Work captured for inputs of one shape; a replay overwrites the outputs of the one before."""

    def __init__(self, work: Work, inputs: Sequence[Tensor], kept: Collection[str]) -> None:
        current = torch.cuda.current_stream()
        side = _side_stream(inputs[0].device)
        self.inputs = [x.clone() for x in inputs]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            work(*self.inputs)  # libraries allocate what they need for this stream
            self.graph = torch.cuda.CUDAGraph()
            # Other threads go on allocating while this one captures.
            self.graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.outputs = dict(work(*self.inputs))
                self.kept = {name: x for name, x in self.outputs.items() if name in kept and x is not None}
                self.together = torch.cat([x.reshape(-1) for x in self.kept.values()])  # to be copied at once
            finally:
                self.graph.capture_end()
        current.wait_stream(side)

    def __call__(self, inputs: Sequence[Tensor]) -> Outputs:
        torch._foreach_copy_(self.inputs, list(inputs))
        self.graph.replay()
        copies = self.together.clone().split([x.numel() for x in self.kept.values()])
        return self.outputs | {name: x.view(self.kept[name].shape) for name, x in zip(self.kept, copies, strict=True)}


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def replayed(
    owner: object, key: object, work: Work, inputs: Sequence[Tensor], size: int, kept: Collection[str]
) -> Outputs:
    """`work(*inputs)`, on a CUDA GPU as a graph from the third call with these shapes on.

    Args:
        owner: what the work depends on in addition to its inputs; it never changes, and graphs go when it goes.
        key: which of the owner's work it is.
        work: kernels only, whose outputs have names. What cannot be captured runs as it is.
        inputs: of the work.
        size: numbers in the largest array of the work.
        kept: names of the outputs, of one dtype, that are the caller's; the next call overwrites the others.
    """
    if not inputs[0].is_cuda or size > LARGEST or torch.cuda.is_current_stream_capturing():
        return work(*inputs)
    device = inputs[0].device
    full_key = (key, *((tuple(x.shape), x.dtype) for x in inputs), torch.cuda.current_stream(device).cuda_stream)
    with _lock, nullcontext() if device.index == torch.cuda.current_device() else torch.cuda.device(device):
        known = _graphs.setdefault(owner, OrderedDict())
        found = known.pop(full_key, 0)
        if found == AFTER:
            try:
                found = _Graph(work, inputs, kept)
            except RuntimeError:
                found = AFTER + 1  # never again
        elif isinstance(found, int) and found < AFTER:
            found += 1
        known[full_key] = found
        while len(known) > GRAPHS:
            known.popitem(last=False)
        return work(*inputs) if isinstance(found, int) else found(inputs)
