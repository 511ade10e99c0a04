"""Probability integral transforms, quantiles and the pinball loss of scalar predictions."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PyTree

from jaxcal.coverage import among, by_row, massart
from jaxcal.mcmc.results import McmcDraws
from jaxcal.numerics import bisected, largest
from jaxcal.read import Draws, checks, convert
from jaxcal.read.observations import n_repeated
from jaxcal.read.sampling import cdf, value_if_any
from jaxcal.results import (
    JudgedResult,
    Sentences,
    count_verdicts,
    in_words,
    recorded,
    rows_in_one_order,
    sentences,
    too_few,
)
from jaxcal.results.notes import memory
from jaxcal.typing import ArrayLike, DTypeLike, PredictionsLike, Scalar

LEVELS = tuple(k / 20 for k in range(1, 20))  # .05, .10, .., .95
HALVINGS = 64  # bisection steps, more than the digits of float64


class QuantileCalibration(JudgedResult):
    """Fractions of n targets at or below their predicted quantiles, and a test of uniformity.

    Calibration implies uniform probability integral transforms; the converse is not true.

    Attributes:
        levels: Levels, [q].
        observed: Share of targets at or below each quantile, [q]; NaN if a transform is NaN.
        pit: Probability integral transforms, [n].
        p_value: P-value [] of "transforms are uniform", valid for every n; NaN if one is NaN.
        level: Probability of rejecting uniform transforms, which determines `verdict`.
        draws: Number m of draws of each prediction that are used; 0 for distributions.
        repeated: Number of observations that repeat an earlier one, [].
        correlation: Lag-one correlation of the draws in their order, [] (`Draws.correlation`).
    """

    _rows: ClassVar[tuple[str, ...]] = ("levels", "observed")
    _plots: ClassVar[tuple[str, ...]] = ("reliability.coverage",)
    _long: ClassVar[tuple[str, ...]] = ("pit",)

    levels: Float[Array, " q"]
    observed: Float[Array, " q"]
    pit: Float[Array, " n"]
    p_value: Scalar
    level: float = eqx.field(static=True, default=0.05)
    draws: int = eqx.field(static=True, default=0)
    repeated: Int[Array, ""] | int = 0
    correlation: Scalar | float = 0.0

    def _no_verdict(self) -> Sentences:
        least = partial(massart, jnp.ones(()), sides=2)  # of n transforms, at a gap of 1
        few = too_few("of Massart", lambda n: float(least(n)), self.pit.shape[-1], self.level)
        unknown = "transforms are NaN"
        return [(unknown, np.isnan(np.asarray(self.p_value))), (few, bool(few))]

    def _sentences(self) -> Sentences:
        unknown = int(np.sum(np.isnan(np.asarray(self.pit))))
        nans = f"{unknown} transforms are NaN, so it cannot tell [nonfinite-transforms]"
        rejected = np.asarray(self.p_value) <= self.level
        lag = np.where(rejected, memory(np.asarray(self.pit)[..., None]), 0)
        notes = {"dependent-rows": lag, "repeated-rows": np.asarray(self.repeated)}
        notes["correlated-draws"] = np.asarray(self.correlation)
        return [(nans, unknown > 0), *sentences(notes)]

    def _batch_lines(self) -> list[str]:
        size, n = np.size(self.p_value), self.pit.shape[-1]
        return [f"{size} results of quantile calibration, n = {n}, {count_verdicts(self)}"]

    def _lines(self) -> list[str]:
        gaps = np.asarray(self.observed) - np.asarray(self.levels)
        worst = 0 if np.isnan(gaps).any() else int(np.argmax(np.abs(gaps)))
        return [
            f"quantile calibration, n = {self.pit.shape[-1]}",
            f"  largest gap {gaps[worst]:+.3f} at level {float(self.levels[worst]):.2f}",
            f"  p-value     {float(self.p_value):.3g}   (transforms are uniform)",
            f"  verdict     {in_words(self)}",
        ]


@rows_in_one_order
def pit(predictions: PredictionsLike, targets: ArrayLike) -> Float[Array, " n"]:
    """Return the probability integral transforms F_i(y_i), with F_i the cdf of prediction i.

    If prediction i is discrete, F_i(y_i) is drawn uniformly from P(Y < y_i) to P(Y <= y_i). Draws
    equal to y_i rank above or below it at random. Transforms of correct predictions are uniform.
    Row numbers and targets determine these random numbers: repeated calls agree.

    Args:
        predictions: A numpyro distribution of numbers with batch shape [n] that has a ``cdf``
            (also mixtures), or m draws of each prediction, [n, m] (`jaxcal.Draws` or `McmcDraws`).
            With r draws below y the transform is (r + 1/2) / (m + 1).
        targets: Targets, [n].

    Returns:
        Transforms, [n], in [0, 1]; NaN if the target is NaN or infinite, or a draw is NaN.

    Source: Czado, Gneiting and Held (2009), Section 2.1, for counts.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> jaxcal.measures.pit(dist.Normal(jnp.zeros(2), 1.0), jnp.zeros(2)).tolist()
        [0.5, 0.5]
    """
    ys = _numbers(targets)
    ys = jnp.where(jnp.isfinite(ys), ys, jnp.nan)
    samples = _samples(predictions, ys)
    if samples is not None:
        below, equal = (jnp.sum(f(samples, ys[:, None]), axis=1) for f in (jnp.less, jnp.equal))
        below = below + among(equal, ys)
        shares = (below.astype(ys.dtype) + 0.5) / (samples.shape[1] + 1)
        return jnp.where(jnp.isnan(ys) | jnp.any(jnp.isnan(samples), axis=1), jnp.nan, shares)
    single = _single(predictions, ys.shape[0])
    at = _cdf(single, ys)
    if not getattr(predictions, "is_discrete", False):
        return at
    return at - jnp.exp(single.log_prob(ys)) * by_row(at)


@recorded
def quantile_calibration(
    predictions: PredictionsLike,
    targets: ArrayLike,
    *,
    levels: ArrayLike = LEVELS,
    level: float = 0.05,
) -> QuantileCalibration:
    r"""Compare the share of targets below each predicted quantile with its level, with a p-value.

    The share at level tau is :math:`n^{-1} \sum_i 1\{F_i(y_i) \le \tau\}` with cdfs F_i. The
    p-value is that of the largest abs(share - tau), over all tau in [0, 1] or, for predictions that
    are m draws, over tau = 1 / (m + 1), .., m / (m + 1).

    Args:
        predictions: Predictions of numbers, as in `pit`.
        targets: Targets, [n].
        levels: Levels tau at which shares are returned; by default .05, .10, .., .95.
        level: Probability of rejecting uniform transforms, which determines the verdict.

    Returns:
        `QuantileCalibration`.

    Source: Widmann et al. (2021), Section 5; p-value by Massart (1990).

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> targets = 3 * jax.random.normal(jax.random.key(0), (100,))
        >>> predictions = dist.Normal(jnp.zeros(100), 1.0)
        >>> jaxcal.measures.quantile_calibration(predictions, targets).verdict
        'rejected'
    """
    ys = _numbers(targets)
    at = _levels(levels, ys.dtype)
    samples, m, lag = _samples(predictions, ys), 0, jnp.zeros(())
    if samples is not None:
        predictions, lag = Draws(samples).thinned()
        samples = jnp.asarray(predictions.samples)
    u = pit(predictions, ys)
    n = u.shape[0]
    unknown = jnp.any(jnp.isnan(u))
    ranked = jnp.sort(u)
    if samples is None:
        steps = jnp.arange(n + 1, dtype=u.dtype) / n
        gap = largest(jnp.concatenate([steps[1:] - ranked, ranked - steps[:-1]]))
    else:
        m = samples.shape[1]
        grid = jnp.arange(1, m + 1, dtype=u.dtype) / (m + 1)
        below = jnp.searchsorted(ranked, grid, side="right").astype(u.dtype)
        gap = jnp.max(jnp.abs(below / n - grid))
    observed = jnp.mean(u[:, None] <= at[None], axis=0, dtype=u.dtype)
    return QuantileCalibration(
        at,
        jnp.where(unknown, jnp.nan, observed),
        u,
        massart(jnp.where(unknown, jnp.nan, gap), n, sides=2),
        checks.level(level),
        m,
        n_repeated(ys, predictions if samples is None else samples),
        lag,
    )


def quantiles(predictions: PredictionsLike, levels: ArrayLike = LEVELS) -> Float[Array, "n q"]:
    """Return quantiles of n predictions of numbers at q levels.

    Distributions use their inverse cdf; mixtures, bisection between the smallest and the largest
    quantile of their components; draws, empirical quantiles. Differentiable in the parameters.

    Args:
        predictions: A numpyro distribution of numbers with batch shape [n], or m draws of each
            prediction, [n, m] (`jaxcal.Draws` or `McmcDraws`).
        levels: q levels; by default .05, .10, .., .95.

    Returns:
        Quantiles, [n, q], in units of the targets.

    Cost: 64 n q evaluations of the cdf for a mixture.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> jaxcal.measures.quantiles(dist.Uniform(jnp.zeros(2), 4.0), (0.25, 0.5)).tolist()
        [[1.0, 2.0], [1.0, 2.0]]
    """
    samples = _samples(predictions, None)
    if samples is not None:
        return jnp.quantile(samples, _levels(levels, samples.dtype), axis=1).T
    single = _single(predictions, None)
    at = _levels(levels, jnp.result_type(float))[:, None]
    parts = _components(single)
    if parts is None:
        return _inverse(single, at).T
    ends = jnp.concatenate(
        [
            _by_prediction(_inverse(part, at[..., None] if wide else at), single.batch_shape[0])
            for part, wide in parts
        ],
        axis=-1,
    )
    low, high = jnp.min(ends, axis=-1), jnp.max(ends, axis=-1)

    low, high = jax.lax.stop_gradient((low, high))
    _, high = bisected(lambda q: _cdf(single, q) < at, low, high, HALVINGS)
    fixed = jax.lax.stop_gradient(high)
    # implicit differentiation of F(q) = level: dq = -dF / density
    slope = jax.lax.stop_gradient(jnp.exp(single.log_prob(fixed)))
    safe = jnp.where(slope > 0, slope, 1)
    change = -jnp.where(slope > 0, _cdf(single, fixed) / safe, 0)
    return (fixed + change - jax.lax.stop_gradient(change)).T


def _numbers(targets: ArrayLike) -> Float[Array, " n"]:
    ys = checks.targets(targets)
    if ys.ndim == 2 and ys.shape[1] == 1:
        ys = ys[:, 0]
    if ys.ndim != 1:
        raise ValueError(
            f"targets: quantiles are of numbers, one per prediction, shape [n]; got {ys.shape}. "
            f"Vectors have no order: use jaxcal.coverage for highest-density regions"
        )
    return ys


def _samples(predictions: PredictionsLike, ys: Array | None) -> Float[Array, "n m"] | None:
    """Return the draws of `Draws` or `McmcDraws`, [n, m], or None for other predictions."""
    draws = predictions.draws if isinstance(predictions, McmcDraws) else predictions
    if not isinstance(draws, Draws):
        return None
    samples = convert.floats(draws.samples, "Draws.samples")
    if samples.ndim == 3 and samples.shape[2] == 1:
        samples = samples[:, :, 0]
    if samples.ndim != 2 or samples.shape[1] < 1 or (ys is not None and len(samples) != len(ys)):
        wanted = "[n, m]" if ys is None else f"({len(ys)}, m)"
        raise ValueError(
            f"Draws.samples: wanted m draws of a number, shape {wanted}, got {samples.shape}"
        )
    return samples


def _single(predictions: Any, n: int | None) -> Any:
    """Return the n scalar distributions, as `_Wide` if ``expand`` or ``to_event`` was applied."""
    checks.of_jax(predictions)
    if not (hasattr(predictions, "log_prob") and hasattr(predictions, "batch_shape")):
        raise TypeError(
            f"predictions: wanted a numpyro distribution of numbers or jaxcal.Draws, got "
            f"{convert.say(predictions)}"
        )
    batch, event = tuple(predictions.batch_shape), tuple(predictions.event_shape)
    if event not in ((), (1,)) or len(batch) != 1 or (n is not None and batch != (n,)):
        wanted = "[n]" if n is None else f"({n},)"
        raise ValueError(
            f"predictions: wanted a distribution of numbers with batch shape {wanted}, got batch "
            f"shape {batch} and event shape {event}"
        )
    base = predictions
    while type(base).__name__ in ("Independent", "ExpandedDistribution"):
        base = base.base_dist
    return _Wide(base, batch) if base is not predictions else base


class _Wide(eqx.Module):
    """n scalar distributions: ``base``, broadcast to ``batch_shape`` [n]."""

    base: Any
    batch_shape: tuple[int, ...] = eqx.field(static=True)

    def _call(self, function: Callable[..., Array], values: Array) -> Array:
        shape = jnp.broadcast_shapes(values.shape, self.batch_shape)
        inner = jnp.broadcast_to(values, shape)
        # vectors of one coordinate have parameters [n, 1]
        inner = inner[..., None] if len(self.base.batch_shape) == 2 else inner
        return jnp.broadcast_to(function(inner), inner.shape).reshape(shape)

    def cdf(self, values: Array) -> Array:
        return self._call(partial(cdf, self.base), values)

    def icdf(self, levels: Array) -> Array:
        return self._call(self.base.icdf, levels)

    def log_prob(self, values: Array) -> Array:
        return self._call(self.base.log_prob, values)


def _cdf(single: PyTree, values: Array) -> Array:
    return _value(single, partial(cdf, single), values, "cdf")


def _inverse(single: PyTree, levels: Array) -> Array:
    return _value(single, single.icdf, levels, "inverse cdf")


def _value(single: PyTree, method: Callable[..., Array], at: Array, name: str) -> Array:
    """Return ``method(at)`` of a distribution; TypeError if numpyro does not implement it."""
    value = value_if_any(method, at)
    if value is None:
        distribution = type(getattr(single, "base", single)).__name__
        raise TypeError(
            f"predictions: {distribution} has no {name}; pass draws from it as jaxcal.Draws"
        )
    return value


def _by_prediction(ends: Array, n: int) -> Float[Array, "q n k"]:
    """Return quantiles [q, n, k] of k components, from [q, n] (k = 1), [q, n, k] or [q, 1, k]."""
    columns = ends[..., None] if ends.ndim == 2 else ends
    return jnp.broadcast_to(columns, (columns.shape[0], n, columns.shape[2]))


def _components(single: PyTree) -> list[tuple[Any, bool]] | None:
    """List (distribution, whether its last batch axis holds components); None if no mixture."""
    if hasattr(single, "component_distribution"):
        return [(single.component_distribution, True)]
    if hasattr(single, "component_distributions"):
        return [(part, False) for part in single.component_distributions]
    return None


def _levels(levels: ArrayLike, dtype: DTypeLike) -> Float[Array, " q"]:
    at = convert.floats(levels, "levels").astype(dtype).reshape(-1)
    if not isinstance(at, Tracer) and not bool(jnp.all((at > 0) & (at < 1))):
        raise ValueError(f"levels: wanted probabilities between 0 and 1, got {levels}")
    return at


@rows_in_one_order
def pinball_loss(
    predictions: PredictionsLike, targets: ArrayLike, *, levels: ArrayLike = LEVELS
) -> Scalar:
    r"""Return the mean pinball loss :math:`(1-\tau)(q-y)_+ + \tau(y-q)_+` of predicted quantiles q.

    Args:
        predictions: Predictions of numbers, as in `quantiles`.
        targets: Targets, [n].
        levels: Levels tau; by default the 19 levels .05, .10, .., .95.

    Returns:
        The mean over targets y and levels tau, [], in units of the targets.

    Source: Widmann et al. (2021), App. A.3.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> predictions = dist.Normal(jnp.zeros(2), 1.0)
        >>> targets = jnp.array([1.0, -3.0])
        >>> round(float(jaxcal.measures.pinball_loss(predictions, targets, levels=(0.5,))), 3)
        1.0
    """
    ys = checks.targets(targets)
    ys = ys[:, 0] if ys.ndim == 2 and ys.shape[1] == 1 else ys
    q = quantiles(predictions, levels)
    if ys.shape != q.shape[:1]:
        raise ValueError(f"targets: wanted one per prediction, {q.shape[:1]}, got {ys.shape}")
    at = convert.floats(levels, "levels").astype(q.dtype).reshape(-1)
    gap = ys[:, None] - q
    return jnp.mean(jnp.where(gap < 0, (at - 1)[None] * gap, at[None] * gap))
