"""Encoders: images and texts to features. Found by name with `load_encoder`; a folder or a package a file."""

from acclimate.encoders.base import BUNDLED, Encoder, load_encoder

__all__ = ["BUNDLED", "Encoder", "load_encoder"]
