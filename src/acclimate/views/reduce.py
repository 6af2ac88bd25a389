"""View reducers by name: from V views of each sample to one piece of evidence.

Every reducer takes unit features (B, V, d), class vectors (K, d), the logit scale and the logit bias, and gives Evidence for
B samples that any adapter can `adapt`. All of them look at B * V * K logits at once, so cut long streams into blocks.
"""

from collections.abc import Callable

from acclimate.arrays import Array, device, entropy_of, namespace
from acclimate.evidence import Evidence, observe_unit, observe_unit_views

Reducer = Callable[[Array, Array, float, float], Evidence]


def confident_mean(features: Array, class_vectors: Array, logit_scale: float, logit_bias: float = 0.0) -> Evidence:
    """The paper's: the mean over the tenth of the views with the lowest entropy (see `observe_views`)."""
    return observe_unit_views(features, class_vectors, logit_scale, logit_bias)


def vote(
    features: Array, class_vectors: Array, logit_scale: float, logit_bias: float = 0.0, keep: float = 0.3
) -> Evidence:
    """ZERO (Farina et al., NeurIPS 2024): the most confident views vote, each for its best class.

    A tie is decided by the next most confident view that votes for one of the tied classes.

    Args:
        features: (B, V, d) unit rows.
        class_vectors: (K, d) unit rows.
        logit_scale: the model's own.
        logit_bias: the model's own.
        keep: share of the views that vote, those of lowest entropy.

    Returns:
        Features and logits are means over the views that voted for the winner, so that the winner has the highest logit on the
        model's own scale; `probs` are the shares of the votes, with the vote that decided a tie counted.
    """
    raise NotImplementedError


def mean_shift(features: Array, class_vectors: Array, logit_scale: float, logit_bias: float = 0.0) -> Evidence:
    """MTA (Zanella and Ben Ayed, CVPR 2024): the mode of the views' density, outliers weighed down; the first is the image."""
    raise NotImplementedError


REDUCERS: dict[str, Reducer] = {"confident-mean": confident_mean, "vote": vote, "mean-shift": mean_shift}
