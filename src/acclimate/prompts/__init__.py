"""From class names to class vectors: labels, prompt templates, and the text side of a classifier."""

from acclimate.prompts.head import TextEncoder, build_head, default_cache_folder
from acclimate.prompts.templates import (
    Templates,
    clean_labels,
    example_prompts,
    prompts_for,
    spoken,
    template_sets,
)

__all__ = [
    "Templates",
    "TextEncoder",
    "build_head",
    "clean_labels",
    "default_cache_folder",
    "example_prompts",
    "prompts_for",
    "spoken",
    "template_sets",
]
