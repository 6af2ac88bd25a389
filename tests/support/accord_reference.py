"""Accord as the guide tells it: one sample at a time, float64, all figures computed anew from a list of samples."""

from types import SimpleNamespace

import numpy as np

from reference import Naive

TAUS = [0.002 * 1.8**i for i in range(13)]
BETAS = [2.0 ** (i / 2) for i in range(-4, 11)]
CONSTANTS = SimpleNamespace(
    anchor_even=2.0,
    anchor_seen=8.0,
    shrink=0.5,
    bar=1.5,
    slope=2.0,
    odds=1.0,
    least=0.15,
    uneven=0.07,
    doubt=3.0,
)


def anchors():
    return {"even": CONSTANTS.anchor_even, "seen": CONSTANTS.anchor_seen}


def log_softmax(z):
    z = z - z.max()
    return z - np.log(np.exp(z).sum())


def offset_of(answered, strength):
    return -strength * np.log((answered + 1.0) / (answered.mean() + 1.0))


class Classifier:
    """The Gaussians of samples x (n, d) with soft labels r (n, K)."""

    def __init__(self, W, x, r):
        self.n = len(x)
        self.c = r.sum(axis=0)
        self.m = x.mean(axis=0)
        text = W - W.mean(axis=0)
        self.views = []
        for start in (0, 1):
            X = x[:, start::2]
            t = text[:, start::2]
            m = self.m[start::2]
            h = X.shape[1]
            S = np.array([sum(r[i, k] * (X[i] - m) for i in range(self.n)) for k in range(len(W))])
            a = (S * t).sum() / (sum(self.c[k] * t[k] @ t[k] for k in range(len(W))) + 1e-6)
            within = sum(np.outer(row - m, row - m) for row in X) / self.n
            for k in range(len(W)):
                within = within - np.outer(S[k], S[k]) / (self.n * max(self.c[k], 1e-6))
            share = (CONSTANTS.shrink * self.n + h) / (self.n + h)
            v = max(np.trace(within) / h, 1e-6)
            precision = np.linalg.inv((1 - share) * within + (share * v + 1e-6) * np.eye(h))
            means = {b: (S + A * a * t) / (self.c + A)[:, None] for b, A in anchors().items()}
            self.views.append((start, precision, means))

    def scores(self, x, own=None):
        """Return -D/2 for each belief and view, and the logarithms of the shares."""
        own = np.zeros(len(self.c)) if own is None else own
        found = {"even": [], "seen": []}
        for start, precision, means in self.views:
            for belief, mu in means.items():
                gaps = (x - self.m)[start::2] - mu
                D = np.array([gap @ precision @ gap for gap in gaps])
                N = self.c + anchors()[belief]
                D = D * (N / (N - own)) ** 2
                if belief == "even":
                    D = D / (1.0 + 1.0 / (N - own))
                found[belief].append(-D / 2)
        return found, np.log((self.c - own + 1.0) / (self.n + len(self.c)))


def said(scores, belief, tau, trust=None):
    """Return the answer of each view, or with `trust` that of both together."""
    views, shares = scores
    if trust is None:
        return [tau * g + (0.5 * shares if belief == "seen" else 0.0) for g in views[belief]]
    return tau * sum(views[belief]) + (trust * shares if belief == "seen" else 0.0)


def compare(scores, taus, p):
    """Return what one sample adds to the figures of each belief: agree, with zero-shot, stake."""
    z = int(p.argmax())
    row = {}
    for belief in ("even", "seen"):
        a, b = (int(view.argmax()) for view in said(scores, belief, taus[belief]))
        row[belief] = np.array(
            [
                a == b,
                ((a == z) + (b == z)) / 2,
                p[z] - (p[a] + p[b]) / 2,
            ],
            dtype=float,
        )
    return row


def losses(scores, p):
    """Return the cross-entropy of zero-shot to each belief at each temperature."""
    views, _ = scores
    return {b: np.array([-p @ log_softmax(tau * sum(views[b])) for tau in TAUS]) for b in views}


def reached(pooled):
    return np.array([np.exp(log_softmax(beta * pooled)).max() for beta in BETAS])


def least(values):
    i = int(np.argmin(values))
    if i in (0, len(TAUS) - 1):
        return TAUS[i]
    left, middle, right = values[i - 1 : i + 2]
    return TAUS[i] * 1.8 ** float(np.clip((left - right) / 2 / max(left - 2 * middle + right, 1e-12), -0.5, 0.5))


