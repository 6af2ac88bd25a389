"""ZLaP: label propagation from texts to images over a graph of both (Stojnic et al., CVPR 2024)."""

from dataclasses import dataclass

import numpy as np

from acclimate.arrays import Array, HostArray, device, index, move, namespace, to_host
from acclimate.errors import InputError
from acclimate.methods import register
from acclimate.methods.jagged import add_by_class, lay_out
from acclimate.methods.rivals.collection import Collection, largest, nearest

BLOCK_CLASSES = 32  # classes whose labels are propagated at once
TOLERANCE = 1e-12  # length of the residual, as a fraction of that of the right-hand side
MOST_STEPS = 1000  # the solver takes about 15 steps at alpha 0.3
SMALLEST_SCORE = 1e-9  # scores below it do not differ


@register
@dataclass(eq=False, repr=False, kw_only=True)
class ZLaP(Collection):
    """Labels that spread from the class vectors over a graph of texts and images.

    Every image is joined to the nearest other images, by cosines, and to the nearest class vectors, by cosines to the
    power of gamma. With the graph's weights W, both directions added up, and the sums D of their rows, the scores of
    class k are the images' part of `(I - alpha D^-1/2 W D^-1/2)^-1 e_k`. The answer is their logarithm.

    Args:
        neighbours: class vectors that an image is joined to, and images, itself counted.
        gamma: power of the cosines of images and texts.
        alpha: share of the labels that comes from neighbours, from 0 to less than 1.

    Note:
        The settings are those of the paper and of the authors' README for class vectors of texts, the same for all
        data; with proxies learnt by InMaP, which are not used here, they are 10 neighbours and gamma 3. As in the
        authors' code, an image counts as one of its own neighbours and is then left out. That code stops the conjugate
        gradients at a residual of 1e-6, ours at 1e-12. Scores are made to be compared; their softmax is not calibrated.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> adapter = create("zlap", Head(np.eye(3), logit_scale=10.0))
        >>> features = np.tile([[0.9, 0.3, 0.1], [0.2, 0.9, 0.1]], (100, 1))
        >>> adapter.second_pass(features).argmax(axis=1)[:4]
        array([0, 1, 0, 1])
    """

    name = "zlap"
    summary = "label propagation over a graph of texts and images (ZLaP)"
    published = "paper and the authors' README, the same for all data"

    neighbours: int = 5
    gamma: float = 5.0
    alpha: float = 0.3

    def setup(self) -> None:
        """Check the settings."""
        if self.neighbours < 1 or self.gamma < 0 or not 0 < self.alpha < 1:
            raise InputError("neighbours must be at least 1, gamma at least 0, and alpha above 0 and below 1.")

    def answer_set(self, features: Array, log_probs: Array) -> Array:
        """Return the logarithms of the scores of all classes."""
        xp = namespace(features)
        rows, columns, weights = self._edges(features)
        layout = lay_out(rows[:, None], features)
        columns = index(columns, features)
        weights = -self.alpha * move(weights[:, None], xp.astype(features[:0, :], xp.float64))
        classes = len(self.head)
        answers = xp.empty_like(log_probs)
        for start in range(0, classes, BLOCK_CLASSES):
            count = min(BLOCK_CLASSES, classes - start)
            labels = xp.eye(classes + features.shape[0], count, k=-start, dtype=xp.float64, device=device(features))
            # Conjugate gradients, for each class until its residual is short
            scores = xp.zeros_like(labels)
            residual = labels
            direction = labels
            lengths = xp.sum(labels, axis=0)
            for _ in range(MOST_STEPS):
                active = lengths > TOLERANCE**2
                if not bool(xp.any(active)):
                    break
                image = xp.asarray(direction, copy=True)
                add_by_class(image, weights * direction[columns], layout)
                step = xp.where(active, lengths / xp.where(active, xp.sum(direction * image, axis=0), 1.0), 0.0)
                scores = scores + step * direction
                residual = residual - step * image
                before = xp.where(active, lengths, 1.0)
                lengths = xp.sum(residual**2, axis=0)
                direction = residual + lengths / before * direction
            logs = xp.log(xp.clip(scores[classes:, :], min=SMALLEST_SCORE))
            answers[:, start : start + count] = xp.astype(logs, answers.dtype)
        return answers

    def _edges(self, features: Array) -> tuple[HostArray, HostArray, HostArray]:
        """Return the ends and the normalised weights of all edges, both ways: first the texts, then the images."""
        classes = len(self.head)
        nodes = classes + features.shape[0]
        images, cosines = (to_host(each) for each in nearest(features, self.neighbours - 1))
        text_cosines = features @ self.head.class_vectors.T
        texts, affinities = (to_host(each) for each in largest(text_cosines, min(self.neighbours, classes)))
        nearby = np.concatenate([images + classes, texts], axis=1)
        values = np.concatenate([cosines, np.maximum(affinities, 0.0).astype(np.float64) ** self.gamma], axis=1)
        ends = (np.repeat(np.arange(classes, nodes), nearby.shape[1]), nearby.ravel())
        rows = np.concatenate(ends)
        columns = np.concatenate(ends[::-1])
        weights = np.tile(values.ravel(), 2)
        sums = np.bincount(rows, weights, minlength=nodes)
        roots = np.sqrt(np.where(sums > 0, sums, 1.0))
        return rows, columns, weights / (roots[rows] * roots[columns])
