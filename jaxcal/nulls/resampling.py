"""Nulls that draw: bootstraps with random weights, and draws from the limit distribution."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.engine.quadratic import count, ordered_pairs
from jaxcal.engine.signs import HadamardSigns, independent_signs
from jaxcal.nulls.contract import Needs, Outcome, Sums, p_value
from jaxcal.nulls.dependence import dependence, series_of
from jaxcal.numerics import at_least
from jaxcal.read import convert
from jaxcal.typing import Features, Key


def _draws(value: object) -> int:
    return convert.integer(value, "n_draws")


class Wild(eqx.Module):
    r"""Wild bootstrap: :math:`\frac{1}{n(n-1)} \sum_{i\neq j} w_i w_j h_{ij}` with random signs w.

    For independent observations; the default of tests of densities. Where residuals have few large
    values that may fail to come, as those of rare events, it rejects too often: see `Redrawn`.

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
        """1 over the draws + 1, or over the 2^(n-1) patterns of signs; one is that of the data."""
        return max(1 / (self.n_draws + 1), 2.0 ** (1 - n))


class HadamardWild(Wild):
    r"""Wild bootstrap whose draws cost n^2 additions together, not n^2 multiplications each.

    Signs are independent for the observations of a draw, as those of `Wild`; the draws share all
    but a column of a Hadamard matrix, in groups of up to 32 observations in random order, and one
    fast transform gives the statistics of them all (`jaxcal.engine.signs.HadamardSigns`). Draws are
    uncorrelated, not independent: the p-value of the same data varies between keys as that of
    `Wild` does (`experiments/level`). With fewer than 24 observations it is `Wild`.

    Args:
        n_draws: Number of draws b; the smallest p-value is 1 / (b + 1).

    Cost: n^2 additions, and n^2 n_draws / m^2 multiplications in groups of m <= 32, in the pass
    over pairs. At n = 8,192 a test with 9,999 draws takes 1.4 times one with 500.

    Source: McCarthy (1969), for half-samples balanced by Hadamard's matrices; Glaser et al. (2023),
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
    r"""Targets drawn anew from the predictions, and the estimate of each such data set.

    The level holds for every n: observed and redrawn targets have one distribution under
    calibration. Signs need targets on both sides of their prediction: of rare events none may
    come, and then all residuals have one sign. Units and bandwidths that look at targets are
    computed again for each data set; estimates equal up to rounding count as ties. A prediction
    that is given as `jaxcal.Draws` lends one of them for its target, which is exact where draws are
    independent (those of a Markov chain are not).

    For tests of predictions that can be sampled; the default of `jaxcal.skce_test` and
    `jaxcal.ucme_test` where it costs little. Observations must be independent.

    Args:
        n_draws: Number of data sets b; the smallest p-value is 1 / (b + 1).

    Cost: n^2 (m - 1) n_draws multiplications in the pass over pairs for m classes, and
    n (m - 1) n_draws numbers; for others n_draws times that of the test.

    Source: Dwass (1957), for tests by data sets drawn under the hypothesis; Phipson and Smyth
    (2010), for the p-value.

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
        """1 over the draws + 1."""
        return 1 / (self.n_draws + 1)


class DependentWild(eqx.Module):
    """Wild bootstrap for a stationary series, with signs that stay the same for a while.

    Observations must be in the order of time. The signs are a Markov chain that flips with
    probability ``flip``, so their correlation over a lag t is (1 - 2 flip)^t, as in stretches of
    random length, 1 / (2 flip) on average, with a sign of its own each.

    Measured for autoregressive errors of correlation up to .9 (`experiments/dependence`): the
    level is kept at n = 300 and 1,000; at n = 100 weak correlations (.3, .5) are missed, and .08 to
    .10 are rejected. Power ends first: ``warnings()`` says where fewer than ten stretches are left.
    Such signs know nothing of seasons: where errors depend on those of a season ago, .2 to .4 are
    rejected, and the verdict is "cannot tell: season of 24" if the season is seen (for a season of
    24 and correlation .8, in .98 of data sets at n = 100 and in all from 300 on).

    Args:
        n_draws: Number of draws.
        flip: Probability of a flip, above 0 and at most 1/2. None takes stretches twice as long
            as the block length of Politis and White (2004) of the scores, of each moment where a
            test asks for moments, and of the targets minus their predicted means (or other
            residuals) where it has neither, the longest of all. That block length makes the squared
            error of the variance least; a test asks for less bias than that.

    Raises:
        ValueError: ``flip`` is out of range.

    Cost: as `Wild`.

    Source: Chwialkowski, Sejdinovic, Gretton (2014); Chwialkowski, Strathmann, Gretton (2016);
    for blocks, Patton, Politis and White (2009); for longer ones in tests, Sun, Phillips, Jin
    (2008).

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
        return compared._replace(stretches=2 * flips)

    def least_p_value(self, n: int) -> float:
        """1 over the draws + 1, or the chance that no sign flips, as in the data."""
        flip = 0.5 if self.flip is None else self.flip
        return max(1 / (self.n_draws + 1), (1 - flip) ** (n - 1))


def _estimated_flip(features: Features) -> Array:
    """At most 1/2, for stretches of twice the block length of the longest dependence."""
    columns = series_of(features).astype(float_type(features))
    block = jnp.max(dependence(jax.lax.stop_gradient(columns)).block)
    return 0.5 / at_least(2 * block, 1.0)


class Multinomial(eqx.Module):
    r"""Bootstrap of a degenerate U-statistic by resampled, doubly centred observations.

    With counts C of n draws with replacement and a = n / (n - 1), the samples are
    :math:`\frac1{n^2}[a (C^\top H C - C^\top diag H) - 2 C^\top H 1 + 1^\top H 1]`, of mean 0,
    and the statistic compared with them is a U (U the unbiased estimate).

    Args:
        n_draws: Number of draws.

    Cost: as `Wild`.

    Source: Arcones and Gine (1992).

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions, null = dist.Normal(centers, 1.0), jaxcal.nulls.Multinomial()
        >>> jaxcal.skce_test(1, predictions, centers + 0.8 + noise, null=null).verdict
        'rejected'
    """

    n_draws: int = eqx.field(default=500, static=True, converter=_draws)

    def needs(self, key: Key, features: Features) -> Needs:
        n = count(features)
        drawn = jax.random.randint(key, (self.n_draws, n), 0, n)
        counts = jax.vmap(lambda i: jnp.bincount(i, length=n))(drawn).T
        return Needs(counts.astype(float_type(features)))

    def outcome(self, sums: Sums) -> Outcome:
        n, counts = sums.n, sums.weights
        a = n / (n - 1)
        pairs = sums.forms + sums.diagonal @ (counts**2 - counts)
        rows = sums.row_sums + sums.diagonal
        samples = a * pairs - 2 * rows @ counts + jnp.sum(rows, axis=1, keepdims=True)
        return sums.compared(a * sums.unbiased, samples / float(n**2))

    def least_p_value(self, n: int) -> float:
        """1 over the draws + 1, or over the number of different resamples, 2n - 1 over n.

        Fewer resamples cannot tell a p-value more finely.
        """
        different = math.lgamma(2 * n) - math.lgamma(n + 1) - math.lgamma(n)
        return max(1 / (self.n_draws + 1), math.exp(-different))


def float_type(features: Features) -> Any:
    """The type of the floats among the features; classes are integers."""
    types = [jnp.result_type(leaf) for leaf in jax.tree.leaves(features)]
    floats = [kind for kind in types if jnp.issubdtype(kind, jnp.floating)]
    return jnp.result_type(*floats or [float])
