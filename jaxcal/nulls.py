r"""The distribution of the statistic under calibration: what it needs of the engine's one pass,
and the sums of that pass to a p-value.

A null never calls the engine. Before the pass it declares what it `Needs`: all pairs or those
within blocks, columns of weights, sums of squares. After it, `Sums` become an `Outcome`. It also
says the least p-value it can give for n observations, so that a test which cannot reject does not
pass for one that found nothing.

Every null is degenerate here: under calibration :math:`E\,h(x, X') = 0` for every x. p-values of
resampling nulls count the observed statistic as one of the draws, so p >= 1 / (draws + 1) and the
test has its level for every number of draws. Where the statistic or a draw is not finite, p is NaN.
"""

import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaincc, ndtr
from jaxtyping import Array, Float

from jaxcal import convert
from jaxcal.dependence import dependence
from jaxcal.numerics import at_least
from jaxcal.quadratic import BlockSums, QuadraticSums, count, ordered_pairs
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
        own = jnp.mean(self.diagonal[:, : self.blocks * self.size], axis=1)
        return ((self.size - 1) * self.unbiased + own) / self.size

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


def _draws(value: Any) -> int:
    return convert.integer(value, "n_draws")


def _size(value: Any) -> int | None:
    return None if value is None else convert.integer(value, "size", least=2)


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


