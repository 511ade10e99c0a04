r"""What a null asks of the engine's one pass, and the sums of that pass to an outcome.

A null never calls the engine. Before the pass it declares what it `Needs`: all pairs or those
within blocks, columns of weights, sums of squares. After it, `Sums` become an `Outcome`. It also
says the least p-value it can give for n observations, so that a test which cannot reject does not
pass for one that found nothing.

Every null is degenerate here: under calibration :math:`E\,h(x, X') = 0` for every x. p-values of
resampling nulls count the observed statistic as one of the draws, so p >= 1 / (draws + 1) and the
test has its level for every number of draws. Where the statistic or a draw is not finite, p is NaN.

Signs and counts are drawn observation by observation. An estimate does not depend on the order of
the rows; permuted rows and the same key give other draws, and so another p-value, of the same
distribution.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.quadratic import BlockSums, QuadraticSums, ordered_pairs
from jaxcal.typing import Features, Key


class Needs(NamedTuple):
    r"""What a null asks of the pass over pairs of observations.

    ``weights`` [n, b]: columns w of the forms :math:`\sum_{i \neq j} w_i w_j h_{ij}`, None for
    none. ``squares``: whether sums of squares of h are wanted. ``block_size``: only the pairs
    within consecutive blocks of so many observations; None for all pairs. Blocks have no forms.
    """

    weights: Float[Array, "n b"] | None = None
    squares: bool = False
    block_size: int | None = None


class Outcome(NamedTuple):
    """One test a row: row 0 is the statistic itself; where h has several channels (components),
    rows 1.. are theirs. ``contributions`` [r, n] sum to ``estimate`` [r]; ``standard_error`` [r] is
    that of the estimate where the model is clearly not calibrated. ``stretches``: of a series, how
    many independent pieces it holds as far as the null can tell."""

    estimate: Float[Array, " r"]
    biased: Float[Array, " r"]
    statistic: Float[Array, " r"]
    p_value: Float[Array, " r"]
    samples: Float[Array, "r b"]
    contributions: Float[Array, "r n"]
    standard_error: Float[Array, " r"]
    stretches: Float[Array, ""] | None = None


class Sums(NamedTuple):
    """What the pass found: row 0 for h, then one row a channel where h has several.

    ``means`` [r, m]: the mean of h over the pairs within each of m blocks of ``size`` observations;
    all pairs are one block of size n. ``diagonal`` [r, n]: h of each observation with itself.
    ``row_sums`` [r, n]: sums of h over an observation's pairs. ``weights`` [n, b] as asked for and
    their ``forms`` [r, b]. ``squares`` [r]: sums of h^2 over ordered pairs, NaN if not asked for.
    """

    size: int
    means: Float[Array, "r m"]
    diagonal: Float[Array, "r n"]
    row_sums: Float[Array, "r n"]
    weights: Float[Array, "n b"]
    forms: Float[Array, "r b"]
    squares: Float[Array, " r"]

    @classmethod
    def of(cls, sums: QuadraticSums, weights: Float[Array, "n b"]) -> "Sums":
        """Over all pairs."""
        n = sums.diagonal.shape[1]
        means = _with_total(sums.total)[:, None] / ordered_pairs(n)
        return cls(n, means, *_rows(sums), weights, _with_total(sums.forms), _squares(sums))

    @classmethod
    def of_blocks(cls, sums: BlockSums, size: int) -> "Sums":
        """Over the pairs within blocks."""
        means, (diagonal, row_sums) = _with_total(sums.means), _rows(sums)
        weights = jnp.zeros((diagonal.shape[1], 0), means.dtype)
        return cls(size, means, diagonal, row_sums, weights, means[:, :0], _squares(sums))

    @property
    def n(self) -> int:
        """The number of observations."""
        return self.diagonal.shape[1]

    @property
    def blocks(self) -> int:
        """The number m of blocks."""
        return self.means.shape[1]

    @property
    def unbiased(self) -> Float[Array, " r"]:
        """The mean of h over all pairs of different observations looked at."""
        return jnp.mean(self.means, axis=1)

    @property
    def biased(self) -> Float[Array, " r"]:
        """The same with the pairs of an observation and itself."""
        diagonal = jnp.mean(self.diagonal[:, : self.blocks * self.size], axis=1)
        return ((self.size - 1) * self.unbiased + diagonal) / self.size

    @property
    def contributions(self) -> Float[Array, "r n"]:
        """Each observation's share of `unbiased`."""
        return self.row_sums / (self.blocks * ordered_pairs(self.size))

    @property
    def standard_error(self) -> Float[Array, " r"]:
        """Of `unbiased` where the model is clearly not calibrated, from the spread of the blocks
        or, where all pairs are one block, from that of E[h | observation]; NaN where one of
        several possible blocks was all there was."""
        if self.blocks > 1:
            return jnp.std(self.means, axis=1, ddof=1) / self.blocks**0.5
        if self.size < self.n:
            return jnp.full_like(self.unbiased, jnp.nan)
        # twice the standard error of the mean of E[h | observation i], n times its share
        return 2 * jnp.std(self.contributions, axis=1, ddof=1) * self.n**0.5

    def outcome(
        self,
        statistic: Float[Array, " r"],
        p: Float[Array, " r"],
        samples: Float[Array, "r b"] | None = None,
    ) -> Outcome:
        """With a statistic of the null's choice and its p-value, NaN where one is not finite."""
        if samples is None:
            samples = jnp.zeros((statistic.shape[0], 0), statistic.dtype)
        p = _if_finite(p, statistic, samples)
        shares, error = self.contributions, self.standard_error
        return Outcome(self.unbiased, self.biased, statistic, p, samples, shares, error)

    def compared(self, statistic: Float[Array, " r"], samples: Float[Array, "r b"]) -> Outcome:
        """With a statistic compared with draws of it under calibration."""
        return self.outcome(statistic, p_value(statistic, samples), samples)