def information(scores):
    """Return how much likelier a sample is by the shares than by equal ones, in units of log K."""
    views, shares = scores
    g = sum(views["seen"])
    by_shares, by_equal = (np.log(np.exp(each - each.max()).sum()) + each.max() for each in (g + shares, g))
    return (by_shares - by_equal) / np.log(len(g)) + 1.0


def weigh(figures, asked):
    """Return the weights of zero-shot, even and seen."""
    stake = {b: figures[b][2] + 1.0 for b in figures}
    unit = min(stake[b] for b in asked)
    score = {b: CONSTANTS.slope * (figures[b][0] - figures[b][1] - CONSTANTS.bar * stake[b]) / unit for b in figures}
    score["even"] += CONSTANTS.odds
    score = {b: score[b] if b in asked else -np.inf for b in score}
    best = max(score.values())
    zero_shot = max(0.0, best + np.log(CONSTANTS.least))
    weights = np.exp(np.array([zero_shot, score["even"], score["seen"]]) - max(zero_shot, best))
    return weights / weights.sum()


def conclude(figures, found):
    """Return the weights, without even where the shares hold much information, and how far even is believed."""
    out = 1.0 / (1.0 + np.exp(5.0 * (1.0 - found / CONSTANTS.uneven)))
    weights = (1.0 - out) * weigh(figures, ("even", "seen")) + out * weigh(figures, ("seen",))
    return weights, weights[1] / max(weights[1] + weights[2], 1e-9)


def temperature(figures, confidence, compared, weights, mean_reached):
    right = [min(1.0, figures[b][1] / np.sqrt(max(figures[b][0] * compared, 1e-9))) for b in ("even", "seen")]
    deserved = (weights[1] * right[0] + weights[2] * right[1]) / max(weights[1] + weights[2], 1e-9)
    target = min(0.98, (confidence / compared + deserved) / 2)
    return float(np.exp(np.interp(target, mean_reached, np.log(BETAS))))


