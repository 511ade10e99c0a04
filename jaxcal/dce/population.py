r"""Compute a confidence interval of the distance from calibration in the population of the data.

*Low end.* The lower distance d is the maximum of E r(v, y) over dual functions r = (a, b)
(`interior_point`), so E r is at most d for every r. The data are randomly split into five folds. In
each of folds 2 to 5, the code evaluates the function r that is optimal for the earlier folds. Given
these folds, the values of r are independent with mean at most d, so the sum of r - d is a
supermartingale. `upper_mean`, applied to -r, gives a lower confidence bound of the mean of r, and
so of d.

*High end.* Groups I_j are chosen without labels (`label_free_groups`). If :math:`\bar y_j` are
their mean labels, the distance is at most

.. math:: H = \sum_j E|v - \bar y_j| 1(v \in I_j) = \sup_{|s| \le 1} E[s(v) v - S_{j(v)} y],
          \quad S_j = E[s | I_j].

In the population, one function s* attains the supremum. H of the data is a supremum too, so it is
at least the mean for s*. As s* is fixed, this mean is below its expectation by more than a
confidence radius with probability alpha only. So H of the data plus the radius of *one* mean is an
upper confidence bound of H of the population. As s* is unknown, the code takes the radius of the
mean of s (y - v) with |s| = 1, which has the largest variance: the largest radius for s = 1, -1,
the sign of 1/2 - v, and its negative. Coverage: experiments/distance_intervals.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, Float, Int

from jaxcal.dce.interior_point import ChainProgram, solve_chain
from jaxcal.dce.intervals import least_partition
from jaxcal.dce.lower import between, cell, feasible, places, shared
from jaxcal.dce.predictions import Binary, Ordered, by_label, squares, sums
from jaxcal.engine import LightJit
from jaxcal.numerics import at_least, at_most, bisected, group_sums, largest
from jaxcal.typing import Key, Scalar, Vector

RUNS = 128  # number of runs of ascending predictions, from which groups are formed


class Groups(NamedTuple):
    """Groups of predictions. The sorted predictions are cut into k runs; a group consists of
    successive runs. ``edges`` [k]: last prediction of each run; ``group`` [k]: number of the run's
    group; ``rate`` [k]: mean label of the run's group, NaN if the group is empty."""

    edges: Float[Array, " k"]
    group: Int[Array, " k"]
    rate: Float[Array, " k"]

    def of(self, v: Array) -> Array:
        """Return the index of each prediction's run; the last run for v above all ``edges``."""
        # if edges are equal, only the first of their runs has predictions
        last = jnp.searchsorted(self.edges, self.edges[-1])
        return jnp.minimum(jnp.searchsorted(self.edges, v), last)


def runs(v: Vector, w: Vector) -> Float[Array, " k"]:
    """Return the last prediction of each of 128 runs of about equal mass, [128].

    Equal predictions are in one run; if several quantiles are equal, an edge is repeated."""
    below = sums(w)
    levels = (jnp.arange(RUNS, dtype=v.dtype) + 1) / RUNS
    at = jnp.searchsorted(below, levels * below[-1] * (1 - 1e-9))
    return v[jnp.minimum(at, v.size - 1)]


@jax.jit
def label_free_groups(data: Ordered) -> Groups:
    r"""Return contiguous groups of runs, with their mean labels. The groups minimize
    :math:`\sum_j p_j (\tfrac34 Var_j(v) + \tfrac2\pi s_j^2)^{1/2}`.

    p_j is the mass of group j, and s_j^2 the variance of its mean label under calibration. If v is
    uniform or constant in a group, the root is about E|v - mean label| there. Cost: O(n log 128).

    Predicting the mean label :math:`\bar y_j` of each group I_j would be calibrated in the
    population. So for every partition the distance from calibration is at most

    .. math:: \sum_j E|v - \bar y_j| 1(v \in I_j) \le binnedECE + E|v - \bar v_j|,

    with :math:`\bar v_j` the mean prediction of a group. The minimized sum does not depend on
    labels. For calibrated predictions it is about the expectation of the left side.
    Source: Blasiok et al. (2023), eq. 1, Lemma 4.7.
    """
    edges = runs(data.v, data.w)
    # as predictions ascend, a run starts after the earlier edges
    ends = jnp.searchsorted(data.v, edges, side="right")
    run = jnp.cumsum(jnp.zeros(data.v.size, jnp.int32).at[ends[:-1]].add(1, mode="drop"))
    group = _best(run, data)
    mass, ones = (group_sums(x, group[run], RUNS) for x in (data.w, data.w * data.y))
    return Groups(edges, group, (ones / jnp.where(mass > 0, mass, jnp.nan))[group])


