r"""The upper distance from calibration, by partitions of a small set of points.

A partition of points gives a calibrated predictor, the mean label of each part, and every
calibrated predictor that matters is one of these, so a distance is a minimum over partitions. The
upper distance lets the partition see predictions only: its points are the atoms of v.
Source: Blasiok et al. (2023), eq. 1, Def. 5.2, Theorem 5.5.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxcal.dce.intervals import interval_ce
from jaxcal.dce.predictions import Atoms, atoms, binary

MOST = 10  # points whose partitions are all tried: 115,975 of them
MOVES = 50  # rounds of local search beyond


class Partition(NamedTuple):
    """A recalibration by groups: ``value``, the distance to the recalibrated predictions;
    ``groups`` [k] of the observations and ``g`` [k], the mean labels of these; ``exact``, whether
    every partition was tried (if not, the value is an upper bound)."""

    value: float
    groups: Int[np.ndarray, " k"]
    g: Float[np.ndarray, " k"]
    exact: bool


def best_partition(
    mass: np.ndarray, f: np.ndarray, f_star: np.ndarray, *, power: float = 1.0
) -> Partition:
    r"""The calibrated predictor g of k points nearest to f: :math:`\min_g (E|f - g|^p)^{1/p}`.

    ``mass`` [k] of sum 1, predictions ``f`` [k], ``f_star`` [k] = P(y = 1 | x), at most 10 points:
    all partitions are tried.
    """
    groups = all_partitions(f.size)
    sums, costs = _costs(groups, mass, f, f_star, power)
    best = int(np.argmin(costs))
    return Partition(
        float(costs[best]) ** (1 / power), groups[best], sums[best][groups[best]], True
    )


def _costs(
    groups: np.ndarray, mass: np.ndarray, f: np.ndarray, f_star: np.ndarray, power: float
) -> tuple[Any, Any]:
    """Group means [b, k] and costs [b] of b partitions."""
    k = f.size
    means, costs = np.zeros(groups.shape), np.zeros(groups.shape[0])
    for j in range(k):
        inside = (groups == j) * mass
        total = inside.sum(axis=1)
        means[:, j] = inside @ f_star / np.where(total > 0, total, 1)
        costs += np.sum(inside * np.abs(f - means[:, j : j + 1]) ** power, axis=1)
    return means, costs


@lru_cache(maxsize=MOST)
def all_partitions(k: int) -> Any:
    """Every partition of k points once, as group numbers [b, k] in order of first appearance."""
    rows = np.zeros((1, 1), int)
    for _ in range(k - 1):
        choices = rows.max(axis=1) + 2
        kept = np.repeat(np.arange(rows.shape[0]), choices)
        new = np.arange(kept.size) - np.repeat(np.cumsum(choices) - choices, choices)
        rows = np.concatenate([rows[kept], new[:, None]], axis=1)
    return rows


def upper_distance(predictions: Any, targets: Any, *, weights: Any = None) -> Partition:
    """The least that a recalibration of the predictions [n] moves them on average, outside of jit.

    Exact for at most 10 different predictions; beyond, an upper bound by the best intervals and
    then by moving single predictions to other groups (``exact`` is False). It cannot be estimated
    from a sample of a continuous distribution: this is the upper distance of the data themselves.
    """
    data = binary(predictions, targets, weights)
    distribution = positive(atoms(data))
    v, index = distribution.v, distribution.atom
    points = distribution.mass, v, distribution.p1 / distribution.mass
    if v.size <= MOST:
        best = best_partition(*points)
    else:
        start = np.zeros(v.size, int)
        start[index] = np.asarray(interval_ce(data.v, data.y, weights=data.w).bins)
        best = _improved(*points, start)
    return Partition(best.value, best.groups[index], best.g[index], best.exact)


def _improved(mass: np.ndarray, f: np.ndarray, f_star: np.ndarray, groups: np.ndarray) -> Partition:
    """Single points moved to the group that lowers the cost most, until none does."""

    def of_group(members: Any) -> float:
        total = mass[members].sum()
        if total == 0:
            return 0.0
        return float(
            np.sum(mass[members] * np.abs(f[members] - mass[members] @ f_star[members] / total))
        )

    groups = groups.copy()
    names = list(range(groups.max() + 1))
    costs = {j: of_group(groups == j) for j in names}
    for _ in range(MOVES if f.size * len(names) <= 3000 else 0):
        moved = False
        for i in range(f.size):
            old = groups[i]
            without = groups == old
            without[i] = False
            gain, to = 1e-12, old
            rest = of_group(without)
            for j in names:
                if j == old:
                    continue
                inside = groups == j
                inside[i] = True
                new = costs[old] + costs[j] - rest - of_group(inside)
                if new > gain:
                    gain, to = new, j
            if to != old:
                groups[i] = to
                costs[old], costs[to] = of_group(groups == old), of_group(groups == to)
                moved = True
        if not moved:
            break
    _, groups = np.unique(groups, return_inverse=True)
    g = mean_labels(mass, f_star, groups)
    return Partition(float(np.sum(mass * np.abs(f - g))), groups, g, False)


def mean_labels(mass: np.ndarray, f_star: np.ndarray, groups: np.ndarray) -> Any:
    """The calibrated predictor of a partition: each input's group's mean label."""
    k = int(groups.max()) + 1
    total = np.bincount(groups, mass, k)
    ones = np.bincount(groups, mass * f_star, k)
    return (ones / np.where(total > 0, total, 1))[groups]


def interval_ce_of_largest_width(predictions: Any, targets: Any, *, weights: Any = None) -> float:
    """Interval calibration error with the LARGEST bin width instead of the mean one (Section 2.3 of
    the paper; its Def. 6.1 has the mean): binned ECE + width, every width of m predictions tried.
    O(m^4)."""
    distribution = positive(atoms(binary(predictions, targets, weights)))
    v, m = distribution.v, distribution.v.size
    r = np.concatenate([[0.0], np.cumsum(distribution.rho)])
    cost, wide = np.abs(r[None, 1:] - r[:-1, None]), v[None, :] - v[:, None]
    least = np.inf
    for most in np.unique(wide[np.triu_indices(m)]):
        best = np.full(m + 1, np.inf)
        best[0] = 0
        for j in range(m):
            within = wide[: j + 1, j] <= most
            best[j + 1] = np.min(np.where(within, best[: j + 1] + cost[: j + 1, j], np.inf))
        least = min(least, best[m] + most)
    return float(least)


def positive(distribution: Atoms) -> Atoms:
    """Return the atoms with mass as NumPy arrays in float64, outside of jit; observations without
    weight are assigned to the previous atom."""
    v, p0, p1 = (np.asarray(leaf, float) for leaf in distribution[:3])
    has_mass = p0 + p1 > 0
    moved = np.maximum(np.cumsum(has_mass) - 1, 0)
    return Atoms(v[has_mass], p0[has_mass], p1[has_mass], moved[np.asarray(distribution.atom)])
