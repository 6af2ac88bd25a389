"""Array-API maths: the same code on NumPy, PyTorch and CuPy arrays.

Nothing here names a device or a dtype, except that half precision is widened to float32: a logit of 30 has a
resolution of 1/64 in float16, which is coarser than the differences that decide between two classes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, is_torch_array, to_device
from array_api_compat import device as device
from array_api_compat import is_array_api_obj as is_array_api_obj

from acclimate.errors import InputError

if TYPE_CHECKING:
    from acclimate.on_cuda import Transfer

Array = Any  # an array of any namespace that array-api-compat knows
HostArray = npt.NDArray[Any]
is_tensor = is_torch_array
STANDARD = hasattr(np, "cumulative_sum")  # NumPy 2.1 has what the array API asks for
SMALL = 64  # rows of a matrix that is not inverted by halves
ROUNDING = 32  # a squared length of 1 to this many units in the last place is 1


def namespace(*arrays: Array) -> Any:
    """The array library of arrays. Where NumPy needs no wrapper it has none, as importing that takes 0.1 s."""
    if STANDARD and all(isinstance(each, np.ndarray | np.generic) for each in arrays):
        return np
    return array_namespace(*arrays)


def as_floats(x: Any, what: str) -> Array:
    """Return `x` as an array of real floating type, half precision widened to float32.

    Lists and other sequences become NumPy arrays; arrays keep their namespace and device, and leave autograd.
    """
    if not is_array_api_obj(x):
        try:
            x = np.asarray(x, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"{what} cannot be read as an array of numbers: {error}") from None
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
        if is_tensor(like) and like.is_cuda:
            x = _uploaded(to_host(x), like)
        else:
            return xp.asarray(to_host(x), dtype=like.dtype, device=device(like))
    if device(x) != device(like):
        x = to_device(x, device(like))
    return x if x.dtype == like.dtype else xp.astype(x, like.dtype)


def index(positions: HostArray, like: Array) -> Array:
    """Bring integer positions (n,) to where `like` lives, for indexing."""
    if is_tensor(like):
        return _uploaded(positions, like)
    return namespace(like).asarray(positions, device=device(like))


def indices(arrays: Sequence[HostArray], like: Array) -> list[Array]:
    """`index` for several arrays of positions (n,), in one copy where copies cost."""
    if is_tensor(like):
        from acclimate.on_cuda import upload_integers

        return list(upload_integers(arrays, device(like)))
    return [index(each, like) for each in arrays]


def _uploaded(values: HostArray, like: Array) -> Array:
    """Host values on the device of a tensor."""
    from acclimate.on_cuda import upload

    return upload(values, device(like))


def begin_transfer(x: Array) -> "Transfer":
    """Begin to copy a tensor to the host; `wait` on what this gives returns the copy."""
    from acclimate.on_cuda import Transfer

    return Transfer(x)


def repeat(
    owner: object,
    key: object,
    work: Callable[..., dict[str, Array]],
    inputs: Sequence[Array],
    size: int,
    kept: Sequence[str],
) -> Mapping[str, Array]:
    """`work(*inputs)`, on a CUDA GPU as a graph if it repeats; the arguments are those of `on_cuda.replayed`."""
    if not is_tensor(inputs[0]):
        return dict(work(*inputs))
    from acclimate.on_cuda import replayed

    return replayed(owner, key, work, inputs, size, kept)


def unit_rows(x: Array, what: str) -> Array:
    """Scale the last axis of `x` (..., d) to unit length, refusing rows that have no direction.

    Rows that have unit length up to rounding stay as they are, so scaling twice is scaling once, bit for bit.
    """
    xp = namespace(x)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = xp.vecdot(x, x)
        host_squares = to_host(squares)
        ordinary = (host_squares > 1e-30) & (host_squares < 1e30)
    if not ordinary.all():
        # Bad rows, or values so large or small that their squares lose their digits.
        peak = xp.max(xp.abs(x), axis=-1)
        refuse_directionless(to_host(peak), what)
        x = x / peak[..., None]
        squares = xp.vecdot(x, x)
    unit = xp.abs(squares - 1.0) <= ROUNDING * xp.finfo(x.dtype).eps
    return x / xp.where(unit, xp.ones_like(squares), xp.sqrt(squares))[..., None]


def directions(x: Array) -> tuple[Array, Array]:
    """`unit_rows` that does not look at the numbers: the rows, and their peaks (...) for `refuse_directionless`.

    Most peaks are 1. A row that has no direction becomes NaN, and its peak is 0, NaN or infinity.
    """
    xp = namespace(x)
    squares = _dots(x, x)
    ordinary = (squares > 1e-30) & (squares < 1e30)
    peak = xp.where(ordinary, xp.ones_like(squares), xp.max(xp.abs(x), axis=-1))
    x = x / peak[..., None]
    squares = _dots(x, x)
    unit = xp.abs(squares - 1.0) <= ROUNDING * xp.finfo(x.dtype).eps
    return x / xp.where(unit, xp.ones_like(squares), xp.sqrt(squares))[..., None], peak


def refuse_directionless(peak: HostArray, what: str) -> None:
    """Refuse rows (...) whose largest number is zero or not finite."""
    good = np.isfinite(peak) & (peak > 0)
    if not good.all():
        bad = np.argwhere(~good)
        where = ", ".join(str(int(i)) for i in bad[0])
        kind = "is all zeros" if peak[tuple(bad[0])] == 0 else "holds NaN or infinity"
        raise InputError(
            f"{what}: row {where} {kind} ({len(bad)} of {peak.size} rows); remove such rows and run again."
        )


def first_equal_rows(x: HostArray) -> HostArray:
    """For each of the unit rows (n, d), the first row (n,) that equals it up to rounding; often the row itself."""
    direction = np.random.default_rng(0).standard_normal(x.shape[1])
    order = np.argsort(x @ direction, kind="stable")  # equal rows are neighbours along any direction
    apart = np.linalg.norm(np.diff(x[order], axis=0), axis=1) > ROUNDING * np.finfo(x.dtype).eps
    groups = np.append(0, np.cumsum(apart))
    first = np.empty_like(order)
    first[order] = np.minimum.reduceat(order, np.searchsorted(groups, range(groups[-1] + 1)))[groups]
    return first


def softmax_and_entropy(logits: Array) -> tuple[Array, Array]:
    """Softmax (n, K) and its entropy in nats (n,), accurate where one probability is nearly 1.

    The caches rank samples of entropy 1e-6 and below, where `1 - p` has no digits left in float32. So the largest
    probability is kept apart and everything is expressed in terms of the rest.
    """
    xp = namespace(logits)
    rows = xp.arange(logits.shape[0], device=device(logits))
    top = xp.argmax(logits, axis=-1)
    shifted = logits - logits[rows, top][:, None]
    weights = xp.exp(shifted)
    weights[rows, top] = xp.zeros_like(shifted[:, 0])  # not a number of Python: a GPU would wait for it
    rest = xp.sum(weights, axis=-1)
    entropy = xp.log1p(rest) - _dots(weights, shifted) / (1.0 + rest)
    weights[rows, top] = xp.ones_like(rest)
    weights /= (1.0 + rest)[:, None]
    return weights, entropy


def _dots(x: Array, y: Array) -> Array:
    """Products of the rows (..., n) of two arrays; on a GPU sums, as a batch of tiny matrix products is slow there."""
    xp = namespace(x)
    return xp.sum(x * y, axis=-1) if is_tensor(x) else xp.vecdot(x, y)


def log_softmax(logits: Array) -> Array:
    """Logarithm of the softmax over the last axis, finite where probabilities vanish."""
    xp = namespace(logits)
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


def entropy_of(probs: Array) -> Array:
    """Entropy in nats of distributions (n, K), with the same care for a probability near 1."""
    xp = namespace(probs)
    rows = xp.arange(probs.shape[0], device=device(probs))
    others = xp.asarray(probs, copy=True)
    others[rows, xp.argmax(probs, axis=-1)] = xp.zeros_like(probs[:, 0])
    rest = xp.sum(others, axis=-1)
    logs = xp.log(xp.clip(others, min=float(xp.finfo(others.dtype).smallest_normal)))  # p ln p is 0 at p = 0
    return -(1.0 - rest) * xp.log1p(-rest) - xp.vecdot(others, logs)


def covariance_inverse(x: Array) -> Array:
    """Inverse of a symmetric, positive definite matrix (d, d).

    NumPy would solve d equations with a general matrix. Inverting by halves is mostly matrix products, which take less
    than half of the time.
    """
    half = len(x) // 2
    if not isinstance(x, np.ndarray) or half < SMALL:
        return namespace(x).linalg.inv(x)
    first = covariance_inverse(x[:half, :half])
    across = x[:half, half:]
    spread = first @ across
    last = covariance_inverse(x[half:, half:] - across.T @ spread)
    corner = spread @ last
    inverse = np.empty_like(x)
    inverse[:half, :half] = first + corner @ spread.T
    inverse[half:, half:] = last
    inverse[:half, half:] = -corner
    inverse[half:, :half] = -corner.T
    return inverse
