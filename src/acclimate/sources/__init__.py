"""Image sources: folders, videos, lists of paths, CoOp splits, WebDataset shards and Hugging Face datasets."""

from acclimate.sources.source import Sample, Samples, each_image, is_one, open_source, order_samples

__all__ = ["Sample", "Samples", "each_image", "is_one", "open_source", "order_samples"]