@runtime_checkable
class Null(Protocol):
    """Anything that says what it needs of the pass, and what the sums then mean.

    ``needs`` sees the random key and the features (a pytree whose leaves have a leading axis n:
    most nulls look at `jaxcal.quadratic.count` of them alone). ``outcome`` gets the sums over
    pairs. ``least_p_value`` is the smallest p-value that n observations can have.
    """

    def needs(self, key: Key, features: Features, /) -> Needs: ...

    def outcome(self, sums: Sums, /) -> Outcome: ...

    def least_p_value(self, n: int, /) -> float: ...


def p_value(statistic: Float[Array, " r"], samples: Float[Array, "r b"]) -> Float[Array, " r"]:
    """``(1 + #{samples >= statistic}) / (1 + b)`` for each row; NaN where one is not finite."""
    exceeding = jnp.sum(samples >= statistic[:, None], axis=1)
    p = (1 + exceeding).astype(statistic.dtype) / (1 + samples.shape[1])
    return _if_finite(p, statistic, samples)


def _if_finite(p: Array, statistic: Array, samples: Array) -> Array:
    good = jnp.isfinite(statistic) & jnp.all(jnp.isfinite(samples), axis=1)
    return jnp.where(good, p, jnp.nan)


def _with_total(by_channel: Array) -> Array:
    """Row 0 the sum over channels, then the channels where there are several."""
    if by_channel.shape[0] == 1:
        return by_channel
    return jnp.concatenate([jnp.sum(by_channel, axis=0, keepdims=True), by_channel])


def _rows(sums: QuadraticSums | BlockSums) -> tuple[Array, Array]:
    return _with_total(sums.diagonal), _with_total(sums.row_sums)


def _squares(sums: QuadraticSums | BlockSums) -> Array:
    """Sums of squares, that of the sum over channels first."""
    if sums.squares is None or sums.all_squares is None:
        return jnp.full(_with_total(sums.diagonal).shape[0], jnp.nan, sums.diagonal.dtype)
    rest = sums.squares if sums.squares.shape[0] > 1 else sums.squares[:0]
    return jnp.concatenate([sums.all_squares[None], rest])


def holm(p_values: Float[Array, " d"]) -> Float[Array, " d"]:
    """Holm's step-down adjustment: the family-wise error of all d tests together is kept."""
    d = p_values.size
    order = jnp.argsort(p_values)
    stepped = jax.lax.cummax(p_values[order] * (d - jnp.arange(d)).astype(p_values.dtype))
    adjusted = jnp.zeros_like(p_values).at[order].set(jnp.minimum(stepped, 1))
    return jnp.where(jnp.any(jnp.isnan(p_values)), jnp.nan, adjusted)
