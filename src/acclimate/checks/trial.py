"""The trial: a method and a small stream that the laws are checked on."""

from dataclasses import replace
from typing import Any

import numpy as np

from acclimate.checks.synthetic import shifted_stream
from acclimate.methods import Adapter, FewShot
from acclimate.stream import FeatureStream


class Trial:
    """A method with its settings, and a small stream to try it on; with views for methods that need them."""

    def __init__(self, method: type[Adapter], **settings: Any) -> None:
        self.method = method
        self.settings = settings
        stream = self.stream(180)
        self.head = stream.head
        self.features = stream.features
        self.labels = np.asarray(stream.labels)

    def stream(self, samples: int) -> FeatureStream:
        """Return a stream of 6 classes with features (samples, 24) or (samples, 8, 24)."""
        stream = shifted_stream(samples=samples, classes=6, dim=24, seed=3)
        if "views" not in self.method.needs:
            return stream
        noise = np.random.default_rng(4).standard_normal((samples, 8, 24), dtype=np.float32)
        return replace(stream, features=stream.features[:, None] + 0.1 * noise)

    def adapter(self, classes: int = 6, **arguments: Any) -> Adapter:
        """Make an adapter for the first classes of the stream; a few-shot method is fitted to their first samples."""
        head = replace(self.head, class_vectors=self.head.class_vectors[:classes], class_names=())
        adapter = self.method(head, **self.settings, **arguments)
        self.fit(adapter)
        return adapter

    def fit(self, adapter: Adapter) -> None:
        """Fit a few-shot adapter to the first 60 samples of its classes; others learn from the stream alone."""
        if isinstance(adapter, FewShot):
            shots = np.flatnonzero(self.labels[:60] < len(adapter.head))
            adapter.fit(self.features[shots], self.labels[shots])

    def warm(self) -> Adapter:
        """Make an adapter that was shown the first 100 samples."""
        adapter = self.adapter()
        adapter.step(self.features[:100])
        return adapter
