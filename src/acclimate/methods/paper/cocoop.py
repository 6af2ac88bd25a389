"""CoCoOp: conditional context optimisation (Zhou et al., CVPR 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from acclimate.arrays import HostArray, move
from acclimate.evidence import Evidence
from acclimate.methods import DIM, Labelled, Progress, Step, Tensors, register
from acclimate.methods.paper.prompt import TrainedPrompt

LAYERS = ("weight_1", "bias_1", "weight_2", "bias_2")


@register
@dataclass(eq=False, repr=False, kw_only=True)
class CoCoOp(TrainedPrompt):
    """A learned prompt that depends on the image: a small network moves all vectors of the context by the same shift.

    For an image with unit feature f the context is `v_m + W_2 relu(W_1 f + b_1) + b_2`, m = 1..M. Context and network
    are trained together on labelled samples. Every image has class vectors of its own, so every answer costs a pass of
    all classes through the text tower.

    Args:
        context: words to start from.
        epochs: passes over the samples.
        learning_rate: learning rate of SGD.
        batch: samples per step.
        seed: seed of the order of the samples, of their versions and of the network's start.

    Note:
        As the prompts of another method (`acclimate.prompts.LearnedPrompts`), which needs one head for all images, it
        is the prompt of the mean image of the samples it was fitted to.

    Examples:
        >>> from acclimate import list_methods
        >>> list_methods()["cocoop"].default_settings()["context"]
        'a photo of a'
    """

    name = "cocoop"
    summary = "learned prompt that a small network adjusts to each image"

    context: str = "a photo of a"
    epochs: int = 10
    batch: int = 1

    def setup(self) -> None:
        """Declare context, network and the shift of the mean image."""
        super().setup()
        tokens, width = self.words(self.context).shape
        # The hidden layer of the network has a sixteenth of the feature's length.
        hidden = max(1, self.head.dim // 16)
        self.learned = self.declare(
            "learned",
            Tensors(
                self.head,
                weight_1=(hidden, DIM),
                bias_1=(hidden,),
                weight_2=(width, hidden),
                bias_2=(width,),
                mean_shift=(width,),
                context=(tokens, width),
            ),
        )
        # The context of the mean image, for `acclimate.prompts.LearnedPrompts`
        self.exported = self.declare("exports", Tensors(self.head, context=(tokens, width)))

    def learn(self, shots: Labelled, validation: Labelled | None, progress: Progress) -> None:
        """Train context and network."""
        import torch

        with torch.inference_mode(False), torch.enable_grad():
            generator = torch.Generator().manual_seed(self.seed)
            parameters = [self.tower.words(self.context).clone()]
            for name in LAYERS:  # the start of torch.nn.Linear, whose bound is one over the root of the inputs
                inputs = self.learned[f"weight_{name[-1]}"].shape[1]
                start = (2 * torch.rand(*self.learned[name].shape, generator=generator) - 1) / inputs**0.5
                parameters.append(start.to(self.tower.device))
            context, *layers = parameters

            def logits_of(batch: Any) -> Any:
                return torch.stack([self._logits(each, context, layers) for each in batch])

            self.train(parameters, logits_of, shots, progress)
            with torch.no_grad():
                flat = self.tensor(shots.features).reshape(-1, self.head.dim)
                values = [*parameters, _shift(torch.nn.functional.normalize(flat.mean(dim=0), dim=0), layers)]
            for name, value in zip(("context", *LAYERS, "mean_shift"), values, strict=True):
                self.learned[name][...] = move(value.detach(), self.head.class_vectors)
            self.exported["context"][...] = self.learned["context"] + self.learned["mean_shift"]

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return logits (B, K) of every image for its own prompt."""
        import torch

        context, *layers = (self.tensor(self.learned[name]) for name in ("context", *LAYERS))
        with torch.no_grad():
            return Step(self.answer([self._logits(each, context, layers) for each in self.tensor(evidence.features)]))

    def _logits(self, feature: Any, context: Any, layers: Sequence[Any]) -> Any:
        return self.logits_of(feature, self.prompts(len(context)).vectors(context + _shift(feature, layers)))


def _shift(feature: Any, layers: Sequence[Any]) -> Any:
    """Return what the network adds to every vector of the context, (width,), for an image."""
    weight_1, bias_1, weight_2, bias_2 = layers
    return weight_2 @ (weight_1 @ feature + bias_1).relu() + bias_2
