r"""Noise: what a calibrated model would show, and how far the data may be from the population.

*Under calibration* labels are drawn again from the predictions, y* ~ Bernoulli(v): given the
predictions the test is then exact for every n ("redraw"). Where labels are means, each residual
keeps its size and gets a random sign instead ("signs"), which is exact only for residuals with
symmetric distributions and right for large n otherwise.

*From data to population.* Smooth, kernel and random interval calibration errors are suprema
:math:`\sup_w \sum_i \rho_i w(v_i)`, so data and population differ by at most the same supremum of
their difference. The Bayesian bootstrap (Rubin 1981) imitates it: with exponential weights e, that
of :math:`(e_i / \bar e - 1) \rho_i`. This holds at and near calibration too, where resampling the
value itself fails. No draw sorts the predictions again.

Resampling alone takes what it has not seen for impossible: a hundred labels 0 hold no noise, though
one of 30 may be 1. So each draw also weighs two observations that no data set excludes, one of
residual 1 (label 1, predicted 0) and one of residual -1. For the rate of a label of which k of n
came, the weights are then Gamma(k + 1) against Gamma(n - k + 1): the upper end is that of Clopper
and Pearson (1934) but for one observation, and for many of both labels nothing changes.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxcal.dce.boxcars import boxcars
from jaxcal.dce.laplace import field, root
from jaxcal.dce.predictions import Residuals
from jaxcal.dce.smooth import smooth_of_residuals
from jaxcal.nulls.contract import p_value
from jaxcal.typing import Key, Scalar, Vector

Null = Literal["redraw", "signs"]
BATCH = 2**22  # numbers in one step of a walk over draws


class Sorted(NamedTuple):
    """Predictions ascending, with their labels and weights."""

    v: Vector
    y: Vector
    w: Vector


def ascending(v: Vector, y: Vector, w: Vector) -> Sorted:
    """One sort, shared by every draw."""
    order = jnp.argsort(v)
    return Sorted(v[order], y[order], w[order])


def kernel_statistic(v: Vector, rho: Vector) -> Scalar:
    """Squared Laplace kernel calibration error of sorted residuals."""
    return jnp.sum(rho * field(v, rho, jnp.ones((), v.dtype)))


def smooth_statistic(v: Vector, rho: Vector) -> Scalar:
    """Smooth calibration error of sorted residuals."""
    return smooth_of_residuals(Residuals(v, rho)).value


def null_draws(
    key: Key, data: Sorted, *, statistic: Any, n_draws: int, null: Null = "redraw"
) -> Float[Array, " b"]:
    """Draws of a statistic of (v, residuals) if the predictions were calibrated."""
    rho = data.w * (data.y - data.v)

    def one(key: Key) -> Scalar:
        if null == "redraw":
            label = jax.random.bernoulli(key, data.v).astype(data.v.dtype)
            return statistic(data.v, data.w * (label - data.v))
        sign = jax.random.rademacher(key, rho.shape, rho.dtype)
        return statistic(data.v, sign * rho)

    return _walk(one, jax.random.split(key, n_draws), data.v.size)


class CalibrationTest(NamedTuple):
    """``p_value`` [] of "calibrated", ``statistic`` [] and its ``null_samples`` [b]."""

    statistic: Scalar
    p_value: Scalar
    null_samples: Float[Array, " b"]


@partial(jax.jit, static_argnames=("statistic", "n_draws", "null"))
def resampling_test(
    key: Key, data: Sorted, *, statistic: Any, n_draws: int, null: Null
) -> CalibrationTest:
    """Compare a statistic with its draws under calibration; the data count as one draw."""
    value = statistic(data.v, data.w * (data.y - data.v))
    draws = null_draws(key, data, statistic=statistic, n_draws=n_draws, null=null)
    # a statistic equal to a draw must count as equal whatever the order of summation was
    slack = 16 * jnp.finfo(value.dtype).eps * (jnp.abs(value) + jnp.sum(data.w**2))
    p = p_value((value - slack)[None], draws[None])[0]
    return CalibrationTest(value, p, draws)


class Radii(NamedTuple):
    """How far data and population are apart with one joint probability: for the smooth and kernel
    calibration errors, for RintCE(2^-k) [k], and for the mean residual."""

    smooth: Scalar
    kernel: Scalar
    random: Float[Array, " k"]
    mean: Scalar


@partial(jax.jit, static_argnames=("n_resamples", "k_max"))
def radii(key: Key, data: Sorted, *, n_resamples: int, coverage: Any, k_max: int) -> Radii:
    """Joint bootstrap radii: all of them hold at once with probability ``coverage``.

    Each measure's draws are divided by their median, and the quantile is that of the largest. An
    observation not seen weighs as one drawn by weight, sum w^2. Cost: n_resamples times
    O(n (log n + k)). Coverage over rare and common labels: experiments/distance_intervals.
    """
    one = jnp.ones(1, data.v.dtype)
    v = jnp.concatenate([0 * one, data.v, one])
    residual = jnp.concatenate([one, data.y - data.v, -one])
    unseen = jnp.sum(data.w**2, keepdims=True)
    mass = jnp.concatenate([0 * one, data.w, 0 * one])
    prior = jnp.concatenate([unseen, data.w, unseen])
    widths = 2.0 ** -jnp.arange(k_max + 1, dtype=v.dtype)

    def draw(key: Key) -> Float[Array, " q"]:
        weighed = prior * jax.random.exponential(key, prior.shape, prior.dtype)
        change = (weighed / jnp.sum(weighed) - mass) * residual
        random = boxcars(v, change, widths)
        smooth = smooth_statistic(v, change)
        kernel = root(kernel_statistic(v, change))
        return jnp.concatenate([jnp.stack([smooth, kernel, jnp.abs(jnp.sum(change))]), random])

    draws = _walk(draw, jax.random.split(key, n_resamples), 2 * v.size * widths.size)
    scale = jnp.median(draws, axis=0, keepdims=True)
    scaled = draws / jnp.where(scale > 0, scale, 1)
    bounds = scale[0] * jnp.quantile(jnp.max(scaled, axis=1), coverage)
    return Radii(bounds[0], bounds[1], bounds[3:], bounds[2])


def _walk(one: Any, keys: Any, n: int) -> Array:
    """Over draws: one at a time on a CPU, which keeps them in cache and the program small;
    elsewhere by ``vmap``, in batches that keep memory bounded."""
    if jax.default_backend() == "cpu":
        return jax.lax.map(one, keys)
    batch = min(keys.shape[0], max(1, BATCH // n))
    if batch >= keys.shape[0]:
        return jax.vmap(one)(keys)
    return jax.lax.map(one, keys, batch_size=batch)


def binary_labels(y: Vector) -> Bool[Array, ""]:
    """Whether all labels are 0 or 1."""
    return jnp.all((y == 0) | (y == 1))
