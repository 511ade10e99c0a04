r"""The law of the statistic under calibration: weights for the engine's one pass, and a p-value.

Every null is degenerate here: under calibration :math:`E\,h(x, X') = 0` for every x. p-values of
resampling nulls count the observed statistic as one of the draws, so p >= 1 / (draws + 1) and the
test has its level for every number of draws. Where the statistic or a draw is not finite, p is NaN.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaincc, ndtr
from jax.sharding import Mesh
from jaxtyping import Array, Float

from jaxcal.numerics import at_least
from jaxcal.quadratic import (
    TILE,
    BlockSums,
    QuadraticSums,
    block_sums,
    count,
    ordered_pairs,
    quadratic_sums,
)
from jaxcal.typing import Features, Key, Pairwise


class Outcome(NamedTuple):
    """One test a row: row 0 is the statistic itself; where h has several channels (components),
    rows 1.. are theirs. ``contributions`` [r, n] sum to ``estimate`` [r]; ``standard_error`` [r] is
    that of the estimate where the model is clearly not calibrated."""

    estimate: Float[Array, " r"]
    biased: Float[Array, " r"]
    statistic: Float[Array, " r"]
    p_value: Float[Array, " r"]
    samples: Float[Array, "r b"]
    contributions: Float[Array, "r n"]
    standard_error: Float[Array, " r"]


@runtime_checkable
class Null(Protocol):
    """Anything that turns a pairwise statistic and its features into an `Outcome`."""

    def __call__(
        self,
        key: Key,
        pairwise: Pairwise,
        features: Features,
        /,
        *,
        tile: int = TILE,
        mesh: Mesh | None = None,
    ) -> Outcome: ...


def _draws(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"n_draws: a resampling null needs at least 1 draw, got {value!r}")
    return value


def p_value(statistic: Float[Array, " r"], samples: Float[Array, "r b"]) -> Float[Array, " r"]:
    """``(1 + #{samples >= statistic}) / (1 + b)`` for each row; NaN where one is not finite."""
    exceeding = jnp.sum(samples >= statistic[:, None], axis=1)
    p = (1 + exceeding) / jnp.asarray(1 + samples.shape[1], statistic.dtype)
    return _if_finite(p, statistic, samples)


def _if_finite(p: Array, statistic: Array, samples: Array) -> Array:
    good = jnp.isfinite(statistic) & jnp.all(jnp.isfinite(samples), axis=1)
    return jnp.where(good, p, jnp.nan)


def _with_total(by_channel: Array) -> Array:
    """Row 0 the sum over channels, then the channels where there are several."""
    if by_channel.shape[0] == 1:
        return by_channel
    return jnp.concatenate([jnp.sum(by_channel, axis=0, keepdims=True), by_channel])


def _squares(sums: QuadraticSums | BlockSums) -> Array | None:
    """Sums of squares, that of the sum over channels first."""
    if sums.squares is None or sums.all_squares is None:
        return None
    rest = sums.squares if sums.squares.shape[0] > 1 else sums.squares[:0]
    return jnp.concatenate([sums.all_squares[None], rest])


class _Rows(NamedTuple):
    """The engine's sums with their total as row 0, divided by what makes them averages."""

    n: int
    unbiased: Float[Array, " r"]
    biased: Float[Array, " r"]
    diagonal: Float[Array, "r n"]
    row_sums: Float[Array, "r n"]
    forms: Float[Array, "r b"]
    squares: Float[Array, " r"] | None

    @classmethod
    def of(cls, sums: QuadraticSums) -> "_Rows":
        n = sums.diagonal.shape[1]
        total, diagonal = _with_total(sums.total), _with_total(sums.diagonal)
        squares = _squares(sums)
        return cls(
            n,
            total / ordered_pairs(n),
            (total + jnp.sum(diagonal, axis=1)) / float(n**2),
            diagonal,
            _with_total(sums.row_sums),
            _with_total(sums.forms),
            squares,
        )

    def outcome(self, statistic: Array, p: Array, samples: Array) -> Outcome:
        contributions = self.row_sums / ordered_pairs(self.n)
        # twice the standard error of the mean of E[h | observation i], which is n times its share
        error = 2 * jnp.std(contributions, axis=1, ddof=1) * self.n**0.5
        return Outcome(self.unbiased, self.biased, statistic, p, samples, contributions, error)


def signs(key: Key, n: int, b: int, dtype: Any) -> Float[Array, "n b"]:
    """Independent random signs, 32 from each random word: 32 times fewer words than one a sign."""
    words = jax.random.bits(key, (n, -(-b // 32)), jnp.uint32)
    ones = (words[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    return 1 - 2 * ones.reshape(n, -1)[:, :b].astype(dtype)


class Wild(eqx.Module):
    r"""Wild bootstrap: :math:`\frac{1}{n(n-1)} \sum_{i\neq j} w_i w_j h_{ij}` with random signs w.

    For independent observations. Cost n^2 n_draws flops in the engine's pass.
    Source: Glaser et al. (2023), Section 6.
    """

    n_draws: int = eqx.field(default=500, static=True, converter=_draws)

    def __call__(self, key, pairwise, features, /, *, tile=TILE, mesh=None) -> Outcome:
        w = signs(key, count(features), self.n_draws, _dtype(features))
        rows = _Rows.of(quadratic_sums(pairwise, features, w, tile=tile, mesh=mesh))
        samples = rows.forms / ordered_pairs(rows.n)
        return rows.outcome(rows.unbiased, p_value(rows.unbiased, samples), samples)


class DependentWild(eqx.Module):
    r"""Wild bootstrap for a stationary series: signs that stay the same for a while.

    Observations must be in the order of time. The signs are a Markov chain that flips with
    probability ``flip``, so their correlation over a lag t is (1 - 2 flip)^t; ``None`` takes
    n^(-1/3), which tends to 0 while n times it tends to infinity, as the theory asks. More
    dependence asks for a smaller value.
    Source: Chwialkowski, Sejdinovic, Gretton (2014); Chwialkowski, Strathmann, Gretton (2016).
    """

    n_draws: int = eqx.field(default=500, static=True, converter=_draws)
    flip: float | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        if self.flip is not None and not 0 < self.flip <= 0.5:
            raise ValueError(f"flip: a probability in (0, 0.5], got {self.flip}")

    def __call__(self, key, pairwise, features, /, *, tile=TILE, mesh=None) -> Outcome:
        n = count(features)
        flip = n ** (-1 / 3) if self.flip is None else self.flip
        start, later = jax.random.split(key)
        flips = jax.random.bernoulli(later, min(flip, 0.5), (n, self.n_draws)).astype(jnp.int32)
        parity = (jnp.cumsum(flips, axis=0) % 2).astype(_dtype(features))
        w = (1 - 2 * parity) * signs(start, 1, self.n_draws, _dtype(features))
        rows = _Rows.of(quadratic_sums(pairwise, features, w, tile=tile, mesh=mesh))
        samples = rows.forms / ordered_pairs(rows.n)
        return rows.outcome(rows.unbiased, p_value(rows.unbiased, samples), samples)


class Multinomial(eqx.Module):
    r"""Bootstrap of a degenerate U-statistic by resampled, doubly centred observations.

    With counts C of n draws with replacement and a = n / (n - 1), the samples are
    :math:`\frac1{n^2}[a (C^\top H C - C^\top diag H) - 2 C^\top H 1]` and the statistic compared
    with them is a U - V (U unbiased, V biased estimate).
    Source: Arcones and Gine (1992).
    """

    n_draws: int = eqx.field(default=500, static=True, converter=_draws)

    def __call__(self, key, pairwise, features, /, *, tile=TILE, mesh=None) -> Outcome:
        n = count(features)
        drawn = jax.random.randint(key, (self.n_draws, n), 0, n)
        counts = jax.vmap(lambda i: jnp.bincount(i, length=n))(drawn).T.astype(_dtype(features))
        rows = _Rows.of(quadratic_sums(pairwise, features, counts, tile=tile, mesh=mesh))
        a = n / (n - 1)
        pairs = rows.forms + rows.diagonal @ (counts**2 - counts)
        samples = (a * pairs - 2 * (rows.row_sums + rows.diagonal) @ counts) / float(n**2)
        statistic = a * rows.unbiased - rows.biased
        return rows.outcome(statistic, p_value(statistic, samples), samples)


class Spectrum(eqx.Module):
    r"""The limit law itself: n U against draws of :math:`\sum_i \lambda_i (\chi^2_1 - 1)`.

    With :math:`\lambda` the eigenvalues of H / n, that sum has the law of
    :math:`(g^\top H g - tr H) / n` for standard normal g, so the draws come from the engine's pass
    and no eigenvalue is ever computed. Statistic and samples are in units of U.
    Source: Gretton et al. (2009).
    """

    n_draws: int = eqx.field(default=500, static=True, converter=_draws)

    def __call__(self, key, pairwise, features, /, *, tile=TILE, mesh=None) -> Outcome:
        n = count(features)
        g = jax.random.normal(key, (n, self.n_draws), _dtype(features))
        rows = _Rows.of(quadratic_sums(pairwise, features, g, tile=tile, mesh=mesh))
        samples = (rows.forms + rows.diagonal @ (g**2 - 1)) / float(n**2)
        return rows.outcome(rows.unbiased, p_value(rows.unbiased, samples), samples)


class Gamma(eqx.Module):
    r"""Two moments: n V against a Gamma law of mean tr H / n and variance 2 mean of h^2.

    No draws, so the cheapest null of the full statistic; an approximation whose error does not
    vanish with n: a Gamma law is never more skewed than the limit law, so far in the tail (at the
    1 % level) it rejects somewhat too often. Source: Gretton et al. (2009).
    """

    def __call__(self, key, pairwise, features, /, *, tile=TILE, mesh=None) -> Outcome:
        n = count(features)
        none = jnp.zeros((n, 0), _dtype(features))
        sums = quadratic_sums(pairwise, features, none, squares=True, tile=tile, mesh=mesh)
        rows = _Rows.of(sums)
        assert rows.squares is not None
        mean = jnp.sum(rows.diagonal, axis=1) / n
        variance = 2 * rows.squares / ordered_pairs(n)
        statistic = n * rows.biased
        p = gammaincc(mean**2 / variance, at_least(statistic, 0) * mean / variance)
        samples = jnp.zeros((p.shape[0], 0), p.dtype)
        return rows.outcome(statistic, _if_finite(p, statistic, samples), samples)


class BlockNormal(eqx.Module):
    r"""Blocks of observations, each with its own unbiased estimate, and a normal limit.

    Only h within blocks is evaluated: O(n size) instead of O(n^2). ``size=2`` is the linear-time
    test; ``None`` takes the integer part of the square root of n. The statistic is
    :math:`\sqrt m\,\bar\eta / sd(\eta)` over m blocks. Less power than the full statistic.
    Source: Zaremba, Gretton and Blaschko (2013); Widmann et al. (2021), Remark B.1.
    """

    size: int | None = eqx.field(default=None, static=True)

    def __call__(self, key, pairwise, features, /, *, tile=TILE, mesh=None) -> Outcome:
        size = _block_size(self.size, count(features), least=2)
        sums = block_sums(pairwise, features, size)
        error = _block_error(sums)
        return _block_outcome(sums, size, error, error)


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

    size: int | None = eqx.field(default=None, static=True)

    def __call__(self, key, pairwise, features, /, *, tile=TILE, mesh=None) -> Outcome:
        size = _block_size(self.size, count(features), least=1)
        sums = block_sums(pairwise, features, size, squares=True)
        squares = _squares(sums)
        assert squares is not None
        m, pairs = sums.means.shape[1], ordered_pairs(size)
        null_error = jnp.sqrt(2 * squares / (m * pairs)) / (m * pairs) ** 0.5
        error = _block_error(sums) if m > 1 else jnp.full_like(null_error, jnp.nan)
        return _block_outcome(sums, size, null_error, error)


def _block_size(size: int | None, n: int, *, least: int) -> int:
    """The size of the blocks, of which there are at least so many; or ValueError."""
    size = max(2, int(n**0.5)) if size is None else size
    if n // max(size, 1) < least:
        wanted = "two blocks" if least == 2 else "one block"
        raise ValueError(
            f"the block test needs at least {wanted}: n={n} observations and block size "
            f"{size} make {n // max(size, 1)}; use smaller blocks or another null"
        )
    return size


def _block_error(sums: BlockSums) -> Array:
    """The standard error of the mean over blocks, from their spread."""
    means = _with_total(sums.means)
    return jnp.std(means, axis=1, ddof=1) / means.shape[1] ** 0.5


def _block_outcome(sums: BlockSums, size: int, null_error: Array, error: Array) -> Outcome:
    means, diagonal = _with_total(sums.means), _with_total(sums.diagonal)
    m = means.shape[1]
    estimate = jnp.mean(means, axis=1)
    statistic = estimate / null_error
    samples = jnp.zeros((means.shape[0], 0), means.dtype)
    return Outcome(
        estimate,
        ((size - 1) * estimate + jnp.mean(diagonal[:, : m * size], axis=1)) / size,
        statistic,
        _if_finite(ndtr(-statistic), statistic, samples),
        samples,
        _with_total(sums.row_sums) / (m * ordered_pairs(size)),
        error,
    )


class Bound(eqx.Module):
    r"""No limit law: :math:`p = \exp(-\lfloor n/2 \rfloor U^2 / (2 b^2))`, true for every n.

    Needs a number b with abs(h) <= b for all observations the model could meet, not only for those
    seen; Stein kernels have one only where scores are bounded. Very conservative.
    Source: Hoeffding (1963), for U-statistics of a kernel in [-b, b].
    """

    largest: float = eqx.field(static=True)

    def __check_init__(self):
        if not 0 < self.largest < float("inf"):
            raise ValueError(f"largest: a positive bound on abs(h), got {self.largest}")

    def __call__(self, key, pairwise, features, /, *, tile=TILE, mesh=None) -> Outcome:
        none = jnp.zeros((count(features), 0), _dtype(features))
        rows = _Rows.of(quadratic_sums(pairwise, features, none, tile=tile, mesh=mesh))
        u = at_least(rows.unbiased, 0)
        p = jnp.exp(-(rows.n // 2) * u**2 / (2 * self.largest**2))
        samples = jnp.zeros((p.shape[0], 0), p.dtype)
        return rows.outcome(rows.unbiased, _if_finite(p, rows.unbiased, samples), samples)


def holm(p_values: Float[Array, " d"]) -> Float[Array, " d"]:
    """Holm's step-down adjustment: the family-wise error of all d tests together is kept."""
    d = p_values.size
    order = jnp.argsort(p_values)
    stepped = jax.lax.cummax(p_values[order] * (d - jnp.arange(d)))
    adjusted = jnp.zeros_like(p_values).at[order].set(jnp.minimum(stepped, 1))
    return jnp.where(jnp.any(jnp.isnan(p_values)), jnp.nan, adjusted)


def _dtype(features: Features) -> Any:
    return jnp.result_type(*jax.tree.leaves(features))
