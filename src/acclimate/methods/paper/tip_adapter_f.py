"""Tip-Adapter-F: Tip-Adapter with keys that are fine-tuned (Zhang et al., ECCV 2022)."""

from dataclasses import dataclass
from math import ceil, cos, pi

import numpy as np

from acclimate.arrays import Array, HostArray, device, index, move, namespace, softmax_and_entropy
from acclimate.errors import InputError
from acclimate.methods import Labelled, Progress, affinities, register
from acclimate.methods.jagged import Layout, add_by_class, lay_out
from acclimate.methods.paper.tip_adapter import TipAdapter, vote_weights

# Settings of AdamW; all but epsilon are PyTorch's defaults
MOMENTUM = 0.9
SCALING = 0.999
EPSILON = 1e-4
DECAY = 0.01


@register
@dataclass(eq=False, repr=False, kw_only=True)
class TipAdapterF(TipAdapter):
    """Tip-Adapter whose keys are trained on the shots (Zhang et al., 2022, section 3.2).

    The keys start as those of Tip-Adapter. AdamW lowers the cross-entropy of the answers to the shots, with a rate that
    falls to zero along a cosine. Where classes have different numbers of shots, all classes count the same in the
    cross-entropy. Alpha and beta are searched afterwards, if `fit` is given validation samples. With V augmented
    versions per shot, each epoch trains on another version.

    Args:
        alpha: weight of the votes, during training and, without validation samples, after it.
        beta: sharpness of the affinity, as alpha.
        largest_alpha: see `TipAdapter`.
        largest_beta: see `TipAdapter`.
        epochs: passes over the shots; 0 is Tip-Adapter.
        learning_rate: rate of the first step.
        batch: shots per step.
        seed: seed of the order of the shots, which is another one in every epoch.

    Note:
        The authors keep the epoch that is best on the test set, and train 100 epochs on EuroSAT. Here the last of 20
        epochs counts.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, TipAdapterF
        >>> adapter = TipAdapterF(Head(np.eye(2), logit_scale=1.0), epochs=100, learning_rate=0.1)
        >>> shots = np.array([[0.7, 0.6], [0.8, 0.5]])
        >>> adapter.fit(shots, labels=[1, 0])
        >>> adapter.step(shots).argmax(axis=1)
        array([1, 0])
    """

    name = "tip-adapter-f"
    summary = "Tip-Adapter with keys that are trained on the labelled samples (Tip-Adapter-F)"

    epochs: int = 20
    learning_rate: float = 1e-3
    batch: int = 256
    seed: int = 1

    def setup(self) -> None:
        """Check the settings, and declare the parts of the state."""
        if min(self.epochs, self.seed) < 0 or self.batch < 1 or self.learning_rate <= 0:
            raise InputError("epochs and seed must not be negative, batch at least 1, learning_rate above 0.")
        super().setup()

    def fit_steps(self, samples: int, held_out: int = 0) -> int:
        """Return the number of batches of all epochs, plus the steps of the search."""
        return self.epochs * ceil(samples / self.batch) + super().fit_steps(samples, held_out)

    def trained(self, keys: Array, shots: Labelled, progress: Progress) -> Array:
        """Return the keys after all epochs of AdamW."""
        features, labels = shots
        xp = namespace(keys)
        layout = lay_out(labels[:, None], keys)
        versions = features[:, None] if features.ndim == 2 else features
        # Single precision must hold the votes: exp overflows above 88.
        longest = 1.0 + 80.0 / max(self.beta, self.largest_beta)
        first = xp.zeros_like(keys)  # running mean of the gradient
        second = xp.zeros_like(keys)  # running mean of its square
        step = 0
        steps = self.fit_steps(len(labels)) - 1
        for epoch in range(self.epochs):
            order = np.random.default_rng([self.seed, epoch]).permutation(len(labels))
            version = versions[:, epoch % versions.shape[1]]
            for start in range(0, len(labels), self.batch):
                batch = order[start : start + self.batch]
                slope = self.gradient(keys, labels, layout, version[index(batch, keys)], labels[batch])
                rate = self.learning_rate * (1.0 + cos(pi * step / steps)) / 2.0
                step += 1
                first = MOMENTUM * first + (1.0 - MOMENTUM) * slope
                second = SCALING * second + (1.0 - SCALING) * slope**2
                spread = xp.sqrt(second / (1.0 - SCALING**step)) + EPSILON
                keys = (1.0 - rate * DECAY) * keys - rate / (1.0 - MOMENTUM**step) * first / spread
                if not bool(xp.all(xp.vecdot(keys, keys) < longest**2)):
                    raise InputError("the training diverged: keys became too long. Lower learning_rate, alpha or beta.")
                progress(1)
        return keys

    def gradient(self, keys: Array, classes: HostArray, layout: Layout, features: Array, labels: HostArray) -> Array:
        """Return the gradient (E, d) of the mean cross-entropy of answers to features (B, d) with labels (B,).

        Keys and features count by the weight w of their class, which is 1 where all classes have as many shots.
        The answers are `z + A^T L` with `A = alpha w exp(-beta (1 - Q F^T))` (E, B). The gradient of the cross-entropy
        with respect to answers is `G = w (softmax - onehot) / sum of w` (B, K), and `dA/dQ = beta A F`, so that with
        respect to the keys it is `beta (A * L G^T) F`.

        Args:
            keys: (E, d).
            classes: (E,) of the keys.
            layout: the classes that each key votes on.
            features: (B, d) unit.
            labels: (B,).
        """
        xp = namespace(keys)
        votes = xp.asarray(self.head.observe_unit(features).logits.T, copy=True)
        weights = self.alpha * affinities(keys, features, self.beta)
        by_class = vote_weights(classes, len(self.head))
        class_weights = move(by_class[:, None], keys)
        weights *= class_weights[index(classes, keys)]
        add_by_class(votes, weights, layout)
        errors = softmax_and_entropy(votes.T)[0]
        errors[xp.arange(len(labels), device=device(keys)), index(labels, keys)] -= 1.0
        errors *= class_weights[index(labels, keys)]
        weights *= errors.T[index(classes, keys)]
        return (self.beta / float(by_class[labels].sum())) * (weights @ features)
