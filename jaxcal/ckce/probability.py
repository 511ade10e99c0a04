r"""Squared calibration errors in units of probability, compared: values, differences, tests.

The residuals :math:`d_i = e_{y_i} - q_i` are regressed on the predictions. The basis of the
regression is a constant and the leading components of the predictions, orthonormal columns F
[n, r], with leverages :math:`h_i = \|F_i\|^2`. The squared error :math:`T = E\|f(q)\|^2`, f the
population regression, is estimated without the products of an observation with itself,

.. math:: U = \sum_{i \ne j} a_i^\top a_j, \qquad
          a_i = \frac{F_i \otimes d_i}{\sqrt{n (1 - h_i)}},

so that its mean is 0 where the model is calibrated. The factor :math:`1 - h_i` makes it the
leave-one-out estimate, whose mean is T for linear residuals and equal leverages. Its expansion is

.. math:: U \approx T + \sum_i l_i + \sum_{i \ne j} b_i^\top b_j, \qquad
          l_i = \tfrac1n (2 \langle f_i, d_i\rangle - \|f_i\|^2 - T),

with b as a for the residuals of the fit. Everything is halved, so that for two classes T is the
squared error of the probability, and so that it is at most 1. The variance of the first sum is
proportional to T (its ``slope``); the second sum alone is left where the model is calibrated. So
the hypothesis of a value T is tested against :math:`T + \sqrt{s T} Z + v^\top G v` with random
signs v, and intervals invert these tests. The noise counts four more residuals of uniformly drawn
labels, as in the interval of Agresti and Coull: without an error among the labels there would be no
noise at all.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.ckce.baselines import mean_skill
from jaxcal.ckce.expansion import order_statistic, value_interval
from jaxcal.ckce.results import Differences, Says
from jaxcal.engine.batching import one_at_a_time
from jaxcal.numerics import at_least, at_most
from jaxcal.typing import Contents, Key, Scalar

BLOCKS = 1024  # at most so many sums of observations
COMPONENTS = 30  # at most so many columns of the basis
ADDED = 4  # residuals of uniform labels that the noise counts besides


class Error(NamedTuple):
    """The squared calibration error of one model, expanded over k blocks of observations.

    Attributes:
        estimate: [] With the products of observations with themselves.
        value: [] Without them.
        slope: [] Variance of the first sum per unit of the true value.
        first: [k] Sums of l.
        vectors: [k, p] Sums of b.
        null: [b] Values with labels drawn from the predictions.
        says: What the model says and what comes true, by class.
        nonfinite: [] How many predictions are not finite.
    """

    estimate: Scalar
    value: Scalar
    slope: Scalar
    first: Float[Array, " k"]
    vectors: Float[Array, "k p"]
    null: Float[Array, " b"]
    says: Says
    nonfinite: Int[Array, ""]


def n_components(n: int, m: int) -> int:
    """Columns of the basis for n predictions of m classes: five observations each, at most m."""
    return max(1, min(m, n // 5, COMPONENTS))


def basis(
    q: Float[Array, "n m"], weights: Float[Array, " n"], components: int
) -> Float[Array, "n r"]:
    """Orthonormal columns: a constant and the leading components of the predictions.

    Rows with weight 0 are 0. Components with a standard deviation that rounding explains are 0.
    """
    total = jnp.sum(weights)
    mean = weights @ q / total
    centred = (q - mean[None]) * weights[:, None]
    variances, directions = jnp.linalg.eigh(centred.T @ centred / total)
    variances = variances[::-1][: components - 1]
    some = variances > (100 * jnp.finfo(q.dtype).eps) ** 2
    scale = jnp.where(some, 1 / jnp.sqrt(total * jnp.where(some, variances, 1)), 0)
    moving = centred @ directions[:, ::-1][:, : components - 1] * scale[None]
    return jnp.concatenate([weights[:, None] / jnp.sqrt(total), moving], axis=1)


def measured(
    key: Key,
    q: Float[Array, "n m"],
    weights: Float[Array, " n"],
    labels: Int[Array, " n"],
    *,
    components: int,
    n_draws: int,
) -> Error:
    """The error of one model; observations count with ``weights`` 0 or 1.

    Cost O(n m (r + m)) and b min(n, 1024) r m multiplications, memory O(n (r + m)).
    """
    deal_key, noise_key, null_key = jax.random.split(key, 3)
    n, m = q.shape
    total = jnp.sum(weights)
    with jax.default_matmul_precision("highest"):
        f = basis(q, weights, components)
        d = (jax.nn.one_hot(labels, m, dtype=q.dtype) - q) * weights[:, None]
        leverage = jnp.sum(f**2, axis=1)
        inflation = 1 / at_least(1 - leverage, 0.25)
        fitted = f @ (f.T @ d)
        without = (fitted - leverage[:, None] * d) * inflation[:, None]
        root = jnp.sqrt(inflation)[:, None]
        drawn = jax.nn.one_hot(jax.random.randint(noise_key, (n,), 0, m), m, dtype=q.dtype) - 1 / m
        share = jnp.sqrt(ADDED / (total + ADDED))
        e = (d - fitted) * root + share * drawn * weights[:, None]
        weighted = f * root / jnp.sqrt(2 * total)
        sizes = jnp.sum(weighted**2, axis=1)
        estimate = jnp.sum((weighted.T @ d) ** 2)
        value = estimate - sizes @ jnp.sum(d**2, axis=1)
        first = 2 * jnp.sum(without * d, axis=1) - jnp.sum(without**2, axis=1)
        first = (first - jnp.sum(first) / total) * weights / (2 * total)
        first, vectors = _summed(deal_key, first, weighted, e)
        square = 2 * _off_square(vectors)
        noise = at_least(value, 0) + 2 * (sizes @ jnp.sum(e**2, axis=1))
        slope = (jnp.sum(first**2) + 2 * square) / noise
        slope = slope + 2 * ADDED / (m * total * (total + ADDED))
        null = _null(null_key, q, weighted, n_draws)
    says = _says(q, labels, weights)
    lost = jnp.sum(jnp.any(~jnp.isfinite(q), axis=1))
    return Error(estimate, value, slope, first, vectors, null, says, lost)


def _deal(key: Key, n: int) -> tuple[Int[Array, "k s"], Array]:
    """Places of n observations in at most `BLOCKS` blocks, and which of them are real."""
    count = min(n, BLOCKS)
    side = -(-n // count)
    order = jax.random.permutation(key, n) if n > BLOCKS else jnp.arange(n)
    places = jnp.concatenate([order, order[: side * count - n]]).reshape(side, count).T
    return places, (jnp.arange(side * count) < n).reshape(side, count).T


def _summed(
    key: Key, first: Float[Array, " n"], weighted: Float[Array, "n r"], e: Float[Array, "n m"]
) -> tuple[Float[Array, " k"], Float[Array, "k p"]]:
    """Sums over blocks of the first influence and of the vectors ``weighted`` times ``e``."""
    places, real = _deal(key, first.shape[0])
    real = real.astype(first.dtype)
    vectors = jnp.einsum("ksr,ksm->krm", weighted[places] * real[:, :, None], e[places])
    return jnp.sum(first[places] * real, axis=1), vectors.reshape(len(places), -1)


def _null(
    key: Key, q: Float[Array, "n m"], weighted: Float[Array, "n r"], n_draws: int
) -> Float[Array, " b"]:
    """Values with labels drawn from the predictions; beyond `BLOCKS` observations they are drawn
    once, and the sums over blocks take normal factors."""
    n, m = q.shape
    chances = jnp.cumsum(q, axis=1)[:, :-1]
    sizes = jnp.sum(weighted**2, axis=1)

    def residual(key: Key) -> Array:
        drawn = jnp.sum(jax.random.uniform(key, (n, 1), q.dtype) > chances, axis=1)
        return jax.nn.one_hot(drawn, m, dtype=q.dtype) - q

    def again(key: Key) -> Array:
        d = residual(key)
        return jnp.sum((weighted.T @ d) ** 2) - sizes @ jnp.sum(d**2, axis=1)

    if n <= BLOCKS:
        return jax.lax.map(again, jax.random.split(key, n_draws), batch_size=32)
    label_key, deal_key, draw_key = jax.random.split(key, 3)
    d = residual(label_key)
    _, vectors = _summed(deal_key, jnp.zeros(n, q.dtype), weighted, d)
    v = jax.random.normal(draw_key, (n_draws, len(vectors)), q.dtype)
    return jnp.sum((v @ vectors) ** 2, axis=1) - v**2 @ jnp.sum(vectors**2, axis=1)


def _off_square(vectors: Float[Array, "k p"]) -> Scalar:
    """The sum over i != j of the squared products of the vectors of two blocks."""
    sizes = jnp.sum(vectors**2, axis=1)
    return jnp.sum((vectors @ vectors.T) ** 2) - jnp.sum(sizes**2)


def _says(q: Float[Array, "n m"], labels: Int[Array, " n"], weights: Float[Array, " n"]) -> Says:
    """Of every class, the regression of its occurrence on its probability, a deviation either
    side of the mean."""
    total = jnp.sum(weights)
    y = jax.nn.one_hot(labels, q.shape[1], dtype=q.dtype)
    mean, occurs = weights @ q / total, weights @ y / total
    variance = weights @ (q - mean[None]) ** 2 / total
    some = variance > (100 * jnp.finfo(q.dtype).eps) ** 2
    slope = (weights @ ((q - mean[None]) * (y - occurs[None])) / total) / jnp.where(
        some, variance, 1
    )
    slope = jnp.where(some, slope, 0)
    deviation = jnp.where(some, jnp.sqrt(at_least(variance, 0)), 0)
    ends = jnp.stack([-deviation, deviation], axis=1)
    said = jnp.clip(mean[:, None] + ends, 0, 1)
    true = jnp.clip(occurs[:, None] + slope[:, None] * (said - mean[:, None]), 0, 1)
    return Says(said, true)


@partial(jax.jit, static_argnames=("components", "n_draws"))
def errors(
    key: Key,
    stack: Float[Array, "M n m"],
    weights: Float[Array, "M n"],
    labels: Int[Array, " n"],
    *,
    components: int,
    n_draws: int,
) -> tuple[Error, dict[str, Array]]:
    """The errors and skills of M models, one at a time on a CPU, with the same draws."""

    @one_at_a_time
    def one(key: Key, q: Array, weight: Array, labels: Array) -> Error:
        return measured(key, q, weight, labels, components=components, n_draws=n_draws)

    each = jax.vmap(lambda q, weight: one(key, q, weight, labels))(stack, weights)
    return each, jax.vmap(lambda q, weight: mean_skill(q, labels, weight))(stack, weights)


class Pairs(NamedTuple):
    """Of every pair of M values, [M, M]: how far draws of their difference go where both true
    values are equal.

    Attributes:
        second: Twice the squared norm of the difference of the second terms.
        slope: Variance of the first terms' difference per unit of the common true value.
        common: The common true value.
        ratios: [b, M, M] Absolute draws over the standard deviation.
    """

    second: Float[Array, "M M"]
    slope: Float[Array, "M M"]
    common: Float[Array, "M M"]
    ratios: Float[Array, "b M M"]

    @property
    def error(self) -> Float[Array, "M M"]:
        """Standard deviations; 0 of equal models."""
        return jnp.sqrt(self.second + self.slope * self.common)


def pairs(each: Error, v: Float[Array, "b k"]) -> tuple[Pairs, Array, Array]:
    """Draws of all differences with signs v, and of the two terms of each value [b, M]."""
    with jax.default_matmul_precision("highest"):
        sizes = jnp.sum(each.vectors**2, axis=2)
        grams = jax.vmap(lambda a: (gram := a @ a.T) - jnp.diag(jnp.diagonal(gram)))(each.vectors)
        flat = grams.reshape(len(grams), -1)
        # without any error there is no direction: one that all observations share
        some = jnp.any(each.first != 0, axis=1)
        first = jnp.where(some[:, None], each.first, 1)
        squares, firsts = flat @ flat.T, first @ first.T
        terms = jnp.einsum("bk,mkp->bmp", v, each.vectors)
        terms = jnp.sum(terms**2, axis=2) - jnp.sum(sizes, axis=1)[None]
        length = jnp.sqrt(jnp.diagonal(firsts))
        lead = (jnp.sqrt(each.slope) / length)[None] * (v @ first.T)
    second = 2 * _between(squares)
    correlation = jnp.clip(firsts / (length[:, None] * length[None]), -1, 1)
    cross = jnp.sqrt(each.slope[:, None] * each.slope[None]) * correlation
    slope = at_least(each.slope[:, None] + each.slope[None] - 2 * cross, 0)
    # of equal models rounding alone is left
    least = 100 * jnp.finfo(second.dtype).eps
    second = jnp.where(second <= least * jnp.max(jnp.diagonal(squares)), 0, second)
    slope = jnp.where(slope <= least * jnp.max(each.slope), 0, slope)
    common = at_least((each.value[:, None] + each.value[None]) / 2, 0)
    drawn = jnp.sqrt(common)[None] * (lead[:, :, None] - lead[:, None])
    drawn = jnp.abs(drawn + terms[:, :, None] - terms[:, None])
    made = Pairs(second, slope, common, drawn)
    error = made.error[None]
    ratios = jnp.where(error > 0, drawn / jnp.where(error > 0, error, 1), 0)
    return made._replace(ratios=ratios), lead, terms


def _between(products: Float[Array, "M M"]) -> Float[Array, "M M"]:
    squares = jnp.diagonal(products)
    return at_least(squares[:, None] + squares[None] - 2 * products, 0)


def _reach(drawn: Pairs, gap: Float[Array, "M M"], quantile: Scalar) -> Float[Array, "M M"]:
    """How far above ``gap`` a true difference may be.

    Where it is t the common value is at least \\|t\\| / 2, and the variance grows with it.
    """
    near = quantile * drawn.error
    step = quantile**2 * drawn.slope / 2
    inside = drawn.second + drawn.slope * gap / 2
    far = (step + jnp.sqrt(at_least(step**2 + 4 * quantile**2 * inside, 0))) / 2
    return jnp.where((far > near) & (drawn.error > 0), far, near)


def differences(
    values: Float[Array, " M"], wrong: Float[Array, " M"], drawn: Pairs, level: float | Scalar
) -> Differences:
    """Intervals that hold together, and p-values, of every pair.

    A model is worse than another one only if it is not calibrated, so that p-values are at least
    those of the worse model's own test, ``wrong``, and intervals hold 0 where these do.
    """
    gap, error, b = values[:, None] - values[None], drawn.error, len(drawn.ratios)
    good = jnp.isfinite(gap) & jnp.isfinite(error)
    ratio = jnp.where(error > 0, jnp.abs(gap) / jnp.where(error > 0, error, 1), 0)
    largest = jnp.max(jnp.where(good[None], drawn.ratios, 0), axis=(1, 2))
    p = (1 + jnp.sum(drawn.ratios >= ratio[None], axis=0)) / (1 + b)
    adjusted = (1 + jnp.sum(largest[:, None, None] >= ratio[None], axis=0)) / (1 + b)
    own = jnp.where(gap > 0, wrong[:, None], wrong[None])
    p, adjusted = (jnp.where(own > a, own, a) for a in (p, adjusted))
    # equal values leave nothing to decide
    p, adjusted = (jnp.where(good, jnp.where(ratio > 0, a, 1), jnp.nan) for a in (p, adjusted))
    quantile = order_statistic(largest, 1 - level)
    low = gap - _reach(drawn, -gap, quantile)
    high = gap + _reach(drawn, gap, quantile)
    low = jnp.where((adjusted > level) & (low > 0), 0, low)
    high = jnp.where((adjusted > level) & (high < 0), 0, high)
    low, high = (jnp.where(good, end, jnp.nan) for end in (low, high))
    return Differences(gap, low, high, p, adjusted)


@jax.jit
def judged(key: Key, each: Error, level: float | Scalar) -> Contents:
    """What a `Comparison` says of M errors."""
    n_draws, k = each.null.shape[1], each.first.shape[1]
    v = jax.random.rademacher(key, (n_draws, k), dtype=each.value.dtype)
    drawn, lead, terms = pairs(each, v)
    valued = jnp.isfinite(each.value) & (each.nonfinite == 0)
    values = jnp.where(valued, each.value, jnp.nan)
    corrected = jnp.where(valued, at_least(values, 0), jnp.nan)
    # redrawn values that equal the value but for rounding count as large
    null = each.null + 100 * jnp.finfo(values.dtype).eps * each.estimate[:, None]
    wrong = (1 + jnp.sum(null >= each.value[:, None], axis=1)) / (1 + n_draws)
    both = jnp.stack([terms.T, null], axis=2)
    unit = lead.T / jnp.sqrt(each.slope)[:, None]

    def interval(value: Scalar, slope: Scalar, terms: Array, normal: Array) -> tuple[Array, Array]:
        return value_interval(value, slope, terms, normal, level)

    low, high = jax.vmap(interval)(values, each.slope, both, unit)
    gaps = differences(values, wrong, drawn, level)
    shown = (gaps.p_adjusted <= level) & (gaps.estimate > 0)
    return {
        "estimate": jnp.where(valued, each.estimate, jnp.nan),
        "corrected": corrected,
        "low": jnp.where(low < corrected, low, corrected),
        "high": at_most(jnp.where(high > corrected, high, corrected), 1.0),
        "differences": gaps,
        "may_be_best": valued & ~jnp.any(shown, axis=1),
        "p_calibrated": jnp.where(valued, wrong, jnp.nan),
        "says": each.says,
        "nonfinite_predictions": each.nonfinite,
    }
