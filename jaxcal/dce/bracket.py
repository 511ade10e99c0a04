r"""How far from calibrated? A certified bracket of the true distance, and what noise allows.

The true distance, to the nearest calibrated predictor of the inputs, is not a function of
predictions and labels; they pin it between a lower end and at most about its square root. Every
measure here is one side of an inequality, so the best of them make the bracket.
Source: Blasiok et al. (2023), Theorems 6.2, 6.11, 7.3 and 8.5 and eq. 5, with sharper constants.
"""

from functools import partial
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree

from jaxcal import checks
from jaxcal.dce.binned import BinnedECE, binned_ece, ece
from jaxcal.dce.bounds import Bracket
from jaxcal.dce.groups import label_free_groups, moved
from jaxcal.dce.intervals import _best, _surrogate, smallest_width
from jaxcal.dce.laplace import _laplace
from jaxcal.dce.lower import lower_distance
from jaxcal.dce.lower_bounds import CELLS, bounds_of
from jaxcal.dce.population import PopulationBounds, population_bounds
from jaxcal.dce.predictions import Binary, Ordered, binary, from_classes, merged, ordered, repeated
from jaxcal.dce.report import batch_report, findings, report
from jaxcal.dce.resampling import Null, kernel_statistic, label_test, no_verdict, suitable_null
from jaxcal.dce.smooth import _smooth
from jaxcal.nulls.contract import holm
from jaxcal.numerics import at_least, at_most, largest, smallest
from jaxcal.results import Interval, JudgedResult, Sentences, recorded
from jaxcal.typing import ArrayLike, KeyLike, Scalar, Vector

INTERVALS_MOST = 20_000  # different predictions for which the best bins, O(m^2), are searched


class _Measures(NamedTuple):
    mean: Scalar
    ece: Scalar
    smooth: Scalar
    kernel: Scalar
    surrogate: Scalar
    random: Float[Array, " k"]
    binned: BinnedECE
    interval: Scalar | None
    groups: Scalar
    lower: tuple[PyTree, PyTree]
    witness: Vector


def dce_bracket(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    accuracy: float | int = 0.01,
    bins: int = 15,
    solve: bool | None = None,
) -> Bracket:
    """Bracket of the true distance from calibration, with the source of each end.

    Args:
        predictions: Probabilities of label 1, [n].
        targets: Labels 0 or 1, or means of such, [n].
        weights: Weights of the observations, [n], >= 0.
        accuracy: Accuracy of the surrogate interval error; see `surrogate_interval_ce`.
        bins: Number of bins of the binned ECE.
        solve: Whether to solve for the lower distance exactly (by SciPy, outside of jit), which is
            the default there; otherwise, as under jit and vmap, by `lower_distance_bounds`, which
            is some 1e-4 lower. The best intervals are searched for at most 20,000 different
            predictions (under jit: observations).

    Returns:
        `Bracket`.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: O(n log n) for n observations once, then by m different predictions: O(m log m), m^2 for
    the best intervals, and a few linear programs with ``solve``.

    Source: Blasiok et al. (2023), Theorems 6.2, 6.11, 7.3 and 8.5 and eq. 5, with sharper
    constants.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> bracket = jaxcal.dce.dce_bracket(jnp.full(4, 0.7), jnp.array([0, 0, 1, 1]))
        >>> round(float(bracket.low), 3), round(float(bracket.high), 3)
        (0.2, 0.2)
    """
    data = ordered(binary(predictions, targets, weights))
    return _bracket(_measure(data, accuracy, bins, solve))


def _measure(data: Ordered, accuracy: float | int, bins: int, solve: bool | None) -> _Measures:
    traced = any(isinstance(leaf, Tracer) for leaf in data)
    solve = None if solve is None else checks.flag(solve, "solve")
    bins = checks.integer(bins, "bins")
    if solve and traced:
        raise ValueError("solve=True runs outside of jit and vmap only")
    distribution, atom = data, None
    if not traced:
        smaller, atom = merged(Binary(data.v, data.y, data.w))
        distribution = data if atom is None else ordered(smaller)
    v, y, w = distribution[:3]
    smooth = _smooth(distribution)
    surrogate = _surrogate(distribution, smallest_width(accuracy), False)
    if traced or solve is False:
        lower = bounds_of(distribution, CELLS)[:2]
    else:
        exact = lower_distance(v, y, weights=w, tol=1e-6)
        lower = (exact.low, exact.high)
    return _Measures(
        mean=jnp.abs(jnp.sum(w * (y - v))),
        ece=ece(distribution),
        smooth=smooth.value,
        kernel=_laplace(distribution, jnp.ones((), v.dtype)).value,
        surrogate=surrogate.value,
        random=surrogate.random,
        binned=binned_ece(v, y, weights=w, edges=bins),
        interval=_best(distribution).value if v.size <= INTERVALS_MOST else None,
        groups=moved(label_free_groups(data), distribution),
        lower=lower,
        witness=smooth.witness if atom is None else data.back(smooth.witness[atom]),
    )


