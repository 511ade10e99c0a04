r"""How far observations in the order of time depend on each other, from their autocorrelations.

The lag from where on autocorrelations are noise, a flat-top window up to twice that lag, and the
block length with the least mean squared error for the long-run variance: Politis and White (2004),
with the correction of Patton, Politis and White (2009).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.numerics import at_least, at_most

THRESHOLD = 2.0  # of autocorrelations that are not noise, times sqrt(log10(n) / n)


class Dependence(NamedTuple):
    """Of q series, each [q]: ``block``, the block length of the stationary bootstrap in
    observations, 0 where nothing depends, at most min(3 sqrt(n), n / 3); ``inflation`` >= 1, the
    long-run variance over the variance: n observations say as much as n / inflation independent
    ones."""

    block: Float[Array, " q"]
    inflation: Float[Array, " q"]


def dependence(series: Float[Array, "n q"]) -> Dependence:
    """The dependence of q stationary series of n observations. Cost O(n^(3/2) q)."""
    n = series.shape[0]
    run = max(5, math.ceil(math.sqrt(math.log10(n))))  # so many autocorrelations in a row are noise
    most = max(1, min(math.ceil(math.sqrt(n)), n - 1 - run))
    lags = jnp.arange(min(most + run, n - 1) + 1)
    gaps = series - jnp.mean(series, axis=0, keepdims=True)

    def product(lag: Array) -> Array:
        later = jnp.roll(gaps, -lag, axis=0)
        return jnp.sum(jnp.where(jnp.arange(n)[:, None] < n - lag, gaps * later, 0), axis=0)

    products = jax.lax.map(product, lags)
    variance = products[:1]
    flat = variance <= 0
    r = jnp.where(flat, 0, products / jnp.where(flat, 1, variance)).at[0].set(1.0)

    noise = jnp.abs(r[1:]) < THRESHOLD * (math.log10(n) / n) ** 0.5
    # [m, q]: whether lags m + 1 .. m + run are all noise
    quiet = jnp.stack([jnp.all(noise[m : m + run], axis=0) for m in range(most + 1)])
    last = jnp.where(jnp.any(quiet, axis=0), jnp.argmax(quiet, axis=0), most)
    reach = jnp.clip(2 * last, 1, len(lags) - 1).astype(series.dtype)[None]
    k = lags[1:, None].astype(series.dtype)
    window = jnp.where(k <= reach / 2, 1, at_least(2 * (1 - k / reach), 0))
    inflation = 1 + 2 * jnp.sum(window * r[1:], axis=0)
    slope = 2 * jnp.sum(window * k * r[1:], axis=0)
    ratio = slope / at_least(inflation, 1e-2)
    block = at_most((ratio**2 * n) ** (1 / 3), min(3 * n**0.5, n / 3))
    return Dependence(block, at_least(inflation, 1.0))
