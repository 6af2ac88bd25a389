"""The methods beside TDA as their formulas say: one sample at a time, float64, everything computed anew."""

from collections import defaultdict

import numpy as np

from reference import Naive, NaiveTDA, entropy, update


def softmax(z):
    p = np.exp(z - np.max(z))
    return p / p.sum()


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def half(x):
    """Round to half precision."""
    return np.asarray(x, np.float16).astype(np.float64)


class NaiveOnZeta(Naive):
    def __init__(
        self,
        W,
        scale,
        bias=0.0,
        label_rate=20.0,
        balance=0.0,
        proxy_rate=0.5,
        sharpness=0.25,
        mix=0.4,
        horizon=50.0,
    ):
        super().__init__(W, scale, bias)
        self.label_rate = label_rate
        self.balance = balance
        self.proxy_rate = proxy_rate
        self.sharpness = sharpness * scale
        self.mix = mix
        self.horizon = horizon
        self.V, self.r, self.t = self.W.copy(), np.zeros(len(self.W)), 0

    def answer(self, f, z, p):
        self.t += 1
        K = len(p)
        q = softmax(z + self.r)
        v = softmax(self.sharpness * self.V @ f)
        b = self.mix * np.sqrt(min(1, self.t / (self.horizon * K)))
        for k in range(K):
            self.r[k] = max(0, self.r[k] - self.label_rate / np.sqrt(self.t) * (q[k] - self.balance / K))
            self.V[k] = unit(self.V[k] - self.proxy_rate * self.sharpness / np.sqrt(self.t) * (v[k] - q[k]) * f)
        return np.log(b * v + (1 - b) * q)


class PublishedOnZeta(NaiveOnZeta):
    """OnZeta as its authors run it: they know the number of samples."""

    def __init__(self, W, scale, bias=0.0, *, samples, **settings):
        super().__init__(W, scale, bias, horizon=samples / len(W), **settings)


class PublishedDOTA(Naive):
    """DOTA as its authors run it: one covariance per class, and everything changes with every sample."""

    def __init__(self, W, scale, bias=0.0, rate=0.05, limit=3.0, variance=0.002, ridge=1e-4):
        super().__init__(W, scale, bias)
        K, d = self.W.shape
        self.rate = rate
        self.limit = limit
        self.ridge = ridge
        self.c = np.ones(K)
        self.mu = np.full((K, d), 0.001)
        self.covariances = defaultdict(lambda: variance * np.eye(d))
        self.mean_covariance = variance * np.eye(d)

    def answer(self, f, z, p):
        K, d = self.W.shape
        L = np.linalg.inv((1 - self.ridge) * self.mean_covariance + self.ridge * np.eye(d))
        g = self.mu @ L @ f - np.sum(self.mu @ L * self.mu, axis=1) / 2
        weight = min(self.rate * self.c.mean(), self.limit)
        for k in np.flatnonzero(p > 1e-9):
            before = self.covariances[k]
            deviation = f - self.mu[k]
            after = (self.c[k] * before + p[k] * np.outer(deviation, deviation)) / (self.c[k] + p[k])
            self.mean_covariance = self.mean_covariance + (after - before) / K
            self.covariances[k] = after
        self.mu = (self.c[:, None] * self.mu + np.outer(p, f)) / (self.c + p)[:, None]
        self.c = self.c + p
        return z + weight * g


class NaiveBatches(Naive):
    """A batch is learnt and then answered; one ends wherever the samples so far are a multiple of `batch`."""

    seen = 0

    def step(self, features):
        features = unit(np.asarray(features, np.float64))
        answers = []
        while len(features):
            room = self.batch - self.seen % self.batch
            samples = []
            for f in features[:room]:
                z = self.scale * self.W @ f + self.bias
                samples.append((f, z, softmax(z)))
            for sample in samples:
                self.learn(*sample)
            self.estimate()
            answers += [self.answer(*sample) for sample in samples]
            self.seen += len(samples)
            features = features[room:]
        return np.array(answers)


