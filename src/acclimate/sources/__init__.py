"""Image sources: folders, videos, lists of paths, CoOp splits, WebDataset shards and Hugging Face datasets."""

from acclimate.sources.base import Sample, Samples, open_source, order_samples

__all__ = ["Sample", "Samples", "open_source", "order_samples"]
