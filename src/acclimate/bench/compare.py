"""Methods side by side on one stream: same features, same orders, one pass, zero-shot always among them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acclimate.arrays import Array, HostArray
from acclimate.bench.orders import take_order
from acclimate.bench.prequential import Run, run
from acclimate.errors import InputError, MissingExtraError
from acclimate.methods.base import Adapter, create
from acclimate.stream import FeatureStream


@dataclass(frozen=True)
class Outcome:
    """One method on one stream.

    Attributes:
        adapter: as it stands after the last order.
        runs: the name of each order and its run.
        batch_size: rows a step.
        reducer: how views became one piece of evidence.
        device: where the work was done.
    """

    adapter: Adapter
    runs: dict[str, Run]
    batch_size: int
    reducer: str
    device: str


def compare(
    stream: FeatureStream,
    methods: Mapping[str, Mapping[str, Any]],
    orders: Sequence[str] = ("stored",),
    batch_size: int = 256,
    device: str = "numpy",
    reducer: str = "confident-mean",
    progress: Callable[[int], None] = lambda samples: None,
) -> dict[str, Outcome]:
    """Run methods over a stream, each from scratch in every order.

    Args:
        stream: the samples.
        methods: method -> its settings. Zero-shot comes first whether named or not; as it does not depend on the order,
            it runs in the first order only.
        orders: as `take_order` knows them.
        batch_size: rows a step.
        device: "numpy", or a PyTorch device such as "cpu" or "cuda".
        reducer: how views become one piece of evidence.
        progress: called with the number of samples done after each step, for each method.
    """
    names = [name for name in methods if name != "zero-shot"]
    variants = [(name, methods[name]) for name in names]
    zero_shot, outcomes = sweep(stream, variants, orders, batch_size, device, reducer, progress)
    return {"zero-shot": zero_shot, **dict(zip(names, outcomes, strict=True))}


def sweep(
    stream: FeatureStream,
    variants: Sequence[tuple[str, Mapping[str, Any]]],
    orders: Sequence[str] = ("stored",),
    batch_size: int = 256,
    device: str = "numpy",
    reducer: str = "confident-mean",
    progress: Callable[[int], None] = lambda samples: None,
) -> tuple[Outcome, list[Outcome]]:
    """Run many variants, each a method with its settings, over one pass of the stream an order; as `compare`.

    Returns:
        The outcome of zero-shot, and the outcomes of the variants in their order.
    """
    vectors = _on_device(stream.class_vectors, device)
    runs: list[dict[str, Run]] = [{} for _ in range(1 + len(variants))]
    adapters: list[Adapter] = []
    for order in orders if variants else orders[:1]:
        adapters = [
            create(
                name,
                vectors,
                logit_scale=stream.logit_scale,
                logit_bias=stream.logit_bias,
                class_names=stream.class_names,
                **settings,
            )
            for name, settings in [("zero-shot", {}), *variants]
        ]
        first = 1 if runs[0] else 0
        answered = run(adapters[first:], stream, take_order(stream, order), batch_size, reducer, progress)
        for place, each in enumerate(answered, first):
            runs[place][order] = each
    outcomes = [Outcome(*both, batch_size, reducer, device) for both in zip(adapters, runs, strict=True)]
    return outcomes[0], outcomes[1:]


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
