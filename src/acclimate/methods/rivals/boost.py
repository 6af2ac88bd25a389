"""BoostAdapter: TDA whose positive cache has views of the image itself (Zhang et al., NeurIPS 2024)."""

from dataclasses import dataclass
from math import exp
from operator import itemgetter
from typing import ClassVar

import numpy as np

from acclimate.arrays import Array, HostArray, namespace
from acclimate.errors import InputError
from acclimate.evidence import KEPT_VIEWS, Evidence
from acclimate.methods import Step, ViewsKind, register
from acclimate.methods.paper.tda import TDA

Kept = tuple[float, int, Array]  # entropy, id and key of an entry


@register
@dataclass(eq=False, repr=False, kw_only=True)
class Boost(TDA):
    """TDA, with the confident views of an image as entries of the positive cache while this image is answered.

    TDA is given the first view, which is the image itself. The tenth of the views with the lowest entropy, at least
    one, is offered to a copy of the positive cache with room for `extra` more entries per class: a view enters the
    class it predicts, and may push out an entry of higher entropy. Once the image is answered, the copy is thrown away.

    Args:
        extra: entries per class that the copy has room for, beyond `positive_capacity`.
        **settings: those of `TDA`.

    Note:
        The authors' configs (taolinzhang/BoostAdapter, configs/*.yaml) set `extra` (0 to 3), alpha and beta by
        dataset. Here they are the same for all data: 1, and TDA's. The negative cache of their runner.py keeps the last
        samples of a class, first in, first out; here it keeps those of lowest entropy, as in TDA.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> views = np.array([[[0.7, 0.6, 0.0], [0.9, 0.0, 0.1], [0.1, 0.7, 0.7], [0.8, 0.3, 0.1]]])
        >>> create("boost", Head(np.eye(3), logit_scale=10.0)).step(views).argmax(axis=1)
        array([0])
    """

    name = "boost"
    summary = "TDA with confident views of each image beside the positive cache (BoostAdapter)"
    needs = frozenset({"views"})
    views_kind: ClassVar[ViewsKind] = "crop"

    extra: int = 1

    def setup(self) -> None:
        """Declare both caches."""
        if self.extra < 0:
            raise InputError(f"extra must be at least 0, got {self.extra}.")
        super().setup()

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return TDA's logits plus the changes by the views, (B, K)."""
        unit: Array = evidence.views  # `adapt` refuses evidence without views
        each = self.head.observe_unit(namespace(unit).reshape(unit, (-1, self.head.dim)))
        votes = self._votes(unit, each, ids, learn) if self.positive else []
        bypassing = self._bypassing(len(ids), learn)
        step = super().respond(each[:: unit.shape[1]], ids, learn)
        for i, label, vote in votes:
            if i >= bypassing:
                step.logits[i, label] += vote
        return step

    def _votes(self, unit: Array, each: Evidence, ids: HostArray, learn: bool) -> list[tuple[int, int, float]]:
        """Return the changes by the views as (sample, class, vote): the read-out of the copy less that of the cache."""
        samples, views, _ = unit.shape
        entropies = np.reshape(each.host_entropy, (samples, views))
        classes = np.reshape(each.predicted, (samples, views))
        confident = np.argsort(entropies, axis=1, kind="stable")[:, : max(1, int(KEPT_VIEWS * views))]
        queues: dict[int, list[Kept]] = {}  # the entries by class, at the time a sample reads them
        votes = []
        for i in range(samples):
            ranks = entropies[i].tolist()
            labels = classes[i].tolist()
            predicted = labels[0]
            for label in {labels[view] for view in [0, *confident[i]]} - queues.keys():
                queues[label] = [
                    (entry.rank, entry.id, self.positive_cache.keys[entry.slot])
                    for entry in self.positive_cache.queues.get(label, [])
                ]
            before = queues[predicted]
            own = (ranks[0], int(ids[i]), unit[i, 0])
            after = sorted([*before, own], key=itemgetter(0, 1))[: self.positive_capacity] if learn else before
            queues[predicted] = after if self.self_match else before
            for label in {labels[view] for view in confident[i]}:
                held = queues[label]
                boosting = [(ranks[view], -1, unit[i, view]) for view in confident[i] if labels[view] == label]
                copy = sorted([*held, *boosting], key=itemgetter(0))[: self.positive_capacity + self.extra]
                votes.append((i, label, self._read(unit[i, 0], copy) - self._read(unit[i, 0], held)))
            queues[predicted] = after
        return votes

    def _read(self, feature: Array, entries: list[Kept]) -> float:
        weights = (exp(self.positive_beta * (float(feature @ key) - 1.0)) for _, _, key in entries)
        return self.positive_alpha * sum(weights)
