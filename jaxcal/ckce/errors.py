r"""Expand the errors of M models to second order, and test their differences.

The estimate U of a squared error is a quadratic form of residuals, without the products of an
observation with itself,

.. math:: U \approx T + \sum_i l_i + \sum_{i \ne j} b_i^\top b_j,

where T is the true value, and l and b are the first and second influence functions. The first sum
dominates for a wrong model; its variance is s T, with s = `Error.slope`. The second sum
dominates for a calibrated model. A value T is tested by draws of
:math:`T + \sqrt{s T} Z + v^\top G v`, with Z normal, random signs v and :math:`G_{ij} = b_i^\top
b_j`; intervals invert these tests. `jaxcal.ckce.probability` and `jaxcal.ckce.expansion` compute an
`Error` for each model; `judged` compares them.

Rare labels may not occur among the observations. So a model is called worse only if a second test,
by labels drawn from its predictions, rejects that it is calibrated. The second sum includes the
residuals of about four uniformly drawn labels, as in the interval of Agresti and Coull, so that the
estimated noise is never 0. If the fit leaves no residuals, the first sum includes these, too.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.ckce.results import Differences
from jaxcal.numerics import at_least, at_most
from jaxcal.typing import Contents, Key, Scalar

BLOCKS = 1024  # largest number of blocks of observations
ADDED = 4  # number of residuals of uniform labels that are added to the noise


class Error(NamedTuple):
    """The error of one model over k blocks of observations, expanded as in `jaxcal.ckce.errors`.

    Attributes:
        estimate: Squared error with the products of observations with themselves, [].
        value: Squared error without these products, [].
        slope: Variance of the first sum per unit of the true value, [].
        first: Sums of l over the blocks, [k]; their total is 0. The fit in l_i omits residual i.
        second: Inner products of the sums of b over two blocks, [k, k]; the diagonal is 0.
        terms: Draws of the second sum with random signs, the same for all models, [b].
        null: Draws of ``value`` for a calibrated model, [b].
        nonfinite: Number of predictions that are not finite, [].
    """

    estimate: Scalar
    value: Scalar
    slope: Scalar
    first: Float[Array, " k"]
    second: Float[Array, "k k"]
    terms: Float[Array, " b"]
    null: Float[Array, " b"]
    nonfinite: Int[Array, ""]


def without_diagonal(a: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """Return the matrix with zeros on its diagonal."""
    return a - jnp.diag(jnp.diagonal(a))


def added_residuals(key: Key, n: int, m: int, total: Scalar) -> Float[Array, "n m"]:
    """Return residuals of n uniformly drawn labels, times sqrt(a / (total + a)) with a = `ADDED`.
    ``total`` [] is the sum of the weights of the observations."""
    drawn = jax.nn.one_hot(jax.random.randint(key, (n,), 0, m), m, dtype=total.dtype) - 1 / m
    return jnp.sqrt(ADDED / (total + ADDED)) * drawn


def redrawn_residuals(key: Key, q: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """Return residuals e_y - q of labels y that are drawn from the predictions q."""
    chances = jnp.cumsum(q, axis=1)[:, :-1]
    uniform = jax.random.uniform(key, (len(q), 1), q.dtype)
    labels = jnp.sum(uniform > chances, axis=1)
    return jax.nn.one_hot(labels, q.shape[1], dtype=q.dtype) - q


def redrawn_values(
    key: Key, weighted: Float[Array, "n r"], residuals: Callable[[Key], Array], n_draws: int
) -> Float[Array, " b"]:
    r"""Return draws of :math:`\sum_{i \ne j} w_i^\top w_j d_i^\top d_j`, with w_i the rows of
    ``weighted`` and d_i those of ``residuals(key)``."""
    sizes = jnp.sum(weighted**2, axis=1)

    def again(key: Key) -> Array:
        d = residuals(key)
        return jnp.sum((weighted.T @ d) ** 2) - sizes @ jnp.sum(d**2, axis=1)

    at_once = max(1, 32 * BLOCKS // max(len(weighted), BLOCKS))
    return jax.lax.map(again, jax.random.split(key, n_draws), batch_size=at_once)


def deal(key: Key, n: int) -> tuple[Int[Array, "k s"], Array]:
    """Return row indices of min(n, `BLOCKS`) random blocks, and a mask that is False at padding."""
    count = min(n, BLOCKS)
    side = -(-n // count)
    order = jax.random.permutation(key, n) if n > BLOCKS else jnp.arange(n)
    places = jnp.concatenate([order, order[: side * count - n]]).reshape(side, count).T
    return places, (jnp.arange(side * count) < n).reshape(side, count).T


class Pairs(NamedTuple):
    """Distributions of the differences of M values if the true values are equal, [M, M].

    Attributes:
        second: Variance of the difference of the second sums (see `jaxcal.ckce.errors`).
        slope: Variance of the difference of the first sums, divided by the common true value.
        lead: Variance of the difference of the first sums: ``slope`` times the mean of the two
            values, or a direct estimate if this is clearly larger. It is small for models that have
            the same label noise.
        ratios: Absolute values of draws of the differences, divided by ``error``, [b, M, M].
    """

    second: Float[Array, "M M"]
    slope: Float[Array, "M M"]
    lead: Float[Array, "M M"]
    ratios: Float[Array, "b M M"]

    @property
    def error(self) -> Float[Array, "M M"]:
        """Standard deviations of the differences; 0 for equal models."""
        return jnp.sqrt(self.second + self.lead)


def pairs(each: Error, v: Float[Array, "b k"]) -> tuple[Pairs, Float[Array, "b M"]]:
    """Return `Pairs`, drawn with signs v, and draws of first sums scaled to variance 1, [b, M]."""
    flat = each.second.reshape(len(each.second), -1)
    # a first term of 0 has no direction: take the same weight for every block
    some = jnp.any(each.first != 0, axis=1)[:, None]
    unit = jnp.where(some, each.first, 1)
    unit = unit / jnp.linalg.norm(unit, axis=1, keepdims=True)
    squares, firsts = flat @ flat.T, each.first @ each.first.T
    correlation, normal = jnp.clip(unit @ unit.T, -1, 1), v @ unit.T
    second = 2 * _between(squares)
    deviation = jnp.sqrt(each.slope)
    cross = deviation[:, None] * deviation[None] * correlation
    slope = at_least(each.slope[:, None] + each.slope[None] - 2 * cross, 0)
    slope = jnp.where(slope <= 100 * jnp.finfo(slope.dtype).eps * _largest(each.slope), 0, slope)
    common = at_least((each.value[:, None] + each.value[None]) / 2, 0)
    # noise adds 2 * second to ``direct``, which replaces ``claimed`` if larger by 3 * second
    direct, claimed = _between(firsts), slope * common
    lead = jnp.where(direct - 3 * second > claimed, direct - 2 * second, claimed)
    # first sums without a difference per value are drawn along their differences at these values
    along, moved, terms = normal * deviation[None], v @ each.first.T, each.terms.T
    drawn, moved = (a[:, :, None] - a[:, None] for a in (along, moved))
    size = jnp.where(slope > 0, slope, direct)
    scale = jnp.sqrt(lead / jnp.where(size > 0, size, 1))[None]
    drawn = scale * jnp.where((slope > 0)[None], drawn, moved)
    drawn = drawn + terms[:, :, None] - terms[:, None]
    error = jnp.sqrt(second + lead)[None]
    ratios = jnp.where(error > 0, jnp.abs(drawn) / jnp.where(error > 0, error, 1), 0)
    return Pairs(second, slope, lead, ratios), normal


def _between(products: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Return squared distances from inner products; 0 if they are as small as rounding errors."""
    squares = jnp.diagonal(products)
    gaps = squares[:, None] + squares[None] - 2 * products
    return jnp.where(gaps <= 100 * jnp.finfo(gaps.dtype).eps * _largest(squares), 0, gaps)


