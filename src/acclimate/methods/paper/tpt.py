"""TPT: test-time prompt tuning (Shu et al., NeurIPS 2022)."""

from dataclasses import dataclass
from math import log
from typing import ClassVar

from acclimate.arrays import HostArray
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods import MergeRule, MethodKind, Step, register
from acclimate.methods.paper.prompt import PromptMethod, Tensor, descend


@register
@dataclass(eq=False, repr=False, kw_only=True)
class TPT(PromptMethod):
    """A prompt tuned to every single image, to make its confident views agree.

    The views of lowest entropy are chosen once. Then, starting from the same words for every image, the vectors of the
    context take steps of AdamW down the entropy of the mean answer of the chosen views. The tuned prompt answers the
    image itself (the first view) and is forgotten.

    Args:
        context: words to start from.
        confident: share of the views that count.
        steps: number of steps of AdamW.
        learning_rate: learning rate of AdamW.

    Note:
        Every image starts from the same prompt, so what the text tower computes for the first step is computed once for
        a batch of images and differentiated for each of them. The answers are those of one image at a time.

    Examples:
        >>> from acclimate import list_methods
        >>> list_methods()["tpt"].kind, sorted(list_methods()["tpt"].needs)
        ('episodic', ['text', 'views'])
    """

    name = "tpt"
    summary = "prompt tuned to the views of each image by one gradient step"
    kind: ClassVar[MethodKind] = "episodic"
    merges: ClassVar[MergeRule | None] = "union"
    needs = frozenset({"views", "text"})

    context: str = "a photo of a"
    confident: float = 0.1
    steps: int = 1
    learning_rate: float = 5e-3

    def setup(self) -> None:
        """Check the settings and the text tower."""
        if not 0 < self.confident <= 1 or self.steps < 1 or self.learning_rate <= 0:
            raise InputError("confident must be a share between 0 and 1, steps at least 1, learning_rate above 0.")
        self.words(self.context)

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return logits (B, K) of each image for its own prompt."""
        import torch

        answers = []
        with torch.inference_mode(False), torch.enable_grad():
            context = self.tower.words(self.context).requires_grad_()
            prompts = self.prompts(len(context))
            vectors = prompts.vectors(context)
            for views in self.tensor(evidence.views):
                tuned = self.tune(views, context, vectors)
                with torch.no_grad():
                    answers.append(self.logits_of(views[0], prompts.vectors(tuned)))
        return Step(self.answer(answers))

    def tune(self, views: Tensor, context: Tensor, vectors: Tensor) -> Tensor:
        """Return a context (M, width) tuned to views (V, d), from an initial one and its class vectors (K, d)."""
        import torch

        counted = views[self.counted(self.logits_of(views, vectors.detach()))]
        tuned = context.detach().clone().requires_grad_()
        optimiser = torch.optim.AdamW([tuned], self.learning_rate)
        for step in range(self.steps):
            if step:
                vectors = self.prompts(len(context)).vectors(tuned)
            loss = marginal_entropy(self.logits_of(counted, vectors))
            descend(optimiser, loss, [tuned if step else context], keep=step == 0)
        return tuned.detach()

    def counted(self, logits: Tensor) -> Tensor:
        """Return the positions of the views that count, given their logits (V, K): those of lowest entropy."""
        log_probs = logits.log_softmax(dim=-1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        return entropy.argsort(stable=True)[: max(1, int(self.confident * len(logits)))]


def marginal_entropy(logits: Tensor) -> Tensor:
    """Return the entropy of the mean distribution of rows of logits (V, K)."""
    log_mean = logits.log_softmax(dim=-1).logsumexp(dim=0) - log(len(logits))
    return -(log_mean.exp() * log_mean).sum()
