"""Accord as the guide tells it: one sample at a time, float64, all figures computed anew from a list of samples."""

from copy import deepcopy

import numpy as np

from reference import Naive, NaiveTDA, entropy

TAUS = [0.002 * 1.8**i for i in range(13)]
BETAS = [0.25, 0.5**1.5, 0.5, 0.5**0.5, 1.0, 2.0**0.5, 2.0, 2.0**1.5, 4.0]


def log_softmax(z):
    z = z - z.max()
    return z - np.log(np.exp(z).sum())


def slope(value, low, high):
    return float(np.clip((value - low) / (high - low), 0.0, 1.0))


def number_of_classes(shares):
    """How many equal shares have the entropy of these."""
    return float(np.exp(entropy(shares / shares.sum())))


class Sample:
    """What is kept of a sample: feature, zero-shot answer and soft label, and what was measured on it, if anything."""

    def __init__(self, x, p, label, position):
        self.x, self.p, self.label, self.position = x, p, label, position
        self.sharp, self.H = p**2 / (p**2).sum(), entropy(p)
        self.settled = False
        self.like_the_last = False
        self.agreement = self.confidence = None


class NaiveHalves(Naive):
    def __init__(self, W, scale, bias=0.0, few_classes=False, rounds=2, checked=4096):
        super().__init__(W, scale, bias)
        self.few_classes, self.rounds, self.checked = few_classes, rounds, checked
        self.tda = NaiveTDA(W, scale, bias)
        self.samples, self.last = [], None
        self.derive()

    # Online

    @property
    def large(self):
        return len(self.W) > 256

    def due(self, position):
        """Whether parameters change after so many samples."""
        block, growth = (128, 2.0) if self.large else (32, 1.25)
        blocks = max(1, int(np.ceil(len(self.W) / 4 / block)))
        while blocks * block < position:
            blocks = max(blocks + 1, int(np.ceil(growth * blocks)))
        return blocks * block == position

    def answer(self, x, z, p):
        position = len(self.samples)
        base = self.base(z, self.tda._adapt(x, z, p))
        pooled = self.pool(base, self.score(0, x, p))
        logits = self.beta * pooled if self.started else z
        sample = Sample(x, p, 0.5 * np.exp(log_softmax(logits)) + 0.5 * p, position)
        sample.like_the_last = self.last == int(np.argmax(p))
        self.last = int(np.argmax(p))
        if position % (8 if self.large else 1) == 0:
            if self.heads:
                even, odd = self.score(1, x, p), self.score(2, x, p)
                sides = (np.argmax(even) == np.argmax(p)) / 2 + (np.argmax(odd) == np.argmax(p)) / 2
                self.measure(sample, even, odd, float(sides), self.score(0, x, p), base)
            self.measure_confidence(sample, pooled)
        self.samples.append(sample)
        if self.due(len(self.samples)):
            self.settle()
        return logits

    def settle(self):
        for sample in self.samples:
            sample.settled = True
        self.derive()

    def base(self, z, voted):
        return log_softmax(self.shares + z + self.votes * (voted - z))

    def pool(self, base, scores):
        if scores is None or not self.weight:
            return base
        return (base + self.weight * log_softmax(self.tau * scores + self.prior)) / (1.0 + self.weight)

    def score(self, which, x, p):
        """The Gaussian log-density of each class, by the head of all (0), the even (1) or the odd (2) samples."""
        if not self.heads:
            return None
        means, scale, known = self.heads[which]
        away = x - self.mean - means
        scores = -0.5 * scale * ((away @ self.precision) * away).sum(axis=1)
        trusted = (p + 1e-6) * known
        filled = known * scores + (1.0 - known) * (trusted @ scores) / trusted.sum()
        return filled - filled.max()

    def measure(self, sample, even, odd, with_zero_shot, scores, base):
        halves = float(np.argmax(even) == np.argmax(odd))
        losses = [-(np.exp(base) * log_softmax(tau * scores)).sum() for tau in TAUS]
        sample.agreement = halves, with_zero_shot, (halves - with_zero_shot) ** 2, np.array(losses)

    def measure_confidence(self, sample, pooled):
        sample.confidence = sample.p.max(), np.array([np.exp(log_softmax(beta * pooled)).max() for beta in BETAS])

    # Parameters

    def derive(self):
        self.heads = []
        self.shares = self.prior = np.zeros(len(self.W))
        self.weight = self.tau = 0.0
        self.votes = self.beta = 1.0
        self.started = False
        self.known = [sample for sample in self.samples if sample.settled]
        if self.known and len(self.W) > 1:
            if not self.few_classes:
                self.fit()
            self.weigh()
            self.calibrate()

    def fit(self):
        n, (K, d) = len(self.known), self.W.shape
        text = self.W - self.W.mean(axis=0)
        self.mean = sum(sample.x for sample in self.known) / n
        counts, around = [np.zeros(K) for _ in range(3)], [np.zeros((K, d)) for _ in range(3)]
        scatter = np.zeros((d, d))
        for sample in self.known:
            away = sample.x - self.mean
            scatter += np.outer(away, away) / n
            for which in (0, 1 + sample.position % 2):
                counts[which] += sample.label
                around[which] += np.outer(sample.label, away)
        follow = (around[0] * text).sum() / (sum(counts[0][k] * text[k] @ text[k] for k in range(K)) + 1e-6)
        for k in range(K):
            scatter -= np.outer(around[0][k], around[0][k]) / (n * max(counts[0][k], 1e-6))
        round_part = (0.5 * n + d) / (n + d)
        variance = max(np.trace(scatter) / d, 1e-6)
        self.precision = np.linalg.inv((1.0 - round_part) * scatter + (round_part * variance + 1e-6) * np.eye(d))
        for count, sums in zip(counts, around, strict=True):
            enough = 0.6 * count.sum() / K
            means = np.array([(sums[k] + 2.0 * follow * text[k]) / (count[k] + 2.0) for k in range(K)])
            scale = np.array([1.0 / (1.0 + 1.0 / (max(c, enough) + 2.0)) for c in count])
            self.heads.append((means, scale, np.array([min(1.0, c / (enough + 1e-9)) for c in count])))

    def weigh(self):
        n, K = len(self.known), len(self.W)
        sharp = sum(sample.sharp for sample in self.known)
        shares = sum(sample.p for sample in self.known)
        present = slope(number_of_classes(sharp) / (K * (1.0 - np.exp(-n / K))), 0.5, 0.7)
        sure = 1.0 - slope(np.mean([sample.H for sample in self.known]) / np.log(K), 0.33, 0.4)
        self.votes = 1.0 - sure * (1.0 - present)
        measured = [sample.agreement for sample in self.known if sample.agreement]
        self.started = self.few_classes or bool(measured)
        if self.few_classes:
            self.votes, self.shares = 0.0, np.log(K * (sharp + 1.0) / (n + K))
        if not measured:
            return
        halves, zero_shot, squares, losses = (np.mean(each, axis=0) for each in zip(*measured, strict=True))
        excess = halves - zero_shot
        error = np.sqrt(max(0.0, squares - excess**2) / len(measured))
        spared = (excess - 0.1 - error) / max(1.0 - zero_shot, 0.02)
        chance = ((sharp / n) ** 2).sum()
        equal = np.mean([sample.like_the_last for sample in self.known])
        runs = slope((equal - chance) / (1.0 - chance + 1e-9), 0.2, 0.5)
        self.weight = 8.0 * np.exp(5.0 * min(0.0, spared)) * (1.0 - runs) * present
        self.tau = lowest(losses)
        uneven = 1.0 - slope(number_of_classes(shares) / K, 0.6, 0.9)
        trust = max(0.0, 1.0 - 3.0 * runs) * slope(zero_shot, 0.5, 0.8)
        self.prior = 3.0 * uneven * trust * np.log(K * (shares + 1.0) / (n + K))

    def calibrate(self):
        known = [sample.confidence for sample in self.known if sample.confidence]
        if not known:
            return
        target, reached = (np.mean(each, axis=0) for each in zip(*known, strict=True))
        if measured := [sample.agreement[:2] for sample in self.known if sample.agreement]:
            halves, zero_shot = np.mean(measured, axis=0)
            if halves:
                target = max(target, zero_shot / np.sqrt(halves) - 0.05)
        self.beta = float(np.exp(np.interp(min(0.98, target), reached, np.log(BETAS))))

    # Classes that come and go

    def add_class(self, vector):
        self.W = np.concatenate([self.W, vector[None] / np.linalg.norm(vector)])
        self.tda.W = self.W
        for queue in self.tda.negative.values():
            queue[:] = [(H, f, np.append(mask, False)) for H, f, mask in queue]
        for sample in self.samples:
            sample.p, sample.label, sample.sharp = (np.append(a, 0.0) for a in (sample.p, sample.label, sample.sharp))
        self.derive()

    def remove_class(self, gone):
        self.W = self.tda.W = np.delete(self.W, gone, axis=0)
        moved = {k: k - (k > gone) for k in range(len(self.W) + 1) if k != gone}
        tda = self.tda
        tda.positive = {moved[k]: [(H, f, moved[k]) for H, f, _ in q] for k, q in tda.positive.items() if k != gone}
        tda.negative = {
            moved[k]: [(H, f, np.delete(mask, gone)) for H, f, mask in q] for k, q in tda.negative.items() if k != gone
        }
        self.last = moved.get(self.last)
        for sample in self.samples:
            for name in ("p", "label", "sharp"):
                setattr(sample, name, np.delete(getattr(sample, name), gone))
        self.derive()

    # The second pass

    def refine(self, features):
        again = deepcopy(self)
        again.settle()
        xs = [f / np.linalg.norm(f) for f in np.asarray(features, np.float64)]
        if len(xs) >= 16 and len(self.W) > 1 and not self.few_classes:
            for sample in again.samples:
                sample.like_the_last = False
            again.derive()
            for _ in range(self.rounds):
                again.relearn(xs)
        return np.array([again.frozen(x)[0] for x in xs])

    def frozen(self, x):
        """Logits, base and scores of a sample that is not learnt from, and its zero-shot probabilities."""
        z = self.scale * self.W @ x + self.bias
        p = np.exp(log_softmax(z))
        base, scores = self.base(z, z + self.tda._read(x)), self.score(0, x, p)
        return (self.beta * self.pool(base, scores) if self.started else z), base, scores, p

    def relearn(self, xs):
        samples = []
        for position, x in enumerate(xs):
            logits, _, _, p = self.frozen(x)
            samples.append(Sample(x, p, 0.5 * np.exp(log_softmax(logits)) + 0.5 * p, position))
        self.samples = samples
        self.settle()
        step = -(-len(xs) // max(256, min(self.checked, 2**22 // len(self.W))))
        checked = self.samples[:: step + (step % 2 == 0)]
        for sample in checked:
            _, base, _, p = self.frozen(sample.x)
            even, odd = self.score(1, sample.x, p), self.score(2, sample.x, p)
            blind = even if sample.position % 2 else odd
            self.measure(sample, even, odd, float(np.argmax(blind) == np.argmax(p)), blind, base)
        self.weigh()
        for sample in checked:
            _, base, scores, _ = self.frozen(sample.x)
            self.measure_confidence(sample, self.pool(base, scores))
        self.calibrate()


def lowest(losses):
    """The temperature at the bottom of the parabola through the lowest loss and its neighbours, in the logarithm."""
    i = int(np.argmin(losses))
    if i in (0, len(TAUS) - 1):
        return TAUS[i]
    left, middle, right = losses[i - 1 : i + 2]
    return TAUS[i] * 1.8 ** (0.5 * (left - right) / max(left - 2 * middle + right, 1e-12))
