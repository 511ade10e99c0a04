"""What CKCE and comparisons by it return."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxcal.ckce import report
from jaxcal.ckce.solvers import Approximation, Fit
from jaxcal.results import Notes, Result, Sentences, largest_share
from jaxcal.results.notes import sentences
from jaxcal.typing import Contents, Scalar

COMPARABLE = report.COMPARABLE


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
        notes: What was noticed, by the names of warnings: numbers, [].
        rounding: Bound, to first order, on what rounding, an unfinished solve and a dropped part
            of the Gram matrix may have done to the estimate, [].
        approximation: How the Gram matrix was replaced; None where it was not.
    """

    _scalar: ClassVar[str] = "estimate"

    estimate: Scalar
    standard_error: Scalar
    contributions: Float[Array, " n"]
    influence: Float[Array, " n"]
    ridge: Scalar
    bandwidths: dict[str, Scalar]
    notes: Notes
    rounding: Scalar
    approximation: Approximation | None = None

    @classmethod
    def of(
        cls,
        fit: Fit,
        ridge: Scalar,
        bandwidths: dict[str, Scalar],
        *,
        nonfinite: Int[Array, ""],
        identical: Bool[Array, ""],
        approximation: Approximation | None = None,
    ) -> "CKCE":
        """Return the result of a fit, NaN where the predictions have ``nonfinite`` entries."""
        fit = jax.tree.map(lambda part: jnp.where(nonfinite > 0, jnp.nan, part), fit)
        rounding, size = jax.lax.stop_gradient((fit.rounding, jnp.abs(fit.estimate)))
        notes = {
            "nonfinite-predictions": nonfinite,
            "identical-predictions": identical,
            "rounding": jnp.where(rounding > 0, rounding / jnp.where(size > 0, size, 1), 0),
            "ridge-below-rounding": (nonfinite == 0) & ~jnp.isfinite(size),
            "one-observation-decides": largest_share(jax.lax.stop_gradient(fit.contributions)),
        }
        error = jnp.sqrt(jnp.mean(fit.influence**2) / fit.influence.size)
        parts = (fit.estimate, error, fit.contributions, fit.influence)
        return cls(*parts, ridge, bandwidths, notes, rounding, approximation)

    def _sentences(self) -> Sentences:
        return sentences(self.notes)

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


class Differences(NamedTuple):
    """Of every pair, each [M, M]: row model minus column model, so negative favours the row.

    Attributes:
        estimate: The differences of the values without label noise, before negative ones are
            reported as 0.
        low, high: Ends of their intervals, which hold all true differences together with
            probability 1 - level, and leave out 0 exactly where ``p_adjusted`` is at most the
            level.
        p_value: Of no difference, of each pair alone.
        p_adjusted: For all pairs together, from the largest standardized difference, so it
            accounts for their dependence. The diagonal holds 0 and p = 1.
    """

    estimate: Float[Array, "M M"]
    low: Float[Array, "M M"]
    high: Float[Array, "M M"]
    p_value: Float[Array, "M M"]
    p_adjusted: Float[Array, "M M"]


class Says(NamedTuple):
    """What models say and what comes true, from the regression of each class on its probability.

    Attributes:
        said: [M, m, 2] A low and a high probability: their mean less and plus one standard
            deviation.
        true: [M, m, 2] How often the class occurs where that is said.
    """

    said: Float[Array, "*M m 2"]
    true: Float[Array, "*M m 2"]


class Covered(NamedTuple):
    """How often targets lie where models that give no class probabilities expect them.

    Attributes:
        inside: [M, d] Share of the targets in the central 90 % interval, of each coordinate.
        below: [M, d] Share of the targets below the median.
    """

    inside: Float[Array, "*M d"]
    below: Float[Array, "*M d"]


