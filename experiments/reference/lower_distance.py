r"""Lower distance from calibration by SciPy's linear programs, with the coupling that attains it.

.. math:: \underline{dCE} = \max_{a, b} E[(1 - y)\,a(v) + y\,b(v)],\quad a, b\ \text{1-Lipschitz},
          \ (1 - u)\,a(u) + u\,b(u) \le 0\ \forall u \in [0, 1]

The linear program has the condition at finitely many u. Points between them that violate it are
added until the largest violation is below the tolerance. The reference for `dce.lower_distance`.
Source: Blasiok et al. (2023), Def. 5.3, Section 7.3 and eq. 21.
"""

from types import ModuleType
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jax.core import Tracer
from jaxtyping import Float

from jaxcal.dce.predictions import atoms, binary
from jaxcal.read import convert
from jaxcal.typing import ArrayLike
from reference.partitions import positive


class Chain(NamedTuple):
    """A solution of the chain program at positions u [m]: ``a`` = r(u, 0), ``b`` = r(u, 1), and the
    mass ``at`` [m] of the optimal coupling at each position (both labels together)."""

    value: float
    a: Float[np.ndarray, " m"]
    b: Float[np.ndarray, " m"]
    at: Float[np.ndarray, " m"]


def chain_program(u: np.ndarray, p0: np.ndarray, p1: np.ndarray) -> Chain:
    """Maximize E[(1 - y) a(v) + y b(v)] over 1-Lipschitz a, b on ``u`` with (1 - u) a + u b <= 0.

    The maximum is the lower distance to predictors with values in u, which must contain 0 and 1.
    Source: eq. 21, with s eliminated.
    """
    import scipy.sparse as sparse

    m = u.size
    d = differences(m, sparse)
    none = sparse.csr_matrix(d.shape)
    slopes = sparse.bmat([[d, none], [-d, none], [none, d], [none, -d]])
    below = sparse.hstack([sparse.diags(1 - u), sparse.diags(u)])
    limits = np.concatenate([*[np.diff(u)] * 4, np.zeros(m)])
    solution = solve(
        -np.concatenate([p0, p1]), sparse.vstack([slopes, below]), limits, (None, None)
    )
    at = -solution.ineqlin.marginals[-m:]
    return Chain(-solution.fun, solution.x[:m], solution.x[m:], np.maximum(at, 0))


def differences(m: int, sparse: ModuleType) -> Any:
    """Return the matrix of differences of neighbours, [m - 1, m]."""
    return sparse.diags([-np.ones(m - 1), np.ones(m - 1)], [0, 1], shape=(m - 1, m))


def solve(costs: Any, matrix: Any, limits: Any, bounds: ArrayLike, seconds: Any = None) -> Any:
    """Return the solution of a linear program; TimeoutError after ``seconds``, or RuntimeError."""
    from scipy.optimize import linprog

    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    if seconds is not None:
        tight["time_limit"] = seconds
    solution = linprog(
        costs, A_ub=matrix.tocsr(), b_ub=limits, bounds=bounds, method="highs", options=tight
    )
    if solution.status == 1 and seconds is not None:
        raise TimeoutError(f"the linear program was not solved in {seconds} s")
    if solution.status != 0:
        raise RuntimeError(f"the linear program was not solved: {solution.message}")
    return solution


ROUNDS = 40


class Coupling(eqx.Module):
    """A joint distribution of (u, v, y) on k triples, in which u is calibrated for y.

    (v, y) is distributed as the data (or as the grid, if predictions were rounded).

    Attributes:
        u: Calibrated predictions, [k].
        v: Predictions, [k].
        y: Labels, [k].
        mass: Mass of each triple, [k].
    """

    u: Float[np.ndarray, " k"]
    v: Float[np.ndarray, " k"]
    y: Float[np.ndarray, " k"]
    mass: Float[np.ndarray, " k"]

    @property
    def cost(self) -> float:
        """Return E|u - v|, an upper bound of the lower distance by definition."""
        return float(np.sum(self.mass * np.abs(self.u - self.v)))


class LowerDistance(eqx.Module):
    """The lower distance from calibration with its certificates.

    Attributes:
        value: Middle of ``low`` and ``high``.
        low: Certified lower bound.
        high: Certified upper bound.
        coupling: Coupling of cost ``high`` minus ``moved``.
        places: Values u of the linear program, [m].
        on_zero: Dual function a at the places, [m].
        on_one: Dual function b at the places, [m].
        violation: Largest violation of the condition on the dual functions between places.
        moved: Mean shift of predictions to the grid.
    """

    value: float
    low: float
    high: float
    coupling: Coupling
    places: Float[np.ndarray, " m"]
    on_zero: Float[np.ndarray, " m"]
    on_one: Float[np.ndarray, " m"]
    violation: float
    moved: float


