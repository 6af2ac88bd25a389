"""TransCLIP, zero-shot form: a Gaussian mixture of a set, held to the text (Zanella et al., NeurIPS 2024)."""

from dataclasses import dataclass

from acclimate.arrays import Array, namespace
from acclimate.errors import InputError
from acclimate.methods import register
from acclimate.methods.rivals.collection import SMALLEST_VARIANCE, Collection, add_gaussians, assign, largest, nearest


@register
@dataclass(eq=False, repr=False, kw_only=True)
class TransCLIP(Collection):
    """One Gaussian per class, with a diagonal covariance that all share; labels follow text, Gaussians and neighbours.

    The labels of a set, q (n, K), are `softmax(text_weight log p + log N / tau + sum_j w_ij q_j)`, where N are the
    densities of the classes and j the nearest other samples, with cosines w_ij. Means, scaled to unit length, and
    variances are those of the samples by their labels. Both are computed in turn. Means begin as those of the samples
    that zero-shot is surest of in each class, and variances as 1 / d.

    Args:
        text_weight: weight of zero-shot's log-probabilities, the paper's lambda.
        neighbours: nearest samples whose labels count.
        confident: samples of each class that its mean begins with.
        tau: divisor of the logarithms of the Gaussians.
        iterations: how often means and variances are computed.
        label_iterations: how often labels are computed before each of them.

    Note:
        text_weight, neighbours and confident are published, and the same for all data. Two choices are our reading:
        tau, and that only the neighbours of a sample count, not the samples whose neighbour it is. With the mean of the
        neighbours' labels in place of the paper's sum, gains on the development streams are lower.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> adapter = create("transclip", Head(np.eye(3), logit_scale=10.0))
        >>> features = np.tile([[0.9, 0.3, 0.1], [0.2, 0.9, 0.1]], (100, 1))
        >>> adapter.second_pass(features).argmax(axis=1)[:4]
        array([0, 1, 0, 1])
    """

    name = "transclip"
    summary = "Gaussian mixture of a set, whose labels are held to the text and to their neighbours' (TransCLIP-ZS)"
    published = "paper, the same for all data; what is our reading is in the guide"

    text_weight: float = 1.0
    neighbours: int = 3
    confident: int = 8
    tau: float = 50.0
    iterations: int = 10
    label_iterations: int = 5

    def setup(self) -> None:
        """Check the settings."""
        if min(self.confident, self.iterations, self.label_iterations) < 1 or self.neighbours < 0 or self.tau <= 0:
            raise InputError(
                "confident, iterations and label_iterations must be at least 1, neighbours at least 0, and tau above 0."
            )

    def answer_set(self, features: Array, log_probs: Array) -> Array:
        """Return the logarithms of the labels, up to a constant per sample."""
        xp = namespace(features)
        positions, cosines = nearest(features, self.neighbours)
        labels = xp.exp(log_probs)
        surest, _ = largest(xp.asarray(labels.T, copy=True), min(self.confident, features.shape[0]))
        sums = sum(features[surest[:, place]] for place in range(surest.shape[1]))
        means = sums / xp.linalg.vector_norm(sums, axis=-1, keepdims=True)
        variances = xp.full_like(features[0, :], 1.0 / self.head.dim)
        squares = xp.sum(features * features, axis=0)
        prior = self.text_weight * log_probs
        for _ in range(self.iterations):
            unary = add_gaussians(prior, features, means, xp.broadcast_to(variances, means.shape), self.tau)
            logits, labels = assign(unary, labels, positions, cosines, self.label_iterations)
            counts = xp.sum(labels, axis=0)[:, None]
            sums = labels.T @ features
            lengths = xp.linalg.vector_norm(sums, axis=-1, keepdims=True)
            # A class that no sample has even a trace of keeps its mean.
            means = xp.where(lengths > 0.0, sums / xp.where(lengths > 0.0, lengths, 1.0), means)
            scatter = squares + xp.sum((counts * means - 2.0 * sums) * means, axis=0)
            variances = xp.clip(scatter / features.shape[0], min=SMALLEST_VARIANCE)
        return logits
