"""TDA as the paper tells it: one sample at a time, dense values, float64, no cleverness. The tests' yardstick."""

import numpy as np


class NaiveTDA:
    def __init__(self, W, scale, bias=0.0, **settings):
        self.W = np.asarray(W, np.float64)
        self.W /= np.linalg.norm(self.W, axis=1, keepdims=True)
        self.scale = scale
        self.bias = bias
        self.settings = {
            "positive": True,
            "positive_capacity": 3,
            "positive_alpha": 2.0,
            "positive_beta": 5.0,
            "negative": True,
            "negative_capacity": 2,
            "negative_alpha": 0.117,
            "negative_beta": 1.0,
            "negative_keep": "lowest",
            "entropy_low": 0.2,
            "entropy_high": 0.5,
            "mask_low": 0.03,
            "mask_high": 1.0,
            "self_match": True,
            "bypass": 0,
        } | settings
        self.positive = {}
        self.negative = {}
        self.seen = 0

    def step(self, features):
        return np.array([self._one(f / np.linalg.norm(f)) for f in np.asarray(features, np.float64)])

    def _one(self, f):
        z = self.scale * self.W @ f + self.bias
        p = np.exp(z - z.max())
        p /= p.sum()
        return self._adapt(f, z, p)

    def step_views(self, features, keep=0.1):
        return np.array([self._views(views, keep) for views in np.asarray(features, np.float64)])

    def _views(self, views, keep):
        views = views / np.linalg.norm(views, axis=1, keepdims=True)
        z = self.scale * views @ self.W.T + self.bias
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        kept = np.argsort([entropy(row) for row in p])[: max(1, int(keep * len(views)))]
        return self._adapt(views[kept].mean(axis=0), z[kept].mean(axis=0), p[kept].mean(axis=0))

    def _adapt(self, f, z, p):
        s = self.settings
        before = self._read(f)
        self._learn(f, z, p)
        self.seen += 1
        if self.seen <= s["bypass"]:
            return z
        return z + (self._read(f) if s["self_match"] else before)

    def _learn(self, f, z, p):
        s = self.settings
        H = entropy(p)
        y = int(np.argmax(z))
        if s["positive"]:
            update(self.positive.setdefault(y, []), (H, f, y), s["positive_capacity"])
        K = len(self.W)
        if s["negative"] and K > 1 and s["entropy_low"] < H / np.log2(K) < s["entropy_high"]:
            mask = (s["mask_low"] < p) & (p < s["mask_high"])
            sign = -1 if s["negative_keep"] == "highest" else 1
            update(self.negative.setdefault(y, []), (sign * H, f, mask), s["negative_capacity"])

    def _read(self, f):
        s = self.settings
        votes = np.zeros(len(self.W))
        for y, queue in self.positive.items():
            for _, q, _ in queue:
                votes[y] += s["positive_alpha"] * np.exp(-s["positive_beta"] * (1 - f @ q))
        for queue in self.negative.values():
            for _, q, mask in queue:
                votes -= s["negative_alpha"] * np.exp(-s["negative_beta"] * (1 - f @ q)) * mask
        return votes


def entropy(p):
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def update(queue, item, capacity):
    if len(queue) < capacity:
        queue.append(item)
    elif item[0] < queue[-1][0]:
        queue[-1] = item
    queue.sort(key=lambda entry: entry[0])


class Naive:
    """A zero-shot classifier to build naive methods on."""

    def __init__(self, W, scale, bias=0.0):
        self.W = np.asarray(W, np.float64) / np.linalg.norm(W, axis=1, keepdims=True)
        self.scale = scale
        self.bias = bias

    def step(self, features):
        answers = []
        for f in np.asarray(features, np.float64):
            f = f / np.linalg.norm(f)
            z = self.scale * self.W @ f + self.bias
            p = np.exp(z - z.max())
            answers.append(self.answer(f, z, p / p.sum()))
        return np.array(answers)


class NaiveDOTA(Naive):
    """Means of all samples so far, and the pooled covariance of those before the last refresh."""

    def __init__(self, W, scale, bias=0.0, rate=0.05, limit=3.0, variance=0.002, ridge=1e-4, refresh=32):
        super().__init__(W, scale, bias)
        self.rate = rate
        self.limit = limit
        self.variance = variance
        self.ridge = ridge
        self.refresh = refresh
        self.samples = []
        self.precision = None
        self.due = 0

    def answer(self, f, z, p):
        seen = len(self.samples)
        if seen == self.due:
            self.precision = self.inverse()
            step = 1
            while 32 * step <= seen and step < self.refresh:
                step *= 2
            step = min(step, self.refresh)
            self.due = (seen // step + 1) * step
        c, mu = self.means()
        g = np.array([f @ self.precision @ m - m @ self.precision @ m / 2 for m in mu])
        self.samples.append((f, p))
        return z + min(self.rate * c.mean(), self.limit) * g

    def means(self):
        c = np.ones(len(self.W)) + sum(p for _, p in self.samples)
        return c, (np.zeros(self.W.shape) + sum(np.outer(p, x) for x, p in self.samples)) / c[:, None]

    def inverse(self):
        K, d = self.W.shape
        c, mu = self.means()
        S = K * self.variance * np.eye(d)
        for x, _ in self.samples:
            S += np.outer(x, x)
        for k in range(K):
            S -= (c[k] - 1) * np.outer(mu[k], mu[k])
        return np.linalg.inv((1 - self.ridge) * S / c.sum() + self.ridge * np.eye(d))


class NaivePrior(Naive):
    def __init__(self, W, scale, bias=0.0, strength=0.5, smoothing=10.0):
        super().__init__(W, scale, bias)
        self.strength = strength
        self.smoothing = smoothing
        self.answers = []

    def answer(self, f, z, p):
        self.answers.append(p)
        K = len(p)
        share = (self.smoothing + sum(self.answers)) / (K * self.smoothing + len(self.answers))
        return z - self.strength * np.log(K * share)