def _largest(values: Float[Array, " M"]) -> Scalar:
    return jnp.max(jnp.where(jnp.isfinite(values), values, 0))


def _reach(drawn: Pairs, gap: Float[Array, "M M"], quantile: Scalar) -> Float[Array, "M M"]:
    """Return the distance from ``gap`` to the largest true difference that is not rejected.

    ``gap`` is the observed difference. For a true difference t the mean of the two true values is
    at least |t| / 2, and the variance grows with this mean.
    """
    near = quantile * drawn.error
    step = quantile**2 * drawn.slope / 2
    inside = drawn.second + drawn.slope * gap / 2
    far = (step + jnp.sqrt(at_least(step**2 + 4 * quantile**2 * inside, 0))) / 2
    return jnp.where((far > near) & (drawn.error > 0), far, near)


def differences(
    values: Float[Array, " M"], wrong: Float[Array, " M"], drawn: Pairs, level: float | Scalar
) -> Differences:
    """Return simultaneous intervals and p-values of every pair.

    ``wrong`` [M] holds p-values of "this model is calibrated". The p-value of a pair is at least
    that of its worse model, since two models can only differ if the worse one is not calibrated.
    Intervals contain 0 if p_adjusted > level.
    """
    gap, error, b = values[:, None] - values[None], drawn.error, len(drawn.ratios)
    good = jnp.isfinite(gap) & jnp.isfinite(error)
    ratio = jnp.where(error > 0, jnp.abs(gap) / jnp.where(error > 0, error, 1), 0)
    # pairs without a value do not enter the adjustment of others
    largest = jnp.max(jnp.where(good[None], drawn.ratios, 0), axis=(1, 2))
    p = (1 + jnp.sum(drawn.ratios >= ratio[None], axis=0)) / (1 + b)
    adjusted = (1 + jnp.sum(largest[:, None, None] >= ratio[None], axis=0)) / (1 + b)
    worse = jnp.where(gap > 0, wrong[:, None], wrong[None])
    p, adjusted = (jnp.where(worse > a, worse, a) for a in (p, adjusted))
    # equal values have p-value 1
    p, adjusted = (jnp.where(good, jnp.where(ratio > 0, a, 1), jnp.nan) for a in (p, adjusted))
    quantile = order_statistic(largest, 1 - level)
    low = gap - _reach(drawn, -gap, quantile)
    high = gap + _reach(drawn, gap, quantile)
    low = jnp.where((adjusted > level) & (low > 0), 0, low)
    high = jnp.where((adjusted > level) & (high < 0), 0, high)
    low, high = (jnp.where(good, end, jnp.nan) for end in (low, high))
    return Differences(gap, low, high, p, adjusted)


