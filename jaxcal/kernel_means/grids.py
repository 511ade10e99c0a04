r"""Quadrature nodes for integrals of unknown scale, dense in the logarithm.

The trapezoidal rule in x with :math:`\log s = x - c\,\mathrm{softplus}(-x)^2`. It resolves a
feature of width 1 in log s anywhere; far below s = 1, where integrands are small, the nodes are
sparse. The error decreases exponentially in their number. Source: sinc quadrature, graded.
"""

from typing import NamedTuple

import numpy as np

GRADING = 0.1
WIDE = np.linspace(-40, 40, 80001)


class Grid(NamedTuple):
    """Nodes s > 0, [q], and weights for the integral over ds / s."""

    nodes: np.ndarray
    weights: np.ndarray


def below(low: float, high: float, size: int) -> Grid:
    """Return ``size`` nodes from ``low`` < 1 to ``high``, sparse towards 0."""
    start, stop = np.interp(np.log([low, high]), _log(WIDE), WIDE)
    x = np.linspace(start, stop, size)
    return Grid(np.exp(_log(x)), (x[1] - x[0]) * _slope(x))


def both_sides(low: float, size: int) -> Grid:
    """Return ``size`` nodes from ``low`` < 1 to 1 / low, sparse towards 0 and infinity."""
    end = np.interp(-np.log(low), _log(WIDE) - _log(-WIDE) - WIDE, WIDE)
    x = np.linspace(-end, end, size)
    slope = _slope(x) + _slope(-x) - 1
    return Grid(np.exp(_log(x) - _log(-x) - x), (x[1] - x[0]) * slope)


def _log(x: np.ndarray) -> np.ndarray:
    return x - GRADING * np.logaddexp(0, -x) ** 2


def _slope(x: np.ndarray) -> np.ndarray:
    return 1 + 2 * GRADING * np.logaddexp(0, -x) / (1 + np.exp(x))
