"""Nulls without draws: limits of the statistic or of its blocks, and a bound for every n."""

import math

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.special import gammaincc, ndtr

from jaxcal import convert
from jaxcal.nulls.contract import Needs, Outcome, Sums
from jaxcal.numerics import at_least
from jaxcal.quadratic import count, ordered_pairs
from jaxcal.typing import Features, Key


def _size(value: object) -> int | None:
    return None if value is None else convert.integer(value, "size", least=2)


class Gamma(eqx.Module):
    """Gamma distribution with the first two moments of n V: the cheapest null of all pairs.

    n V has mean tr H / n and variance 2 mean of h^2; no draws are needed. The error of the
    approximation does not vanish with n: a Gamma distribution is never more skewed than the limit
    distribution, so far in the tail (at the 1 % level) it rejects somewhat too often.

    Cost: none beyond the pass over n^2 pairs.

    Source: Gretton et al. (2009).

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions, null = dist.Normal(centers, 1.0), jaxcal.nulls.Gamma()
        >>> jaxcal.skce_test(1, predictions, centers + 0.8 + noise, null=null).verdict
        'rejected'
    """

    def needs(self, key: Key, features: Features) -> Needs:
        return Needs(squares=True)

    def outcome(self, sums: Sums) -> Outcome:
        n, squares = sums.n, sums.squares
        mean = jnp.sum(sums.diagonal, axis=1) / n
        variance = 2 * squares / ordered_pairs(n)
        statistic = n * sums.biased
        p = gammaincc(mean**2 / variance, at_least(statistic, 0) * mean / variance)
        return sums.outcome(statistic, p)

    def least_p_value(self, n: int) -> float:
        """The smallest p-value of the two extremes of pairs that are all alike.

        These are h = 1 for all pairs, and h near 0 beside its diagonal.
        """
        return min(math.erfc((n / 2) ** 0.5), math.erfc((n - 1) / 2) / 2)


class BlockNormal(eqx.Module):
    r"""Normal limit of the mean over blocks of observations, each with its own unbiased estimate.

    Only h within blocks is evaluated: O(n size) instead of O(n^2). The statistic is
    :math:`\sqrt m\,\bar\eta / sd(\eta)` over m blocks. Less power than the statistic of all pairs.

    Args:
        size: Observations in a block, at least 2; 2 is the linear-time test. None takes the
            integer part of the square root of n.

    Raises:
        ValueError: ``size`` is below 2, or, when used, there are fewer than two blocks.

    Source: Zaremba, Gretton and Blaschko (2013); Widmann et al. (2021), Remark B.1.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 400))
        >>> predictions, null = dist.Normal(centers, 1.0), jaxcal.nulls.BlockNormal(20)
        >>> jaxcal.skce_test(1, predictions, centers + 0.8 + noise, null=null).verdict
        'rejected'
    """

    size: int | None = eqx.field(default=None, static=True, converter=_size)

    def needs(self, key: Key, features: Features) -> Needs:
        return Needs(block_size=_block_size(self.size, count(features), least=2))

    def outcome(self, sums: Sums) -> Outcome:
        statistic = sums.unbiased / sums.standard_error
        return sums.outcome(statistic, ndtr(-statistic))

    def least_p_value(self, n: int) -> float:
        """0: the blocks may agree as closely as they like."""
        return 0.0


class BlockSquares(eqx.Module):
    r"""Normal limit of the mean over blocks, with the variance that calibration implies.

    Under calibration the estimate of a block of size B has variance
    :math:`2 E h^2 / (B (B - 1))`, so the statistic of m blocks is
    :math:`\sqrt{m B (B - 1)}\,\bar\eta / \sqrt{2 \hat v}`, with :math:`\hat v` the mean of
    :math:`h_{ij}^2` over the pairs within blocks. Where `BlockNormal` takes the spread of the m
    estimates this takes that of all pairs, so it serves few, large blocks (one will do, but then
    the limit distribution is not normal and `Spectrum` or `Wild` is right). Conservative for
    blocks of 2 in small samples.

    Args:
        size: As in `BlockNormal`.

    Raises:
        ValueError: ``size`` is below 2, or, when used, there is no whole block.

    Cost: O(n size).

    Source: Widmann et al. (2021), Remark B.3, with the variance of Corollary B.1 (Corollary B.5
    prints it without the factor 2).

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 400))
        >>> predictions, null = dist.Normal(centers, 1.0), jaxcal.nulls.BlockSquares(50)
        >>> jaxcal.skce_test(1, predictions, centers + 0.8 + noise, null=null).verdict
        'rejected'
    """

    size: int | None = eqx.field(default=None, static=True, converter=_size)

    def needs(self, key: Key, features: Features) -> Needs:
        size = _block_size(self.size, count(features), least=1)
        return Needs(squares=True, block_size=size)

    def outcome(self, sums: Sums) -> Outcome:
        squares, pairs = sums.squares, sums.blocks * ordered_pairs(sums.size)
        statistic = sums.unbiased / (jnp.sqrt(2 * squares / pairs) / pairs**0.5)
        return sums.outcome(statistic, ndtr(-statistic))

    def least_p_value(self, n: int) -> float:
        """The p-value of h = 1 for all pairs, by Cauchy and Schwarz."""
        size = _block_size(self.size, n, least=1)
        return math.erfc((n // size * ordered_pairs(size)) ** 0.5 / 2) / 2


def _block_size(size: int | None, n: int, *, least: int) -> int:
    """The size of the blocks, of which there are at least so many; or ValueError."""
    size = max(2, int(n**0.5)) if size is None else size
    if size < 2:
        raise ValueError(f"size: wanted blocks of at least 2 observations, got {size}")
    if n // size < least:
        wanted = "two blocks" if least == 2 else "one block"
        raise ValueError(
            f"the block test needs at least {wanted}: n={n} observations and block size "
            f"{size} make {n // size}; use smaller blocks or another null"
        )
    return size


class Bound(eqx.Module):
    r"""Hoeffding's bound :math:`p = \exp(-\lfloor n/2 \rfloor U^2 / (2 b^2))`, true for every n.

    Very conservative.

    Args:
        largest: A number b with abs(h) <= b for all observations the model could meet, not only
            for those seen. Stein kernels have one only where scores are bounded; SKCE has one
            for every bounded kernel: 2 for kernels with values in [0, 1].

    Raises:
        ValueError: ``largest`` is not positive.

    Source: Hoeffding (1963), for U-statistics of a kernel in [-b, b].

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions, null = dist.Normal(centers, 1.0), jaxcal.nulls.Bound(2.0)
        >>> jaxcal.skce_test(1, predictions, centers + 0.8 + noise, null=null).null
        'Bound'
    """

    largest: float = eqx.field(static=True)
    exact: bool = eqx.field(default=True, init=False, static=True)

    def __check_init__(self):
        convert.number(self.largest, "largest", above=0)

    def needs(self, key: Key, features: Features) -> Needs:
        return Needs()

    def outcome(self, sums: Sums) -> Outcome:
        u = at_least(sums.unbiased, 0)
        p = jnp.exp(-(sums.n // 2) * u**2 / (2 * self.largest**2))
        return sums.outcome(sums.unbiased, p)

    def least_p_value(self, n: int) -> float:
        """The p-value of h at its bound for all pairs."""
        return math.exp(-(n // 2) / 2)
