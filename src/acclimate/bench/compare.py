"""Methods side by side on one stream: same features, same orders, zero-shot always among them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acclimate.adapters.base import Adapter, create
from acclimate.arrays import Array, HostArray
from acclimate.bench.orders import take_order
from acclimate.bench.prequential import Run, run
from acclimate.errors import InputError, MissingExtraError
from acclimate.sources.features import FeatureStream


@dataclass(frozen=True)
class Outcome:
    """One method on one stream.

    Attributes:
        adapter: as it stands after the last order.
        runs: the name of each order and its run.
        batch_size: samples a step.
    """

    adapter: Adapter
    runs: dict[str, Run]
    batch_size: int


def compare(
    stream: FeatureStream,
    methods: Mapping[str, Mapping[str, Any]],
    orders: Sequence[str] = ("stored",),
    batch_size: int = 256,
    device: str = "numpy",
    progress: Callable[[int], None] = lambda samples: None,
) -> dict[str, Outcome]:
    """Run methods over a stream, each from scratch in every order.

    Args:
        stream: the samples.
        methods: method -> its settings. Zero-shot comes first whether named or not; as it does not depend on the order,
            it runs in the first order only.
        orders: as `take_order` knows them.
        batch_size: samples a step.
        device: "numpy", or a PyTorch device such as "cpu" or "cuda".
        progress: called with the number of samples done after each step.
    """
    vectors = _on_device(stream.class_vectors, device)
    outcomes = {}
    for name in dict.fromkeys(["zero-shot", *methods]):
        runs = {}
        for order in orders[:1] if name == "zero-shot" else orders:
            adapter = create(
                name,
                vectors,
                logit_scale=stream.logit_scale,
                logit_bias=stream.logit_bias,
                class_names=stream.class_names,
                **methods.get(name, {}),
            )
            runs[order] = run(adapter, stream, take_order(stream, order), batch_size, progress)
        outcomes[name] = Outcome(adapter, runs, batch_size)
    return outcomes


def _on_device(array: HostArray, device: str) -> Array:
    if device == "numpy":
        return array
    try:
        import torch
    except ImportError:
        raise MissingExtraError(f"device {device!r} needs PyTorch: pip install torch, or use numpy.") from None
    try:
        return torch.asarray(array, device=device)
    except (RuntimeError, AssertionError) as error:  # torch says so when built without the device, or on a wrong name
        reason = str(error).splitlines()[0]
        raise InputError(f"device {device!r} cannot be used here: {reason}. Use numpy or cpu.") from error