def _bracket(measures: _Measures) -> Bracket:
    lower = {
        "half the smooth calibration error": measures.smooth / 2,
        "squared kernel calibration error": measures.kernel**2,
        "mean residual": measures.mean,
    }
    upper = {
        "surrogate interval calibration error": measures.surrogate,
        "binned ECE + bin width": measures.binned.bound,
        "unbinned ECE": measures.ece,
        "2 s + 4 sqrt(s), s the smooth error": from_lower(2 * measures.smooth),
        "mean labels of groups": measures.groups,
    }
    if measures.interval is not None:
        upper["interval calibration error"] = measures.interval
    low, high = (jnp.asarray(end, measures.smooth.dtype) for end in measures.lower)
    lower["lower distance"] = low
    upper["d + sqrt(8 d), d the lower distance"] = from_lower(high)
    low, high = largest(_stacked(lower)), smallest(_stacked(upper))
    # where the bounds meet, as for one prediction, rounding may cross them; nothing else may
    slack = 16 * jnp.finfo(low.dtype).eps * measures.witness.size**0.5
    whole = low <= high + slack
    low, high = (jnp.where(whole, end, jnp.nan) for end in (at_most(low, high), high))
    return Bracket(low, high, lower, upper)


def _stacked(bounds: dict[str, Scalar]) -> Array:
    return jnp.stack(list(bounds.values()))


def from_lower(d: Array) -> Array:
    r"""The largest true distance that a lower distance d allows: d + sqrt(8 d), at most 1."""
    return at_most(d + 2 * jnp.sqrt(2 * at_least(d, 0)), 1)


class DistanceResult(JudgedResult):
    """How far binary predictions are from calibrated.

    Attributes:
        bracket: Bounds between which the true distance lies for these data, certified.
        interval: Interval in which it lies for the population, with probability 1 - ``level``.
        measures: Measures of calibration by name, each []; "ECE" is that of practice, by bins.
        population: What makes the interval: dual functions of other parts of the data below, groups
            and a radius above.
        p_value: P-value of "calibrated", [].
        statistic: Squared Laplace kernel calibration error, [].
        null_samples: Draws of the statistic under calibration, [b].
        witness: Weight in [-1, 1] that attains the smooth calibration error, the mean of witness
            times (label - prediction), [n]; see `smooth_ce`. It falls from predictions that are
            too low to those that are too high, and is on one side of 0 where all err to one side;
            its height alone says little where the mean residual is small.
        predictions: Predictions as given, [n].
        targets: Labels as given, [n].
        weights: Weights as given, [n].
        null: How the null was drawn: "redraw" or "signs".
        level: Probability of rejecting calibrated predictions; it decides `verdict`.
        adjusted: P-value [] by Holm's method over all classes of ``notion="class-wise"``, which
            decides the verdict there; None elsewhere.
        least_p_value: The least p-value that any labels could give, [], for at most ten
            observations; None for more.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> predictions = jnp.linspace(0.05, 0.95, 200)
        >>> targets = jax.random.bernoulli(jax.random.key(0), predictions)
        >>> result = jaxcal.distance_from_calibration(1, predictions, targets)
        >>> result.witness.shape, bool(jnp.max(jnp.abs(result.witness)) <= 1)
        ((200,), True)
    """

    _plots: ClassVar[tuple[str, ...]] = ("bracket", "reliability_with_witness")
    _long: ClassVar[tuple[str, ...]] = ("null_samples",)

    bracket: Bracket
    interval: Interval
    measures: dict[str, Scalar]
    population: PopulationBounds
    p_value: Scalar
    statistic: Scalar
    null_samples: Float[Array, " b"]
    witness: Vector
    predictions: Vector
    targets: Vector
    weights: Vector
    null: str = eqx.field(static=True)
    level: float = eqx.field(static=True, default=0.05)
    adjusted: Scalar | None = None
    least_p_value: Scalar | None = None

    @property
    def p_adjusted(self) -> Array:
        """P-values of a batch by Holm's method, which keep the level of all its members together:
        of all classes for ``notion="class-wise"``. NaN where a p-value is."""
        return _adjusted(self.p_value) if self.adjusted is None else self.adjusted

    @property
    def _decides(self) -> Array:
        return self.p_value if self.adjusted is None else self.adjusted

    def _no_verdict(self) -> Sentences:
        return no_verdict(self)

    def _sentences(self) -> Sentences:
        return [] if self.batch_shape else findings(self)

    def _lines(self) -> list[str]:
        return report(self)

    def _batch_lines(self) -> list[str]:
        return batch_report(self)


def _adjusted(p_values: Array) -> Array:
    p = jnp.ravel(p_values)
    adjusted = jnp.where(jnp.isnan(p), jnp.nan, holm(jnp.where(jnp.isnan(p), 1, p)))
    return adjusted.reshape(p_values.shape)