class NaiveOGA(NaiveBatches):
    def __init__(self, W, scale, bias=0.0, cache_capacity=8, strength=0.05, batch=32):
        super().__init__(W, scale, bias)
        self.capacity = cache_capacity
        self.strength = strength
        self.batch = batch
        self.queues = [[] for _ in self.W]

    def learn(self, f, z, p):
        update(self.queues[int(np.argmax(z))], (entropy(p), f), self.capacity)

    def estimate(self):
        d = self.W.shape[1]
        entries = [np.array([f for _, f in queue]).reshape(-1, d) for queue in self.queues]
        self.means = np.array([held.mean(axis=0) if len(held) >= 2 else self.W[k] for k, held in enumerate(entries)])
        self.precision = d * np.eye(d)
        if max(len(held) for held in entries) > 2:
            centred = np.concatenate([held - self.means[k] for k, held in enumerate(entries)])
            centred -= centred.mean(axis=0)
            n = len(centred)
            M = centred.T @ centred / (n - 1)
            ridge = (n - 1) * M + np.trace(M) * np.eye(d)
            self.precision = d * np.linalg.pinv(ridge) if n <= 4 * d else np.linalg.pinv(M)

    def answer(self, f, z, p):
        distances = np.sum(((f - self.means) @ self.precision) * (f - self.means), axis=1)
        return z - self.strength * distances / 2


class NaiveBCA(Naive):
    def __init__(
        self,
        W,
        scale,
        bias=0.0,
        prototype_weight=20_000.0,
        prototype_threshold=0.05,
        prior_weight=1.0,
        prior_threshold=0.65,
        rounded=half,
    ):
        super().__init__(W, scale, bias)
        self.thresholds = prototype_threshold, prior_threshold
        self.rounded = rounded
        self.M, self.R = rounded(self.W.copy()), np.eye(len(self.W))
        self.a, self.b = np.full(len(self.W), prototype_weight), np.full(len(self.W), prior_weight)

    def answer(self, f, z, p):
        p = softmax(self.scale * self.M @ f) @ self.R
        k = int(np.argmax(p))
        if p[k] > self.thresholds[0]:
            total = self.rounded(self.rounded(self.a[k] * self.M[k]) + self.rounded(f))
            mean = self.rounded(total / (self.a[k] + 1))
            self.M[k] = self.rounded(mean / self.rounded(np.linalg.norm(mean)))
            self.a[k] += 1
        if p[k] > self.thresholds[1]:
            self.R[k] = (self.b[k] * self.R[k] + p) / (self.b[k] + 1)
            self.b[k] += 1
        return np.log(p)


class NaiveSCA(NaiveBatches):
    def __init__(self, W, scale, bias=0.0, ridge=10_000.0, cover=0.5, trust=0.5, batch=1):
        super().__init__(W, scale, bias)
        self.cover = cover
        self.trust = trust
        self.batch = batch
        self.G = ridge * np.eye(self.W.shape[1])
        self.C = np.zeros(self.W.shape)

    def learn(self, f, z, p):
        self.G += np.outer(f, f)
        self.C += np.outer(self.label(p), f)

    def estimate(self):
        V = np.linalg.solve(self.G, self.C.T).T
        self.V = V / np.maximum(np.linalg.norm(V, axis=1, keepdims=True), 1e-12)

    def answer(self, f, z, p):
        cached = self.scale * self.V @ f
        a, b = softmax(-self.trust * np.array([entropy(p), entropy(softmax(cached))]))
        return a * z + b * cached

    def label(self, p):
        top, *others = np.argsort(-p)
        y = np.zeros(len(p))
        y[top] = p[top]
        for k in others:
            if y.sum() - y[top] >= self.cover * p[others].sum():
                break
            y[k] = p[k]
        return y / y.sum()


class NaiveDMN(Naive):
    def __init__(self, W, scale, bias=0.0, memory_capacity=50, beta=5.5, fusion=1.0):
        super().__init__(W, scale, bias)
        self.capacity = memory_capacity
        self.beta = beta
        self.fusion = fusion
        self.queues = [[] for _ in self.W]

    def answer(self, f, z, p):
        update(self.queues[int(np.argmax(z))], (entropy(p), f), self.capacity)
        cosines = []
        for k, queue in enumerate(self.queues):
            entries = [self.W[k], *(q for _, q in queue)]
            cosines.append(f @ unit(sum(np.exp(-self.beta * (1 - f @ q)) * q for q in entries)))
        return np.log(p + self.fusion * softmax(self.scale * np.array(cosines)))


