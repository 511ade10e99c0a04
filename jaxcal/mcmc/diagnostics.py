r"""Have the chains settled, and how many independent draws are theirs worth?

Ranks stand for values, so that heavy tails and infinite variances do no harm:
:math:`z = \Phi^{-1}((r - 3/8) / (S + 1/4))` with the average rank r among all S values.
Source: Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), Rank-normalization, folding, and
localization: an improved R-hat.
"""

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

LEAST = 10  # draws a chain that an effective size needs: each half then has two lags or more


def split_rhat(path: Float[Array, "t c *rest"]) -> Float[Array, " *rest"]:
    r"""The larger R-hat of ranks: of the values, and of their distances to the median.

    :math:`\sqrt{((L - 1) W + B) / (L W)}` of t values from each of c chains, each chain cut into
    halves of length L; W is the mean variance within, B is L times the variance of the halves'
    means. NaN for t < 4 and for NaN, infinite where no half has a spread. Sec. 4 of the source.
    """
    if path.shape[0] < 4:
        return jnp.full(path.shape[2:], jnp.nan, path.dtype)
    halves = _halves(path)
    folded = jnp.abs(halves - jnp.median(halves, axis=(0, 1), keepdims=True))
    return jnp.maximum(_rhat(_ranked(halves)), _rhat(_ranked(folded)))


def effective_size(draws: Float[Array, "t c *rest"]) -> Float[Array, " *rest"]:
    """How many independent draws t draws from each of c chains are worth, for means (bulk).

    From the ranks of split chains, by Geyer's monotone sequence. Antithetic draws can count for
    more than t c, up to t c log10(t c). NaN for fewer than `LEAST` draws a chain, of which nothing
    can be told, for NaN, and for draws that are all the same. Sec. 3 and App. A of the source.
    """
    if draws.shape[0] < LEAST:
        return jnp.full(draws.shape[2:], jnp.nan, draws.dtype)
    z = _ranked(_halves(draws))
    t, c = z.shape[:2]
    means = jnp.mean(z, axis=0, keepdims=True)
    spectrum = jnp.abs(jnp.fft.rfft(z - means, 2 * t, axis=0)) ** 2
    covariance = jnp.mean(jnp.fft.irfft(spectrum, 2 * t, axis=0)[:t], axis=1) / t
    within = covariance[0] * t / (t - 1)
    total = covariance[0] + jnp.var(means[0], axis=0, ddof=1)
    correlation = (1 - (within[None] - covariance) / total[None]).at[0].set(1.0)
    lags = 2 * ((t - 3) // 2 + 1)
    even, odd = correlation[0:lags:2], correlation[1:lags:2]
    pairs = even + odd
    # pairs count up to the first that is not positive; of that one the even lag alone counts
    whole = jnp.cumprod(pairs[:-1] > 0, axis=0) == 1
    sums = jnp.sum(jnp.where(whole, jax.lax.cummin(pairs[:-1], axis=0), 0), axis=0)
    last = jnp.sum(whole, axis=0, dtype=int)[None]
    end, pair = (jnp.take_along_axis(side, last, axis=0)[0] for side in (even, pairs))
    time = -1 + 2 * sums + jnp.where((end > 0) | (pair >= 0), end, 0.0)
    size = t * c / jnp.where(time < (least := 1 / math.log10(t * c)), least, time)
    return jnp.where(total > 0, size, jnp.nan)


def _halves(path: Array) -> Array:
    """Twice as many chains of half the length; the middle of an odd length is left out."""
    half = path.shape[0] // 2
    return jnp.concatenate([path[:half], path[-half:]], axis=1)


def _ranked(values: Array) -> Array:
    """Normal scores of the average ranks among all values of the first two axes."""
    flat = values.reshape(values.shape[0] * values.shape[1], -1)
    size = flat.shape[0]

    def scores(column: Array) -> Array:
        ordered = jnp.sort(column)
        below = jnp.searchsorted(ordered, column, side="left")
        upto = jnp.searchsorted(ordered, column, side="right")
        rank = (below + upto + 1).astype(column.dtype) / 2
        return ndtri((rank - 0.375) / (size + 0.25))

    z = jax.vmap(scores, in_axes=1, out_axes=1)(flat)
    lost = jnp.any(jnp.isnan(flat), axis=0, keepdims=True)
    return jnp.where(lost, jnp.nan, z).reshape(values.shape)


def _rhat(z: Array) -> Array:
    length = z.shape[0]
    within = jnp.mean(jnp.var(z, axis=0, ddof=1), axis=0)
    between = jnp.var(jnp.mean(z, axis=0), axis=0, ddof=1)
    # NaN stays NaN: only a variance that is known to be none makes it infinite
    still = within == 0
    ratio = jnp.where(still, jnp.inf, between / jnp.where(still, 1, within))
    return jnp.sqrt((length - 1) / length + ratio)