class Comparison(Result):
    """Calibration errors of M models on the same n observations, and all their differences.

    Attributes:
        estimate: [M] The error with the products of observations with themselves, never negative.
        corrected: [M] The error without these products, which add label noise; 0 where it is
            negative, as it is for every other calibrated model. By the measure "probability" it
            is a squared probability, whose root is `error`.
        low, high: [M] Intervals, of confidence 1 - ``level``, of the value without label noise,
            which is never negative. They hold ``corrected``.
        differences: Of every pair; see `Differences`.
        may_be_best: [M] Whether no other model is shown to be better: the model confidence set,
            which holds the best model with probability 1 - ``level`` at least.
        skill: Accuracy and proper scores of each model, [M] each, by name: calibration is not
            skill.
        bandwidths: [M] Of the kernel on predictions; 0 where the measure has none.
        ridge: [] That of all models; 0 where the measure has none.
        left_out: [M] Share of each Gram matrix's trace that the low rank leaves out.
        nonfinite_predictions, nonfinite_kernel: [M] How many predictions, and values of the kernel
            on them, are NaN or infinite.
        p_calibrated: [M] The p-value of each model alone, that it is calibrated: by labels drawn
            from class probabilities, which is exact, and otherwise by random signs.
        names: The models' names.
        n: Number of observations.
        n_draws: Number of draws behind intervals and p-values.
        level: Up to it a p-value counts, and intervals have confidence 1 - level.
        measure: "probability": roots of values are errors of probabilities. "ckce" and "skce":
            squared norms, without a unit.
        things: What is compared: "models", or "groups" of observations of one model.
        covered: By the measure "probability" of predictions that are no class probabilities, how
            often targets lie in their intervals; see `Covered`.
        says: Of class probabilities, what each model says and what comes true; see `Says`.
    """

    _rows: ClassVar[tuple[str, ...]] = (
        "names",
        "estimate",
        "corrected",
        "low",
        "high",
        "may_be_best",
    )
    _plots: ClassVar[tuple[str, ...]] = ("comparisons.comparison",)
    _scalar: ClassVar[str] = "ridge"

    estimate: Float[Array, " M"]
    corrected: Float[Array, " M"]
    low: Float[Array, " M"]
    high: Float[Array, " M"]
    differences: Differences
    may_be_best: Bool[Array, " M"]
    skill: dict[str, Float[Array, " M"]]
    bandwidths: Float[Array, " M"]
    ridge: Scalar
    left_out: Float[Array, " M"]
    nonfinite_predictions: Int[Array, " M"]
    nonfinite_kernel: Int[Array, " M"]
    p_calibrated: Float[Array, " M"]
    names: tuple[str, ...] = eqx.field(static=True)
    n: int = eqx.field(static=True)
    n_draws: int = eqx.field(static=True)
    level: float = eqx.field(static=True)
    measure: str = eqx.field(static=True)
    things: str = eqx.field(static=True)
    covered: Covered | None = None
    says: Says | None = None

    @property
    def error(self) -> Float[Array, " M"]:
        """[M] Root of ``corrected``: for two classes by how much the probability is wrong, as the
        root of the mean square; of more classes, the root of half the sum of squares; of other
        predictions the root mean square for the events "at most the t-quantile", over all t."""
        return jnp.sqrt(self.corrected)

    def ranking(self) -> list[str]:
        """Return the names of the models, best calibrated first, by ``differences``."""
        return [self.names[i] for i in self.order()]

    def order(self) -> np.ndarray:
        """Return the places of the models in ``names``, best calibrated first, [M]."""
        worse_than = np.sum(np.asarray(self.differences.estimate) > 0, axis=1)
        valued = np.isfinite(np.asarray(self.corrected))
        return np.argsort(np.where(valued, worse_than, len(self.names)), kind="stable")

    def best(self) -> list[str]:
        """Return the names of the models that may be the best, in the order of `ranking`."""
        chosen = np.asarray(self.may_be_best)
        return [name for name in self.ranking() if chosen[self.names.index(name)]]

    def table(self) -> list[Contents]:
        """Return every pair of models once, the better calibrated first: one dict a row.

        With ``better``, ``worse``, ``difference`` (never positive), ``low``, ``high``,
        ``p_value``, ``p_adjusted`` and ``shown`` (whether the adjusted p-value is at most the
        level; otherwise the two are tied).
        """
        order = self.order()
        fields = [np.asarray(a) for a in self.differences]
        rows = []
        for position, i in enumerate(order):
            for j in order[position + 1 :]:
                values = [float(a[i, j]) for a in fields]
                rows.append(
                    {"better": self.names[i], "worse": self.names[j]}
                    | dict(
                        zip(
                            ("difference", "low", "high", "p_value", "p_adjusted"),
                            values,
                            strict=True,
                        )
                    )
                    | {"shown": values[-1] <= self.level}
                )
        return rows

    def _sentences(self) -> Sentences:
        widths, left = np.asarray(self.bandwidths), np.asarray(self.left_out)
        pairs = len(self.names) * (len(self.names) - 1) // 2
        said: Sentences = [
            (
                "every model has a bandwidth of its own, so the values are norms in different "
                f"spaces: CKCE is {COMPARABLE} [bandwidths-differ]",
                bool(np.any(widths != widths[0])),
            ),
            (
                f"the low rank leaves out up to {left.max():.1%} of the kernel: take a larger rank"
                " [low-rank]",
                bool(np.any(left > 0.01)),
            ),
            (
                f"{self.n_draws} draws cannot give p-values below {1 / (1 + self.n_draws):.2g}, "
                f"with {pairs} pairs to look at: take more [too-few-draws]",
                self.n_draws < 99,
            ),
        ]
        without_value = np.flatnonzero(~np.isfinite(np.asarray(self.corrected))).tolist()
        return said + [(self._why(k), True) for k in without_value]

    def _why(self, k: int) -> str:
        """Return why model k has no value, from what was counted."""
        says = f"not a number for {self.names[k]}, which is left out of the others' ranking: "
        if count := int(self.nonfinite_predictions[k]):
            return says + f"{count} of its predictions are NaN or infinite [nonfinite-predictions]"
        width = float(self.bandwidths[k])
        if count := int(self.nonfinite_kernel[k]):
            return says + (
                f"{count} values of the kernel on its predictions are NaN or infinite (bandwidth "
                f"{width:.3g}) [nonfinite-kernel]"
            )
        return says + (
            f"its Gram matrix with ridge {float(self.ridge):.3g} and bandwidth {width:.3g} is not "
            f"positive definite in {np.asarray(self.corrected).dtype}: raise the ridge or use "
            f"64-bit types [ridge-below-rounding]"
        )

    def _contents(self) -> Contents:
        return super()._contents() | {"ranking": self.ranking(), "best": self.best()}

    def _batch_lines(self) -> list[str]:
        return [f"Comparisons of {len(self.names)} {self.things}, batch {self.batch_shape}"]

    def _lines(self) -> list[str]:
        return report.lines(self)