@recorded
def distance_from_calibration(
    key: KeyLike,
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    level: float = 0.05,
    n_draws: int = 500,
    null: Null | None = None,
    accuracy: float | int = 0.01,
    bins: int = 15,
    solve: bool | None = None,
    notion: str | None = None,
    counts: ArrayLike | None = None,
) -> DistanceResult:
    """How far are predicted probabilities of a binary label from calibrated?

    Gives a certified bracket of the true distance for the data, an interval for it in the
    population, and a p-value of "calibrated" by draws of the squared Laplace kernel calibration
    error. The interval's low end is the mean of dual functions of the lower distance on data that
    did not choose them; its high end is the mean distance to the mean labels of groups, chosen
    without labels, plus the radius of one mean. Both hold for rare labels too.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: Probabilities of label 1, [n]; with ``notion`` class probabilities [n, m].
        targets: Labels 0 or 1, or means of such, [n]; with ``notion`` classes from 0, [n]; with
            ``counts`` numbers of labels 1, [n].
        weights: Weights of the observations, [n], >= 0; the interval treats them as part of the
            observation.
        level: Probability of rejecting calibrated predictions, which decides the verdict; the
            interval holds the distance with probability 1 - ``level``.
        n_draws: Number of draws of the null.
        null: "redraw" draws labels from the predictions (exact for independent labels; the default
            where all labels are 0 or 1, and under jit, where labels that are means give a p-value
            of NaN); "signs" flips residuals (the default where labels are means).
        accuracy: Accuracy of the surrogate interval error, which sets its smallest width.
        bins: Number of bins of the binned ECE.
        solve: As in `jaxcal.dce.dce_bracket`.
        notion: For class probabilities: "top-label", or "class-wise" for a batch of m results
            (made by vmap, so without ``solve``), whose verdicts are of `p_adjusted`.
        counts: Numbers of labels of grouped data, [n] integers: ``targets`` of ``counts`` labels of
            an observation are 1. Each label then is an observation, with the weight of its group;
            outside of jit only.

    Returns:
        `jaxcal.dce.DistanceResult`. NaN inside jit gives NaN everywhere.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: that of `jaxcal.dce.dce_bracket`, a few sorts, and ``n_draws`` draws of m different
    predictions; beyond 8,192 of them the draws are of 8,192 cells (with weights: of n labels).

    Source: Blasiok et al. (2023), Theorems 6.2, 6.11, 7.3 and 8.5 and eq. 5, with sharper
    constants.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> truth = jnp.linspace(0.05, 0.95, 200)
        >>> targets = jax.random.bernoulli(jax.random.key(0), truth)
        >>> predictions = jnp.clip(2 * truth - 0.5, 0, 1)  # overconfident
        >>> result = jaxcal.distance_from_calibration(1, predictions, targets)
        >>> result.verdict, bool(result.bracket.low <= result.bracket.high)
        ('rejected', True)
    """
    key = checks.key(key)
    level = checks.level(level)
    n_draws = checks.integer(n_draws, "n_draws")
    if notion is not None:
        if counts is not None:
            raise ValueError("counts: groups are of labels 0 or 1, so without notion")
        predictions, targets = from_classes(predictions, targets, notion)
    predictions, targets, weights = repeated(predictions, targets, weights, counts)
    if notion == "class-wise":
        if solve:
            raise ValueError("solve=True runs outside of vmap only: one class at a time")
        one = partial(
            distance_from_calibration,
            weights=weights,
            level=level,
            n_draws=n_draws,
            null=null,
            accuracy=accuracy,
            bins=bins,
        )
        keys = jax.random.split(key, np.shape(predictions)[0])
        batch = jax.vmap(one)(keys, predictions, targets)
        adjusted = _adjusted(batch.p_value)
        return eqx.tree_at(lambda r: r.adjusted, batch, adjusted, is_leaf=lambda x: x is None)
    data = binary(predictions, targets, weights)
    null = suitable_null(null, data)
    ascending = ordered(data)
    measures = _measure(ascending, accuracy, bins, solve)
    null_key, fold_key = jax.random.split(key)
    test = label_test(
        null_key,
        ascending,
        statistic=kernel_statistic,
        equal=weights is None,
        n_draws=n_draws,
        null=null,
    )
    population = population_bounds(fold_key, ascending, level)
    by_name = {
        "ECE": measures.binned.value,
        "smooth": measures.smooth,
        "kernel": measures.kernel,
        "surrogate interval": measures.surrogate,
        "mean residual": measures.mean,
    }
    if measures.interval is not None:
        by_name["interval"] = measures.interval
    by_name["lower distance"] = jnp.asarray(sum(measures.lower) / 2, measures.smooth.dtype)
    return DistanceResult(
        bracket=_bracket(measures),
        interval=Interval(population.low, population.high, level),
        measures=by_name,
        population=population,
        p_value=test.p_value,
        statistic=test.statistic,
        null_samples=test.null_samples,
        witness=measures.witness,
        predictions=data.v,
        targets=data.y,
        weights=data.w,
        null=null,
        level=level,
        least_p_value=test.least,
    )
