"""Test of calibration by the surrogate interval error, with labels redrawn from predictions."""

from typing import ClassVar

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
    suitable_null,
)
from jaxcal.read import checks
from jaxcal.results import JudgedResult, Sentences, count_verdicts, in_words, recorded
from jaxcal.typing import ArrayLike, KeyLike, Scalar

NAME = "surrogate interval calibration error"


class IntervalTest(JudgedResult):
    """The surrogate interval error with its distribution under calibration.

    Attributes:
        statistic: The error, []. Beyond 8,192 different predictions it is that of 8,192 cells.
        p_value: P-value of "calibrated", [].
        null_samples: Draws of the error under calibration, [b]; most of them are above 0.
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
    n: int = eqx.field(static=True)
    null: str = eqx.field(static=True)
    level: float = eqx.field(static=True, default=0.05)
    least_p_value: Scalar | None = None

    def _no_verdict(self) -> Sentences:
        return no_verdict(self)

    def _lines(self) -> list[str]:
        value, p = float(self.statistic), float(self.p_value)
        if np.isnan(p):
            return [f"{NAME}: {in_words(self)}"]
        middle, most = np.quantile(np.asarray(self.null_samples), [0.5, 1 - self.level])
        how = {"redraw": "labels drawn again from the predictions", "signs": "random signs"}
        return [
            f"{NAME} {value:.4g}, n = {self.n}",
            f"  if calibrated  {middle:.4g} (median), up to {most:.4g} ({1 - self.level:.0%})",
            f"  p-value        {p:.4g}   ({how[self.null]}, {self.null_samples.shape[-1]} draws)",
            f"  verdict        {in_words(self)}",
        ]

    def _batch_lines(self) -> list[str]:
        about = f"tests by the {NAME}, batch shape {self.batch_shape}"
        return [about, f"  {count_verdicts(self)}"]


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
) -> IntervalTest:
    """Test that predictions are calibrated by their surrogate interval calibration error.

    For independent labels 0 or 1 the level is exact for every n. Works under jit and vmap. The test
    detects errors that change sign, such as overconfidence, far more often than the test of
    `jaxcal.distance_from_calibration`, and errors of one sign less often
    (`experiments/distance_tests`). Choose before looking at the data.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: Probabilities of label 1, [n].
        targets: Labels 0 or 1, or means of labels, [n]; with ``counts`` numbers of labels 1, [n].
        weights: Weights of the observations, [n], >= 0.
        level: Probability of rejecting calibrated predictions; it determines the verdict.
        n_draws: Number of draws of the error under calibration.
        accuracy: Accuracy that sets the smallest width; see `surrogate_interval_ce`.
        null: "redraw" or "signs", as in `jaxcal.distance_from_calibration`.
        counts: Numbers of labels of grouped data, as in `jaxcal.distance_from_calibration`.

    Returns:
        `IntervalTest`. NaN inside jit gives NaN.

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
    key, level = checks.key(key), checks.level(level)
    n_draws = checks.integer(n_draws, "n_draws")
    data = binary(predictions, targets, weights, counts)
    null = suitable_null(null, data)
    equal = weights is None
    value, p, draws, least = label_test(
        key, ordered(data), statistic=statistic, equal=equal, n_draws=n_draws, null=null
    )
    return IntervalTest(value, p, draws, number(data), null, level, least)