class NaiveAccord(Naive):
    def __init__(self, W, scale, bias=0.0, rounds=2, measured=4096):
        super().__init__(W, scale, bias)
        self.rounds = rounds
        self.measured = measured
        self.samples = []
        self.settled = 0
        self.recompute()

    def due(self, position):
        blocks = max(1, int(np.ceil(len(self.W) / 4 / 32)))
        while blocks * 32 < position:
            blocks = max(blocks + 1, int(np.ceil(1.25 * blocks)))
        return blocks * 32 == position

    # Online

    def answer(self, x, z, p):
        sample = SimpleNamespace(x=x, predicted=int(p.argmax()), sure=p.max(), scores=None, compared=None)
        logits = z
        own = p
        if self.classifier is not None:
            sample.scores = self.classifier.scores(x)
            own, pooled = self.pool(z, sample.scores, self)
            logits = self.beta * pooled + self.offset
            own = np.exp(own)
        answer = log_softmax(logits)
        if self.likeness:
            prior = np.full(len(p), (1 - self.likeness) / len(p))
            if self.samples:
                prior = prior + self.likeness * self.samples[-1].answered
            row = np.exp(answer) * prior
            answer = logits = np.log(row / row.sum() + 1e-30)
        sample.answered = np.exp(answer)
        trial = log_softmax(z + self.trial)
        sample.evened = np.exp(trial)
        sample.equal = bool(self.samples) and self.samples[-1].predicted == sample.predicted
        if sample.scores is not None:
            sample.compared = compare(sample.scores, self.taus, p)
            if len(self.samples) % max(1, len(self.W) // 128) == 0:
                sample.losses = losses(sample.scores, p)
                sample.information = information(sample.scores)
                sample.reached = reached(pooled)
        sample.label = 0.5 * (sample.answered + own)
        self.samples.append(sample)
        if self.due(len(self.samples)):
            self.settled = len(self.samples)
            self.recompute()
        return logits

    @staticmethod
    def pool(z, scores, known):
        log_p = log_softmax(z + known.zero_shot_offset)
        pooled = known.weights[0] * log_p
        for belief, weight in zip(("even", "seen"), known.weights[1:], strict=True):
            if weight > 1e-4:
                pooled = pooled + weight * log_softmax(said(scores, belief, known.taus[belief], known.trust))
        return log_p, pooled

    def recompute(self):
        self.classifier = None
        self.likeness = 0.0
        self.trial = 0.0
        self.taus = {"even": 0.05, "seen": 0.05}
        self.weights = np.array([1.0, 0.0, 0.0])
        self.trust = 1.0
        self.zero_shot_offset = 0.0
        self.beta = 1.0
        self.offset = 0.0
        seen = self.samples[: self.settled]
        if not seen or len(self.W) < 2:
            return
        n = len(seen)
        self.classifier = Classifier(self.W, np.array([s.x for s in seen]), np.array([s.label for s in seen]))
        equal = sum(s.equal for s in seen) / n
        predicted = [s.predicted for s in seen if s.predicted is not None]
        shares = np.bincount(predicted, minlength=len(self.W)) / n
        chance = (shares**2).sum()
        error = (max(equal * (1 - equal), chance * (1 - chance)) / n) ** 0.5
        self.likeness = max(0.0, (equal - CONSTANTS.doubt * error - chance) / (1.0 - chance + 1e-9))
        self.trial = offset_of(sum(s.evened for s in seen), 1.0)
        rows = [s for s in seen if s.compared is not None]
        if not rows:
            return
        figures = {b: sum(s.compared[b] for s in rows) for b in ("even", "seen")}
        confidence = sum(s.sure for s in rows)
        tempered = [s for s in rows if hasattr(s, "losses")]
        self.taus = {b: least(sum(s.losses[b] for s in tempered)) for b in ("even", "seen")}
        self.trust = confidence / len(rows)
        if self.likeness:
            self.weights = weigh(figures, ("even",))
            even = 0.0
        else:
            self.weights, even = conclude(figures, sum(s.information for s in tempered) / len(tempered))
        self.zero_shot_offset = even * self.trial
        mean_reached = sum(s.reached for s in tempered) / len(tempered)
        self.beta = temperature(figures, confidence, len(rows), self.weights, mean_reached)
        self.offset = offset_of(sum(s.answered for s in seen), even)

    # The second pass

    def refine(self, features):
        x = np.array([row / np.linalg.norm(row) for row in np.asarray(features, np.float64)])
        z = self.scale * x @ self.W.T + self.bias
        log_p = np.array([log_softmax(row) for row in z])
        if len(x) < 16 or len(self.W) < 2 or not self.rounds:
            self.settled = len(self.samples)
            self.recompute()
            return np.array([self.frozen(*row) for row in zip(x, z, strict=True)])
        p = np.exp(log_p)
        labels = p
        step = int(np.ceil(len(x) / max(256, min(self.measured, 2**22 // len(self.W)))))
        some = range(0, len(x), step)
        tempered = list(some)[:: max(1, len(self.W) // 128)]
        for _ in range(self.rounds):
            classifier = Classifier(self.W, x, labels)
            scores = [classifier.scores(row, own) for row, own in zip(x, labels, strict=True)]
            trial = self.fixed_point(log_p[some], 1.0, step)
            lost = [losses(scores[i], p[i]) for i in tempered]
            known = SimpleNamespace(taus={b: least(sum(each[b] for each in lost)) for b in ("even", "seen")})
            rows = [compare(scores[i], known.taus, p[i]) for i in some]
            figures = {b: sum(each[b] for each in rows) for b in ("even", "seen")}
            confidence = p[some].max(axis=1).sum()
            known.trust = confidence / len(rows)
            known.weights, even = conclude(figures, np.mean([information(scores[i]) for i in tempered]))
            known.zero_shot_offset = even * trial
            pooled = [self.pool(*pair, known) for pair in zip(z, scores, strict=True)]
            mean_reached = np.mean([reached(pooled[i][1]) for i in tempered], axis=0)
            beta = temperature(figures, confidence, len(rows), known.weights, mean_reached)
            answer = np.array([log_softmax(beta * each) for _, each in pooled])
            labels = 0.5 * (np.exp(answer) + np.exp(np.array([own for own, _ in pooled])))
            offset = self.fixed_point(answer[some], even, step)
        return answer + offset

    def frozen(self, x, z):
        if self.classifier is None:
            return z
        return self.beta * self.pool(z, self.classifier.scores(x), self)[1] + self.offset

    @staticmethod
    def fixed_point(log_p, strength, step):
        offset = np.zeros(log_p.shape[1])
        for _ in range(4):
            answered = step * sum(np.exp(log_softmax(row + offset)) for row in log_p)
            offset = offset + (offset_of(answered, strength) - offset) / (1.0 + strength)
        return offset

    # Classes that come and go

    def add_class(self, vector):
        self.W = np.concatenate([self.W, vector[None] / np.linalg.norm(vector)])
        self.follow(lambda row: np.append(row, 0.0))

    def remove_class(self, gone):
        self.W = np.delete(self.W, gone, axis=0)
        for sample in self.samples:
            place = sample.predicted
            sample.predicted = None if place in (gone, None) else place - (place > gone)
        self.follow(lambda row: np.delete(row, gone))

    def follow(self, change):
        for sample in self.samples:
            for name in ("label", "answered", "evened"):
                setattr(sample, name, change(getattr(sample, name)))
        self.recompute()
