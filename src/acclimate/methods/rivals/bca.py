"""BCA: class vectors and their priors, adapted by Bayes' rule (Zhou et al., CVPR 2025)."""

from dataclasses import dataclass

from acclimate.arrays import Array, HostArray, namespace, softmax_and_entropy
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods import CLASSES, DIM, Adapter, Step, Tensors, register

LARGEST_WEIGHT = 60_000.0  # the largest number in half precision is 65,504


@register
@dataclass(eq=False, repr=False, kw_only=True)
class BCA(Adapter):
    """Prototypes M that start at the class vectors, and a matrix R of what each of them means that starts at identity.

    The likelihoods are `u = softmax(s f M^T)`, the posterior is `p = u R`, and its logarithm is the answer. Then, for
    the answered class k, which has moved M_k i times and R_k j times before,

        M_k <- unit((a M_k + f) / (a + 1)) with a = prototype_weight + i, if p_k > prototype_threshold,
        R_k <- (b R_k + p) / (b + 1)       with b = prior_weight + j,     if p_k > prior_threshold.

    M is kept in half precision, as CLIP is on a GPU: each step of an update is rounded, and most of f is lost beside
    a M_k. Which class a sample moves depends on all samples before it, so states cannot be merged.

    Args:
        prototype_weight: samples that a class vector counts for.
        prototype_threshold: probability above which a sample moves its prototype.
        prior_weight: samples that a row of the identity counts for.
        prior_threshold: probability above which a sample moves the row of its prototype.

    Note:
        The authors' code is buerzlh/Bayesian-Test-Time-Adaptation-for-Vision-Language-Models, which could not be read
        here. The settings are those that the benchmark TTABC (configs/algorithms.py) takes from it, one set for all
        data. The authors average the tenth of 64 views with the lowest entropy; here there is one view. In exact
        arithmetic the prototypes of frequent classes drift towards the mean of all images and win more and more
        samples, which costs 26 points on EuroSAT with CLIP ViT-B/16 (`benchmarks/rivals.py` has both). R has K x K
        numbers. A weight above 60,000 counts as 60,000, which half precision can hold.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> adapter = create("bca", Head(np.eye(3), logit_scale=10.0))
        >>> adapter.step(np.array([[0.9, 0.4, 0.1], [0.2, 0.9, 0.1]])).argmax(axis=1)
        array([0, 1])
        >>> adapter.class_statistics()["samples"]
        array([1., 1., 0.])
    """

    name = "bca"
    summary = "running class vectors and running priors of what each of them means (BCA)"
    published = "as TTABC (configs/algorithms.py) takes them from the authors' code, the same for all data"

    prototype_weight: float = 20_000.0
    prototype_threshold: float = 0.05
    prior_weight: float = 1.0
    prior_threshold: float = 0.65

    def setup(self) -> None:
        """Declare the displacements of prototypes and priors from their start, and the numbers of updates."""
        if self.prototype_weight <= 0 or self.prior_weight <= 0:
            raise InputError("prototype_weight and prior_weight must be above 0.")
        self.tensors = self.declare(
            "tensors",
            Tensors(self.head, moved=(CLASSES, DIM), moves=(CLASSES,), priors=(CLASSES, CLASSES), updates=(CLASSES,)),
        )

    def recompute(self) -> None:
        """Compute the prototypes (K, d)."""
        self.prototypes = _halved(self.head.class_vectors + self.tensors["moved"])

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return the logarithms of the posteriors, (B, K)."""
        features = evidence.features
        xp = namespace(features)
        posteriors = []
        for i in range(len(ids) if learn else 0):
            posteriors.append(self._posterior(features[i : i + 1]))
            self._learn(features[i], posteriors[-1][0])
        posterior = xp.concat(posteriors) if learn else self._posterior(features)
        return Step(xp.log(xp.clip(posterior, min=float(xp.finfo(posterior.dtype).smallest_normal))))

    def _posterior(self, features: Array) -> Array:
        likelihoods, _ = softmax_and_entropy((self.head.logit_scale * features) @ self.prototypes.T)
        return likelihoods + likelihoods @ self.tensors["priors"]

    def _learn(self, feature: Array, posterior: Array) -> None:
        state = self.tensors
        k = int(namespace(posterior).argmax(posterior))
        confidence = float(posterior[k])
        if confidence > self.prototype_threshold:
            weight = min(self.prototype_weight + float(state["moves"][k]), LARGEST_WEIGHT)
            total = _halved(_halved(weight * self.prototypes[k]) + _halved(feature))
            mean = _halved(total / (weight + 1.0))
            self.prototypes[k] = _halved(mean / _halved(namespace(mean).linalg.vector_norm(mean)))
            state["moved"][k] = self.prototypes[k] - self.head.class_vectors[k]
            state["moves"][k] += 1.0
        if confidence > self.prior_threshold:
            weight = self.prior_weight + float(state["updates"][k])
            row = weight * state["priors"][k] + posterior
            row[k] -= 1.0  # the identity is left out of the state
            state["priors"][k] = row / (weight + 1.0)
            state["updates"][k] += 1.0

    def class_statistics(self) -> dict[str, HostArray]:
        """Return the samples that moved each prototype, and the prior that it still means its class."""
        dump = self.tensors.dump()
        return {"samples": dump["moves"], "prior": 1.0 + dump["priors"].diagonal()}


def _halved(x: Array) -> Array:
    """Round numbers to half precision; the dtype stays."""
    xp = namespace(x)
    return xp.astype(xp.astype(x, xp.float16), x.dtype)
