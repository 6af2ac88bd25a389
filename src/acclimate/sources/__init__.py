"""Where samples come from."""

from acclimate.sources.base import Sample, open_source, order_samples, source_fingerprint

__all__ = ["Sample", "open_source", "order_samples", "source_fingerprint"]
