"""DiffTPT: test-time prompt tuning with generated views (Feng et al., ICCV 2023)."""

from dataclasses import dataclass
from typing import ClassVar

from acclimate.errors import InputError
from acclimate.methods import ViewsKind, register
from acclimate.methods.paper.prompt import Tensor
from acclimate.methods.paper.tpt import TPT


@register
@dataclass(eq=False, repr=False, kw_only=True)
class DiffTPT(TPT):
    """TPT whose views are partly made by a diffusion model, with a filter for those that show something else.

    Of the views, the share whose logits are most similar to those of the image itself (by their cosine) remains, and of
    these and the image the most confident share counts. Which views are generated is a matter of the views, not of the
    method: see `docs/views.md`.

    Args:
        context: words to start from.
        similar: share of the other views that remains.
        confident: share of the remaining views that counts.
        steps: number of steps of AdamW.
        learning_rate: learning rate of AdamW.

    Examples:
        >>> from acclimate import list_methods
        >>> settings = list_methods()["difftpt"].default_settings()
        >>> settings["similar"], settings["confident"], settings["steps"]
        (0.8, 0.3, 4)
    """

    name = "difftpt"
    summary = "TPT on augmented and generated views, filtered by similarity"
    views_kind: ClassVar[ViewsKind] = "diffusion"

    similar: float = 0.8
    confident: float = 0.3
    steps: int = 4

    def setup(self) -> None:
        """Check the settings and the text tower."""
        super().setup()
        if not 0 < self.similar <= 1:
            raise InputError(f"similar must be a share between 0 and 1, got {self.similar}.")

    def counted(self, logits: Tensor) -> Tensor:
        """Return the positions of the views that count: similar to the image itself, then confident."""
        import torch

        cosines = torch.nn.functional.cosine_similarity(logits[:1], logits[1:], dim=-1)
        nearest = cosines.argsort(descending=True, stable=True)[: int(self.similar * len(cosines))] + 1
        remaining = torch.cat([nearest.new_zeros(1), nearest])
        return remaining[super().counted(logits[remaining])]
