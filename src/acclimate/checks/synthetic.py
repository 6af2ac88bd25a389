"""A small stream that anyone can make: clusters whose appearance changes after a third of the samples."""

import numpy as np

from acclimate.arrays import HostArray
from acclimate.evidence import Head
from acclimate.stream import FeatureStream


def shifted_stream(samples: int = 3000, classes: int = 20, dim: int = 64, seed: int = 0) -> FeatureStream:
    """Generate a labelled stream whose samples shift after a third; the same seed gives the same stream.

    Each class has a true direction. Its class vector is a noisy copy of it (text describes images imperfectly), its
    samples scatter around it, and after a third of the stream they scatter around another place, of which the class
    vectors know nothing.
    """
    rng = np.random.default_rng(seed)

    def noise(*shape: int) -> HostArray:
        return np.asarray(rng.standard_normal((*shape, dim)) / np.sqrt(dim))

    def unit(rows: HostArray) -> HostArray:
        return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True), np.float32)

    centres = unit(noise(classes))
    vectors = unit(centres + 2.0 * noise(classes))
    labels = rng.integers(0, classes, samples)
    shifted = np.arange(samples) >= samples // 3
    displacement = noise(classes) + 0.5 * noise()
    features = unit(centres[labels] + shifted[:, None] * displacement[labels] + 0.6 * noise(samples))
    head = Head(vectors, logit_scale=10.0, class_names=tuple(f"class {i}" for i in range(classes)))
    encoder = f"synthetic clusters, seed {seed}, shifted from sample {samples // 3} on"
    return FeatureStream(features, head, labels, encoder=encoder)
