"""DMN: a memory that is read anew for every image (Zhang et al., CVPR 2024), without labels (DMN-ZS)."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from typing import ClassVar

import numpy as np

from acclimate.arrays import Array, HostArray, index, log_softmax, move, namespace
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods import Adapter, Cache, Change, MergeRule, Step, register
from acclimate.methods.schedule import Schedule

GATHERED_NUMBERS = 2**20  # numbers that are gathered at once


@register
@dataclass(eq=False, repr=False, kw_only=True)
class DMN(Adapter):
    """Class prototypes that are made for each image from the class's memory.

    The memory keeps the lowest-entropy samples of each predicted class. For an image f, the entries q of class k and
    its class vector weigh `w(q) = exp(-beta (1 - f.q))`, the prototype is `c_k = unit(sum over q of w(q) q)`, and the
    answer is `log(softmax(z) + fusion * softmax(s f C^T))`. A sample enters the memory before it is read.

    Args:
        memory_capacity: entries per class.
        beta: sharpness of the affinity.
        fusion: weight of the memory's answer.

    Note:
        `memory_capacity` and `beta` are those of the authors' code (github.com/YBZh/DMN). It searches `fusion` among 13
        values with the labels of the evaluated data, so the published figures cannot be had without labels. Here it is
        1 for all data, so that text and memory count the same. The authors' samples are means of the confident ones of
        128 views, and their class vectors come from a language model's descriptions.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> adapter = create("dmn", Head(np.eye(3), logit_scale=10.0))
        >>> adapter.step(np.array([[0.9, 0.3, 0.1], [0.2, 0.9, 0.1]])).argmax(axis=1)
        array([0, 1])
        >>> adapter.class_statistics()["memory"]
        array([1, 1, 0])
    """

    name = "dmn"
    summary = "class prototypes made for each image from a memory of confident samples (DMN-ZS)"
    published = "authors' code (YBZh/DMN), but for the weight of the memory, which they search with the labels"
    merges: ClassVar[MergeRule | None] = "union"

    memory_capacity: int = 50
    beta: float = 5.5
    fusion: float = 1.0

    def setup(self) -> None:
        """Declare the memory."""
        if self.memory_capacity < 1 or self.fusion <= 0:
            raise InputError("memory_capacity must be at least 1, and fusion above 0.")
        self.memory = self.declare("memory", Cache(self.head, self.memory_capacity))

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return the logarithm of the sum of both answers, (B, K)."""
        plan = self.memory.plan(np.full(len(ids), learn), evidence.predicted, evidence.host_entropy, ids)
        zero_shot = log_softmax(evidence.logits)
        remembered = log(self.fusion) + log_softmax(self.head.logit_scale * self._cosines(evidence.features, plan))
        self.memory.commit(plan, evidence.features)
        answer = namespace(zero_shot).logaddexp(zero_shot, remembered)
        return Step(answer, {"memory": Change(plan.samples, plan.dropped)})

    def _cosines(self, features: Array, plan: Schedule) -> Array:
        """Return the products (B, K) of features (B, d) with the prototypes that are made for them.

        They follow from the products of the class's entries with f and with each other, so that no prototype is built.
        An entry counts for the samples between its birth and its death.
        """
        xp = namespace(features)
        batch = features.shape[0]
        held = len(self.head) + self.memory.size
        samples = np.array(plan.samples, np.int64)
        now = np.arange(batch)
        keys = xp.concat([self.head.class_vectors, self.memory.keys, features[index(samples, features)]])
        classes = np.concatenate([np.arange(len(self.head)), self.memory.classes, plan.targets[:, 0]])
        births = np.concatenate([np.zeros(held, np.int64), samples])
        deaths = np.concatenate([np.full(held, batch), np.array(plan.deaths, np.int64)])
        deaths[len(self.head) + np.array(list(plan.evicted), np.int64)] = list(plan.evicted.values())
        cosines = xp.empty_like(features @ self.head.class_vectors.T)
        for group, rows in _groups(classes, max(batch, self.head.dim)):
            entries = keys[index(rows, features)]  # (C, n, d)
            near = entries @ features.T  # (C, n, B)
            alive = move((births[rows][:, :, None] <= now) & (now < deaths[rows][:, :, None]), features)
            # Only the ratios of the weights count, and ratios do not vanish where all weights do.
            top = xp.max(alive * (near + 1.0) - 1.0, axis=1, keepdims=True)
            weights = alive * xp.exp(self.beta * (xp.minimum(near, top) - top))
            squares = xp.sum(weights * (entries @ xp.matrix_transpose(entries) @ weights), axis=1)
            cosines[:, index(group, features)] = (xp.sum(weights * near, axis=1) / xp.sqrt(squares)).T
        return cosines


def _groups(classes: HostArray, width: int) -> Iterator[tuple[HostArray, HostArray]]:
    """Yield the classes (C,) with the same number n of entries, and the positions of these entries, (C, n)."""
    counts = np.bincount(classes)
    order = np.argsort(classes, kind="stable")
    starts = np.cumsum(counts) - counts
    for count in np.unique(counts):
        members = np.flatnonzero(counts == count)
        room = max(1, GATHERED_NUMBERS // (int(count) * width))
        for group in np.split(members, range(room, len(members), room)):
            yield group, order[starts[group][:, None] + np.arange(count)]
