r"""Define the protocol of nulls: which sums a null requests, and the outcome it computes from them.

A null never calls the engine. Before the pass over pairs it declares what it `Needs`: all pairs or
those within blocks, columns of weights, sums of squares, data sets of redrawn targets. After the
pass it turns `Sums` into an `Outcome`. It also states its smallest possible p-value for n
observations, so that a test without power is not reported as "not rejected".

Statistics are degenerate: under calibration :math:`E\,h(x, X') = 0` for every observation x, with
X' a random observation. Resampling nulls count the observed statistic as a draw, so p is at least
1 / (draws + 1) and the level holds for every number of draws. If the statistic or a draw is not
finite, p is NaN.

Estimates do not depend on the order of the rows. Random numbers are drawn per row, so permuted rows
with the same key give another p-value, with the same distribution.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from jaxtyping import Key as Keys

from jaxcal.engine.quadratic import QuadraticSums, ordered_pairs
from jaxcal.engine.signs import HadamardSigns
from jaxcal.numerics import with_total
from jaxcal.typing import Features, Key


class Needs(NamedTuple):
    r"""Requests of a null to the pass over pairs of observations.

    Attributes:
        weights: Columns w of the forms :math:`\sum_{i \neq j} w_i w_j h_{ij}`, [n, b], or
            `jaxcal.engine.signs.HadamardSigns`; None for no forms.
        squares: Whether to compute the sum of h^2 over pairs.
        block_size: Size of consecutive blocks; only pairs within a block are evaluated. None for
            all pairs. Forms are not available for blocks.
        sketch: Normal draws [n, q] from which the q largest eigenvalues of the matrix H of h are
            estimated, or None. If h has finite rank, all eigenvalues are computed instead.
        redraws: Keys [b], one per data set of targets redrawn from the predictions, for which the
            estimate is computed; None for no data sets.
    """

    weights: Float[Array, "n b"] | HadamardSigns | None = None
    squares: bool = False
    block_size: int | None = None
    sketch: Float[Array, "n q"] | None = None
    redraws: Keys[Array, " b"] | None = None


class Outcome(NamedTuple):
    """Estimate, statistic and p-value of a test; one row per test.

    Row 0 is the statistic itself. If h has several channels (components), rows 1, 2, .. are the
    channels. `Sums.outcome` and `Sums.compared` build it.

    Attributes:
        estimate: Unbiased estimates, [r].
        biased: Biased estimates (V-statistics), [r].
        statistic: Statistics, [r].
        p_value: P-values, [r].
        samples: Draws of the statistic under calibration, [r, b]; b = 0 for a formula.
        contributions: Contributions of the observations, [r, n]; they sum to ``estimate``.
        standard_error: Standard errors of ``estimate``, [r]; valid for clear miscalibration only.
            Those of `Sums` are for independent observations.
        stretches: Estimated number of independent blocks of a series, []; None for other nulls.
        p_error: Error bounds of p-values that are approximations, [r]; None for other nulls.
        size: Number of observations per block; None for all n.
    """

    estimate: Float[Array, " r"]
    biased: Float[Array, " r"]
    statistic: Float[Array, " r"]
    p_value: Float[Array, " r"]
    samples: Float[Array, "r b"]
    contributions: Float[Array, "r n"]
    standard_error: Float[Array, " r"]
    stretches: Float[Array, ""] | None = None
    p_error: Float[Array, " r"] | None = None
    size: int | None = None


class Sums(NamedTuple):
    r"""Sums of a kernel h over pairs: row 0 for h, then a row per channel if h has several.

    Attributes:
        size: Number of observations per block; n for all pairs.
        means: Mean of h over the pairs within each of m blocks, [r, m]; m = 1 for all pairs.
        diagonal: h of each observation with itself, [r, n].
        row_sums: Sum of h of each observation with the others of its block, [r, n].
        weights: Columns w that the null requested, [n, b]; b = 0 for none.
        forms: Forms :math:`\sum_{i \neq j} w_i w_j h_{ij}` of these columns, [r, b].
        squares: Sums of h^2 over ordered pairs, [r]; None if not requested.
        eigenvalues: The k largest eigenvalues of the matrix of h with diagonal 0, [r, k], or None.
        redrawn: `unbiased` of b data sets with targets redrawn from the predictions, [r, b]; None
            if not requested.
    """

    size: int
    means: Float[Array, "r m"]
    diagonal: Float[Array, "r n"]
    row_sums: Float[Array, "r n"]
    weights: Float[Array, "n b"]
    forms: Float[Array, "r b"]
    squares: Float[Array, " r"] | None = None
    eigenvalues: Float[Array, "r k"] | None = None
    redrawn: Float[Array, "r b"] | None = None

    @classmethod
    def of(
        cls, sums: QuadraticSums, weights: Float[Array, "n b"], size: int | None = None
    ) -> "Sums":
        """Return `Sums` from the sums of the engine, over all pairs or in blocks of ``size``."""
        c, n = sums.diagonal.shape
        size = n if size is None else size
        means = with_total(sums.total.reshape(c, -1)) / ordered_pairs(size)
        diagonal, rows, forms = map(with_total, (sums.diagonal, sums.row_sums, sums.forms))
        return cls(size, means, diagonal, rows, weights, forms, sums.squares, sums.eigenvalues)

    @property
    def n(self) -> int:
        """Number of observations."""
        return self.diagonal.shape[1]

    @property
    def blocks(self) -> int:
        """Number m of blocks."""
        return self.means.shape[1]

    @property
    def unbiased(self) -> Float[Array, " r"]:
        """U-statistic: mean of h over the evaluated pairs of different observations, [r]."""
        return jnp.mean(self.means, axis=1)

    @property
    def biased(self) -> Float[Array, " r"]:
        """V-statistic: as `unbiased`, but with each observation also paired with itself, [r]."""
        diagonal = jnp.mean(self.diagonal[:, : self.blocks * self.size], axis=1)
        return ((self.size - 1) * self.unbiased + diagonal) / self.size

    @property
    def contributions(self) -> Float[Array, "r n"]:
        """Contribution of each observation to `unbiased`, [r, n]."""
        return self.row_sums / (self.blocks * ordered_pairs(self.size))

    @property
    def standard_error(self) -> Float[Array, " r"]:
        """Standard error of `unbiased`, [r], valid only for a clearly miscalibrated model.

        Observations must be independent. For several blocks it is computed from block means, for
        all pairs from E[h | observation]. NaN for a single block of fewer than n observations.
        """
        if self.blocks > 1:
            return jnp.std(self.means, axis=1, ddof=1) / self.blocks**0.5
        if self.size < self.n:
            return jnp.full_like(self.unbiased, jnp.nan)
        # twice the standard error of the mean of E[h | observation i], n times its contribution
        return 2 * jnp.std(self.contributions, axis=1, ddof=1) * self.n**0.5

    def guarded(self) -> "Sums":
        r"""Return the sums, with ``means`` reduced if the skewness g defined below is negative.

        With :math:`h_{ij} = \langle t_i, t_j \rangle`, let :math:`S = \sum_i t_i`,
        :math:`u_i = \langle t_i, S \rangle / |S|`, and let :math:`V = \sum_i h_{ii}`, the mean of
        :math:`|S|^2` under random signs. If the :math:`u_i` have skewness g != 0, |S| and V are
        dependent, and a test with random signs rejects too often. In one dimension the probability
        that :math:`T = |S| / \sqrt V` exceeds z is too large by
        :math:`g^2 z (z^4 + 2 z^2 - 3) \varphi(z) / (9 n)`, :math:`\varphi` the normal density. If g
        < 0, :math:`|S|^2` is divided by :math:`1 + g^2 \min(T, 2)^2 / n`. This removes nine tenths
        of the excess at level .05, and a third at level .01. If g > 0, nothing changes. Cost O(n).

        Source: Hall (1992), The Bootstrap and Edgeworth Expansion, Section 2.6, for the expansion.
        """
        rows, trace = self.row_sums + self.diagonal, jnp.sum(self.diagonal, axis=1)
        square = jnp.maximum(jnp.sum(rows, axis=1), 0)  # of |S|
        about = rows - jnp.mean(rows, axis=1, keepdims=True)
        variance = jnp.mean(about**2, axis=1)
        # rounding errors are skewed too
        spread = variance > jnp.finfo(rows.dtype).eps * jnp.mean(rows**2, axis=1)
        relative = about / jnp.where(spread, variance, 1)[:, None] ** 0.5
        against = jnp.maximum(-jnp.mean(relative**3, axis=1), 0)
        reach = jnp.minimum(square / jnp.where(trace > 0, trace, 1), 4)
        factor = jnp.where(spread, 1 + against**2 * reach / self.n, 1)
        shift = square * (1 / factor - 1) / ordered_pairs(self.n)
        return self._replace(means=self.means + shift[:, None])

    def outcome(
        self,
        statistic: Float[Array, " r"],
        p: Float[Array, " r"],
        samples: Float[Array, "r b"] | None = None,
    ) -> Outcome:
        """Return the `Outcome` of statistics [r] and p-values [r] that the null computed.

        ``samples`` [r, b]: draws of the statistics under calibration, none by default. A p-value is
        NaN if the statistic or one of its draws is not finite.
        """
        if samples is None:
            samples = jnp.zeros((statistic.shape[0], 0), statistic.dtype)
        p = _if_finite(p, statistic, samples)
        shares, error = self.contributions, self.standard_error
        outcome = Outcome(self.unbiased, self.biased, statistic, p, samples, shares, error)
        return outcome if self.size == self.n else outcome._replace(size=self.size)

    def compared(self, statistic: Float[Array, " r"], samples: Float[Array, "r b"]) -> Outcome:
        """Return the `Outcome` of statistics [r], with their `p_value` among draws [r, b]."""
        return self.outcome(statistic, p_value(statistic, samples), samples)


@runtime_checkable
class Null(Protocol):
    """Protocol of null distributions: a request to the pass over pairs, and its outcome.

    ``needs(key, features)`` returns `Needs`. Features are a pytree of arrays with leading axis n;
    most nulls use only n (`jaxcal.engine.quadratic.count`). ``outcome(sums)`` turns `Sums` into an
    `Outcome`. ``least_p_value(n)`` is the smallest possible p-value for n observations. A null
    whose level holds for every n sets ``exact = True``. With another null, a test gives no verdict
    if targets that are rare under the predictions dominate the statistic.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp, jaxcal
        >>> from jaxcal.nulls import Needs
        >>> class Chebyshev(eqx.Module):  # P(|U| >= u) <= Var U / u^2
        ...     def needs(self, key, features):
        ...         return Needs(squares=True)  # Var U = 2 E h^2 / (n (n - 1))
        ...     def outcome(self, sums):
        ...         pairs, u = sums.n * (sums.n - 1), sums.unbiased
        ...         return sums.outcome(u, jnp.minimum(1, 2 * sums.squares / (pairs * u) ** 2))
        ...     def least_p_value(self, n):
        ...         return 2 / (n * (n - 1))
        >>> ys = jax.random.normal(jax.random.key(0), (50, 1))
        >>> jaxcal.ksd_test(1, jaxcal.Scores(1 - ys), ys, null=Chebyshev()).verdict
        'rejected'
    """

    def needs(self, key: Key, features: Features, /) -> Needs: ...

    def outcome(self, sums: Sums, /) -> Outcome: ...

    def least_p_value(self, n: int, /) -> float: ...


def p_value(
    statistic: Float[Array, " r"], samples: Float[Array, "r b"], *, ties: bool = False
) -> Float[Array, " r"]:
    """Return ``(1 + #{samples >= statistic}) / (1 + b)`` for each row; NaN if not all are finite.
    ``ties``: whether samples that equal the statistic up to rounding count as >= statistic."""
    least = statistic
    if ties:
        size = jnp.sqrt(jnp.mean(samples**2, axis=1)) + jnp.abs(statistic)
        least = statistic - jnp.finfo(samples.dtype).eps ** 0.5 * size
    exceeding = jnp.sum(samples >= least[:, None], axis=1)
    p = (1 + exceeding).astype(statistic.dtype) / (1 + samples.shape[1])
    return _if_finite(p, statistic, samples)


def _if_finite(p: Array, statistic: Array, samples: Array) -> Array:
    good = jnp.isfinite(statistic) & jnp.all(jnp.isfinite(samples), axis=1)
    return jnp.where(good, p, jnp.nan)


@jax.jit
def holm(p_values: Float[Array, " d"]) -> Float[Array, " d"]:
    """Return p-values with Holm's step-down correction (family-wise); all NaN if one is NaN."""
    d = p_values.size
    order = jnp.argsort(p_values)
    stepped = jax.lax.cummax(p_values[order] * (d - jnp.arange(d)).astype(p_values.dtype))
    adjusted = jnp.zeros_like(p_values).at[order].set(jnp.minimum(stepped, 1))
    return jnp.where(jnp.any(jnp.isnan(p_values)), jnp.nan, adjusted)
