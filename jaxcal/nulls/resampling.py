"""Compute p-values from draws: bootstraps with random signs, and redrawn targets.

Successive targets of a time series may be dependent. `DependentWild` estimates the length of this
dependence from autocorrelations. It finds the lag beyond which they are noise, applies a flat-top
window up to twice that lag, and chooses the block length with the least mean squared error of the
long-run variance. Source: Politis and White (2004), corrected by Patton, Politis and White (2009).
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Int

from jaxcal.engine.quadratic import count, ordered_pairs
from jaxcal.engine.signs import HadamardSigns
from jaxcal.nulls.contract import Needs, Outcome, Sums, p_value
from jaxcal.numerics import at_least, at_most, independent_signs
from jaxcal.read import convert
from jaxcal.typing import Features, Key


def _draws(value: object) -> int:
    return convert.integer(value, "n_draws")


class Wild(eqx.Module):
    r"""Wild bootstrap: draws :math:`\frac{\sum_{i\neq j} w_i w_j h_{ij}}{n(n-1)}`, w random signs.

    For independent observations; the default for densities. It rejects too often if the sum is
    dominated by few large residuals of rare events: see `Redrawn`.

    Args:
        n_draws: Number of draws b; the smallest p-value is 1 / (b + 1).

    Cost: n^2 n_draws multiplications in the pass over pairs.

    Source: Glaser et al. (2023), Section 6.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions, null = dist.Normal(centers, 1.0), jaxcal.nulls.Wild(200)
        >>> jaxcal.skce_test(1, predictions, centers + noise, null=null).null_samples.shape
        (200,)
    """

    n_draws: int = eqx.field(default=500, static=True, converter=_draws)

    def needs(self, key: Key, features: Features) -> Needs:
        return Needs(independent_signs(key, count(features), self.n_draws, float_type(features)))

    def outcome(self, sums: Sums) -> Outcome:
        return sums.compared(sums.unbiased, sums.forms / ordered_pairs(sums.n))

    def least_p_value(self, n: int) -> float:
        """Return max(1 / (n_draws + 1), 1 / 2^(n-1)); n signs give 2^(n-1) different draws."""
        return max(1 / (self.n_draws + 1), 2.0 ** (1 - n))


class HadamardWild(Wild):
    r"""Wild bootstrap whose draws together cost n^2 additions, instead of n^2 multiplications each.

    Observations are put in random groups of up to 32. The sign of an observation in a draw is the
    product of a random sign that all draws share, an entry of a Hadamard matrix (row: place in the
    group, column: draw), and a random sign of the group (`jaxcal.engine.signs.HadamardSigns`). So
    signs within a draw are independent, but draws are only uncorrelated. The p-value varies between
    keys as much as that of `Wild` (`experiments/level`). For n < 24 draws are independent, too.

    Args:
        n_draws: Number of draws b; the smallest p-value is 1 / (b + 1).

    Cost: n^2 additions, and n^2 n_draws / m^2 multiplications in groups of m <= 32, in the pass
    over pairs. At n = 8,192 a test with 9,999 draws takes 1.4 times as long as one with 500.

    Source: McCarthy (1969), for half-samples balanced by Hadamard matrices; Glaser et al. (2023),
    Section 6, for the test.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions, null = dist.Normal(centers, 1.0), jaxcal.nulls.HadamardWild(9999)
        >>> bool(jaxcal.kccsd_test(1, predictions, centers + 1 + noise, null=null).p_value < 0.001)
        True
    """

    def needs(self, key: Key, features: Features) -> Needs:
        dtype = float_type(features)
        return Needs(HadamardSigns.draw(key, count(features), self.n_draws, dtype))


class Redrawn(eqx.Module):
    r"""Null that redraws targets from the predictions and recomputes the estimate.

    The level holds for every n, because observed and redrawn targets have the same distribution
    under calibration. `Wild` fails for rare events: if none occurs, all residuals have the same
    sign. Units and bandwidths that depend on targets are recomputed for each data set. Redrawn
    estimates that equal the observed one up to rounding count as larger. For `jaxcal.Draws`,
    targets are exchanged with draws of their predictions. This is exact for independent draws only.

    For independent observations and predictions that can be sampled; the default of
    `jaxcal.skce_test` and `jaxcal.ucme_test` if its cost is small.

    Args:
        n_draws: Number of data sets b; the smallest p-value is 1 / (b + 1).

    Cost: for m classes n^2 (m - 1) n_draws multiplications in the pass over pairs, and memory of
    n (m - 1) n_draws numbers; for other predictions n_draws times the cost of the test.

    Source: Dwass (1957), for tests by simulated data sets; Phipson and Smyth (2010), for the
    p-value.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> p, none = jnp.linspace(0.001, 0.005, 300), jnp.zeros(300, int)
        >>> jaxcal.skce_test(0, p, none, null=jaxcal.nulls.Redrawn(200)).verdict
        'not rejected'
    """

    n_draws: int = eqx.field(default=500, static=True, converter=_draws)
    exact: bool = eqx.field(default=True, init=False, static=True)

    def needs(self, key: Key, features: Features) -> Needs:
        return Needs(redraws=jax.random.split(key, self.n_draws))

    def outcome(self, sums: Sums) -> Outcome:
        statistic, samples = sums.unbiased, sums.redrawn
        assert samples is not None
        return sums.outcome(statistic, p_value(statistic, samples, ties=True), samples)

    def least_p_value(self, n: int) -> float:
        """Return 1 / (draws + 1)."""
        return 1 / (self.n_draws + 1)


class DependentWild(eqx.Module):
    """Wild bootstrap for a stationary series, with autocorrelated signs.

    Observations must be in temporal order. The signs are a Markov chain that flips with probability
    ``flip``, so their correlation at lag t is (1 - 2 flip)^t. This is equivalent to one random sign
    per block, for blocks of geometric lengths with mean 1 / (2 flip).

    Measured for autoregressive errors of correlation up to .9 (`experiments/dependence`): the
    level holds at n = 300 and 1,000; at n = 100 weak correlations (.3, .5) are not detected, and
    the rejection rate is .08 to .10. ``warnings()`` reports fewer than ten independent blocks, for
    which power is low. Signs do not account for seasons: for errors that depend on the previous
    season the rejection rate is .2 to .4. If a season is detected, the verdict names it: "cannot
    tell: season of 24". The standard error of the estimate is multiplied by the square root of the
    `Dependence.inflation` of the contributions.

    Args:
        n_draws: Number of draws.
        flip: Probability of a flip, above 0 and at most 1/2. By default the mean block length is
            twice the largest estimate of Politis and White (2004) from scores, moments or, without
            these, from targets minus predicted means (or other residuals).

    Cost: as `Wild`.

    Source: Chwialkowski, Sejdinovic, Gretton (2014); Chwialkowski, Strathmann, Gretton (2016);
    Patton, Politis and White (2009) for the block length; Sun, Phillips, Jin (2008) for longer
    blocks in tests.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))  # in order of time
        >>> predictions, null = dist.Normal(centers, 1.0), jaxcal.nulls.DependentWild()
        >>> jaxcal.skce_test(1, predictions, centers + 0.8 + noise, null=null).verdict
        'rejected'
    """

    n_draws: int = eqx.field(default=500, static=True, converter=_draws)
    flip: float | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        if self.flip is not None and not 0 < convert.real(self.flip, "flip") <= 0.5:
            raise ValueError(f"flip: a probability in (0, 0.5], got {self.flip}")

    def needs(self, key: Key, features: Features) -> Needs:
        n, dtype = count(features), float_type(features)
        flip = jnp.asarray(self.flip if self.flip else _estimated_flip(features), dtype)
        start, later = jax.random.split(key)
        flips = (jax.random.uniform(later, (n, self.n_draws), dtype) < flip).astype(jnp.int32)
        parity = (jnp.cumsum(flips, axis=0) % 2).astype(dtype)
        return Needs((1 - 2 * parity) * independent_signs(start, 1, self.n_draws, dtype))

    def outcome(self, sums: Sums) -> Outcome:
        flips = jnp.sum(sums.weights[1:] != sums.weights[:-1]) / self.n_draws
        compared = sums.compared(sums.unbiased, sums.forms / ordered_pairs(sums.n))
        inflation = dependence(sums.contributions.T).inflation
        error = compared.standard_error * jnp.sqrt(inflation)
        return compared._replace(stretches=2 * flips, standard_error=error)

    def least_p_value(self, n: int) -> float:
        """Return max(1 / (n_draws + 1), (1 - flip)^(n-1)), the second being the probability that no
        sign flips. If ``flip`` is to be estimated, 1/2 is used."""
        flip = 0.5 if self.flip is None else self.flip
        return max(1 / (self.n_draws + 1), (1 - flip) ** (n - 1))


def _estimated_flip(features: Features) -> Array:
    """Return the flip probability for twice the longest estimated block length, at most 1/2."""
    columns = series_of(features).astype(float_type(features))
    block = jnp.max(dependence(jax.lax.stop_gradient(columns)).block)
    return 0.5 / at_least(2 * block, 1.0)


def float_type(features: Features) -> Any:
    """Return the dtype of the floating-point features; the default one if there are none."""
    types = [jnp.result_type(leaf) for leaf in jax.tree.leaves(features)]
    floats = [kind for kind in types if jnp.issubdtype(kind, jnp.floating)]
    return jnp.result_type(*floats or [float])


SEASONAL = 0.01  # level of the test for a season
THRESHOLD = 2.0  # autocorrelations below this times sqrt(log10(n) / n) count as noise


class Dependence(NamedTuple):
    """Serial dependence of q series.

    ``block`` [q]: block length of the stationary bootstrap, in observations, from 0 (independence)
    to min(3 sqrt(n), n / 3). ``inflation`` [q] >= 1: long-run variance over variance; n
    observations carry as much information as n / inflation independent ones."""

    block: Float[Array, "*q"]
    inflation: Float[Array, "*q"]

    def degrees(self, n: Array | int) -> Float[Array, "*q"]:
        """Return degrees of freedom, n / (2 block) - 1 and at least 1, of a variance of n terms."""
        return at_least(n / at_least(2 * self.block, 1.0) - 1, 1.0)


def series_of(features: Any) -> Float[Array, "n q"]:
    """Return the scores in ``features`` as columns, else the targets, else all arrays."""
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

    Let m be the lag beyond which autocorrelations :math:`r_k` count as noise. The statistic is the
    largest ratio of :math:`r_k` to its standard error over m < k <= n / 2. The test is one-sided at
    level `SEASONAL` with Bonferroni's correction. The variance of :math:`r_k` is Bartlett's
    :math:`(1 + 2 \sum_{j \leq m} r_j^2) (n - k) / n^2`. If products of errors at lag k vary more,
    as for skewed errors, their variance replaces :math:`(n - k) / n^2`. Cost O(n log(n) q).
    """
    n = len(errors)
    lags = jnp.arange(n)[:, None]
    gaps = _gaps(errors)
    products = _products(gaps)
    r, last = _autocorrelations(products)
    bartlett = 1 + 2 * jnp.sum(jnp.where((lags > 0) & (lags <= last[None]), r**2, 0), axis=0)
    pairs = (n - lags).astype(errors.dtype)
    varying = (_products(gaps**2) - products**2 / pairs) / _or_one(products[:1]) ** 2
    variance = bartlett[None] * jnp.maximum(varying, pairs / float(n) ** 2)
    beyond = (lags > last[None]) & (lags <= n // 2)
    sizes = jnp.max(jnp.where(beyond, r / jnp.sqrt(variance), 0), axis=1)
    moving = at_least(jnp.sum(products[0] > 0).astype(r.dtype), 1)
    least = -ndtri(SEASONAL / (max(n // 2, 1) * moving))
    return jnp.where(jnp.max(sizes) > least, jnp.argmax(sizes), 0)


def _lags(n: int) -> tuple[int, int]:
    """Return the largest lag m considered, and the number of lags after m that must be noise."""
    run = max(5, math.ceil(math.sqrt(math.log10(n))))
    return max(1, min(math.ceil(math.sqrt(n)), n - 1 - run)), run


def _gaps(series: Float[Array, "n q"]) -> Float[Array, "n q"]:
    return series - jnp.mean(series, axis=0, keepdims=True)


def _products(gaps: Float[Array, "n q"]) -> Float[Array, "n q"]:
    """Return, for lags k = 0, .., n - 1, the sum over t of gaps[t] gaps[t + k], per column."""
    n = len(gaps)
    length = 1 << (2 * n - 1).bit_length()
    waves = jnp.fft.rfft(gaps, length, axis=0)
    return jnp.fft.irfft(jnp.abs(waves) ** 2, length, axis=0)[:n]


def _or_one(values: Array) -> Array:
    return jnp.where(values <= 0, 1, values)


def _autocorrelations(
    products: Float[Array, "n q"],
) -> tuple[Float[Array, "n q"], Int[Array, " q"]]:
    """Return autocorrelations at lags 0, .., n - 1, and the lag m beyond which they are noise."""
    n = len(products)
    variance = products[:1]
    r = jnp.where(variance <= 0, 0, products / _or_one(variance)).at[0].set(1.0)
    most, run = _lags(n)
    noise = jnp.abs(r[1:]) < THRESHOLD * (math.log10(n) / n) ** 0.5
    # [m, q]: whether lags m + 1 .. m + run are all noise
    quiet = jnp.stack([jnp.all(noise[m : m + run], axis=0) for m in range(most + 1)])
    return r, jnp.where(jnp.any(quiet, axis=0), jnp.argmax(quiet, axis=0), most)