def lower_distance(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    tol: float = 1e-6,
    cells: int | None = None,
) -> LowerDistance:
    """Return the lower distance with certified bounds, its coupling and its dual functions.

    Outside of jit.

    Args:
        predictions: Probabilities of label 1, [n].
        targets: Labels 0 or 1, or means of labels, [n].
        weights: Weights of the observations, [n], >= 0.
        tol: Largest difference of ``high`` and ``low``, if it is reached in 40 rounds of adding
            places.
        cells: Number of cells of a grid to which predictions are rounded first, which widens the
            bounds by their mean shift; by default 1000 for more than 1500 different predictions.

    Returns:
        `LowerDistance`.

    Cost: a few sparse linear programs with m to 2 m places.

    Source: Blasiok et al. (2023), Def. 5.3, Section 7.3 and eq. 21.
    """
    tol = convert.real(tol, "tol", above=0, below=1)
    data = binary(predictions, targets, weights)
    if isinstance(data.v, Tracer):
        raise ValueError("lower_distance runs outside of jit, vmap and grad only")
    cells = None if cells is None else convert.integer(cells, "cells")
    distribution = positive(atoms(data))
    return lower_of_masses(distribution.v, distribution.p0, distribution.p1, tol=tol, cells=cells)


def lower_of_masses(
    v: np.ndarray, p0: np.ndarray, p1: np.ndarray, *, tol: float, cells: int | None
) -> LowerDistance:
    """Return the same for masses of (v, 0) and (v, 1) [m] at different v, by NumPy only."""
    at = places_of(v, cells)
    moved = float(np.sum((p0 + p1) * np.abs(at - v)))
    v, place = np.unique(at, return_inverse=True)
    p0, p1 = (np.bincount(place, x, v.size) for x in (p0, p1))
    u, chain, violation = _cut(v, p0, p1, tol)
    coupling = _coupling(u, chain, v, p0, p1)
    # within the solver's tolerance: the dual is lowered by the violation, the coupling has a cost
    low = max(0.0, chain.value - max(violation, 0.0) - moved - 1e-9)
    high = coupling.cost + moved
    return LowerDistance(
        (low + high) / 2, low, high, coupling, u, chain.a, chain.b, violation, moved
    )


def places_of(v: np.ndarray, cells: int | None) -> np.ndarray:
    """Return the positions of predictions in the program: unchanged, or rounded to a grid."""
    if cells is None and np.unique(v).size > 1500:
        cells = 1000
    return v if cells is None else np.round(v * cells) / cells


def _cut(
    v: np.ndarray, p0: np.ndarray, p1: np.ndarray, tol: float
) -> tuple[np.ndarray, Chain, float]:
    u = np.unique(np.concatenate([[0.0, 1.0], v]))
    for rounds in range(ROUNDS):
        where = np.searchsorted(u, v)
        masses = [np.bincount(where, x, u.size) for x in (p0, p1)]
        chain = chain_program(u, *masses)
        worst, new = violations(u, chain.a, chain.b)
        new = np.setdiff1d(new, u)
        if worst <= tol or new.size == 0 or rounds == ROUNDS - 1:
            return u, chain, worst
        u = np.union1d(u, new)
    raise AssertionError("a round always returns")


def violations(u: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the maximum of (1 - x) a(x) + x b(x) between places, with the smallest Lipschitz
    extensions of a and b, and the points where it is positive."""
    left, right = u[:-1], u[1:]

    def extend(x: np.ndarray, f: np.ndarray) -> np.ndarray:
        return np.maximum(f[:-1] - (x - left), f[1:] - (right - x))

    def c(x: np.ndarray) -> np.ndarray:
        return (1 - x) * extend(x, a) + x * extend(x, b)

    kink_a = np.clip((left + right + a[:-1] - a[1:]) / 2, left, right)
    kink_b = np.clip((left + right + b[:-1] - b[1:]) / 2, left, right)
    # between the kinks of a and of b, c is concave with its maximum here
    top = np.clip((1 - (a[1:] - right) + (b[:-1] + left)) / 4, kink_a, np.maximum(kink_a, kink_b))
    points = np.stack([kink_a, kink_b, top])
    values = np.stack([c(x) for x in points])
    best = np.argmax(values, axis=0)
    columns = np.arange(left.size)
    values, points = values[best, columns], points[best, columns]
    # adding all that are nearly the worst needs few rounds
    return float(np.max(values, initial=0.0)), points[values > 1e-12]


def _coupling(
    u: np.ndarray, chain: Chain, v: np.ndarray, p0: np.ndarray, p1: np.ndarray
) -> Coupling:
    """Return the optimal transport of the program's masses on u to v, in order, for each label."""
    parts = []
    masses = [(1 - u) * chain.at, u * chain.at]
    # make it exactly calibrated with the labels' totals: put the solver's error where u = y
    for label, (target, source) in enumerate(zip(masses, (p0, p1), strict=True)):
        short = source.sum() - target.sum()
        if short >= 0:
            target[-label] += short  # u = 0 for label 0, u = 1 for label 1
        else:
            target *= source.sum() / target.sum() if target.sum() > 0 else 0.0
        parts.append(_in_order(u, target, v, source, label))
    u_, v_, y_, mass = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Coupling(u_, v_, y_, mass)


def _in_order(
    u: np.ndarray, target: np.ndarray, v: np.ndarray, source: np.ndarray, label: int
) -> tuple[np.ndarray, ...]:
    ends = [np.cumsum(x) for x in (target, source)]
    ends = [e / e[-1] if e[-1] > 0 else e for e in ends]
    cuts = np.unique(np.concatenate([[0.0], *ends]))
    mass = np.diff(cuts)
    middle = (cuts[:-1] + cuts[1:]) / 2
    i, j = (np.minimum(np.searchsorted(e, middle), e.size - 1) for e in ends)
    mass = mass * source.sum()
    nonzero = mass > 0
    return u[i][nonzero], v[j][nonzero], np.full(nonzero.sum(), float(label)), mass[nonzero]
