"""The result of CKCE."""

from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.ckce.solvers import Approximation
from jaxcal.results import Result, Sentences, largest_share
from jaxcal.typing import Scalar

CERTAIN = 0.1  # a possible error above this share of the estimate is reported
COMPARABLE = "comparable only at equal n, ridge and kernel"


class CKCE(Result):
    """An estimate of CKCE from n observations, at one ridge and kernel.

    Attributes:
        estimate: A squared norm, []; never negative but for rounding.
        standard_error: Standard error [] where the model is clearly not calibrated.
        contributions: Share of each observation, [n]; they sum to the estimate.
        influence: How the estimate moves with the weight of each observation, [n]; differences of
            models have the standard error std(influence_1 - influence_2) / sqrt(n).
        ridge: Ridge used, [].
        bandwidths: Bandwidths used, by name.
        nonfinite: Number of entries of the predictions (and landmarks) that are not finite, [].
        distinct: Whether some prediction differs from the first, [].
        rounding: Bound, to first order, on what rounding, an unfinished solve and a dropped part
            of the Gram matrix may have done to the estimate, [].
        approximation: How the Gram matrix was replaced; None where it was not.

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (100, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> result = jaxcal.ckce.ckce(jax.nn.softmax(logits), targets)
        >>> result.contributions.shape, round(float(result.ridge), 3)  # 100^(-1/4)
        ((100,), 0.316)
    """

    _scalar: ClassVar[str] = "estimate"

    estimate: Scalar
    standard_error: Scalar
    contributions: Float[Array, " n"]
    influence: Float[Array, " n"]
    ridge: Scalar
    bandwidths: dict[str, Scalar]
    nonfinite: Int[Array, ""]
    distinct: Array
    rounding: Scalar
    approximation: Approximation | None = None

    def _sentences(self) -> Sentences:
        bad = int(np.sum(np.asarray(self.nonfinite)))
        estimates = np.asarray(self.estimate)
        moved, size = np.asarray(self.rounding), np.abs(estimates)
        worst = float(np.max(moved / np.where(size > 0, size, 1), initial=0.0, where=moved > 0))
        share = float(np.max(np.asarray(jax.vmap(largest_share)(_rows(self.contributions)))))
        return [
            (
                f"{bad} entries of the predictions or landmarks are NaN or infinite, so CKCE is "
                f"NaN [nonfinite-predictions]",
                bad > 0,
            ),
            (
                f"rounding, or what the approximation leaves out, may have moved the estimate by "
                f"up to {worst:.0%}: take a larger ridge or rank, or float64 [rounding]",
                worst > CERTAIN,
            ),
            (
                "CKCE is not finite although the predictions are: the ridge is below rounding, "
                "take a larger one or float64 [ridge-below-rounding]",
                bad == 0 and not np.all(np.isfinite(estimates)),
            ),
            (
                "all predictions are identical: CKCE compares that one distribution with the "
                "frequencies of the targets [identical-predictions]",
                not np.all(np.asarray(self.distinct)),
            ),
            (
                f"one observation carries {share:.0%} of the absolute contributions"
                " [one-observation-decides]",
                share > 0.25,
            ),
        ]

    def _batch_lines(self) -> list[str]:
        values, n = np.asarray(self.estimate), self.contributions.shape[-1]
        return [
            f"{values.size} values of CKCE, batch shape {values.shape}, n = {n}",
            f"  estimates from {np.nanmin(values):.4g} to {np.nanmax(values):.4g}",
        ]

    def _lines(self) -> list[str]:
        used = "".join(f", {k} bandwidth {float(v):.4g}" for k, v in self.bandwidths.items())
        lines = [
            f"CKCE, n = {self.contributions.shape[-1]}",
            f"  estimate   {float(self.estimate):.4g}   (squared; standard error "
            f"{float(self.standard_error):.2g} if not calibrated)",
            f"  at         ridge {float(self.ridge):.4g}{used}; {COMPARABLE}",
        ]
        if self.approximation is not None:
            by = self.approximation
            lines.append(f"  by         {by.how}, {int(by.size)}, error {float(by.error):.2g}")
        return lines


def _rows(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])
