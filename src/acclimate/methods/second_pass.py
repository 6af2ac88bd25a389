"""The second pass: a stream that has an end, answered once more."""

from acclimate.arrays import Array, as_floats, is_array_api_obj, move, namespace
from acclimate.methods.adapter import Adapter


def refine(adapter: Adapter, features: Array) -> Array:
    """Answer a whole stream once more from everything that the adapter has learnt from it: the second pass.

    The first samples of a stream are answered by an adapter that has seen little. Where a stream has an end, they can
    be answered again, and their order matters far less. The adapter does not change.

    Args:
        adapter: that has been shown the stream.
        features: (n, d), or (n, V, d) for V views per sample, of the whole stream.

    Returns:
        (n, K) logits in the caller's array library, device and dtype.

    Examples:
        >>> import numpy as np
        >>> from acclimate import TDA, Head, refine
        >>> adapter = TDA(Head(np.eye(3), logit_scale=10.0))
        >>> features = np.tile(np.eye(3), (5, 1))
        >>> online = adapter.step(features)
        >>> bool((refine(adapter, features)[0] > online[0]).any())
        True
    """
    answers = list(adapter.refined(adapter.head.unit_features(features)))
    logits = namespace(answers[0]).concat(answers)
    return move(logits, features if is_array_api_obj(features) else as_floats(features, "features"))
