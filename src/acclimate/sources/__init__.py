"""Image sources: folders, lists of paths, CoOp splits, WebDataset shards and Hugging Face datasets."""

from acclimate.sources.base import Sample, open_source, order_samples, source_fingerprint
from acclimate.sources.given import each_image, is_one

__all__ = ["Sample", "each_image", "is_one", "open_source", "order_samples", "source_fingerprint"]
