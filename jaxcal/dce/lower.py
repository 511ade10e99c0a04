r"""Compute certified bounds of the lower distance from calibration, with fixed array shapes.

The linear program of `interior_point` is solved at fixed positions u_i, called places: a grid
joined with quantiles of the predictions. The mass of each prediction is split between the places
around it. The solution is a pair of functions a, b, linear between places. A constant is subtracted
so that (1 - u) a(u) + u b(u) <= 0 for all u; then the mean of (1 - y) a(v) + y b(v) is a lower
bound. The cost of a coupling with calibrated predictions at the places is an upper bound.
Source: Blasiok et al. (2023), Def. 5.3, Section 7.3 and eq. 21.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.dce.interior_point import ChainProgram, solve_chain
from jaxcal.dce.predictions import Ordered, binary, ordered, sums
from jaxcal.numerics import at_least, at_most, largest
from jaxcal.read import convert
from jaxcal.results import rows_in_one_order
from jaxcal.typing import ArrayLike, Scalar, Vector

CELLS = 512
Places = Float[Array, " m"]  # positions u of the program, or values at them
APART = 1e-5  # places that are closer than this are merged


class LowerDistance(NamedTuple):
    """Bounds of the lower distance, and the dual functions of the lower bound.

    Attributes:
        low: Certified lower bound, [].
        high: Certified upper bound, [], the cost of a coupling.
        places: Positions u of the program, ascending, [m]; those above 1 are padding.
        on_zero: Dual function a, for label 0, at the places, [m]; it is linear between places.
        on_one: Dual function b, for label 1, at the places, [m]; it is linear between places.
    """

    low: Scalar
    high: Scalar
    places: Places
    on_zero: Places
    on_one: Places


@rows_in_one_order
def lower_distance(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    cells: int = CELLS,
) -> LowerDistance:
    """Return certified bounds of the lower distance from calibration. Works under jit and vmap.

    The lower distance is the least E|u - v| over random variables u with E[y | u] = u, in any joint
    distribution with the predictions v and labels y. The difference of the bounds is about 1 / (2
    cells^2) for up to ``cells`` different predictions. For many more predictions, spread over [0,
    1], it is up to 1 / (8 cells). In float32 it may be up to 6e-3.

    Args:
        predictions: Probabilities of label 1, [n].
        targets: Labels 0 or 1, or means of labels, [n].
        weights: Weights of the observations, [n], >= 0.
        cells: Number of cells of the grid, and number of quantiles that are added to it.

    Returns:
        `LowerDistance`. Under jit, NaN in the data gives bounds that are NaN.

    Cost: one sort, and 40 interior-point steps of O(cells).

    Source: Blasiok et al. (2023), Def. 5.3, Section 7.3 and eq. 21.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> result = jaxcal.dce.lower_distance(jnp.full(4, 0.7), jnp.array([0, 0, 1, 1]))
        >>> round(float(result.low), 3), round(float(result.high), 3)
        (0.2, 0.2)
    """
    cells = convert.integer(cells, "cells", least=2)
    return bounds_of(ordered(binary(predictions, targets, weights)), cells)


@partial(jax.jit, static_argnames="cells")
def bounds_of(data: Ordered, cells: int) -> LowerDistance:
    """Return the bounds of validated data, by a grid with ``cells`` cells."""
    u = places(data.v, data.w, cells)
    p0, p1 = (shared(u, data.v, x) for x in (data.w * (1 - data.y), data.w * data.y))
    inside = at_most(u, 1)
    solution = solve_chain(ChainProgram(inside, jnp.diff(u), jnp.stack([p0, p1], axis=1)))
    a, b = feasible(u, solution.a, solution.b)
    i, t = cell(u, data.v)
    dual = (1 - data.y) * between(a, i, t) + data.y * between(b, i, t)
    low = jnp.sum(data.w * dual)
    # scale the coupling so that no label exceeds its total mass; the remainder is moved to u = y
    totals = [jnp.sum(x) for x in (data.w * (1 - data.y), data.w * data.y)]
    masses = [(1 - inside) * solution.at, inside * solution.at]
    part = [t / at_least(jnp.sum(x), 1e-30) for t, x in zip(totals, masses, strict=True)]
    part = at_most(at_most(part[0], part[1]), 1)
    high = jnp.zeros((), u.dtype)
    for label, (total, mass) in enumerate(zip(totals, masses, strict=True)):
        of_label = data.w * (data.y if label else 1 - data.y)
        high = high + _carried(inside, part * mass, data.v, of_label, label, total)
    finite = jnp.isfinite(jnp.sum(data.v * data.w * data.y))
    low, high = (jnp.where(finite, x, jnp.nan) for x in (at_least(low, 0), high))
    return LowerDistance(low, high, u, a, b)


def places(v: Vector, w: Vector, cells: int) -> Places:
    """Return a grid joined with quantiles of ascending v, [2 cells + 1]; padding is above 1."""
    below = sums(w)
    levels = (jnp.arange(cells, dtype=v.dtype) + 0.5) / cells
    at = jnp.searchsorted(below, levels * below[-1])
    quantiles = v[jnp.minimum(at, v.size - 1)]
    quantiles = jnp.where(quantiles < APART, 0, jnp.where(quantiles > 1 - APART, 1, quantiles))
    grid = jnp.arange(cells + 1, dtype=v.dtype) / cells
    # merge two ascending lists by their ranks and drop duplicates, without a sort
    after = jnp.arange(cells + 1, dtype=jnp.int32) + jnp.searchsorted(quantiles, grid)
    before = jnp.arange(cells, dtype=jnp.int32) + jnp.searchsorted(grid, quantiles, side="right")
    u = jnp.zeros(2 * cells + 1, v.dtype).at[after].set(grid).at[before].set(quantiles)
    new = jnp.concatenate([jnp.diff(u) >= APART, jnp.ones(1, bool)])
    rank = jnp.cumsum(new, dtype=jnp.int32)
    slots = jnp.where(new, rank - 1, u.size)
    over = jnp.arange(u.size, dtype=jnp.int32) + 1 - rank[-1]
    beyond = 1 + over.astype(v.dtype) / cells
    return beyond.at[slots].set(u, mode="drop")


def cell(u: Places, v: Vector) -> tuple[Array, Array]:
    """Return i and t in [0, 1], [n] each, with v = u_i + t (u_{i+1} - u_i), for ascending v."""
    i = jnp.clip(_ranks(u, v)[0] - 1, 0, u.size - 2)
    return i, (v - u[i]) / (u[i + 1] - u[i])


def _ranks(u: Places, v: Vector) -> tuple[Array, Array]:
    """Return how many u are <= each v, [n], and how many v are < each u, [m]; both ascend."""
    below = jnp.searchsorted(v, u).astype(jnp.int32)
    counts = jnp.zeros(v.size, jnp.int32).at[below].add(1, mode="drop")
    return sums(counts), below


def between(f: Array, i: Array, t: Array) -> Array:
    """Return the linear interpolation, at the positions (i, t) of `cell`, of values ``f`` at u."""
    return (1 - t) * f[i] + t * f[i + 1]


def shared(u: Places, v: Vector, mass: Vector) -> Places:
    """Return masses at u, [m]: each mass at v is split between the two nearest u, with mean v."""
    i, t = cell(u, v)
    return jax.ops.segment_sum(mass * (1 - t), i, u.size) + jax.ops.segment_sum(
        mass * t, i + 1, u.size
    )


def feasible(u: Places, a: Places, b: Places) -> tuple[Places, Places]:
    """Return a - s and b - s, with s = max(0, maximum of c(x) = (1 - x) a(x) + x b(x) on [0, 1]).

    Between places u_i and u_{i+1}, c is a parabola. With h = u_{i+1} - u_i and x = u_i + t h it is
    c(x) = c_i + t (c_{i+1} - c_i) + t (1 - t) h (a_{i+1} - a_i - b_{i+1} + b_i).
    """
    inside = at_most(u, 1)
    c = (1 - inside) * a + inside * b
    rise = jnp.diff(c)
    bend = jnp.diff(inside) * (jnp.diff(a) - jnp.diff(b))
    t = jnp.clip(0.5 + rise / (2 * jnp.where(bend > 0, bend, 1)), 0, 1)
    top = jnp.where(bend > 0, c[:-1] + t * rise + t * (1 - t) * bend, c[:-1])
    worst = at_least(largest(jnp.concatenate([top, c])), 0)
    return a - worst, b - worst


def _carried(u: Places, target: Places, v: Vector, mass: Vector, end: int, total: Scalar) -> Scalar:
    """Return the 1-Wasserstein distance between ``mass`` at v and ``target`` at u, both ascending.
    The mass that ``target`` lacks to sum to ``total`` is put at ``end`` (0 or 1)."""
    up_to, below = _ranks(u, v)
    of_v = jnp.arange(v.size, dtype=jnp.int32) + up_to
    of_u = jnp.arange(u.size, dtype=jnp.int32) + below
    at, change = (
        jnp.zeros(u.size + v.size, u.dtype)
        .at[of_v]
        .set(x, unique_indices=True)
        .at[of_u]
        .set(y, unique_indices=True)
        for x, y in ((v, u), (-mass, target))
    )
    over = 0 if end else total - jnp.sum(target)
    return jnp.sum(jnp.abs(over + sums(change))[:-1] * jnp.diff(at))