def _best(run: Array, data: Ordered) -> Array:
    noise = data.squares * data.v * (1 - data.v)

    def prefix(x: Array) -> Array:
        total = jnp.cumsum(group_sums(x, run, RUNS))
        return jnp.concatenate([jnp.zeros(1, x.dtype), total])

    centred = data.v - jnp.sum(data.w * data.v)
    mass, first, second, noise = map(prefix, (data.w, data.w * centred, data.w * centred**2, noise))

    def cost(j: Array) -> Array:
        p, m, s, e = (x[j + 1] - x[:-1] for x in (mass, first, second, noise))
        spread = jnp.maximum(p * s - m**2, 0)
        return jnp.sqrt(0.75 * spread + 2 / jnp.pi * e)

    return least_partition(cost, RUNS, data.v.dtype)[1]


def moved(groups: Groups, data: Binary | Ordered) -> Scalar:
    """Return the weighted mean of |v - mean label of its group|, []."""
    return jnp.sum(data.w * jnp.abs(data.v - groups.rate[groups.of(data.v)]))


VALUE_CELLS = 512  # cells of values x; the variance within a cell, below 1e-5, is ignored
HALVINGS = 50
RANGE = (1e-6, 36.0)  # range of -log(1 - c) in the bisection


def upper_mean(
    x: Vector, w: Vector, alpha: float | Scalar, *, labels: Vector | None = None
) -> Scalar:
    r"""Return the upper confidence bound of E x, [], for x in [-1, 1] with weights w of sum 1.

    The bound uses an effective number of observations: the smaller of 1 / sum w^2 and
    sum w c^2 / sum w^2 c^2, with c = x - sum w x. If an entry of x stands for several labels of
    equal weight, ``labels`` [n] holds their number, and sums are over labels. Cost: O(n).

    With observations x_1, .., x_n, the largest possible value x_0, and independent standard
    exponentials G_0, G_1, .., the bound at confidence 1 - alpha is the t with

    .. math:: P\Big(\sum_{i=0}^n G_i (x_i - t) \le 0\Big) = 1 - \alpha,

    the quantile of the mean under weights uniform on the simplex (Gaffke 2005). For binary
    variables it is the exact bound of Clopper and Pearson (1934); for large n it is
    mean + z sd / sqrt(n). Its validity for every bounded variable and n is Gaffke's conjecture,
    which no computation has refuted (Learned-Miller and Thomas 2019).

    The probability is approximated by its saddlepoint (Lugannani and Rice 1980). With
    :math:`K(s) = -\sum_i \log(1 - s (x_i - t))` the condition K'(s) = 0 is solved, for any c, by
    :math:`t = \sum_i q_i x_i`, :math:`q_i \propto 1 / (1 - c x_i)` and s = c / (1 - c t). So a
    bisection in c gives t. The error of t relative to Clopper and Pearson is below .5 % for n >= 5.
    """
    centred = (x - jnp.sum(w * x)) ** 2
    square = squares(w, labels)
    spread, noise, total = jnp.sum(w * centred), jnp.sum(square * centred), jnp.sum(square)
    size = 1 / jnp.where(noise > total * spread, noise / jnp.where(spread > 0, spread, 1), total)
    cell = jnp.clip(jnp.where(jnp.isfinite(x), x + 1, 0) / 2 * VALUE_CELLS, 0, VALUE_CELLS - 1)
    mass, moment = (group_sums(p, cell.astype(jnp.int32), VALUE_CELLS) for p in (w, w * x))
    one = jnp.ones(1, x.dtype)
    value = jnp.concatenate([jnp.where(mass > 0, moment / jnp.where(mass > 0, mass, 1), 0), one])
    return _quantile(value, jnp.concatenate([size * mass, one]), alpha)


def _quantile(x: Vector, count: Vector, alpha: float | Scalar) -> Scalar:
    """Return the 1 - alpha quantile of the mean of x <= 1 with independent Gamma(count) weights."""
    tiny = jnp.finfo(x.dtype).tiny

    def at(log_c: Scalar) -> tuple[Scalar, Scalar]:
        """Return t for c = exp(log_c), as in `upper_mean`, and P(weighted mean of x < t)."""
        c = -jnp.expm1(-jnp.exp(log_c))
        tilted = count / at_least(1 - c * x, tiny)
        t = jnp.sum(tilted * x) / jnp.sum(tilted)
        s = c / at_least(1 - c * t, tiny)
        ratio = (x - t) * (1 - c * t) / at_least(1 - c * x, tiny)  # (x - t) / (1 - s (x - t))
        k = jnp.sum(count * jnp.log1p(s * ratio))
        w = jnp.sqrt(at_least(-2 * k, tiny))
        u = s * jnp.sqrt(at_least(jnp.sum(count * ratio**2), tiny))
        density = jnp.exp(-(w**2) / 2) / math.sqrt(2 * math.pi)
        return t, ndtr(w) + density * (1 / w - 1 / u)

    low, high = (jnp.full((), math.log(c), x.dtype) for c in RANGE)
    low, high = bisected(lambda log_c: at(log_c)[1] < 1 - alpha, low, high, HALVINGS)
    return at((low + high) / 2)[0]


