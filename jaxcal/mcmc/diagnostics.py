"""Have the chains settled? Split R-hat from running moments, effective sample size from draws."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.numerics import at_least


class Path(NamedTuple):
    """Running moments of the last half of a path, in two segments of ``length`` steps each.

    ``mean`` and ``spread`` (sum of squared deviations) [2, c, n, ...], for c chains of n
    predictions: memory does not grow with the number of steps.
    """

    mean: Array
    spread: Array

    @classmethod
    def empty(cls, z: Array) -> "Path":
        """Before the first step; ``z`` [c, n, ...] is where the chains stand."""
        nothing = jnp.zeros((2, *z.shape), z.dtype)
        return cls(nothing, nothing)

    def add(self, z: Array, step: Int[Array, ""], steps: int) -> "Path":
        """After step number ``step`` of ``steps``; steps of the first half leave no trace."""
        length = steps // 4
        place = step - (steps - 2 * length)
        segment = jnp.clip(place // max(length, 1), 0, 1)
        count = place - segment * length + 1
        gap = z - self.mean[segment]
        mean = self.mean[segment] + gap / jnp.maximum(count, 1)
        spread = self.spread[segment] + gap * (z - mean)
        used = place >= 0
        return Path(
            self.mean.at[segment].set(jnp.where(used, mean, self.mean[segment])),
            self.spread.at[segment].set(jnp.where(used, spread, self.spread[segment])),
        )


def split_rhat(path: Path, steps: int) -> Float[Array, "n *event"]:
    r"""Split R-hat :math:`\sqrt{((L - 1) W + B) / (L W)}` of the last half of all steps.

    Each chain's path is cut into two segments of length L; W is the mean variance within, B is L
    times the variance between the segments' means. NaN for fewer than 8 steps, infinite where
    nothing moved. Source: Gelman et al., Bayesian Data Analysis (2013), eq. 11.4.
    """
    length = steps // 4
    if length < 2:
        return jnp.full(path.mean.shape[2:], jnp.nan, path.mean.dtype)
    within = jnp.mean(path.spread, axis=(0, 1)) / (length - 1)
    between = jnp.var(path.mean, axis=(0, 1), ddof=1)
    ratio = jnp.where(within > 0, between / jnp.where(within > 0, within, 1), jnp.inf)
    # NaN stays NaN: only a variance that is known to be none makes it infinite
    ratio = jnp.where(jnp.isnan(within) | jnp.isnan(between), jnp.nan, ratio)
    return jnp.sqrt((length - 1) / length + ratio)


def effective_size(draws: Float[Array, "t c *rest"]) -> Float[Array, " *rest"]:
    """Effective sample size of t draws from each of c chains, by Geyer's monotone sequence.

    Antithetic draws can count for more than t c, up to t c log10(t c): few draws would otherwise
    claim any number. NaN for fewer than 4 draws a chain or draws without variance.
    Source: Gelman et al., Bayesian Data Analysis (2013), eq. 11.7 and 11.8; the upper end is from
    Vehtari et al. (2021), Rank-normalization, folding, and localization.
    """
    t, c = draws.shape[:2]
    if t < 4:
        return jnp.full(draws.shape[2:], jnp.nan, draws.dtype)
    centred = draws - jnp.mean(draws, axis=0)
    spectrum = jnp.abs(jnp.fft.rfft(centred, 2 * t, axis=0)) ** 2
    covariance = jnp.mean(jnp.fft.irfft(spectrum, 2 * t, axis=0)[:t], axis=1) / t
    within = covariance[0] * t / (t - 1)
    means = jnp.mean(draws, axis=0)
    total = covariance[0] + (jnp.var(means, axis=0, ddof=1) if c > 1 else 0.0)
    correlation = (1 - (within - covariance) / total).at[0].set(1.0)
    even = t - t % 2
    pairs = correlation[0:even:2] + correlation[1:even:2]
    monotone = jax.lax.cummin(at_least(pairs[1:], 0.0), axis=0)
    time = -1 + 2 * pairs[0] + 2 * jnp.sum(monotone, axis=0)  # 1 + twice the sum of correlations
    return t * c / at_least(time, 1 / math.log10(t * c))
