"""Image sources: folders, lists of paths, CoOp splits, WebDataset shards and Hugging Face datasets."""

from acclimate.sources.base import Sample, open_source, order_samples

__all__ = ["Sample", "open_source", "order_samples"]
