"""The protocol: each sample is answered once, in order, and may then be learnt from.

Many adapters can share one pass: the zero-shot evidence of a batch is computed once and given to all of them. Where it
is asked for, a second pass answers the stream again from everything learnt; its figures are kept apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from acclimate.arrays import HostArray, softmax_and_entropy, to_host
from acclimate.bench import Advance
from acclimate.bench.orders import stream_order
from acclimate.bench.scoring import early_phase, expected_calibration_error, mean_per_class_recall, squared_errors
from acclimate.errors import InputError, missing
from acclimate.evidence import Head
from acclimate.methods import Adapter, FewShot, check_settings, create, duplicate, find_method, require
from acclimate.predict import top_classes
from acclimate.stream import FeatureStream
from acclimate.views import Kind

SECOND_PASS = ", second pass"  # added to the name of a method


@dataclass(frozen=True)
class Variant:
    """One thing to run: a method with its settings, and what it is measured with.

    Prompts, views, shots and validation apply to datasets of images; a feature file has prompts and views of its own.

    Attributes:
        method: its registered name.
        settings: those that differ from the method's defaults.
        settings_name: as results show it; "paper" if the settings are the defaults, else "custom", when not given.
        fitted: an adapter with this method and these settings, for few-shot methods.
        trained: a description of the samples that it was fitted to.
        label: its name in a comparison; that of the method when not given.
        prompts: "dataset" for each dataset's template set; the name of a set or learned:FILE for all datasets.
        views: "paper" for each dataset's number of views in the paper; a number for all datasets.
        views_kind: the kind of the views beside the image itself; the usual kind of the method when not given.
        shots: training images per class of ImageNet to fit it to; 0 if it is not fitted.
        validation: True if its settings are searched on ImageNet's validation images.
        remarks: sentences on what the authors did that is not done here.
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    settings_name: str = ""
    fitted: FewShot | None = None
    trained: str = ""
    label: str = ""
    prompts: str = "dataset"
    views: int | str = "paper"
    views_kind: Kind | None = None
    shots: int = 0
    validation: bool = False
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        method = find_method(self.method)
        object.__setattr__(self, "settings", check_settings(method, self.settings))
        usual = "paper" if self.config == method.default_settings() else "custom"
        object.__setattr__(self, "settings_name", self.settings_name or usual)
        object.__setattr__(self, "views_kind", self.views_kind or method.views_kind)

    @property
    def title(self) -> str:
        """The name in a comparison."""
        return self.label or self.method

    @property
    def config(self) -> dict[str, Any]:
        """All settings with their values."""
        return {**find_method(self.method).default_settings(), **self.settings}

    def adapter(self, head: Head, origin: str = "", encoder: Any = None) -> Adapter:
        """Return an adapter that has seen nothing of the stream; the encoder is for methods with a text tower."""
        if self.fitted is None:
            return create(self.method, head, encoder, origin, **self.settings)
        if differences := self.fitted.head.differences(head):
            raise InputError(
                f"{self.method!r} was not fitted for these features: {'; '.join(differences)}. "
                "Fit it with their model, classes and prompts."
            )
        adapter = duplicate(self.fitted)
        adapter.to(head.class_vectors)
        return adapter


@dataclass(frozen=True)
class Run:
    """The answers of one adapter to one stream, in the order taken; where classes are known, to samples of those."""

    order: HostArray  # (n,) positions of the samples in the stream
    targets: HostArray | None  # (n,) true classes; None if unknown
    top: HostArray  # (n, up to 5) classes by decreasing logit
    confidence: HostArray  # (n,) softmax probability of the first class
    errors: HostArray  # (n,) Brier score of each answer; (0,) without targets
    wall_s: float  # seconds of zero-shot and adapter together, or of the second pass alone

    @property
    def predictions(self) -> HostArray:
        """Predicted classes (n,)."""
        return np.asarray(self.top[:, 0])

    @property
    def correct(self) -> HostArray:
        """True for each right answer (n,)."""
        return np.asarray(self.predictions == self.targets)

    def scores(self) -> dict[str, float]:
        """Return the scores by name, as fractions; an empty dict without targets."""
        if self.targets is None:
            return {}
        return {
            "acc1": float(self.correct.mean()),
            "acc5": float((self.top == self.targets[:, None]).any(axis=1).mean()),
            "mean_per_class_recall": mean_per_class_recall(self.predictions, self.targets),
            "ece": expected_calibration_error(self.confidence, self.correct),
            "brier": float(self.errors.mean()),
            "early": float(self.correct[: early_phase(len(self.order))].mean()),
        }


class Outcome(NamedTuple):
    """One variant on one stream: the adapter after the last order, and the run in each order."""

    variant: Variant
    adapter: Adapter
    runs: dict[str, Run]
    batch_size: int
    device: str
    second_pass: dict[str, Run]  # the second pass after each run; {} with one pass, and for collections

    @property
    def by_title(self) -> dict[str, dict[str, Run]]:
        """The runs of each pass by order, under the name of the method in a comparison."""
        title = self.variant.title
        return {title: self.runs, **({title + SECOND_PASS: self.second_pass} if self.second_pass else {})}


