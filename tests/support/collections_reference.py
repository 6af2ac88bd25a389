"""The methods that answer a set as their formulas say: float64, dense matrices, everything computed anew."""

import numpy as np

from rivals_reference import softmax, unit


def nearest_others(F, k):
    """Return the cosines (n, n) of each sample with its k nearest others, 0 elsewhere."""
    W = np.zeros((len(F), len(F)))
    for i, f in enumerate(F):
        cosines = F @ f
        cosines[i] = -np.inf
        for j in np.argsort(-cosines, kind="stable")[: min(k, len(F) - 1)]:
            W[i, j] = max(0.0, cosines[j])
    return W


def log_gaussian(f, mean, variances):
    return -0.5 * np.sum((f - mean) ** 2 / variances + np.log(variances))


def labelled(prior, q, F, means, variances, W, tau, repeats):
    """Return the logits of the last repetition, and the labels."""
    logs = np.array([[log_gaussian(f, m, v) for m, v in zip(means, variances, strict=True)] for f in F])
    for _ in range(repeats):
        z = prior + logs / tau + W @ q
        q = np.array([softmax(row) for row in z])
    return z, q


def transclip(F, T, z, text_weight=1.0, neighbours=3, confident=8, tau=50.0, iterations=10, label_iterations=5):
    p = np.array([softmax(row) for row in z])
    W = nearest_others(F, neighbours)
    means = np.array([unit(F[np.argsort(-p[:, k], kind="stable")[:confident]].mean(axis=0)) for k in range(len(T))])
    variances = np.full(F.shape[1], 1 / F.shape[1])
    q = p
    for _ in range(iterations):
        every = [variances] * len(T)
        answer, q = labelled(text_weight * np.log(p), q, F, means, every, W, tau, label_iterations)
        means = unit(q.T @ F)
        scatter = sum(q[i, k] * (F[i] - means[k]) ** 2 for i in range(len(F)) for k in range(len(T)))
        variances = np.maximum(scatter / len(F), 1e-6)
    return answer


def stata(F, T, z, alpha=1.0, neighbours=3, tau=50.0, iterations=10, label_iterations=5):
    p = np.array([softmax(row) for row in z])
    W = nearest_others(F, neighbours) / max(1, min(neighbours, len(F) - 1))
    start = sum(p[i, k] * (F[i] - T[k]) ** 2 for i in range(len(F)) for k in range(len(T))) / len(F)
    start = np.maximum(start, 1e-6)
    means, variances, q = T, [start] * len(T), p
    for _ in range(iterations):
        answer, q = labelled(np.log(p), q, F, means, variances, W, tau, label_iterations)
        counts = np.bincount(q.argmax(axis=1), minlength=len(T))
        means, variances = [], []
        for k, t in enumerate(T):
            b = counts[k] / (alpha + counts[k])
            mean = unit(b * np.average(F, axis=0, weights=q[:, k]) + (1 - b) * t)
            own = np.average((F - mean) ** 2, axis=0, weights=q[:, k])
            means.append(mean)
            variances.append(np.maximum(b * own + (1 - b) * (start + (t - mean) ** 2), 1e-6))
    return answer


def zlap(F, T, z, neighbours=5, gamma=5.0, alpha=0.3):
    K = len(T)
    G = np.zeros((K + len(F), K + len(F)))
    G[K:, K:] = nearest_others(F, neighbours - 1)
    for i, f in enumerate(F):
        for k in np.argsort(-(T @ f), kind="stable")[:neighbours]:
            G[K + i, k] = max(0.0, T[k] @ f) ** gamma
    G = G + G.T
    sums = G.sum(axis=1)
    roots = np.sqrt(np.where(sums > 0, sums, 1.0))
    scores = np.linalg.inv(np.eye(len(G)) - alpha * G / np.outer(roots, roots))[K:, :K]
    return np.log(np.maximum(scores, 1e-9))


REFERENCES = {"stata": stata, "transclip": transclip, "zlap": zlap}
