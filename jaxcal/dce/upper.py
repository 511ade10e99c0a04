r"""True and upper distance from calibration, by partitions of a small set of points.

A partition of the inputs gives a calibrated predictor, the mean label of each part, and every
calibrated predictor that matters is one of these, so the distance is a minimum over partitions. The
upper distance lets the partition see predictions only: the same function on the atoms of v.
Source: Blasiok et al. (2023), eq. 1, Def. 5.1 and 5.2, Theorem 5.5.
"""

from functools import lru_cache
from typing import Any

import equinox as eqx
import numpy as np
from jax.core import Tracer
from jaxtyping import Float, Int

from jaxcal import checks
from jaxcal.dce.intervals import interval_ce
from jaxcal.dce.lower import Coupling
from jaxcal.dce.predictions import atoms, binary, positive
from jaxcal.results import plain

MOST = 10  # points whose partitions are all tried: 115,975 of them
MOVES = 50  # rounds of local search beyond


class Domain(eqx.Module):
    """A finite set of k inputs: ``mass`` [k] of sum 1, prediction ``f`` [k], truth
    ``f_star`` [k] = P(y = 1 | x)."""

    mass: Float[np.ndarray, " k"]
    f: Float[np.ndarray, " k"]
    f_star: Float[np.ndarray, " k"]

    def distribution(self) -> tuple[Any, Any, Any]:
        """That of (v, y): predictions, mean labels and weights, as the measures take them."""
        return self.f, self.f_star, self.mass


class Partition(eqx.Module):
    """``value``: distance to the predictor ``g`` [k], the mean label of each of the ``groups`` [k].
    ``exact``: whether every partition was tried; if not, the value is an upper bound."""

    value: float
    groups: Int[np.ndarray, " k"]
    g: Float[np.ndarray, " k"]
    exact: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON."""
        return plain(self)

    def __repr__(self) -> str:
        kind = "exactly" if self.exact else "at most"
        return (
            f"distance from calibration {kind} {self.value:.6g} by {self.groups.max() + 1} groups"
        )


def true_distance(domain: Domain, *, power: float = 1.0) -> Partition:
    r"""True distance :math:`\min_g (E|f - g|^p)^{1/p}` over calibrated predictors g of the inputs.

    Tries all partitions: at most 10 inputs, ValueError beyond. ``power``: p. Raises ValueError also
    for masses that are negative or do not sum to 1, and for probabilities outside of [0, 1].
    """
    mass, f, f_star = _checked(domain)
    if f.size > MOST:
        raise ValueError(f"domain: all partitions of at most {MOST} inputs, got {f.size}")
    if (power := checks.real(power, "power")) < 1:
        raise ValueError(f"power: wanted p >= 1, got {power}")
    groups = all_partitions(f.size)
    sums, costs = _costs(groups, mass, f, f_star, power)
    best = int(np.argmin(costs))
    return Partition(
        float(costs[best]) ** (1 / power), groups[best], sums[best][groups[best]], True
    )


def _checked(domain: Domain) -> tuple[Any, Any, Any]:
    """Masses, predictions and truth in float64, or ValueError."""
    if not isinstance(domain, Domain):
        raise TypeError(f"domain: wanted jaxcal.dce.Domain(..), got {checks.say(domain)}")
    mass, f, f_star = (
        np.asarray(checks.array(getattr(domain, name), f"domain: {name}"), float)
        for name in ("mass", "f", "f_star")
    )
    if not mass.shape == f.shape == f_star.shape or f.ndim != 1 or f.size < 1:
        raise ValueError("domain: wanted mass, f and f_star of one shape [k], k >= 1")
    if not (np.all(mass >= 0) and abs(mass.sum() - 1) < 1e-4):
        raise ValueError(
            f"domain: wanted masses >= 0 of sum 1, got the sum {mass.sum():.6g} and the least "
            f"{mass.min():.6g}"
        )
    for name, x in (("f", f), ("f_star", f_star)):
        if not np.all((x >= 0) & (x <= 1)):
            raise ValueError(f"domain: wanted {name} in [0, 1], without NaN, got {x[:MOST]}")
    return mass, f, f_star


def _costs(groups: Any, mass: Any, f: Any, f_star: Any, power: float) -> tuple[Any, Any]:
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
    """Upper distance: the least that a recalibration of the predictions moves them on average.

    Exact for at most 10 different predictions; beyond, an upper bound by the best intervals and
    then by moving single predictions to other groups (``exact`` is False). ``groups`` and ``g`` are
    those of each observation. Outside of jit. It cannot be estimated from a sample of a continuous
    distribution: this is the upper distance of the data themselves.
    """
    data = binary(predictions, targets, weights)
    if isinstance(data.v, Tracer):
        raise ValueError("upper_distance runs outside of jit, vmap and grad only")
    distribution = positive(atoms(data))
    v, index = distribution.v, distribution.atom
    domain = Domain(distribution.mass, v, distribution.p1 / distribution.mass)
    if v.size <= MOST:
        best = true_distance(domain)
    else:
        start = np.zeros(v.size, int)
        start[index] = np.asarray(interval_ce(data.v, data.y, weights=data.w).bins)
        best = _improved(domain, start)
    return Partition(best.value, best.groups[index], best.g[index], best.exact)


def _improved(domain: Domain, groups: Any) -> Partition:
    """Single points moved to the group that lowers the cost most, until none does."""
    mass, f, f_star = domain.mass, domain.f, domain.f_star

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
    g = mean_labels(domain, groups)
    return Partition(float(np.sum(mass * np.abs(f - g))), groups, g, False)


def mean_labels(domain: Domain, groups: Any) -> Any:
    """The calibrated predictor of a partition: each input's group's mean label."""
    k = int(groups.max()) + 1
    total = np.bincount(groups, domain.mass, k)
    ones = np.bincount(groups, domain.mass * domain.f_star, k)
    return (ones / np.where(total > 0, total, 1))[groups]


def is_calibrated(domain: Domain, *, tolerance: float = 1e-12) -> bool:
    """Whether E[y | f(x)] = f(x) wherever there is mass."""
    tolerance = checks.real(tolerance, "tolerance")
    mass, f, f_star = _checked(domain)
    _, level = np.unique(f, return_inverse=True)
    means = mean_labels(Domain(mass, f, f_star), level)
    return bool(np.all(np.abs(means - f)[mass > 0] <= tolerance))


def lift_lower(coupling: Coupling) -> Domain:
    """Inputs x = (u, v) on which the true distance is the lower one: f = v, and u is calibrated."""
    checks.instance(coupling, Coupling, "coupling")
    pairs, index = np.unique(np.stack([coupling.u, coupling.v]), axis=1, return_inverse=True)
    index = index.reshape(-1)
    mass = np.bincount(index, coupling.mass)
    ones = np.bincount(index, coupling.mass * coupling.y)
    return Domain(mass, pairs[1], ones / mass)


def lift_upper(predictions: Any, targets: Any, *, weights: Any = None) -> Domain:
    """Inputs x = v on which the true distance is the upper one: nothing but f is known of x."""
    distribution = positive(atoms(binary(predictions, targets, weights)))
    return Domain(distribution.mass, distribution.v, distribution.p1 / distribution.mass)
