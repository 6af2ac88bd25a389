"""Views: augmented versions of one image, made with AugMix as in the paper."""

from acclimate.views.reduce import REDUCERS

__all__ = ["REDUCERS", "VERSION"]

VERSION = 1  # increases whenever the same seed gives different views
