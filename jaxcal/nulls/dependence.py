r"""How far observations in the order of time depend on each other, from their autocorrelations.

The lag from where on autocorrelations are noise, a flat-top window up to twice that lag, and the
block length with the least mean squared error for the long-run variance: Politis and White (2004),
with the correction of Patton, Politis and White (2009).
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Int

from jaxcal.numerics import at_least, at_most

SEASONAL = 0.01  # level at which a season is told
THRESHOLD = 2.0  # of autocorrelations that are not noise, times sqrt(log10(n) / n)


class Dependence(NamedTuple):
    """Of q series, each [q]: ``block``, the block length of the stationary bootstrap in
    observations, 0 where nothing depends, at most min(3 sqrt(n), n / 3); ``inflation`` >= 1, the
    long-run variance over the variance: n observations say as much as n / inflation independent
    ones."""

    block: Float[Array, " q"]
    inflation: Float[Array, " q"]


def series_of(features: Any) -> Float[Array, "n q"]:
    """The columns of features: scores, each moment, or targets where there is neither."""
    residual = getattr(features, "residual", features)
    series = getattr(residual, "scores", getattr(residual, "ys", residual))
    leaves = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(series)]
    return jnp.concatenate(leaves, axis=1)


def dependence(series: Float[Array, "n q"]) -> Dependence:
    """The dependence of q stationary series of n observations. Cost O(n log(n) q)."""
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
    r"""The lag, at most n / 2, at which q series depend on themselves again; 0 where at none.

    Beyond the lag m from where on a block length takes autocorrelations for noise, the largest
    :math:`r_k` over its standard error, one-sided, with Bonferroni's correction at `SEASONAL`. Its
    variance is Bartlett's :math:`1 + 2 \sum_{j \leq m} r_j^2` times :math:`(n - k) / n^2`, or
    times what the products themselves vary by where that is more: values may be skewed, or their
    spread may have a season, and no error depends on another. Cost O(n log(n) q).
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
    """The most lags that are not noise, and how many in a row must be to say so."""
    run = max(5, math.ceil(math.sqrt(math.log10(n))))
    return max(1, min(math.ceil(math.sqrt(n)), n - 1 - run)), run


def _gaps(series: Float[Array, "n q"]) -> Float[Array, "n q"]:
    return series - jnp.mean(series, axis=0, keepdims=True)


def _products(gaps: Float[Array, "n q"]) -> Float[Array, "n q"]:
    """Sums of the products of values that lie 0, 1, .. n - 1 apart."""
    n = len(gaps)
    length = 1 << (2 * n - 1).bit_length()
    waves = jnp.fft.rfft(gaps, length, axis=0)
    return jnp.fft.irfft(jnp.abs(waves) ** 2, length, axis=0)[:n]


def _or_one(values: Array) -> Array:
    return jnp.where(values <= 0, 1, values)


def _autocorrelations(
    products: Float[Array, "n q"],
) -> tuple[Float[Array, "n q"], Int[Array, " q"]]:
    """Autocorrelations, and the last lag before a run of noise."""
    n = len(products)
    variance = products[:1]
    r = jnp.where(variance <= 0, 0, products / _or_one(variance)).at[0].set(1.0)
    most, run = _lags(n)
    noise = jnp.abs(r[1:]) < THRESHOLD * (math.log10(n) / n) ** 0.5
    # [m, q]: whether lags m + 1 .. m + run are all noise
    quiet = jnp.stack([jnp.all(noise[m : m + run], axis=0) for m in range(most + 1)])
    return r, jnp.where(jnp.any(quiet, axis=0), jnp.argmax(quiet, axis=0), most)
