"""CoOp: context optimisation (Zhou et al., IJCV 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from acclimate.arrays import HostArray, move
from acclimate.errors import InputError
from acclimate.evidence import Evidence, Head
from acclimate.methods import CLASSES, Labelled, Progress, Step, Tensors, register
from acclimate.methods.paper.prompt import TrainedPrompt


@register
@dataclass(eq=False, repr=False, kw_only=True)
class CoOp(TrainedPrompt):
    """A prompt whose words before the class name are vectors, trained on labelled samples.

    The vectors ("context") go through the frozen text tower with the name of each class; the loss is the cross-entropy
    of the labels under `softmax(s f W^T)`, and the gradient reaches the context alone. The learned prompt is a head
    like any other: see `acclimate.prompts.LearnedPrompts` for running other methods on it.

    Args:
        context_tokens: number of vectors.
        context: words to start from, such as "a photo of a"; they replace `context_tokens`. Random vectors if empty.
        class_specific: learn a context for each class instead of one for all. It cannot take new classes then.
        epochs: passes over the samples (the authors': 200 for 16 shots, 50 on ImageNet).
        learning_rate: learning rate of SGD.
        batch: samples per step.
        seed: seed of the order of the samples, of their versions and of the start.

    Note:
        The authors augment the images anew in every epoch. Here a sample comes in as many versions as it was encoded
        in, (n, V, d), and every step draws one of them.

    Examples:
        >>> from acclimate import list_methods
        >>> list_methods()["coop"].kind, sorted(list_methods()["coop"].needs)
        ('few-shot', ['labels', 'text'])
    """

    name = "coop"
    summary = "words of the prompt as vectors, trained on labelled images"

    context_tokens: int = 16
    context: str = ""
    class_specific: bool = False
    epochs: int = 200
    batch: int = 32

    def setup(self) -> None:
        """Declare the context: (M, width), or (K, M, width) where every class has its own."""
        super().setup()
        tower = self.tower
        tokens = len(tower.words(self.context)) if self.context else self.context_tokens
        if tokens < 1:
            raise InputError(f"context_tokens must be at least 1, got {tokens}.")
        self.prompts(tokens)  # refuses a context that the model cannot hold
        classes = (CLASSES,) if self.class_specific else ()
        axes = (*classes, tokens, tower.width)
        # The name is that which `acclimate.prompts.LearnedPrompts` looks for.
        self.learned = self.declare("exports", Tensors(self.head, context=axes))

    def learn(self, shots: Labelled, validation: Labelled | None, progress: Progress) -> None:
        """Train the context."""
        import torch

        with torch.inference_mode(False), torch.enable_grad():
            shape = self.learned["context"].shape
            if self.context:
                context = self.tower.words(self.context).expand(*shape).clone()
            else:
                generator = torch.Generator().manual_seed(self.seed)
                # Small random vectors, of standard deviation 0.02
                context = 0.02 * torch.randn(*shape, generator=generator).to(self.tower.device)
            prompts = self.prompts(shape[-2])
            self.train([context], lambda batch: self.logits_of(batch, prompts.vectors(context)), shots, progress)
            self.learned["context"][...] = move(context.detach(), self.head.class_vectors)

    def recompute(self) -> None:
        """Make the head of the learned prompt; until there is one, it is that of the words."""
        import torch

        context = self.tensor(self.learned["context"])
        self.prompted = self.head
        if context.any():
            with torch.no_grad():
                vectors = self.prompts(context.shape[-2]).vectors(context)
            self.prompted = replace(self.head, class_vectors=move(vectors, self.head.class_vectors), kinds=None)

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return zero-shot logits of the learned prompt."""
        return Step(self.prompted.observe_unit(evidence.features if evidence.views is None else evidence.views).logits)

    @classmethod
    def takes_new_classes(cls, settings: Mapping[str, Any]) -> bool:
        """Return True unless every class has its own context."""
        return not settings["class_specific"]

    def replace_head(self, head: Head) -> None:
        """Follow another head; where every class has its own context, a new class has none."""
        if self.class_specific and not {*head.class_names} <= {*self.head.class_names}:
            raise InputError("every class has its own context, and a new class has none; fit again with all classes.")
        super().replace_head(head)