class NaiveFreeTTA(Naive):
    """FreeTTA with everything updated every few samples; with refresh=1 with every sample, as its authors do."""

    def __init__(self, W, scale, bias=0.0, weight=0.1, decay=4.5, refresh=16):
        super().__init__(W, scale, bias)
        K, d = self.W.shape
        self.weight = weight
        self.decay = decay / (np.log(K) or 1.0)
        self.refresh = refresh
        self.n = np.full(K, 1 / K)
        self.mu = self.W.copy()
        self.scatter = np.eye(d)
        self.pending = []
        self.precision = np.eye(d)

    def answer(self, f, z, p):
        if len(self.pending) == self.refresh:
            self.flush()
        L = self.precision
        g = self.mu @ L @ f - np.sum(self.mu @ L * self.mu, axis=1) / 2 + np.log(self.n / self.n.sum())
        answer = z + self.weight * g
        self.pending.append((f, np.exp(-self.decay * entropy(p)) * softmax(answer)))
        return answer

    def flush(self):
        means = self.mu
        for f, y in self.pending:
            for k in np.flatnonzero(y > 1e-15):
                self.scatter = self.scatter + y[k] * np.outer(f - means[k], f - means[k])
            self.mu = (self.n[:, None] * self.mu + np.outer(y, f)) / (self.n + y)[:, None]
            self.n = self.n + y
        self.pending = []
        self.precision = np.linalg.inv(self.scatter / self.n.sum())


class NaiveBoost(NaiveTDA):
    """TDA on the first view, and a copy of its positive cache for every image."""

    def __init__(self, W, scale, bias=0.0, extra=1, **settings):
        super().__init__(W, scale, bias, **settings)
        self.extra = extra

    def step_views(self, features):
        return np.array([self._boosted(unit(views)) for views in np.asarray(features, np.float64)])

    def _boosted(self, views):
        s = self.settings
        f = views[0]
        logits = self.scale * views @ self.W.T + self.bias
        probs = [softmax(z) for z in logits]
        confident = np.argsort([entropy(p) for p in probs], kind="stable")[: max(1, int(0.1 * len(views)))]
        if s["self_match"]:
            self._learn(f, logits[0], probs[0])
        history = {y: list(queue) for y, queue in self.positive.items()}
        for i in confident if s["positive"] else ():
            y = int(np.argmax(logits[i]))
            update(
                self.positive.setdefault(y, []), (entropy(probs[i]), views[i], y), s["positive_capacity"] + self.extra
            )
        answer = logits[0] + self._read(f)
        self.positive = history
        if not s["self_match"]:
            self._learn(f, logits[0], probs[0])
        return answer


class NaiveTip(Naive):
    """Tip-Adapter: every shot is weighed for every sample, one after another."""

    def __init__(self, W, scale, bias=0.0, alpha=1.17, beta=1.0):
        super().__init__(W, scale, bias)
        self.alpha = alpha
        self.beta = beta
        self.cache = []

    def fit(self, shots, labels):
        for versions, label in zip(np.asarray(shots, np.float64), labels, strict=True):
            self.cache.append((unit(unit(np.atleast_2d(versions)).mean(axis=0)), label))

    def answer(self, f, z, p):
        answer = z.copy()
        for q, label in self.cache:
            answer[label] += self.alpha * np.exp(-self.beta * (1 - f @ q))
        return answer

    def search(self, features, labels, largest_alpha=3.0, largest_beta=7.0):
        scores = {}
        given = (self.alpha, self.beta)
        for i in range(200):
            for j in range(20):
                self.beta = 0.1 + i * (largest_beta - 0.1) / 200
                self.alpha = 0.1 + j * (largest_alpha - 0.1) / 20
                correct = self.step(features).argmax(axis=1) == labels
                right = np.mean([correct[labels == label].mean() for label in np.unique(labels)])
                scores[self.alpha, self.beta] = right
        equal = [pair for pair, score in scores.items() if score > max(scores.values()) - 1e-9]
        self.alpha, self.beta = min(equal, key=lambda pair: abs(pair[0] - given[0]) + abs(pair[1] - given[1]))