def value_interval(
    value: Scalar,
    slope: Scalar,
    terms: Float[Array, "b 2"],
    normal: Float[Array, " b"],
    level: float | Scalar,
) -> tuple[Scalar, Scalar]:
    r"""Return the ends of the interval of values T >= 0 that tests at ``level`` do not reject.

    The test of T compares ``value`` with draws of :math:`T + \sqrt{s T} Z + v^\top G v`, with
    s = ``slope`` and Z in ``normal``. Draws of the last term are in ``terms``: column 0 with random
    signs of residuals, column 1 for a calibrated model. For each draw the code solves "draw equals
    ``value``" for T (0 without a solution). The quantiles of these T are the ends of an interval
    for each column; the result is the smallest interval that contains both.
    """
    gaps = value - terms
    first = jnp.sqrt(slope) * normal[:, None]
    roots = at_least((jnp.sqrt(at_least(first**2 + 4 * gaps, 0)) - first) / 2, 0) ** 2
    low = -order_statistic(-jnp.where(gaps > 0, roots, 0), 1 - level / 2)
    ends = jnp.min(low), jnp.max(order_statistic(roots, 1 - level / 2))
    low, high = (jnp.where(jnp.isfinite(value), end, jnp.nan) for end in ends)
    return low, high


def order_statistic(
    draws: Float[Array, "b *shape"], share: float | Scalar
) -> Float[Array, "*shape"]:
    """Return the order statistic of b draws below which a new draw lies with probability at least
    ``share``; the largest draw if b is too small for that."""
    b = draws.shape[0]
    rank = jnp.ceil(jnp.asarray(share, draws.dtype) * (b + 1)).astype(jnp.int32)
    return jnp.sort(draws, axis=0)[jnp.clip(rank, 1, b) - 1]


@jax.jit
def judged(key: Key, each: Error, level: float | Scalar, most: float | Scalar) -> Contents:
    """Return the fields of a `Comparison` of M errors, stacked in ``each``; ``most`` is the largest
    possible value. Fields that only the measures "ckce" and "skce" have are 0."""
    n_draws, k = each.null.shape[1], each.first.shape[1]
    # all models get the same signs
    drawn, normal = pairs(each, jax.random.rademacher(key, (n_draws, k), each.value.dtype))
    valued = jnp.isfinite(each.value) & jnp.isfinite(each.slope) & (each.nonfinite == 0)
    values = jnp.where(valued, each.value, jnp.nan)
    corrected = jnp.where(valued, at_least(values, 0), jnp.nan)
    # draws that equal the value up to rounding count as at least as large
    null = each.null + 100 * jnp.finfo(values.dtype).eps * each.estimate[:, None]
    wrong = (1 + jnp.sum(null >= each.value[:, None], axis=1)) / (1 + n_draws)
    both = jnp.stack([each.terms, null], axis=2)

    def interval(value: Scalar, slope: Scalar, terms: Array, normal: Array) -> tuple[Array, Array]:
        return value_interval(value, slope, terms, normal, level)

    low, high = jax.vmap(interval)(values, each.slope, both, normal.T)
    gaps = differences(values, wrong, drawn, level)
    shown = (gaps.p_adjusted <= level) & (gaps.estimate > 0)
    none = jnp.zeros_like(values)
    return {
        **{"bandwidths": none, "ridge": none[0], "left_out": none},
        "nonfinite_kernel": jnp.zeros_like(each.nonfinite),
        "estimate": jnp.where(valued, each.estimate, jnp.nan),
        "corrected": corrected,
        "low": jnp.where(low < corrected, low, corrected),
        "high": at_most(jnp.where(high > corrected, high, corrected), most),
        "differences": gaps,
        "may_be_best": valued & ~jnp.any(shown, axis=1),
        "p_calibrated": jnp.where(valued, wrong, jnp.nan),
        "nonfinite_predictions": each.nonfinite,
    }
