"""Array-API maths: the same code on NumPy, PyTorch and CuPy arrays.

Nothing here names a device or a dtype, except that half precision is widened to float32: a logit of 30 has a
resolution of 1/64 in float16, which is coarser than the differences that decide between two classes.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, is_torch_array, to_device
from array_api_compat import device as device
from array_api_compat import is_array_api_obj as is_array_api_obj

from acclimate.errors import InputError

Array = Any  # an array of any namespace that array-api-compat knows
HostArray = npt.NDArray[Any]
AnyArray = TypeVar("AnyArray")  # an array of the caller: answers are of the same type
is_tensor = is_torch_array
STANDARD = hasattr(np, "cumulative_sum")  # NumPy 2.1 follows the array API without a wrapper
UNIT_TOLERANCE_ULPS = 32  # a squared length counts as 1 within so many units in the last place


def namespace(*arrays: Array) -> Any:
    """Return the array library of arrays, NumPy without a wrapper where it needs none."""
    if STANDARD and all(isinstance(each, np.ndarray | np.generic) for each in arrays):
        return np
    return array_namespace(*arrays)


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Leave PyTorch's inference mode and autocast; a decorator, too.

    A tensor that is made in inference mode cannot be changed in place outside of it, and autocast rounds products to
    half precision. What is kept, or answered, must not depend on the mode of the caller.
    """
    torch: Any = sys.modules.get("torch")  # a caller in one of its modes has imported it
    with ExitStack() as left:
        if hasattr(torch, "autocast"):  # it may be half imported by another thread
            if torch.is_inference_mode_enabled():
                left.enter_context(torch.inference_mode(False))
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    left.enter_context(torch.autocast(kind, enabled=False))
        yield


def as_floats(x: Any, what: str) -> Array:
    """Return `x` as an array of real floating type, half precision widened to float32.

    Lists and other sequences become NumPy arrays; arrays keep their namespace and device, and leave autograd.
    """
    if not is_array_api_obj(x):
        try:
            x = np.asarray(x, dtype=np.float64)
        except (TypeError, ValueError) as error:
            hint = "; pass its .pooler_output" if hasattr(x, "pooler_output") else ""  # transformers 5 returns such
            raise InputError(f"{what} cannot be read as an array of numbers: {error}{hint}.") from None
    if is_tensor(x):
        x = x.detach()
    xp = namespace(x)
    if not xp.isdtype(x.dtype, "real floating"):
        raise InputError(f"{what} must be floating point, got {x.dtype}; convert them, for instance to float32.")
    return x if xp.finfo(x.dtype).bits >= 32 else xp.astype(x, xp.float32)


def to_host(x: Array) -> HostArray:
    """Copy `x` to a NumPy array (bfloat16, which NumPy lacks, as float32)."""
    if is_tensor(x):
        x = x.detach().cpu()
        x = x.float() if str(x.dtype) == "torch.bfloat16" else x
    return np.asarray(to_device(x, "cpu"))


def move(x: Array, like: Array) -> Array:
    """Bring `x` to the namespace, device and dtype of `like`; the same object when it is there already."""
    xp = namespace(like)
    if namespace(x) is not xp:
        x = _upload(to_host(x), like)
    if device(x) != device(like):
        x = to_device(x, device(like))
    return x if x.dtype == like.dtype else xp.astype(x, like.dtype)


def index(positions: HostArray | Sequence[int], like: Array) -> Array:
    """Bring integer positions (n,) to where `like` lives, for indexing."""
    return _upload(np.asarray(positions, dtype=np.int64), like)


def _upload(values: HostArray, like: Array) -> Array:
    xp = namespace(like)
    if not is_tensor(like):
        return xp.asarray(values, device=device(like))
    tensor = xp.from_numpy(np.array(values, order="C"))
    if like.is_cuda:
        tensor = tensor.pin_memory()  # copies from pinned memory do not wait for the kernels in the queue
    return tensor.to(device(like), non_blocking=True)


def check_integers(
    values: Sequence[int] | HostArray, samples: int, largest: int, name: str, smallest: int = 0
) -> HostArray:
    """Return one number per sample, from the smallest to the largest, as an array; `name` is a word for errors."""
    values = np.asarray(values)
    if values.dtype.kind not in "iu" or values.shape != (samples,):
        raise InputError(f"{name} must be {samples} whole numbers, got {values.dtype} of shape {values.shape}.")
    if samples and (values.min() < smallest or values.max() > largest):
        raise InputError(f"{name} must be from {smallest} to {largest}, got {values.min()} to {values.max()}.")
    return values.astype(np.int64)


