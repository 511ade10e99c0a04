r"""An interval for the distance from calibration in the population that the data are from.

*Low end.* The lower distance is the most of E r(v, y) over dual functions r = (a, b)
(`interior_point`), so the mean of any r bounds it from below. Data are cut at random into fifths;
each but the first is given the r that is best for those before it. Given these, its values are
independent with mean at most the lower distance: their sum less that is a supermartingale, and no
supremum over the data that it is evaluated on enters. The mean gets the bound of `mean_bounds`.
(The r best for all other fifths is nearer to the best but makes the sum no martingale: of 200
calibrated data sets of 1,000 its bound was above 0 in 6 % at 2.5 %.)

*High end.* With groups chosen without labels (`groups`) the distance is at most

.. math:: H = \sum_j E|v - \bar y_j| 1(v \in I_j) = \sup_{|s| \le 1} E[s(v) v - S_{j(v)} y],
          \quad S_j = E[s | I_j],

a supremum of means. In the population one s* attains it. The data's H is no less than their own
mean at s*, and that mean of one fixed function is below its expectation by more than a radius with
probability alpha: so H of the data plus the radius of *one* mean is above H of the population, and
no supremum of noise enters. s* is unknown. The radius is that of s (y - v) with |s| = 1, which has
the largest variance, and the largest over s = 1, -1 and both signs of 1/2 - v, which make rare
labels count to the same side (the upper quantile of a mean grows with its third cumulant).
Coverage: experiments/distance_intervals.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.dce.groups import Groups, label_free_groups, moved
from jaxcal.dce.interior_point import ChainProgram, solve_chain
from jaxcal.dce.lower_bounds import between, cell, feasible, places, shared
from jaxcal.dce.mean_bounds import upper_mean
from jaxcal.dce.predictions import Ordered
from jaxcal.numerics import at_least, at_most, largest
from jaxcal.typing import Key, Scalar, Vector

FOLDS = 5
CELLS = 32  # of the dual functions of a fold


class PopulationBounds(NamedTuple):
    """``low`` and ``high`` [] of the interval; ``radius`` [], which the high end adds to ``moved``
    [], the mean distance of the data to the mean labels of ``groups``."""

    low: Scalar
    high: Scalar
    radius: Scalar
    moved: Scalar
    groups: Groups


@partial(jax.jit, static_argnames="folds")
def population_bounds(
    key: Key, data: Ordered, level: float | Scalar, *, folds: int = FOLDS
) -> PopulationBounds:
    """Ends that hold the distance of the population with probability 1 - ``level``."""
    groups = label_free_groups(data)
    change = moved(groups, data)
    radius = residual_radius(data, level / 2)
    low = lower_end(key, data, level / 2, folds=folds)
    return PopulationBounds(low, at_most(change + radius, 1), radius, change, groups)


def residual_radius(data: Ordered, alpha: float | Scalar) -> Scalar:
    """How far the mean of s (y - v) may be below its expectation, for s of absolute value 1."""
    residual = data.y - data.v
    sides = jnp.where(data.v < 0.5, 1.0, -1.0).astype(residual.dtype)
    signs = jnp.stack([sides, -sides, jnp.ones_like(sides), -jnp.ones_like(sides)])

    def one(sign: Vector) -> Scalar:
        x = sign * residual
        return upper_mean(x, data.w, alpha) - jnp.sum(data.w * x)

    return largest(jax.vmap(one)(signs))


def lower_end(key: Key, data: Ordered, alpha: float | Scalar, *, folds: int) -> Scalar:
    """The lower bound of the mean of the dual functions that earlier folds chose, at least 0."""
    fold = jax.random.randint(key, data.v.shape, 0, folds)
    u = places(data.v, data.w, CELLS)
    by_fold = jax.nn.one_hot(fold, folds, axis=0, dtype=data.v.dtype)

    def masses(of_label: Vector) -> Array:
        parts = jax.vmap(lambda inside: shared(u, data.v, of_label * inside))(by_fold)
        return jnp.cumsum(parts, axis=0)[:-1]

    def solve(p0: Vector, p1: Vector) -> tuple[Vector, Vector]:
        total = at_least(jnp.sum(p0 + p1), 1e-30)
        inside = at_most(u, 1)
        solution = solve_chain(ChainProgram(inside, jnp.diff(u), p0 / total, p1 / total))
        return feasible(u, solution.a, solution.b)

    a, b = jax.vmap(solve)(masses(data.w * (1 - data.y)), masses(data.w * data.y))
    i, t = cell(u, data.v)
    dual = jax.vmap(lambda a, b: (1 - data.y) * between(a, i, t) + data.y * between(b, i, t))(a, b)
    values = jnp.sum(by_fold[1:] * dual, axis=0)
    w = jnp.where(fold > 0, data.w, 0)
    w = jnp.where(jnp.sum(w) > 0, w, data.w)  # one observation, say: r is 0 for all
    return at_least(-upper_mean(-values, w / jnp.sum(w), alpha), 0)
