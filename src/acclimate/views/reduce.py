"""View reducers by name: from V views of each sample to one piece of evidence.

Every reducer takes unit features (B, V, d), unit class vectors (K, d), the logit scale and the logit bias, and gives
Evidence for B samples that any adapter can `adapt`. All of them hold B * V * K logits, so cut long streams into blocks.
"""

from collections.abc import Callable

from acclimate.arrays import Array, device, entropy_of, namespace, softmax_and_entropy, unit_rows
from acclimate.evidence import Evidence, observe_unit, observe_unit_views

Reducer = Callable[[Array, Array, float, float], Evidence]

VOTERS = 0.3  # share of the views that vote
NEIGHBOURS = 0.3  # share of the views that set a view's bandwidth
SHARPNESS, AGREEMENT, ROUNDS = 0.2, 4.0, 5  # lambda_y, lambda_q and the limit on iterations of mean shift
ROUNDING = 1e-6  # squared distances below this are rounding


def confident_mean(features: Array, class_vectors: Array, logit_scale: float, logit_bias: float = 0.0) -> Evidence:
    """The paper's: the mean over the tenth of the views with the lowest entropy (see `observe_views`)."""
    return observe_unit_views(features, class_vectors, logit_scale, logit_bias)


def vote(features: Array, class_vectors: Array, logit_scale: float, logit_bias: float = 0.0) -> Evidence:
    """ZERO (Farina et al., NeurIPS 2024): the 30 % most confident views vote, each for its best class.

    A tie is decided by the next most confident view that is for one of the tied classes; where there is none, by the
    most confident voter.

    Returns:
        Features and logits are means over the winner's voters, so the winner has the highest logit, on the model's own
        scale. `probs` are the shares of the votes, with one more for the winner of a tie.
    """
    xp = namespace(features)
    samples, views = features.shape[:2]
    each = _each_view(features, class_vectors, logit_scale, logit_bias)
    order = xp.argsort(xp.reshape(each.entropy, (samples, views)), axis=-1, stable=True)
    flat = order + views * xp.arange(samples, device=device(features))[:, None]
    best, voters = xp.argmax(each.logits, axis=-1)[flat], max(1, int(VOTERS * views))
    votes, classes = best[:, :voters], xp.arange(class_vectors.shape[0], device=device(features))
    counts = xp.sum(xp.astype(votes[:, :, None] == classes, features.dtype), axis=1)
    leads = counts == xp.max(counts, axis=-1, keepdims=True)

    # Where one class leads alone, its first follower in this walk is for the winner as well.
    walk = xp.concat([best[:, voters:], votes], axis=1)
    rows = xp.arange(samples, device=device(features))
    decides = xp.argmax(xp.astype(leads[rows[:, None], walk], xp.int64), axis=1)
    winner = walk[rows, decides][:, None]
    tie = xp.sum(xp.astype(leads, xp.int64), axis=-1, keepdims=True) > 1
    counts = counts + xp.astype(tie & (classes == winner), features.dtype)
    probs = counts / xp.sum(counts, axis=-1, keepdims=True)

    share = xp.astype(votes == winner, features.dtype)
    share = (share / xp.sum(share, axis=-1, keepdims=True))[:, :, None]
    kept = flat[:, :voters]
    mean_feature = xp.sum(share * each.features[kept], axis=1)
    return Evidence(mean_feature, xp.sum(share * each.logits[kept], axis=1), probs, entropy_of(probs))


def mean_shift(features: Array, class_vectors: Array, logit_scale: float, logit_bias: float = 0.0) -> Evidence:
    """MTA (Zanella and Ben Ayed, CVPR 2024): the mode of the views' density, with outliers weighed down.

    Each view i has a Gaussian kernel k_i, whose squared bandwidth is half the mean squared distance to the nearest 30 %
    of the others, and an inlier score y_i. In turns, with m starting at the first view (the image itself):

        y = softmax((k(m) + 4 A y) / 0.2), A = P P^T the agreement of the views' zero-shot answers P;
        m = sum_i y_i k_i(m) f_i, scaled to unit length.

    Returns:
        The evidence of m.

    Note:
        Five turns of five steps of either kind, the published method's limits. It may stop earlier where nothing moves
        any more; here the count is fixed, so that an answer cannot depend on the rest of its batch.
    """
    xp = namespace(features)
    samples, views = features.shape[:2]
    each = _each_view(features, class_vectors, logit_scale, logit_bias)
    probs = xp.reshape(each.probs, (samples, views, -1))
    agreement = probs @ xp.matrix_transpose(probs)
    # Distances of unit vectors from their products; the nearest of a view is itself, which is left out.
    squares = xp.sort(2.0 - 2.0 * features @ xp.matrix_transpose(features), axis=-1)
    nearest = squares[:, :, 1 : 1 + max(1, int(NEIGHBOURS * (views - 1)))] if views > 1 else squares
    spread = xp.clip(xp.mean(nearest, axis=-1), min=ROUNDING)  # twice the squared bandwidth

    def log_kernels(mode: Array) -> Array:
        return -xp.clip(2.0 - 2.0 * xp.sum(features * mode[:, None], axis=-1), min=0.0) / spread

    mode, inliers = features[:, 0], xp.full_like(spread, 1.0 / views)
    for _ in range(ROUNDS):
        kernels = xp.exp(log_kernels(mode))
        for _ in range(ROUNDS):
            scores = (kernels + AGREEMENT * (agreement @ inliers[:, :, None])[:, :, 0]) / SHARPNESS
            inliers, _ = softmax_and_entropy(scores)
        for _ in range(ROUNDS):
            # Only the kernels' ratios count, and ratios do not vanish where all kernels do.
            logs = log_kernels(mode)
            pull = inliers * xp.exp(logs - xp.max(logs, axis=-1, keepdims=True))
            mode = unit_rows(xp.sum(pull[:, :, None] * features, axis=1), "views")
    return observe_unit(mode, class_vectors, logit_scale, logit_bias)


def _each_view(features: Array, class_vectors: Array, logit_scale: float, logit_bias: float) -> Evidence:
    """Evidence of B * V views on their own."""
    xp = namespace(features)
    return observe_unit(xp.reshape(features, (-1, features.shape[2])), class_vectors, logit_scale, logit_bias)


REDUCERS: dict[str, Reducer] = {"confident-mean": confident_mean, "vote": vote, "mean-shift": mean_shift}
