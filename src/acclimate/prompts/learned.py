"""Learned prompts: vectors in place of the words before a class name, from a fitted state of CoOp or CoCoOp."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from acclimate.arrays import HostArray, to_host
from acclimate.errors import InputError, ModelError, StateError
from acclimate.evidence import Head
from acclimate.files import read_snapshot

MAX_CONTEXT_VALUE = 1e6  # far beyond the values that make sense
PREFIX = "learned:"  # stands before the path of a file on the command line, and before a name


@dataclass(frozen=True, eq=False)
class LearnedPrompts:
    """The prompts of any labels with a learned context; they take the place of templates.

    Attributes:
        context: (M, width) vectors before every name, or (K, M, width) for the K classes they were learned for.
        class_names: these K classes.
        encoder: fingerprint of the model they were learned with; "" if unknown.
        source: where they come from, for messages.

    Examples:
        >>> LearnedPrompts.load("nowhere.safetensors")
        Traceback (most recent call last):
        acclimate.errors.StateError: no state file at nowhere.safetensors.
    """

    context: HostArray
    class_names: tuple[str, ...]
    encoder: str
    source: str

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "LearnedPrompts":
        """Read the prompts of a state file whose method has learned some; of `cocoop`, those of its mean image."""
        arrays, description = read_snapshot(path)
        context = arrays.get("exports.context")
        encoder = description.get("encoder", "")
        if context is None or not description.get("seen"):
            raise StateError(f"{path} holds no learned prompts; make some with `acclimate fit --method coop`.")
        head = Head.from_file(arrays.get("class_vectors"), description.get("head"), path)
        fits = context.ndim == 2 or (context.ndim == 3 and len(context) == len(head))
        usable = isinstance(encoder, str) and context.dtype.kind == "f" and 0 not in context.shape and fits
        if not usable or not np.abs(context).max() <= MAX_CONTEXT_VALUE:
            raise StateError(f"{path} holds learned prompts that break a rule; it was damaged or edited.")
        return cls(context, head.class_names, encoder, os.fspath(path))

    @property
    def name(self) -> str:
        """The text that stands for them where templates are text: equal for equal content."""
        names = self.class_names if self.context.ndim == 3 else ()
        return PREFIX + hashlib.sha256(repr((self.context.shape, names)).encode() + self.context.tobytes()).hexdigest()

    def example(self, label: str) -> str:
        """Return a text that shows the prompt of a label."""
        return f"{self.context.shape[-2]} learned vectors, then {label!r}"

    def vectors(self, encoder: Any, labels: Sequence[str]) -> HostArray:
        """Return unit class vectors (K, d) of labels.

        Raises:
            ModelError: the prompts were learned with another model, or the model cannot take embeddings.
            InputError: a label has no context of its own, where contexts were learned per class.
        """
        if not hasattr(encoder, "text_tower"):
            raise ModelError(
                f"learned prompts need a text tower that takes embeddings, which {type(encoder).__name__} does not "
                "have; use a CLIP model of hf:, local: or open_clip:."
            )
        tower = encoder.text_tower()
        known = self.encoder and encoder.fingerprint
        if (known and self.encoder != encoder.fingerprint) or self.context.shape[-1] != tower.width:
            raise ModelError(f"the prompts of {self.source} were learned with another model; use that, or fit again.")
        context = self.context
        if context.ndim == 3:
            index = {name: i for i, name in enumerate(self.class_names)}
            if missing := [label for label in labels if label not in index]:
                raise InputError(
                    f"{self.source} has a context for each class it was fitted to, and none for {missing[0]!r}; "
                    "fit again with it, or without class_specific."
                )
            context = context[[index[label] for label in labels]]
        import torch

        with torch.no_grad():
            placed = torch.as_tensor(np.asarray(context, np.float32), device=tower.device)
            return to_host(tower.prompts(labels, context.shape[-2]).vectors(placed))
