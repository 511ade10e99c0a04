"""Nulls that studies and the SKCE paper's table compare with: a Gamma fit, the spectrum by draws,
blocks with the variance that calibration implies, the paper's bootstrap, Hoeffding's bound, and the
limit of a test at locations."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaincc, ndtr

from jaxcal.engine.quadratic import count, ordered_pairs
from jaxcal.nulls import Needs, Outcome, Sums
from jaxcal.nulls.resampling import float_type
from jaxcal.numerics import at_least
from jaxcal.read import convert
from jaxcal.typing import Features, Key, Scalar
from jaxcal.ucme import F


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


class Multinomial(eqx.Module):
    r"""The paper's bootstrap: a degenerate U-statistic of resampled, doubly centred observations.

    With counts C of n draws with replacement and a = n / (n - 1), the samples are
    :math:`\frac1{n^2}[a (C^\top H C - C^\top diag H) - 2 C^\top H 1 + 1^\top H 1]`, of mean 0,
    and are compared with a U (U the unbiased estimate). Source: Arcones and Gine (1992).
    """

    n_draws: int = eqx.field(
        default=500, static=True, converter=lambda value: convert.integer(value, "n_draws")
    )

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
        """The larger of 1 / (draws + 1) and 1 / (2n - 1 over n), the number of resamples."""
        different = math.lgamma(2 * n) - math.lgamma(n + 1) - math.lgamma(n)
        return max(1 / (self.n_draws + 1), math.exp(-different))


class Bound(eqx.Module):
    r"""Hoeffding's bound :math:`p = \exp(-\lfloor n/2 \rfloor U^2 / (2 b^2))`, valid for every n.

    Very conservative. ``largest``: b with abs(h) <= b for all possible observations: 2 for SKCE and
    kernels with values in [0, 1]. Source: Hoeffding (1963), for U-statistics.
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


class ChiSquared(F):
    r"""The limit :math:`\chi^2_J` of Hotelling's statistic as the null of `jaxcal.ucme_test`.

    With 10 locations it needs hundreds of observations: in the paper's experiment it rejects 88 %
    of calibrated models at n = 16, and 12 % at n = 256. Source: Widmann, Lindsten and Zachariah
    (2021), App. C.3.
    """

    def __call__(self, q: Scalar, n: int, j: int) -> Scalar:
        return gammaincc(jnp.asarray(j / 2, q.dtype), q / 2)

    def enough(self, j: int) -> int:
        return 60 * j
