"""Result of a test: a pytree of arrays with a verdict at its level and a report."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.results.base import JudgedResult, Sentences
from jaxcal.results.notes import Notes, all_finite, memory, sentences
from jaxcal.results.parts import Coordinates, Parts, Table, largest_share
from jaxcal.results.report import about_coordinates, batch_report, no_verdict, report, too_few
from jaxcal.typing import Contents, Scalar


class TestResult(JudgedResult):
    """Outcome of a test of n observations.

    Attributes:
        estimate: Unbiased estimate of the squared discrepancy, []; may be negative.
        biased: The V-statistic, []; never negative, for positive definite kernels.
        standard_error: Standard error [] of the estimate for a clearly miscalibrated model; under
            calibration use the p-value.
        statistic: The statistic that the null describes, [].
        p_value: P-value, [].
        null_samples: Draws of the statistic under calibration, [b]; empty for a formula.
        bandwidths: Bandwidths used, by name, in the units of the test.
        contributions: Contribution of each observation, [n]; they sum to the estimate (but see
            ``parts``).
        coordinates: Attribution to target coordinates, if requested.
        notes: Counts and flags of possible problems, by the codes of warnings; `warnings` explains
            those that apply.
        test: Name of the test.
        null: Name of the null.
        sensitivity: Growth of the expected statistic with the square of a shift of the targets by
            one unit of the test along each coordinate, [d]; NaN if not significant, None if
            unknown.
        parts: Of `jaxcal.calibration_test`: the named alternatives. Statistic and estimate are the
            log of the evidence averaged over them, and contributions the first-order contribution
            of each observation to it.
        table: Of `jaxcal.calibration_test`: shift and spread of each coordinate.
        ranks: Of `jaxcal.calibration_test`, [n, 1 + d]: randomized rank of each target among points
            of its prediction, by log density and by each coordinate, uniform under calibration;
            NaN for excluded targets.
        p_value_error: Error bound of the p-value, [], for an approximation with a known error; None
            for other nulls.
        route: How averages over the predictions were computed, with the error if they are not
            exact.
        steps: How the test was fitted, one line per step; `jaxcal.explain` prints them.
        level: Level of the test: the probability of rejecting a calibrated model. Limits have
            confidence 1 - level.
        too_few: Why this null cannot reject any data of this size; empty if it can.
    """

    _plots: ClassVar[tuple[str, ...]] = ("results.null_histogram", "results.contributions")
    __test__ = False  # a result, not a pytest class
    _long: ClassVar[tuple[str, ...]] = ("null_samples", "ranks", "steps", "too_few")

    estimate: Scalar
    biased: Scalar
    standard_error: Scalar
    statistic: Scalar
    p_value: Scalar
    null_samples: Float[Array, " b"]
    bandwidths: dict[str, Scalar]
    contributions: Float[Array, " n"]
    coordinates: Coordinates | None
    notes: Notes
    test: str = eqx.field(static=True)
    null: str = eqx.field(static=True)
    sensitivity: Float[Array, " d"] | None = None
    parts: Parts | None = None
    table: Table | None = None
    ranks: Float[Array, "n r"] | None = None
    p_value_error: Scalar | None = None
    route: str = eqx.field(static=True, default="")
    steps: tuple[str, ...] = eqx.field(static=True, default=())
    level: float = eqx.field(static=True, default=0.05)
    too_few: str = eqx.field(static=True, default="")

    @classmethod
    def of(cls, notes: Notes, **fields: Any) -> "TestResult":
        """Build a result; if some input is not finite, every number is NaN.

        All results are built here, from the counts that `warnings` and `reason` report.
        """
        finite = all_finite(notes)
        numbers = ("estimate", "biased", "standard_error", "statistic", "p_value", "contributions")
        fields |= {
            name: jax.tree.map(lambda x: jnp.where(finite, x, jnp.nan), fields[name])
            for name in (*numbers, "p_value_error", "coordinates", "sensitivity")
            if name in fields
        }
        lost = ~jnp.isfinite(fields["p_value"]) | ~jnp.isfinite(fields["estimate"])
        share = largest_share(fields["contributions"])
        silent = jnp.asarray(notes.get("silent", False))
        notes = notes | {"overflow": finite & lost & ~silent, "one-observation-decides": share}
        return cls(notes=notes, **fields)

    def at_level(self, level: float, least_p_value: Callable[[int], float]) -> "TestResult":
        """Return the result at another level.

        ``least_p_value`` maps n to the smallest p-value of the null for n observations.
        """
        n = self.contributions.shape[-1]
        return replace(self, level=level, too_few=too_few(self.null, least_p_value, n, level))

    def _no_verdict(self) -> Sentences:
        return no_verdict(self)

    @property
    def smallest_shift(self) -> Any:
        r"""Detectable shift along each coordinate (80 % power), [d], in units of the test.

        A common shift of all targets; the unit is the standard deviation of the targets. None if it
        is unknown, NaN in coordinates where it is not significant. First order in the shift.
        Outside of jit only.

        With q the critical value and :math:`\sigma` the deviation of the null's draws, a shift that
        moves the statistic by c is detected with probability 80 % if
        :math:`c = q + z_{.8} \sqrt{\sigma^2 + 2\sqrt2\,\sigma c}`: c adds the variance
        :math:`4 \zeta / n` with :math:`\zeta \leq c\,n\,\sigma / \sqrt2`, as the largest eigenvalue
        is below the root of the sum of their squares.
        """
        if self.sensitivity is None:
            return None
        draws, z2 = np.asarray(self.null_samples), 0.8416**2
        q = np.quantile(draws, 1 - self.level, axis=-1, method="higher")
        sd = np.std(draws, axis=-1)
        middle = q + 2**0.5 * z2 * sd
        move = middle + np.sqrt(middle**2 - q**2 + z2 * sd**2)
        return np.sqrt(move[..., None] / np.asarray(self.sensitivity))

    def _sentences(self) -> Sentences:
        notes: dict[str, Any] = dict(self.notes)
        # Cauchy targets exceed it in .3 % of data sets, for every n
        reach, n = np.asarray(notes.get("far-targets", 0)), self.contributions.shape[-1]
        notes["far-targets"] = np.where(reach > 100 * n, reach, 0)
        for code in {"reversed-sign", "skewed-moment"} & set(notes):
            notes[code] &= np.asarray(self.p_value) <= self.level
        if self.null != "DependentWild":
            rejected = np.asarray(self.p_value) <= self.level
            notes["dependent-rows"] = np.where(
                rejected, memory(np.asarray(self.contributions)[..., None]), 0
            )
        said = sentences(notes)
        if self.coordinates is not None:
            split = self.coordinates
            about = about_coordinates(split.marginal_mean, split.marginal_spread)
            said += [(text, True) for text in about]
        return [*said, (self.too_few, bool(self.too_few))]

    def _contents(self) -> Contents:
        return super()._contents() | {"smallest_shift": self.smallest_shift}

    def _lines(self) -> list[str]:
        return report(self)

    def _batch_lines(self) -> list[str]:
        return batch_report(self)
