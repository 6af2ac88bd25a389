"""The base of methods that learn prompts: the text tower, logits from its class vectors, and training with labels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, cos, pi
from typing import Any

import numpy as np

from acclimate.arrays import Array, move, to_host
from acclimate.errors import InputError, ModelError
from acclimate.methods import Adapter, FewShot, Labelled, Progress

Tensor = Any  # torch.Tensor
LOSS_SCALE = 1024.0  # keeps small gradients above the smallest number of half precision
LARGEST_SEED = 2**63  # PyTorch takes no larger ones


@dataclass(eq=False, repr=False, kw_only=True)
class PromptMethod(Adapter):
    """An adapter that learns the vectors which stand in a prompt before the name of a class."""

    encoder: Any

    @property
    def tower(self) -> Any:
        """The encoder's text tower; ModelError if it cannot take embeddings."""
        if not hasattr(self.encoder, "text_tower"):
            raise ModelError(
                f"the method {self.name!r} needs a text tower that takes embeddings, which "
                f"{type(self.encoder).__name__} does not have; use a CLIP model of hf:, local: or open_clip:."
            )
        return self.encoder.text_tower()

    def prompts(self, context: int) -> Any:
        """Return the prompts of the head's classes, each with room for a context of so many vectors."""
        return self.tower.prompts(self.head.class_names, context)

    def words(self, context: str) -> Tensor:
        """Return embeddings (M, width) of the words to start from; refuse none, and more than the model can read."""
        found = self.tower.words(context)
        if not len(found):
            raise InputError("context must be words to start from, such as 'a photo of a'.")
        self.prompts(len(found))
        return found

    def tensor(self, values: Array) -> Tensor:
        """Return values as a float32 tensor where the tower lives."""
        import torch

        return torch.asarray(to_host(values), dtype=torch.float32, device=self.tower.device)

    def logits_of(self, features: Tensor, vectors: Tensor) -> Tensor:
        """Return logits (..., K) of unit features (..., d) for class vectors (K, d)."""
        return self.head.logit_scale * features @ vectors.T + self.head.logit_bias

    def answer(self, logits: Sequence[Tensor]) -> Array:
        """Return logits (K,) of B samples as (B, K) where the head lives."""
        import torch

        found = torch.stack(list(logits)).detach()
        if not torch.isfinite(found).all():
            raise InputError(
                f"the prompts of {self.name!r} diverged: their answers are not finite. Lower learning_rate."
            )
        return move(found, self.head.class_vectors)


@dataclass(eq=False, repr=False, kw_only=True)
class TrainedPrompt(FewShot, PromptMethod):
    """A prompt that is trained on labelled samples by SGD with momentum: one epoch of warm-up, then a cosine schedule.

    Args:
        epochs: passes over the samples.
        learning_rate: learning rate of SGD.
        batch: samples per step.
        seed: seed of the order of the samples, of their versions and of the start.
    """

    needs = frozenset({"labels", "text"})

    epochs: int
    learning_rate: float = 0.002
    batch: int
    seed: int = 1

    def setup(self) -> None:
        """Check the settings."""
        if min(self.epochs, self.batch) < 1 or self.learning_rate <= 0 or not 0 <= self.seed < LARGEST_SEED:
            raise InputError(
                "epochs and batch must be at least 1, learning_rate must be above 0, and seed from 0 to "
                f"{LARGEST_SEED - 1}."
            )

    @classmethod
    def takes_new_classes(cls, settings: Mapping[str, Any]) -> bool:
        """Return True: the learned words go before any name."""
        return True

    def fit_steps(self, samples: int, held_out: int = 0) -> int:
        """Return the number of steps of SGD."""
        return self.epochs * ceil(samples / self.batch)

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch: a small one in the first of several, then along a cosine."""
        annealed = self.learning_rate * (1 + cos(pi * max(0, epoch - 1) / self.epochs)) / 2
        return annealed if epoch or self.epochs == 1 else 1e-5

    def train(
        self,
        parameters: Sequence[Tensor],
        logits_of: Callable[[Tensor], Tensor],
        shots: Labelled,
        progress: Progress,
    ) -> None:
        """Minimise the cross-entropy of `logits_of` (features (b, d) -> (b, K)) over the parameters, in place.

        Where the samples have V versions, (n, V, d), every step draws one of them for each sample.
        """
        import torch

        rng = np.random.default_rng(self.seed)
        features, labels = shots
        versions = self.tensor(features if features.ndim == 3 else features[:, None])
        truth = torch.as_tensor(labels, dtype=torch.int64, device=versions.device)
        for parameter in parameters:
            parameter.requires_grad_()
        optimiser = torch.optim.SGD(parameters, self.learning_rate, momentum=0.9, weight_decay=5e-4)
        for epoch in range(self.epochs):
            optimiser.param_groups[0]["lr"] = self.rate(epoch)
            order = rng.permutation(len(labels))
            for start in range(0, len(order), self.batch):
                chosen = order[start : start + self.batch]
                version = rng.integers(versions.shape[1], size=len(chosen))
                loss = torch.nn.functional.cross_entropy(logits_of(versions[chosen, version]), truth[chosen])
                descend(optimiser, loss, parameters)
                progress(1)
            # No number of a prompt or of a network that makes sense is as large as 1000.
            if not max(float(each.detach().abs().max()) for each in parameters) < 1e3:
                raise InputError("the training diverged: the learned vectors became too long. Lower learning_rate.")


def descend(optimiser: Any, loss: Tensor, parameters: Sequence[Tensor], keep: bool = False) -> None:
    """Take a step of an optimiser down the gradients of a loss with respect to parameters.

    Gradients are scaled on their way through the tower so that half precision does not lose them; where one overflows,
    no step is taken. With `keep`, what was computed for the loss can be used for another one.
    """
    import torch

    scaled = torch.autograd.grad(LOSS_SCALE * loss, list(parameters), retain_graph=keep)
    if all(bool(each.isfinite().all()) for each in scaled):
        for parameter, gradient in zip(optimiser.param_groups[0]["params"], scaled, strict=True):
            parameter.grad = gradient / LOSS_SCALE
        optimiser.step()
