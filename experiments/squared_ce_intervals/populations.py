"""Binary populations of confidences whose calibration error is known."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

NODES = 100_000


class Population(NamedTuple):
    """``quantile(u)``: the confidence of rank u; ``rate(c)``: P(y = 1 | c)."""

    quantile: Callable[[Any], Any]
    rate: Callable[[Any], Any]

    def error(self) -> float:
        """The calibration error, root of E (c - rate)^2, by the midpoint rule over ranks."""
        c = self.quantile((np.arange(NODES) + 0.5) / NODES)
        return float(np.sqrt(np.mean((c - self.rate(c)) ** 2)))

    def draw(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        c = self.quantile(rng.random(n))
        return c, (rng.random(n) < self.rate(c)).astype(int)


def uniform(low: float, high: float) -> Callable[[Any], Any]:
    return lambda u: low + (high - low) * u


POPULATIONS = {
    "U(.5 1) calibrated": Population(uniform(0.5, 1), lambda c: c),
    "Beta(9 1) calibrated": Population(stats.beta(9, 1).ppf, lambda c: c),
    "Beta(6 1)^1.5": Population(stats.beta(6, 1).ppf, lambda c: c**1.5),
    "U(0 1)^2": Population(uniform(0, 1), lambda c: c**2),
    "overconfident": Population(uniform(0, 1), lambda c: 0.1 + 0.8 * c),
    "rare labels": Population(uniform(0, 0.1), lambda c: c / 2),
    "too sure by .1": Population(uniform(0.8, 1), lambda c: c - 0.1),
    "three steps": Population(
        uniform(0, 1), lambda c: np.choose((3 * c).astype(int), (0.1, 0.5, 0.9))
    ),
    "jumps of .4": Population(uniform(0, 1), lambda c: c + 0.2 * np.sign(np.sin(4 * np.pi * c))),
    "six waves": Population(uniform(0.2, 0.8), lambda c: c + 0.2 * np.sin(20 * np.pi * c)),
    "waves": Population(uniform(0.2, 0.8), lambda c: c + 0.15 * np.sin(8 * np.pi * c)),
}