def signs(key: Key, n: int, b: int, dtype: Any) -> Float[Array, "n b"]:
    """Independent random signs, 32 from each random word: 32 times fewer words than one a sign."""
    words = jax.random.bits(key, (n, -(-b // 32)), jnp.uint32)
    ones = (words[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)[None, None]) & 1
    return 1 - 2 * ones.reshape(n, -1)[:, :b].astype(dtype)


class Wild(eqx.Module):
    r"""Wild bootstrap: :math:`\frac{1}{n(n-1)} \sum_{i\neq j} w_i w_j h_{ij}` with random signs w.

    For independent observations. Cost n^2 n_draws flops in the engine's pass.
    Source: Glaser et al. (2023), Section 6.
    """

    n_draws: int = eqx.field(default=500, static=True, converter=_draws)

    def needs(self, key: Key, features: Features) -> Needs:
        return Needs(signs(key, count(features), self.n_draws, _dtype(features)))

    def outcome(self, sums: Sums) -> Outcome:
        return sums.compared(sums.unbiased, sums.forms / ordered_pairs(sums.n))

    def least_p_value(self, n: int) -> float:
        """That of the draws, or of the 2^(n-1) patterns of signs, of which one is the data's."""
        return max(1 / (self.n_draws + 1), 2.0 ** (1 - n))


class DependentWild(eqx.Module):
    r"""Wild bootstrap for a stationary series: signs that stay the same for a while.

    Observations must be in the order of time. The signs are a Markov chain that flips with
    probability ``flip``, so their correlation over a lag t is (1 - 2 flip)^t, as in stretches of
    random length, 1 / (2 flip) on average, with a sign of its own each. ``None`` takes stretches
    twice as long as the block length of `jaxcal.dependence` (Politis and White, 2004) of the
    scores, the longest over coordinates; of the targets where a test has no scores. That length
    makes the squared error of the variance least; a test asks for less bias than that.

    Measured for autoregressive errors of correlation up to .9 (`experiments/dependence`): the level
    is kept at n = 100, 300 and 1,000. Power ends first: ``warnings()`` says where fewer than ten
    stretches are left.
    Source: Chwialkowski, Sejdinovic, Gretton (2014); Chwialkowski, Strathmann, Gretton (2016); for
    blocks, Patton, Politis and White (2009); for longer ones in tests, Sun, Phillips, Jin (2008).
    """

    n_draws: int = eqx.field(default=500, static=True, converter=_draws)
    flip: float | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        if self.flip is not None and not 0 < convert.real(self.flip, "flip") <= 0.5:
            raise ValueError(f"flip: a probability in (0, 0.5], got {self.flip}")

    def needs(self, key: Key, features: Features) -> Needs:
        n, dtype = count(features), _dtype(features)
        flip = jnp.asarray(self.flip if self.flip else _estimated_flip(features), dtype)
        start, later = jax.random.split(key)
        flips = (jax.random.uniform(later, (n, self.n_draws), dtype) < flip).astype(jnp.int32)
        parity = (jnp.cumsum(flips, axis=0) % 2).astype(dtype)
        return Needs((1 - 2 * parity) * signs(start, 1, self.n_draws, dtype))

    def outcome(self, sums: Sums) -> Outcome:
        flips = jnp.sum(sums.weights[1:] != sums.weights[:-1]) / self.n_draws
        compared = sums.compared(sums.unbiased, sums.forms / ordered_pairs(sums.n))
        return compared._replace(stretches=2 * flips)

    def least_p_value(self, n: int) -> float:
        """That of the draws, or of a given chance that no sign flips, as in the data."""
        flip = 0.5 if self.flip is None else self.flip
        return max(1 / (self.n_draws + 1), (1 - flip) ** (n - 1))


def _estimated_flip(features: Features) -> Array:
    """At most 1/2, for stretches of twice the block length of the longest dependence."""
    for name in ("scores", "ys"):
        if hasattr(features, name):
            features = getattr(features, name)
            break
    leaves = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(features)]
    series = jnp.concatenate(leaves, axis=1).astype(_dtype(features))
    block = jnp.max(dependence(jax.lax.stop_gradient(series)).block)
    return 0.5 / at_least(2 * block, 1.0)


class Multinomial(eqx.Module):
    r"""Bootstrap of a degenerate U-statistic by resampled, doubly centred observations.

    With counts C of n draws with replacement and a = n / (n - 1), the samples are
    :math:`\frac1{n^2}[a (C^\top H C - C^\top diag H) - 2 C^\top H 1]` and the statistic compared
    with them is a U - V (U unbiased, V biased estimate).
    Source: Arcones and Gine (1992).
    """

    n_draws: int = eqx.field(default=500, static=True, converter=_draws)

    def needs(self, key: Key, features: Features) -> Needs:
        n = count(features)
        drawn = jax.random.randint(key, (self.n_draws, n), 0, n)
        counts = jax.vmap(lambda i: jnp.bincount(i, length=n))(drawn).T
        return Needs(counts.astype(_dtype(features)))

    def outcome(self, sums: Sums) -> Outcome:
        n, counts = sums.n, sums.weights
        a = n / (n - 1)
        pairs = sums.forms + sums.diagonal @ (counts**2 - counts)
        samples = (a * pairs - 2 * (sums.row_sums + sums.diagonal) @ counts) / float(n**2)
        return sums.compared(a * sums.unbiased - sums.biased, samples)

    def least_p_value(self, n: int) -> float:
        """That of the draws, or one over the number of different resamples, 2n - 1 over n: fewer
        cannot tell a p-value more finely."""
        different = math.lgamma(2 * n) - math.lgamma(n + 1) - math.lgamma(n)
        return max(1 / (self.n_draws + 1), math.exp(-different))


class Spectrum(eqx.Module):
    r"""The limit law itself: n U against draws of :math:`\sum_i \lambda_i (\chi^2_1 - 1)`.

    With :math:`\lambda` the eigenvalues of H / n, that sum has the law of
    :math:`(g^\top H g - tr H) / n` for standard normal g, so the draws come from the engine's pass
    and no eigenvalue is ever computed. Statistic and samples are in units of U.
    Source: Gretton et al. (2009).
    """

    n_draws: int = eqx.field(default=500, static=True, converter=_draws)

    def needs(self, key: Key, features: Features) -> Needs:
        return Needs(jax.random.normal(key, (count(features), self.n_draws), _dtype(features)))

    def outcome(self, sums: Sums) -> Outcome:
        g = sums.weights
        samples = (sums.forms + sums.diagonal @ (g**2 - 1)) / float(sums.n**2)
        return sums.compared(sums.unbiased, samples)

    def least_p_value(self, n: int) -> float:
        r"""That of the draws, or of h = 1 for all pairs, where n U is largest beside its law:
        :math:`P(\chi^2_1 \geq n + 1)`."""
        return max(1 / (self.n_draws + 1), math.erfc(((n + 1) / 2) ** 0.5))


class Gamma(eqx.Module):
    r"""Two moments: n V against a Gamma law of mean tr H / n and variance 2 mean of h^2.

    No draws, so the cheapest null of the full statistic; an approximation whose error does not
    vanish with n: a Gamma law is never more skewed than the limit law, so far in the tail (at the
    1 % level) it rejects somewhat too often. Source: Gretton et al. (2009).
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
        """Of the two ends of pairs that are all alike: h = 1, and h near 0 beside its diagonal."""
        return min(math.erfc((n / 2) ** 0.5), math.erfc((n - 1) / 2) / 2)


class BlockNormal(eqx.Module):
    r"""Blocks of observations, each with its own unbiased estimate, and a normal limit.

    Only h within blocks is evaluated: O(n size) instead of O(n^2). ``size=2`` is the linear-time
    test; ``None`` takes the integer part of the square root of n. The statistic is
    :math:`\sqrt m\,\bar\eta / sd(\eta)` over m blocks. Less power than the full statistic.
    Source: Zaremba, Gretton and Blaschko (2013); Widmann et al. (2021), Remark B.1.
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
    r"""Blocks of observations with the variance that calibration implies, and a normal limit.

    Under calibration the estimate of a block has variance :math:`2 E h^2 / (B (B - 1))`, so the
    statistic is :math:`\sqrt{m B (B - 1)}\,\bar\eta / \sqrt{2 \hat v}`, with :math:`\hat v` the
    mean of :math:`h_{ij}^2` over the pairs within the m blocks of size B. Where `BlockNormal` takes
    the spread of the m estimates this takes that of all pairs, so it serves few, large blocks (one
    will do, but then the limit law is not normal and `Spectrum` or `Wild` is right). Conservative
    for blocks of 2 in small samples. ``size=None`` as in `BlockNormal`. Cost O(n size).
    Source: Widmann et al. (2021), Remark B.3, with the variance of Corollary B.1 (Corollary B.5
    prints it without the factor 2).
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
        """That of h = 1 for all pairs, by Cauchy and Schwarz."""
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
    r"""No limit law: :math:`p = \exp(-\lfloor n/2 \rfloor U^2 / (2 b^2))`, true for every n.

    Needs a number b with abs(h) <= b for all observations the model could meet, not only for those
    seen; Stein kernels have one only where scores are bounded. Very conservative.
    Source: Hoeffding (1963), for U-statistics of a kernel in [-b, b].
    """

    largest: float = eqx.field(static=True)

    def __check_init__(self):
        convert.number(self.largest, "largest", above=0)

    def needs(self, key: Key, features: Features) -> Needs:
        return Needs()

    def outcome(self, sums: Sums) -> Outcome:
        u = at_least(sums.unbiased, 0)
        p = jnp.exp(-(sums.n // 2) * u**2 / (2 * self.largest**2))
        return sums.outcome(sums.unbiased, p)

    def least_p_value(self, n: int) -> float:
        """That of h at its bound for all pairs."""
        return math.exp(-(n // 2) / 2)


def holm(p_values: Float[Array, " d"]) -> Float[Array, " d"]:
    """Holm's step-down adjustment: the family-wise error of all d tests together is kept."""
    d = p_values.size
    order = jnp.argsort(p_values)
    stepped = jax.lax.cummax(p_values[order] * (d - jnp.arange(d)).astype(p_values.dtype))
    adjusted = jnp.zeros_like(p_values).at[order].set(jnp.minimum(stepped, 1))
    return jnp.where(jnp.any(jnp.isnan(p_values)), jnp.nan, adjusted)


def _dtype(features: Features) -> Any:
    return jnp.result_type(*jax.tree.leaves(features))
