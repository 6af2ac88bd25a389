"""Encoders: models that turn images and texts into features, loaded by name with `load_encoder`."""

from acclimate.encoders.loading import BUNDLED, Encoder, Precision, as_encoder, load_encoder

__all__ = ["BUNDLED", "Encoder", "Precision", "as_encoder", "load_encoder"]
