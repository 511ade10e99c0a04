"""Tests of calibration by smooth and interval errors, with labels redrawn from predictions."""

from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from jaxcal.dce.intervals import smallest_width
from jaxcal.dce.predictions import binary, ordered
from jaxcal.dce.resampling import (
    Null,
    RandomIntervals,
    label_test,
    no_verdict,
    number,
    smooth_statistic,
    suitable_null,
)
from jaxcal.read import checks
from jaxcal.results import JudgedResult, Sentences, count_verdicts, in_words, recorded
from jaxcal.typing import ArrayLike, KeyLike, Scalar


class MeasureTest(JudgedResult):
    """A measure of calibration with its distribution under calibration.

    Attributes:
        statistic: The measure, []. Beyond 8,192 different predictions it is that of 8,192 cells.
        p_value: P-value of "calibrated", [].
        null_samples: Draws of the measure under calibration, [b]; most of them are above 0.
        measure: Name of the measure.
        n: Number of observations, of labels where these are grouped.
        null: How the draws were made: "redraw" or "signs".
        level: Probability of rejecting calibrated predictions; it determines `verdict`.
        least_p_value: The smallest p-value for any labels, [], for at most ten observations; None
            for more.
    """

    _long: ClassVar[tuple[str, ...]] = ("null_samples",)

    statistic: Scalar
    p_value: Scalar
    null_samples: Float[Array, " b"]
    measure: str = eqx.field(static=True)
    n: int = eqx.field(static=True)
    null: str = eqx.field(static=True)
    level: float = eqx.field(static=True, default=0.05)
    least_p_value: Scalar | None = None

    def _no_verdict(self) -> Sentences:
        return no_verdict(self)

    def _lines(self) -> list[str]:
        value, p = float(self.statistic), float(self.p_value)
        if np.isnan(p):
            return [f"{self.measure}: {in_words(self)}"]
        middle, most = np.quantile(np.asarray(self.null_samples), [0.5, 1 - self.level])
        how = {"redraw": "labels drawn again from the predictions", "signs": "random signs"}
        return [
            f"{self.measure} {value:.4g}, n = {self.n}",
            f"  if calibrated  {middle:.4g} (median), up to {most:.4g} ({1 - self.level:.0%})",
            f"  p-value        {p:.4g}   ({how[self.null]}, {self.null_samples.shape[-1]} draws)",
            f"  verdict        {in_words(self)}",
        ]

    def _batch_lines(self) -> list[str]:
        about = f"tests by the {self.measure}, batch shape {self.batch_shape}"
        return [about, f"  {count_verdicts(self)}"]


@recorded
def smooth_ce_test(
    key: KeyLike,
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    level: float = 0.05,
    n_draws: int = 500,
    null: Null | None = None,
    counts: ArrayLike | None = None,
) -> MeasureTest:
    """Test that predicted probabilities are calibrated, by their smooth calibration error.

    Labels are redrawn from the predictions, so for independent labels 0 or 1 the level is exact for
    every n. Detects errors of one sign; if the sign changes, as with overconfidence,
    `interval_ce_test` has more power (experiments/distance_tests). Works under jit and vmap.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: Probabilities of label 1, [n].
        targets: Labels 0 or 1, or means of labels, [n]; with ``counts`` numbers of labels 1.
        weights: Weights of the observations, [n], >= 0.
        level: Probability of rejecting calibrated predictions, which determines the verdict.
        n_draws: Number of draws of the null.
        null: "redraw" or "signs", as in `jaxcal.distance_from_calibration`.
        counts: Numbers of labels of grouped data, as in `jaxcal.distance_from_calibration`.

    Returns:
        `MeasureTest`. NaN inside jit gives NaN.

    Cost: one sort, and ``n_draws`` smooth errors of m different predictions, or of 8,192 cells if m
    is larger (with weights: of n labels).

    Source: Blasiok, Gopalan, Hu and Nakkiran (2023), Def. 7.2, for the measure.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> truth = jnp.linspace(0.05, 0.95, 200)
        >>> targets = jax.random.bernoulli(jax.random.key(0), truth)
        >>> jaxcal.dce.smooth_ce_test(1, truth, targets).verdict
        'not rejected'
    """
    options = weights, level, n_draws, null, counts
    return _test(key, predictions, targets, smooth_statistic, "smooth calibration error", *options)


@recorded
def interval_ce_test(
    key: KeyLike,
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    level: float = 0.05,
    n_draws: int = 500,
    accuracy: float | int = 0.01,
    null: Null | None = None,
    counts: ArrayLike | None = None,
) -> MeasureTest:
    """Test that predicted probabilities are calibrated, by their surrogate interval error.

    That is the minimum, over the widths 1, 1/2, 1/4, .., of bin width plus binned ECE with a random
    shift of the bins. Labels are redrawn from the predictions, so for independent labels 0 or 1 the
    level is exact for every n. Detects over- and underconfidence, which the Laplace kernel and
    `smooth_ce_test` average out; these have more power for errors of one sign
    (experiments/distance_tests). Works under jit and vmap.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: Probabilities of label 1, [n].
        targets: Labels 0 or 1, or means of labels, [n]; with ``counts`` numbers of labels 1.
        weights: Weights of the observations, [n], >= 0.
        level: Probability of rejecting calibrated predictions, which determines the verdict.
        n_draws: Number of draws of the null.
        accuracy: Accuracy of the surrogate, which sets its smallest width; see
            `surrogate_interval_ce`.
        null: "redraw" or "signs", as in `jaxcal.distance_from_calibration`.
        counts: Numbers of labels of grouped data, as in `jaxcal.distance_from_calibration`.

    Returns:
        `MeasureTest`. NaN inside jit gives NaN.

    Cost: one sort, and ``n_draws`` errors of m different predictions, or of 8,192 cells if m is
    larger (with weights: of n labels), O(m) per width.

    Source: Blasiok et al. (2023), Def. 6.10, for the measure.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> truth = jnp.linspace(0.05, 0.95, 200)
        >>> targets = jax.random.bernoulli(jax.random.key(0), truth)
        >>> overconfident = jnp.clip(2 * truth - 0.5, 0, 1)
        >>> jaxcal.dce.interval_ce_test(1, overconfident, targets).verdict
        'rejected'
    """
    statistic = RandomIntervals(smallest_width(accuracy))
    options = weights, level, n_draws, null, counts
    name = "surrogate interval calibration error"
    return _test(key, predictions, targets, statistic, name, *options)


def _test(
    key: KeyLike,
    predictions: ArrayLike,
    targets: ArrayLike,
    statistic: Any,
    measure: str,
    weights: ArrayLike | None,
    level: float,
    n_draws: int,
    null: Null | None,
    counts: ArrayLike | None,
) -> MeasureTest:
    key, level = checks.key(key), checks.level(level)
    n_draws = checks.integer(n_draws, "n_draws")
    data = binary(predictions, targets, weights, counts)
    null = suitable_null(null, data)
    equal = weights is None
    value, p, draws, least = label_test(
        key, ordered(data), statistic=statistic, equal=equal, n_draws=n_draws, null=null
    )
    return MeasureTest(value, p, draws, measure, number(data), null, level, least)
