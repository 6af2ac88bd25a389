"""OnZeta: labels and class vectors that are learnt online (Qian and Hu, ECCV 2024)."""

from dataclasses import dataclass
from math import log, log1p, sqrt

from acclimate.arrays import Array, HostArray, log_softmax, namespace, to_host, unit_rows
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods import CLASSES, DIM, Adapter, Step, Tensors, register


@register
@dataclass(eq=False, repr=False, kw_only=True)
class OnZeta(Adapter):
    """Two online learners: one balances the labels, one moves a copy of the class vectors towards the images.

    For sample t, with duals r that start at 0 and proxies V that start at the class vectors:

        q = softmax(z + r),     r <- max(0, r - label_rate / sqrt(t) * (q - balance / K)),
        v = softmax(s' f V^T),  V_k <- unit(V_k - proxy_rate * s' / sqrt(t) * (v_k - q_k) f),  s' = sharpness * s.

    The answer, from before the update, is `log(b v + (1 - b) q)` with `b = mix * sqrt(min(1, t / (horizon * K)))`.
    Every step starts from the one before it, so states cannot be merged.

    Args:
        label_rate: learning rate of the duals.
        balance: least share of every class, in units of 1 / K; 0 to allow any shares.
        proxy_rate: learning rate of the proxies.
        sharpness: scale of the proxies' softmax, as a share of the model's logit scale.
        mix: largest weight of the proxies.
        horizon: samples per class after which the proxies have their largest weight.

    Note:
        The settings are the defaults of the authors' code (github.com/idstcv/OnZeta, main_online.py), except for two.
        Their `alpha` is `balance`: 1 there, and 0 switches the constraint off, which assumes that all classes are about
        equally frequent. Their `beta` is `mix`: 0.8 there for ImageNet, and 0.4 in the paper for other datasets. Of
        these four settings, this one is the best on average over the development streams. With `balance=1`, shuffled
        streams of all classes gain, and sorted streams and those of few classes lose far more.

        The authors' weight is `mix * sqrt(t / T)`, where T is the length of the stream, which nobody knows beforehand.
        Here T is guessed as 50 samples per class, as in ImageNet's validation set; the weight is constant from there.
        Where T is known, `horizon=T / K` gives the authors' answers. Of their temperatures, 0.01 and 0.04, only the
        ratio is kept.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> adapter = create("onzeta", Head(np.eye(2), logit_scale=10.0), balance=1.0)
        >>> _ = adapter.step(np.tile([[0.8, 0.6]], (50, 1)))
        >>> adapter.class_statistics()["raised by"].round(1)
        array([2.8, 4.8])
    """

    name = "onzeta"
    summary = "online balancing of labels, and class vectors that move towards the images (OnZeta)"
    published = "authors' code (idstcv/OnZeta) and paper, the best of four on the marked streams: no balancing"

    label_rate: float = 20.0
    balance: float = 0.0
    proxy_rate: float = 0.5
    sharpness: float = 0.25
    mix: float = 0.4
    horizon: float = 50.0

    refresh = 64  # samples between two writes of the proxies, without influence on the answers

    def setup(self) -> None:
        """Declare the duals, and the displacements of the proxies from the class vectors."""
        if not (0 <= self.balance <= 1 and 0 < self.mix < 1 and self.horizon > 0 and self.sharpness > 0):
            raise InputError("balance must be from 0 to 1, mix between 0 and 1, horizon and sharpness above 0.")
        self.tensors = self.declare("tensors", Tensors(self.head, duals=(CLASSES,), moved=(CLASSES, DIM)))

    def recompute(self) -> None:
        """Compute the proxies (K, d)."""
        self.proxies = self.head.class_vectors + self.tensors["moved"]

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return the mixture of the two answers, (B, K)."""
        features = evidence.features
        xp = namespace(features)
        first = self.samples_seen + 1
        cosines = features @ self.proxies.T
        duals = self.tensors["duals"]
        if not learn:
            return Step(self._answer(evidence.logits + duals, cosines, first)[0])
        # Proxy k is scale_k (V_k + sum_i moves_ki f_i) within the block: cheaper than to write V for every sample.
        gram = features @ features.T
        moves = xp.zeros_like(cosines.T)
        scale = xp.ones_like(duals)
        answers = []
        for i in range(len(ids)):
            now = scale * (cosines[i] + moves[:, :i] @ gram[:i, i])
            pace = 1.0 / sqrt(first + i)
            answer, q, v = self._answer(evidence.logits[i] + duals, now, first + i)
            answers.append(answer)
            duals = xp.clip(duals - pace * self.label_rate * (q - self.balance / len(self.head)), min=0.0)
            step = pace * self.proxy_rate * self.sharpness * self.head.logit_scale * (v - q)
            moves[:, i] = -step / scale
            squares = 1.0 - 2.0 * step * now + step * step * gram[i, i]  # squared lengths after the step
            scale = scale / xp.sqrt(xp.clip(squares, min=1e-12))
        self.proxies = unit_rows(scale[:, None] * (self.proxies + moves @ features), "proxies")
        self.tensors["duals"][...] = duals
        self.tensors["moved"][...] = self.proxies - self.head.class_vectors
        self.recompute()
        return Step(xp.stack(answers))

    def _answer(self, balanced: Array, cosines: Array, samples: int) -> tuple[Array, Array, Array]:
        """Return the answer, q and v for balanced logits and cosines with the proxies, (..., K), at this sample."""
        xp = namespace(balanced)
        weight = self.mix * sqrt(min(1.0, samples / (self.horizon * len(self.head))))
        log_q = log_softmax(balanced)
        log_v = log_softmax(self.sharpness * self.head.logit_scale * cosines)
        return xp.logaddexp(log(weight) + log_v, log1p(-weight) + log_q), xp.exp(log_q), xp.exp(log_v)

    def class_statistics(self) -> dict[str, HostArray]:
        """Return the dual of each class, which is added to its logit."""
        return {"raised by": to_host(self.tensors["duals"]).copy()}