def unit_rows(x: Array, what: str) -> Array:
    """Scale the last axis of `x` (..., d) to unit length, refusing rows that have no direction.

    Rows that have unit length up to rounding stay as they are, so scaling twice is scaling once, bit for bit.
    """
    xp = namespace(x)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = row_products(x, x)
        host_squares = to_host(squares)
        ordinary = (host_squares > 1e-30) & (host_squares < 1e30)
    if not ordinary.all():
        # Bad rows, or values so large or small that their squares lose their digits.
        peak = xp.max(xp.abs(x), axis=-1)
        host_peak = to_host(peak)
        bad = np.argwhere(~(np.isfinite(host_peak) & (host_peak > 0)))
        if len(bad):
            where = ", ".join(str(int(i)) for i in bad[0])
            kind = "is all zeros" if host_peak[tuple(bad[0])] == 0 else "holds NaN or infinity"
            raise InputError(
                f"{what}: row {where} {kind} ({len(bad)} of {host_peak.size} rows); remove such rows and run again."
            )
        x = x / peak[..., None]
        squares = row_products(x, x)
    unit = xp.abs(squares - 1.0) <= UNIT_TOLERANCE_ULPS * xp.finfo(x.dtype).eps
    return x / xp.where(unit, xp.ones_like(squares), xp.sqrt(squares))[..., None]


def row_products(x: Array, y: Array) -> Array:
    """Return the inner products (...) of the rows of two arrays (..., n)."""
    xp = namespace(x)
    return xp.sum(x * y, axis=-1) if is_tensor(x) else xp.vecdot(x, y)  # vecdot is slow on a GPU


def first_equal_rows(x: HostArray) -> HostArray:
    """Return the index (n,) of the first of the unit rows (n, d) that equals each row up to rounding."""
    along = x @ np.random.default_rng(0).standard_normal(x.shape[1])
    order = np.argsort(along, kind="stable")  # equal rows are neighbours along any direction
    apart = np.linalg.norm(np.diff(x[order], axis=0), axis=1) > UNIT_TOLERANCE_ULPS * np.finfo(x.dtype).eps
    groups = np.append(0, np.cumsum(apart))
    first = np.empty_like(order)
    first[order] = np.minimum.reduceat(order, np.searchsorted(groups, range(groups[-1] + 1)))[groups]
    return first


def softmax_and_entropy(logits: Array) -> tuple[Array, Array]:
    """Return the softmax (n, K) and its entropy in nats (n,), accurate where one probability is nearly 1.

    The caches rank samples of entropy 1e-6 and below, where `1 - p` has no digits left in float32. So the largest
    probability is kept apart and everything is expressed in terms of the rest.
    """
    xp = namespace(logits)
    rows = xp.arange(logits.shape[0], device=device(logits))
    top = xp.argmax(logits, axis=-1)
    shifted = logits - logits[rows, top][:, None]
    weights = xp.exp(shifted)
    weights[rows, top] = xp.zeros_like(shifted[:, 0])  # assigning 0.0 would make a GPU wait
    rest = xp.sum(weights, axis=-1)
    entropy = xp.log1p(rest) - row_products(weights, shifted) / (1.0 + rest)
    weights[rows, top] = xp.ones_like(rest)
    weights /= (1.0 + rest)[:, None]
    return weights, entropy


def log_sum_exp(logits: Array) -> Array:
    """Return the logarithm (n,) of the sum of exponentials of logits (n, K)."""
    xp = namespace(logits)
    top = xp.max(logits, axis=-1, keepdims=True)
    return xp.log(xp.sum(xp.exp(logits - top), axis=-1)) + top[..., 0]


def log_softmax(logits: Array) -> Array:
    """Return the logarithm of the softmax over the last axis, finite where probabilities vanish."""
    xp = namespace(logits)
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


def entropy_of(probs: Array) -> Array:
    """Return the entropy in nats of distributions (n, K), with the same care for a probability near 1."""
    xp = namespace(probs)
    rows = xp.arange(probs.shape[0], device=device(probs))
    others = xp.asarray(probs, copy=True)
    others[rows, xp.argmax(probs, axis=-1)] = xp.zeros_like(probs[:, 0])
    rest = xp.sum(others, axis=-1)
    logs = xp.log(xp.clip(others, min=float(xp.finfo(others.dtype).smallest_normal)))  # p ln p is 0 at p = 0
    return -(1.0 - rest) * xp.log1p(-rest) - row_products(others, logs)
