"""Views: versions of one image. Crops of it, with or without AugMix, and images that a diffusion model made of it."""

from typing import Literal

VERSION = 1  # increases whenever the same seed gives different views
# "augmix": crops and flips with AugMix; "crop": crops and flips alone; "large-crop": of at least half of the image;
# "diffusion": crops and flips, and generated images
Kind = Literal["augmix", "crop", "large-crop", "diffusion"]
KINDS: tuple[Kind, ...] = ("augmix", "crop", "large-crop", "diffusion")
