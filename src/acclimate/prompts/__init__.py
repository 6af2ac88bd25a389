"""From class names to class vectors: labels, prompt templates, and the text side of a classifier."""

from acclimate.prompts.expansion import kinds_of, nouns
from acclimate.prompts.head import TextEncoder, build_head, default_cache_folder, negative_vectors
from acclimate.prompts.templates import (
    LearnedPrompts,
    Templates,
    clean_labels,
    example_prompts,
    foreign_labels,
    language_note,
    prompts_for,
    template_sets,
)

__all__ = [
    "LearnedPrompts",
    "Templates",
    "TextEncoder",
    "build_head",
    "clean_labels",
    "default_cache_folder",
    "example_prompts",
    "foreign_labels",
    "kinds_of",
    "language_note",
    "negative_vectors",
    "nouns",
    "prompts_for",
    "template_sets",
]
