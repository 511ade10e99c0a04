"""One data set of each kind that all packages get: classes, a binary event, numbers, posteriors."""

from typing import NamedTuple

import numpy as np


class Data(NamedTuple):
    logits: np.ndarray  # [n, 4] of an overconfident classifier
    probabilities: np.ndarray  # [n, 4], their softmax
    labels: np.ndarray  # [n]
    confidence: np.ndarray  # [n], of the most likely class
    correct: np.ndarray  # [n], whether it came true, 0 or 1
    p: np.ndarray  # [n], the probability of class 0
    y: np.ndarray  # [n], whether it came true, 0 or 1
    mean: np.ndarray  # [n], of Gaussian forecasts
    sd: np.ndarray  # [n], too small by a fifth
    targets: np.ndarray  # [n], numbers
    thetas: np.ndarray  # [k, 2], parameters
    xs: np.ndarray  # [k, 2], observations
    draws: np.ndarray  # [k, 100, 2], of posteriors that are too narrow by a tenth


def draw(rng: np.random.Generator, n: int) -> Data:
    """n observations of each kind, and k = n / 5 pairs of a parameter and an observation."""
    logits = 2 * rng.normal(size=(n, 4))
    labels = np.argmax(logits / 2 + rng.gumbel(size=(n, 4)), axis=1)
    probabilities = softmax(logits)
    chosen = np.argmax(probabilities, axis=1)
    mean, sd = rng.normal(size=n), rng.gamma(5, 0.2, size=n)
    thetas, noise = rng.normal(size=(2, n // 5, 2))
    xs = thetas + noise  # theta | x is N(x / 2, 1 / 2)
    draws = xs[:, None] / 2 + 0.9 * np.sqrt(0.5) * rng.normal(size=(n // 5, 100, 2))
    return Data(
        logits=logits,
        probabilities=probabilities,
        labels=labels,
        confidence=np.max(probabilities, axis=1),
        correct=(chosen == labels).astype(int),
        p=probabilities[:, 0],
        y=(labels == 0).astype(int),
        mean=mean,
        sd=sd,
        targets=mean + 1.25 * sd * rng.normal(size=n),
        thetas=thetas,
        xs=xs,
        draws=draws,
    )


def softmax(logits: np.ndarray) -> np.ndarray:
    odds = np.exp(logits - np.max(logits, axis=1, keepdims=True))
    return odds / np.sum(odds, axis=1, keepdims=True)
