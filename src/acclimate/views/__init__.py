"""Views: versions of one image. Crops of it, with or without AugMix, and images that a diffusion model made of it."""

from typing import Literal

VERSION = 1  # increases whenever the same seed gives different views
# "augmix": crops and flips with AugMix; "crop": crops and flips alone; "diffusion": half of them generated images
Kind = Literal["augmix", "crop", "diffusion"]
KINDS: tuple[Kind, ...] = ("augmix", "crop", "diffusion")
