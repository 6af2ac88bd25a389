"""Evidence: what a zero-shot classifier says of a batch. The seam between encoders and adapters."""

from dataclasses import dataclass

from acclimate.arrays import Array, as_floats, device, entropy_of, move, namespace, softmax_and_entropy, unit_rows
from acclimate.errors import InputError


@dataclass(frozen=True)
class Evidence:
    """Zero-shot answers for B samples; all arrays share namespace, device and dtype.

    Attributes:
        features: (B, d) image features; unit length for one view, the mean of unit vectors for many.
        logits: (B, K) `s f W^T + bias`.
        probs: (B, K) the softmax of the logits; for many views the mean of the kept views' softmaxes.
        entropy: (B,) entropy of `probs` in nats.
    """

    features: Array
    logits: Array
    probs: Array
    entropy: Array


def observe(features: Array, class_vectors: Array, logit_scale: float, logit_bias: float = 0.0) -> Evidence:
    """Zero-shot evidence for one view a sample.

    Args:
        features: (B, d), any length; scaled to unit rows here.
        class_vectors: (K, d) unit rows.
        logit_scale: the model's own, for instance 100 for OpenAI's CLIP.
        logit_bias: the model's own; 0 for models without one.
    """
    features = _floats_like(features, class_vectors)
    return observe_unit(unit_rows(features, "features"), class_vectors, logit_scale, logit_bias)


def observe_unit(features: Array, class_vectors: Array, logit_scale: float, logit_bias: float = 0.0) -> Evidence:
    """`observe` for features (B, d) that are already unit rows of the class vectors' kind."""
    logits = (logit_scale * features) @ class_vectors.T
    if logit_bias:
        logits += logit_bias
    return Evidence(features, logits, *softmax_and_entropy(logits))


def observe_views(
    features: Array, class_vectors: Array, logit_scale: float, logit_bias: float = 0.0, keep: float = 0.1
) -> Evidence:
    """Evidence for V views a sample: the mean of the most confident ones (the paper's section 4.1).

    Args:
        features: (B, V, d), any length; scaled to unit rows here.
        class_vectors: (K, d) unit rows.
        logit_scale: the model's own.
        logit_bias: the model's own.
        keep: share of the views to keep, those of lowest entropy: int(keep * V), at least one.

    Note:
        The mean feature is not scaled to unit length again, as in the authors' published results.
    """
    features = _floats_like(features, class_vectors)
    if features.ndim != 3:
        raise InputError(f"views must be (samples, views, dim), got shape {tuple(features.shape)}.")
    features = unit_rows(features, "views")
    return observe_unit_views(features, class_vectors, logit_scale, logit_bias, keep)


def observe_unit_views(
    features: Array, class_vectors: Array, logit_scale: float, logit_bias: float = 0.0, keep: float = 0.1
) -> Evidence:
    """`observe_views` for features (B, V, d) that are already unit rows of the class vectors' kind."""
    xp = namespace(features)
    samples, views, dim = features.shape
    each = observe_unit(xp.reshape(features, (samples * views, dim)), class_vectors, logit_scale, logit_bias)
    kept = xp.argsort(xp.reshape(each.entropy, (samples, views)), axis=-1, stable=True)
    kept = kept[:, : max(1, int(keep * views))]
    flat = xp.reshape(kept + views * xp.arange(samples, device=device(features))[:, None], (-1,))

    def mean_of_kept(values: Array) -> Array:
        return xp.mean(xp.reshape(values[flat], (samples, kept.shape[1], -1)), axis=1)

    probs = mean_of_kept(each.probs)
    return Evidence(mean_of_kept(each.features), mean_of_kept(each.logits), probs, entropy_of(probs))


def _floats_like(features: Array, class_vectors: Array) -> Array:
    return move(as_floats(features, "features"), class_vectors)
