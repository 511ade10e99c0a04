r"""Serial dependence of observations in the order of time, from their autocorrelations.

Finds the lag beyond which autocorrelations are noise, applies a flat-top window up to twice that
lag, and chooses the block length with the least mean squared error of the long-run variance:
Politis and White (2004), with the correction of Patton, Politis and White (2009).
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Int

from jaxcal.numerics import at_least, at_most

SEASONAL = 0.01  # level of the test for a season
THRESHOLD = 2.0  # autocorrelations above this times sqrt(log10(n) / n) are not noise


class Dependence(NamedTuple):
    """Serial dependence of q series.

    ``block`` [q]: block length of the stationary bootstrap, in observations; 0 for independence,
    at most min(3 sqrt(n), n / 3). ``inflation`` [q] >= 1: long-run variance over variance; n
    observations carry the information of n / inflation independent ones."""

    block: Float[Array, " q"]
    inflation: Float[Array, " q"]


def series_of(features: Any) -> Float[Array, "n q"]:
    """Return the columns of features: scores or moments, or targets if there are neither."""
    residual = getattr(features, "residual", features)
    series = getattr(residual, "scores", getattr(residual, "ys", residual))
    leaves = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(series)]
    return jnp.concatenate(leaves, axis=1)


def dependence(series: Float[Array, "n q"]) -> Dependence:
    """Return the `Dependence` of q stationary series of n observations. Cost O(n log(n) q)."""
    n = len(series)
    r, last = _autocorrelations(_products(_gaps(series)))
    reach = jnp.clip(2 * last, 1, min(sum(_lags(n)), n - 1)).astype(series.dtype)[None]
    k = jnp.arange(1, n)[:, None].astype(series.dtype)
    window = jnp.where(k <= reach / 2, 1, at_least(2 * (1 - k / reach), 0))
    inflation = 1 + 2 * jnp.sum(window * r[1:], axis=0)
    slope = 2 * jnp.sum(window * k * r[1:], axis=0)
    ratio = slope / at_least(inflation, 1e-2)
    block = at_most((ratio**2 * n) ** (1 / 3), min(3 * n**0.5, n / 3))
    return Dependence(block, at_least(inflation, 1.0))


def season(errors: Float[Array, "n q"]) -> Int[Array, ""]:
    r"""Return the period of a season, a lag of at most n / 2; 0 if none is significant.

    Let m be the lag beyond which autocorrelations count as noise. The statistic is the largest
    :math:`r_k`, k > m, over its standard error; the test is one-sided at level `SEASONAL` with
    Bonferroni's correction. The variance is Bartlett's
    :math:`(1 + 2 \sum_{j \leq m} r_j^2) (n - k) / n^2`, or uses the empirical variance of the
    products if that is larger: skewed errors, or errors whose spread has a season, may be
    uncorrelated. Cost O(n log(n) q).
    """
    n = len(errors)
    lags = jnp.arange(n)[:, None]
    gaps = _gaps(errors)
    products = _products(gaps)
    r, last = _autocorrelations(products)
    bartlett = 1 + 2 * jnp.sum(jnp.where((lags > 0) & (lags <= last[None]), r**2, 0), axis=0)
    pairs = (n - lags).astype(errors.dtype)
    varying = (_products(gaps**2) - products**2 / pairs) / _or_one(products[:1]) ** 2
    variance = bartlett[None] * jnp.maximum(varying, pairs / n**2)
    beyond = (lags > last[None]) & (lags <= n // 2)
    sizes = jnp.max(jnp.where(beyond, r / jnp.sqrt(variance), 0), axis=1)
    moving = at_least(jnp.sum(products[0] > 0).astype(r.dtype), 1)
    least = -ndtri(SEASONAL / (max(n // 2, 1) * moving))
    return jnp.where(jnp.max(sizes) > least, jnp.argmax(sizes), 0)


def _lags(n: int) -> tuple[int, int]:
    """Return the largest lag m considered, and the number of noise lags required after it."""
    run = max(5, math.ceil(math.sqrt(math.log10(n))))
    return max(1, min(math.ceil(math.sqrt(n)), n - 1 - run)), run


def _gaps(series: Float[Array, "n q"]) -> Float[Array, "n q"]:
    return series - jnp.mean(series, axis=0, keepdims=True)


def _products(gaps: Float[Array, "n q"]) -> Float[Array, "n q"]:
    """Return sums of the products of values at lags 0, 1, .. n - 1."""
    n = len(gaps)
    length = 1 << (2 * n - 1).bit_length()
    waves = jnp.fft.rfft(gaps, length, axis=0)
    return jnp.fft.irfft(jnp.abs(waves) ** 2, length, axis=0)[:n]


def _or_one(values: Array) -> Array:
    return jnp.where(values <= 0, 1, values)


def _autocorrelations(
    products: Float[Array, "n q"],
) -> tuple[Float[Array, "n q"], Int[Array, " q"]]:
    """Return the autocorrelations, and the last lag before a run of noise."""
    n = len(products)
    variance = products[:1]
    r = jnp.where(variance <= 0, 0, products / _or_one(variance)).at[0].set(1.0)
    most, run = _lags(n)
    noise = jnp.abs(r[1:]) < THRESHOLD * (math.log10(n) / n) ** 0.5
    # [m, q]: whether lags m + 1 .. m + run are all noise
    quiet = jnp.stack([jnp.all(noise[m : m + run], axis=0) for m in range(most + 1)])
    return r, jnp.where(jnp.any(quiet, axis=0), jnp.argmax(quiet, axis=0), most)
