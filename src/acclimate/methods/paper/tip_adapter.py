"""Tip-Adapter: a cache of labelled samples, without training (Zhang et al., ECCV 2022)."""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np

from acclimate.arrays import Array, HostArray, device, index, move, namespace, to_host, unit_rows
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods import (
    Cache,
    Change,
    FewShot,
    Labelled,
    Progress,
    Step,
    Tensors,
    block_size,
    observed,
    register,
)
from acclimate.methods.adapter import ViewsKind
from acclimate.methods.jagged import add_by_class
from acclimate.methods.schedule import Schedule

SMALLEST = 0.1  # alpha and beta where the search begins
BETAS = 200  # values of beta that the search tries
ALPHAS = 20  # values of alpha that the search tries


@register
@dataclass(eq=False, repr=False, kw_only=True)
class TipAdapter(FewShot):
    """Labelled samples vote for their classes (Zhang et al., 2022, section 3.1), with TDA's positive read-out.

    The answer is `z + alpha * sum over shots q of class c of exp(-beta (1 - f.q))`. The key q of a shot is the mean of
    the unit features of its augmented versions, scaled to unit length. If `fit` is given validation samples, alpha and
    beta are those of a grid of 200 x 20 values with the highest mean accuracy over the classes; else they are those of
    the settings. `chosen` tells.

    Where classes have different numbers of shots, the votes for a class are multiplied by the median number over its
    own, so that no class wins by the number of its shots. Where all have the same number, this is the published sum.
    `fit` needs at least one shot of every class. A class that is added later has none: its answer is its zero-shot
    logit.

    Args:
        alpha: weight of the votes, if it is not searched.
        beta: sharpness of the affinity, if it is not searched.
        largest_alpha: the end of the grid for alpha, which begins at 0.1; itself not tried.
        largest_beta: the end of the grid for beta, which begins at 0.1; itself not tried.

    Note:
        The defaults are the authors' for ImageNet (and Oxford Pets). Their settings for other datasets have wider grids
        (EuroSAT: 10 and 12). Their code for ImageNet searches on the test set; here a search sees validation samples
        only, and all classes count the same in it, however many samples they have. Of equally good pairs they take the
        first, which has the smallest weight; here it is the one nearest to the settings, as a few validation samples
        that zero-shot answers right say nothing against the shots. The authors average features before they scale them,
        here each version counts the same.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, TipAdapter
        >>> adapter = TipAdapter(Head(np.eye(3), logit_scale=1.0), alpha=2.0)
        >>> adapter.fit(np.array([[0.5, 0.0, 0.6], [0.0, 1.0, 0.0], [0.1, 0.0, 1.0]]), labels=[0, 1, 2])
        >>> adapter.step(np.array([[0.5, 0.1, 0.6]])).argmax(axis=1)  # zero-shot says 2
        array([0])
        >>> adapter.class_statistics()["shots"]
        array([1, 1, 1])
    """

    name = "tip-adapter"
    summary = "a cache of labelled samples that vote for their classes (Tip-Adapter)"
    views_kind: ClassVar[ViewsKind] = "large-crop"

    alpha: float = 1.17
    beta: float = 1.0
    largest_alpha: float = 3.0
    largest_beta: float = 7.0

    def setup(self) -> None:
        """Declare the cache of shots, and the alpha and beta that count."""
        if min(self.alpha, self.beta) < 0 or min(self.largest_alpha, self.largest_beta) <= SMALLEST:
            raise InputError(
                "alpha and beta must not be negative, largest_alpha and largest_beta must be above "
                f"{SMALLEST}, where the search begins."
            )
        self.shots = self.declare("shots", Cache(self.head, None))
        self.weights = self.declare("weights", Tensors(self.head, dtype="float64", alpha_beta=(2,)))

    def recompute(self) -> None:
        """Compute the weights (K, 1) of the votes for each class."""
        self.vote_weights = move(vote_weights(self.shots.classes, len(self.head))[:, None], self.head.class_vectors)

    def chosen(self) -> dict[str, float]:
        """Return the alpha and beta that count."""
        alpha, beta = to_host(self.weights["alpha_beta"]).tolist()
        return {"alpha": alpha, "beta": beta}

    def fit_steps(self, samples: int, held_out: int = 0) -> int:
        """Return the number of blocks of validation samples that the search takes, plus one."""
        return 1 + ceil(held_out / block_size(self.head, self.head.class_vectors))

    def learn(self, shots: Labelled, validation: Labelled | None, progress: Progress) -> None:
        """Fill the cache, and choose alpha and beta by the validation samples."""
        keys, labels = shots
        if keys.ndim == 3:
            keys = unit_rows(namespace(keys).mean(keys, axis=1), "means of the versions of a sample")
        entropies = np.concatenate([evidence.host_entropy for _, evidence in observed(self.head, keys)])
        plan = self.shots.plan(np.full(len(labels), True), labels, entropies, np.arange(len(labels)))
        self.shots.commit(plan, self.trained(keys, shots, progress))
        self.recompute()
        found = (self.alpha, self.beta) if validation is None else self._search(validation, progress)
        self.weights["alpha_beta"][...] = move(np.array(found), self.weights["alpha_beta"])
        progress(1)

    def trained(self, keys: Array, shots: Labelled, progress: Progress) -> Array:
        """Return the keys (n, d) that the cache holds of shots with these keys."""
        return keys

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return zero-shot logits plus the votes of the shots."""
        logits = evidence.logits
        votes = namespace(logits).zeros(logits.shape[::-1], dtype=logits.dtype, device=device(logits))
        alpha, beta = self.chosen().values()
        self.shots.vote(votes, evidence.features, Schedule(), alpha=alpha, beta=beta)
        votes *= self.vote_weights
        votes += logits.T
        return Step(votes.T, {"shots": Change([], [])})

    def _search(self, validation: Labelled, progress: Progress) -> tuple[float, float]:
        """Return the pair with the highest mean accuracy over classes; of equal ones, the nearest to the settings."""
        features, labels = validation
        betas = (SMALLEST + np.arange(BETAS) * (self.largest_beta - SMALLEST) / BETAS).tolist()
        alphas = (SMALLEST + np.arange(ALPHAS) * (self.largest_alpha - SMALLEST) / ALPHAS).tolist()
        right = np.zeros((BETAS, ALPHAS))
        shares = 1.0 / np.bincount(labels)[labels]
        for start, evidence in observed(self.head, features):
            logits = evidence.logits
            xp = namespace(evidence.logits)
            block = slice(start, start + len(evidence))
            truth = index(labels[block], logits)
            share = move(shares[block], logits)
            rows = index(np.arange(len(evidence)), logits)
            ahead = logits - logits[rows, truth][:, None]  # (n, K), how far a class is above the true one
            cosines = self.shots.keys @ evidence.features.T
            weights = xp.exp(betas[0] * cosines - betas[0])
            more = betas[1] - betas[0]
            step = xp.exp(more * cosines - more)  # factor from one beta to the next
            for row in range(BETAS):
                votes = xp.zeros(logits.shape[::-1], dtype=logits.dtype, device=device(logits))
                add_by_class(votes, weights, self.shots.layout)
                votes *= self.vote_weights
                # A class is level with the true one at one alpha; these bound the alphas at which the true one wins.
                gap = votes[truth, rows][:, None] - votes.T
                with np.errstate(divide="ignore", invalid="ignore"):
                    level = ahead / gap
                lowest = xp.max(xp.where(gap > 0, level, -xp.inf), axis=1)
                highest = xp.min(xp.where(gap < 0, level, xp.inf), axis=1)
                possible = xp.all((gap != 0) | (ahead <= 0), axis=1)
                won = [possible & (lowest <= alpha) & (alpha <= highest) for alpha in alphas]
                right[row] += to_host(xp.stack([xp.sum(share * each) for each in won]))
                weights *= step
            progress(1)
        # Scores that differ by less than 1e-4 are equal.
        pairs = [(alphas[column], betas[row]) for row, column in np.argwhere(right.max() - right < 1e-4)]
        return min(pairs, key=lambda pair: abs(pair[0] - self.alpha) + abs(pair[1] - self.beta))


def vote_weights(classes: HostArray, count: int) -> HostArray:
    """Return the weights (K,) of the votes for `count` classes, given the classes (E,) of the shots.

    The weight is the median number of shots, over classes that have any, divided by the number that the class has.

    Examples:
        >>> vote_weights(np.array([0, 1, 1, 2, 2, 2, 2]), 4).tolist()
        [2.0, 1.0, 0.5, 2.0]
    """
    shots = np.bincount(classes, minlength=count)
    typical = np.median(shots[shots > 0]) if len(classes) else 1.0
    return np.asarray(typical / np.maximum(shots, 1))