FOLDS = 5
CELLS = 32  # cells of the grid of the dual functions for each fold


class PopulationBounds(NamedTuple):
    """Interval from ``low`` [] to ``high`` []; ``high`` is ``moved`` + ``radius``, at most 1, and
    ``moved`` [] is the mean distance of the predictions to the mean labels of ``groups``."""

    low: Scalar
    high: Scalar
    radius: Scalar
    moved: Scalar
    groups: Groups


@LightJit
def population_bounds(key: Key, data: Ordered, level: float | Scalar) -> PopulationBounds:
    """Return the 1 - ``level`` interval for the population's distance from calibration."""
    data = by_label(data)
    groups = label_free_groups(data)
    change = moved(groups, data)
    radius = residual_radius(data, level / 2)
    low = lower_end(key, data, level / 2)
    return PopulationBounds(low, at_most(change + radius, 1), radius, change, groups)


def residual_radius(data: Ordered, alpha: float | Scalar) -> Scalar:
    """Return the confidence radius of the mean of s (y - v): upper confidence bound minus mean of
    the data. It is the largest radius of four functions s with |s| = 1."""
    residual = data.y - data.v
    sides = jnp.where(data.v < 0.5, 1.0, -1.0).astype(residual.dtype)
    signs = jnp.stack([sides, -sides, jnp.ones_like(sides), -jnp.ones_like(sides)])

    def one(sign: Vector) -> Scalar:
        x = sign * residual
        return upper_mean(x, data.w, alpha, labels=data.labels) - jnp.sum(data.w * x)

    return largest(jax.vmap(one)(signs))


def lower_end(key: Key, data: Ordered, alpha: float | Scalar) -> Scalar:
    """Return the lower confidence bound of the lower distance, [] >= 0, see the module."""
    by_fold = _shares(key, data)
    u = places(data.v, data.w, CELLS)

    def masses(of_label: Vector) -> Array:
        parts = jax.vmap(lambda inside: shared(u, data.v, of_label * inside))(by_fold)
        return jnp.cumsum(parts, axis=0)[:-1]

    def solve(*masses: Vector) -> tuple[Vector, Vector]:
        p = jnp.stack(masses, axis=1)
        p = p / at_least(jnp.sum(p), 1e-30)
        solution = solve_chain(ChainProgram(at_most(u, 1), jnp.diff(u), p))
        return feasible(u, solution.a, solution.b)

    a, b = jax.vmap(solve)(masses(data.w * (1 - data.y)), masses(data.w * data.y))
    i, t = cell(u, data.v)
    dual = jax.vmap(lambda a, b: (1 - data.y) * between(a, i, t) + data.y * between(b, i, t))(a, b)
    later = jnp.sum(by_fold[1:] * data.w[None]) > 0  # false if all are in one fold: then r = 0
    shares = jnp.where(later, by_fold[1:], by_fold[:1] / (FOLDS - 1))
    dual = jnp.where(later, dual, 0)
    if data.labels is None:
        values, w, labels = jnp.sum(shares * dual, axis=0), data.w * jnp.sum(shares, axis=0), None
    else:
        values, w = dual.reshape(-1), (data.w[None] * shares).reshape(-1)
        labels = (data.labels[None] * shares).reshape(-1)
    return at_least(-upper_mean(-values, w / jnp.sum(w), alpha, labels=labels), 0)


def _shares(key: Key, data: Ordered) -> Float[Array, "f n"]:
    """Assign each label to a random fold; return each observation's fraction of labels per fold."""
    if data.labels is None:
        fold = jax.random.randint(key, data.v.shape, 0, FOLDS)
        return jax.nn.one_hot(fold, FOLDS, axis=0, dtype=data.v.dtype)
    # a barrier hides the constant, which XLA would otherwise sum for a second while it compiles
    equal = jax.lax.optimization_barrier(jnp.full((data.v.size, FOLDS), 1 / FOLDS, data.v.dtype))
    counts = jax.random.multinomial(key, data.labels, equal, dtype=data.v.dtype)
    return counts.T / jnp.where(data.labels > 0, data.labels, 1)[None]
