"""Views: augmented versions of one image, made with AugMix as in the paper."""

VERSION = 1  # increases whenever the same seed gives different views