def compare(
    stream: FeatureStream,
    variants: Sequence[Variant],
    orders: Sequence[str] = ("stored",),
    batch_size: int = 256,
    device: str = "numpy",
    progress: Advance = lambda samples: None,
    origin: str = "",
    passes: int = 1,
    encoder: Any = None,
) -> list[Outcome]:
    """Run zero-shot and then variants over a stream, all in one pass per order and each from scratch in every order.

    The answers do not depend on `batch_size`, in which each view counts. The device is "numpy" or one of PyTorch, and
    `progress` is called with the number of samples done, for each adapter. `origin` names the stream in the states.
    With two passes, methods that learn online answer each order once more from everything learnt, and those of
    collections answer it once, as a whole. `encoder` is for methods that need its text tower.
    """
    if passes not in (1, 2):
        raise InputError(f"there are one or two passes, not {passes}.")
    head = on_device(stream.head, device)
    every = [Variant("zero-shot"), *variants]
    for variant in every:
        method = find_method(variant.method)
        require(method, views=stream.views > 1, text=encoder is not None, labels=variant.fitted is not None)
        if method.kind == "collection" and passes == 1:
            raise InputError(f"the method {method.name!r} answers a stream as a whole: --passes 2, or passes=2.")
    runs: list[dict[str, Run]] = [{} for _ in every]
    second_runs: list[dict[str, Run]] = [{} for _ in every]
    adapters: list[Adapter] = []
    for order in orders:
        positions = stream_order(stream, order)
        adapters = [variant.adapter(head, origin, encoder) for variant in every]
        online = [each for each in adapters if each.kind != "collection"]
        answered = iter(_run_pass(online, stream, positions, batch_size, progress))
        for known, again, adapter in zip(runs, second_runs, adapters, strict=True):
            whole = adapter.kind == "collection"
            known[order] = _refine(adapter, stream, positions, progress) if whole else next(answered)
            if passes == 2 and adapter.kind == "online":
                again[order] = _refine(adapter, stream, positions, progress)
    return [
        Outcome(variant, adapter, first, batch_size, device, second)
        for variant, adapter, first, second in zip(every, adapters, runs, second_runs, strict=True)
    ]


class Record:
    """The answers of one adapter, gathered block by block, to samples with targets (n,) that are taken in an order."""

    def __init__(self, targets: HostArray | None, order: HostArray) -> None:
        self.order = order
        self.targets = None if targets is None else targets[order]
        self.wall_s = 0.0
        self.done = 0
        self._parts: list[tuple[HostArray, ...]] = []

    def add(self, logits: HostArray) -> None:
        """Score the logits (b, K) of the next b samples."""
        block = slice(self.done, self.done + len(logits))
        probs = softmax_and_entropy(logits)[0]
        errors = np.empty(0) if self.targets is None else squared_errors(probs, self.targets[block])
        self._parts.append((top_classes(logits, 5), probs.max(axis=1), errors))
        self.done = block.stop

    def run(self) -> Run:
        """Return all answers; those to samples of unknown class are left out."""
        top, confidence, errors = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        if self.targets is None:
            return Run(self.order, None, top, confidence, errors, self.wall_s)
        known = self.targets >= 0
        return Run(self.order[known], self.targets[known], top[known], confidence[known], errors[known], self.wall_s)


def _run_pass(
    adapters: Sequence[Adapter], stream: FeatureStream, order: HostArray, batch_size: int, progress: Advance
) -> list[Run]:
    size = max(1, batch_size // stream.views)
    records = [Record(stream.targets, order) for _ in adapters]
    for start in range(0, len(order), size):
        began = perf_counter()
        evidence = adapters[0].head.observe(stream.features[order[start : start + size]])
        shared = perf_counter() - began
        for adapter, record in zip(adapters, records, strict=True):
            began = perf_counter()
            logits = to_host(adapter.adapt(evidence).logits)
            record.wall_s += shared + perf_counter() - began
            record.add(logits)
            progress(len(logits))
    return [record.run() for record in records]


def _refine(adapter: Adapter, stream: FeatureStream, order: HostArray, progress: Advance) -> Run:
    record = Record(stream.targets, order)
    began = perf_counter()
    for block in adapter.second_pass_blocks(stream.features[order]):
        logits = to_host(block)
        record.wall_s += perf_counter() - began
        record.add(logits)
        progress(len(logits))
        began = perf_counter()
    return record.run()


def on_device(head: Head, device: str) -> Head:
    """Return a head on "numpy" or on a device of PyTorch."""
    if device == "numpy":
        return head
    try:
        import torch

        return head.to(torch.asarray(head.class_vectors, device=device))
    except ImportError:
        raise missing(f"device {device!r} needs PyTorch", "torch", "or use numpy") from None
    except (RuntimeError, AssertionError) as error:  # unknown device, or a build without it
        raise InputError(f"cannot use device {device!r}: {str(error).splitlines()[0]}. Use numpy or cpu.") from error
