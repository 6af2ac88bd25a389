"""What methods that learn prompts share: the text tower, logits from its class vectors, and training with labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, cos, pi
from typing import Any

import numpy as np

from acclimate.arrays import Array, HostArray, move, to_host
from acclimate.errors import InputError, ModelError
from acclimate.evidence import Head
from acclimate.methods.base import Adapter
from acclimate.methods.few_shot import FewShot

Tensor = Any  # torch.Tensor
LOSS_SCALE = 1024.0  # keeps small gradients above the smallest number of half precision
LARGEST_SEED = 2**63  # PyTorch takes no larger ones
WARM_UP_RATE, MOMENTUM, WEIGHT_DECAY = 1e-5, 0.9, 5e-4  # of SGD, as CoOp and CoCoOp train


@dataclass(eq=False, repr=False, kw_only=True)
class PromptMethod(Adapter):
    """An adapter that learns the vectors which stand in a prompt before the name of a class."""

    @property
    def tower(self) -> Any:
        """The encoder's text tower; ModelError if it cannot take embeddings."""
        if not hasattr(self.text, "text_tower"):
            kind = type(self.text).__name__
            raise ModelError(
                f"the method {self.name!r} needs a text tower that takes embeddings, which {kind} does not have; use a "
                "CLIP model of hf:, local: or open_clip:."
            )
        return self.text.text_tower()

    def prompts(self, context: int) -> Any:
        """The prompts of the head's classes, each with room for a context of so many vectors."""
        return self.tower.prompts(self.head.class_names, context)

    def words(self, context: str) -> Tensor:
        """Embeddings (M, width) of the words to start from; refuses none, and more than the model can read."""
        found = self.tower.words(context)
        if not len(found):
            raise InputError("context must be words to start from, such as 'a photo of a'.")
        self.prompts(len(found))
        return found

    def tensor(self, values: Array) -> Tensor:
        """Values as a float32 tensor where the tower lives."""
        import torch

        return torch.asarray(to_host(values), dtype=torch.float32, device=self.tower.device)

    def logits_of(self, features: Tensor, vectors: Tensor) -> Tensor:
        """Logits (..., K) of unit features (..., d) for class vectors (K, d)."""
        return self.head.logit_scale * features @ vectors.T + self.head.logit_bias

    def answer(self, logits: Sequence[Tensor]) -> Array:
        """Logits (K,) of B samples as (B, K) where the head lives."""
        import torch

        found = torch.stack(list(logits)).detach()
        if not torch.isfinite(found).all():
            raise InputError(f"the prompts of {self.name!r} diverged: their answers are not finite. Lower rate.")
        return move(found, self.head.class_vectors)


@dataclass(eq=False, repr=False, kw_only=True)
class TrainedPrompt(FewShot, PromptMethod):
    """A prompt that is trained on labelled samples by SGD with momentum: one epoch of warm-up, then a cosine schedule.

    Args:
        epochs: passes over the samples.
        rate: learning rate.
        batch: samples per step.
        seed: of the order of the samples, of their versions and of the start.
    """

    needs = frozenset({"labels", "text"})

    epochs: int
    rate: float = 0.002
    batch: int
    seed: int = 1

    def setup(self) -> None:
        """Check the settings."""
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.rate <= 0 or not 0 <= self.seed < LARGEST_SEED:
            raise InputError(f"rate must be above 0, and seed from 0 to {LARGEST_SEED - 1}.")

    def relabel(self, head: Head) -> None:
        """Answer for other classes: the learned words go before any name."""
        self._follow(head)

    def fit_steps(self, samples: int) -> int:
        """Steps of SGD."""
        return self.epochs * ceil(samples / self.batch)

    def train(
        self,
        parameters: Sequence[Tensor],
        logits_of: Callable[[Tensor], Tensor],
        features: Array,
        labels: HostArray,
        progress: Callable[[int], None],
    ) -> None:
        """Minimise the cross-entropy of `logits_of` (features (b, d) -> (b, K)) over the parameters, in place.

        Where the samples have V versions, (n, V, d), every step draws one of them for each sample.
        """
        import torch

        rng = np.random.default_rng(self.seed)
        versions = self.tensor(features if features.ndim == 3 else features[:, None])
        truth = torch.as_tensor(labels, dtype=torch.int64, device=versions.device)
        optimiser = torch.optim.SGD(parameters, self.rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        for epoch in range(self.epochs):
            warm = WARM_UP_RATE if epoch == 0 and self.epochs > 1 else self.rate
            optimiser.param_groups[0]["lr"] = (
                warm if epoch == 0 else self.rate * (1 + cos(pi * epoch / self.epochs)) / 2
            )
            order = rng.permutation(len(labels))
            for start in range(0, len(order), self.batch):
                chosen = order[start : start + self.batch]
                version = rng.integers(versions.shape[1], size=len(chosen))
                loss = torch.nn.functional.cross_entropy(logits_of(versions[chosen, version]), truth[chosen])
                found = gradients(loss, parameters)
                if all(
                    torch.isfinite(each).all() for each in found
                ):  # half precision may overflow: leave that step out
                    for parameter, gradient in zip(parameters, found, strict=True):
                        parameter.grad = gradient
                    optimiser.step()
                progress(1)
        with torch.no_grad():
            if not torch.isfinite(logits_of(versions[:1, 0])).all():
                raise InputError("the training diverged: its answers are not finite. Lower rate.")


def gradients(loss: Tensor, parameters: Sequence[Tensor], keep: bool = False) -> list[Tensor]:
    """Gradients of a loss, scaled on their way through the tower so that half precision does not lose them.

    With `keep`, what was computed for the loss can be used for another one.
    """
    import torch

    found = torch.autograd.grad(LOSS_SCALE * loss, list(parameters), retain_graph=keep)
    return [each / LOSS_SCALE for each in found]
