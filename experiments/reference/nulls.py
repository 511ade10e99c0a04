"""Nulls that studies and the SKCE paper's table compare with: a Gamma fit, the spectrum by draws,
and blocks with the variance that calibration implies."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaincc, ndtr

from jaxcal.engine.quadratic import count, ordered_pairs
from jaxcal.nulls import Needs, Outcome, Sums
from jaxcal.nulls.resampling import float_type
from jaxcal.numerics import at_least
from jaxcal.typing import Features, Key


class Gamma(eqx.Module):
    """Gamma distribution with the first two moments of n V: no draws.

    n V has mean tr H / n and variance 2 mean of h^2. The error does not vanish with n: a Gamma
    distribution is never more skewed than the limit distribution, so at the 1 % level it rejects
    somewhat too often. Source: Gretton et al. (2009).
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
        """The smaller of two extremes: h = 1 for all pairs, and h near 0 beside its diagonal."""
        return min(math.erfc((n / 2) ** 0.5), math.erfc((n - 1) / 2) / 2)


class Spectrum(eqx.Module):
    r"""The limit distribution of n U, :math:`\sum_i \lambda_i (\chi^2_1 - 1)`, by draws.

    With :math:`\lambda` the eigenvalues of H / n, that sum has the distribution of
    :math:`(g^\top H g - tr H) / n` for standard normal g. Statistic and samples are in units of U.
    Source: Gretton et al. (2009).
    """

    n_draws: int = eqx.field(default=500, static=True)

    def needs(self, key: Key, features: Features) -> Needs:
        return Needs(jax.random.normal(key, (count(features), self.n_draws), float_type(features)))

    def outcome(self, sums: Sums) -> Outcome:
        g = sums.weights
        samples = (sums.forms + sums.diagonal @ (g**2 - 1)) / float(sums.n**2)
        return sums.compared(sums.unbiased, samples)

    def least_p_value(self, n: int) -> float:
        r"""1 over the draws + 1, or :math:`P(\chi^2_1 \geq n + 1)`, that of h = 1 for all pairs."""
        return max(1 / (self.n_draws + 1), math.erfc(((n + 1) / 2) ** 0.5))


class BlockSquares(eqx.Module):
    r"""Normal limit of the mean over m blocks of B observations, with the variance of calibration.

    :math:`\sqrt{m B (B - 1)}\,\bar\eta / \sqrt{2 \hat v}`, with :math:`\hat v` the mean of
    :math:`h_{ij}^2` over the pairs within blocks: variant B of the paper's block tests. ``size``:
    of a block, the root of n by default. Source: Widmann et al. (2021), Remark B.3, with the
    variance of Corollary B.1 (Corollary B.5 prints it without the factor 2).
    """

    size: int | None = eqx.field(default=None, static=True)

    def _size(self, n: int) -> int:
        size = max(2, int(n**0.5)) if self.size is None else self.size
        if n < size:
            raise ValueError(f"BlockSquares needs at least one block of {size}, got n={n}")
        return size

    def needs(self, key: Key, features: Features) -> Needs:
        return Needs(squares=True, block_size=self._size(count(features)))

    def outcome(self, sums: Sums) -> Outcome:
        squares, pairs = sums.squares, sums.blocks * ordered_pairs(sums.size)
        statistic = sums.unbiased / (jnp.sqrt(2 * squares / pairs) / pairs**0.5)
        return sums.outcome(statistic, ndtr(-statistic))

    def least_p_value(self, n: int) -> float:
        """The p-value of h = 1 for all pairs, by Cauchy and Schwarz."""
        size = self._size(n)
        return math.erfc((n // size * ordered_pairs(size)) ** 0.5 / 2) / 2
