"""Define the results of CKCE and of comparisons of models."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxcal.ckce import report
from jaxcal.ckce.solvers import Approximation, Fit
from jaxcal.results import Notes, Result, Sentences, largest_share
from jaxcal.results.notes import of_a_chain, sentences
from jaxcal.typing import Contents, Scalar

COMPARABLE = report.COMPARABLE


class CKCE(Result):
    """An estimate of CKCE from n observations, at one ridge and kernel.

    Attributes:
        estimate: CKCE, a squared norm, []; negative only by rounding.
        standard_error: Standard error of the estimate for a clearly miscalibrated model, [].
        contributions: Contribution of each observation, [n]; they sum to the estimate.
        influence: Derivative of the estimate in the weight of each observation, [n]; the difference
            of two models has the standard error std(influence_1 - influence_2) / sqrt(n).
        ridge: Ridge used, [].
        bandwidths: Bandwidths set for kernels without one, by "prediction", "target", "given".
        notes: Numbers [] by the codes of warnings; a number that is too large gives its warning.
        rounding: Bound on the error of the estimate by rounding, an unfinished solve and an omitted
            part of the Gram matrix, [].
        approximation: How the Gram matrix was approximated; None if it was exact.
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
    ) -> "CKCE":
        """Return the result of a fit; NaN if the predictions have ``nonfinite`` entries."""
        by, fit = fit.approximation, fit._replace(approximation=None)
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
        return cls(*parts, ridge, bandwidths, notes, rounding, by)

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
    """Differences of the errors of all pairs of models: row minus column, in arrays [M, M].

    A negative difference means that the model of the row has less error.

    Attributes:
        estimate: Differences of the squared errors without label noise; negative errors are used as
            they are, not set to 0.
        low, high: Ends of simultaneous intervals, which contain all true differences with
            probability 1 - level. They exclude 0 if and only if ``p_adjusted`` <= level.
        p_value: P-value of "no difference" for each pair, not adjusted. The diagonal is 1.
        p_adjusted: P-value adjusted for all pairs, by the largest standardized difference.
    """

    estimate: Float[Array, "M M"]
    low: Float[Array, "M M"]
    high: Float[Array, "M M"]
    p_value: Float[Array, "M M"]
    p_adjusted: Float[Array, "M M"]


class Says(NamedTuple):
    """Predicted probabilities and frequencies, by linear regression of each class's indicator.

    Attributes:
        said: A low and a high predicted probability of each class, [M, m, 2]: the mean minus and
            plus one standard deviation.
        true: Frequency of the class where that probability is predicted, [M, m, 2].
    """

    said: Float[Array, "*M m 2"]
    true: Float[Array, "*M m 2"]


class Covered(NamedTuple):
    """Coverage of the intervals of models other than class probabilities.

    Attributes:
        inside: Share of targets in the central 90 % interval of each coordinate, [M, d].
        below: Share of targets below the median of each coordinate, [M, d].
        correlation: Correlation of successive draws of a `jaxcal.Draws`, [M]; 0 for other models,
            and for a comparison of streamed data.
    """

    inside: Float[Array, "*M d"]
    below: Float[Array, "*M d"]
    correlation: Float[Array, "*M"]


class Comparison(Result):
    """Calibration errors of M models on the same n observations, and all their differences.

    Attributes:
        estimate: Squared error with the products of observations with themselves, which add label
            noise, [M]; never negative.
        corrected: Squared error without these products, [M]; set to 0 if negative, as for about
            half of all calibrated models. By "probability" its root is `error`.
        low, high: Ends of the intervals of the true squared errors, with confidence
            1 - ``level``, [M]; never negative. The intervals contain ``corrected``.
        differences: Differences of all pairs; see `Differences`.
        may_be_best: Whether no other model is significantly better, [M]. Models with True include
            the best one with probability at least 1 - ``level`` (model confidence set).
        skill: Means by name, [M] each: "accuracy" and "Brier" of classes, and "log", the negative
            log probability or density in nats (absent if no model has a density).
        bandwidths: Bandwidth of the kernel on predictions, [M]; 0 if the measure has none, and 1 if
            the bandwidth of ``prediction_kernel`` is set.
        ridge: Ridge of all models, []; 0 if the measure has none.
        left_out: Share of the trace of each model's Gram matrix that the low rank omits, [M].
        nonfinite_predictions, nonfinite_kernel: Numbers of predictions, and of kernel values on
            them, that are NaN or infinite, [M].
        p_calibrated: P-value of the test that each model is calibrated, not adjusted, [M]: by drawn
            labels for class probabilities, otherwise by random signs of residuals.
        names: The models' names.
        n: Number of observations.
        n_draws: Number of draws for intervals and p-values.
        level: Level of the tests; intervals have confidence 1 - level.
        measure: "probability" (squared errors are squared probabilities), "ckce" or "skce" (squared
            norms without a unit).
        things: What is compared: "models", or "groups" of observations of one model.
        covered: For the measure "probability" and predictions other than class probabilities, the
            coverage of their intervals; see `Covered`.
        says: For class probabilities, predicted probabilities and frequencies; see `Says`.
        memory: Correlation of the residuals of successive rows, [M]; 0 if it is not significant or
            rows are sorted by targets. None if it is not computed: for streamed data, and by "ckce"
            and "skce" for predictions other than class probabilities.
        repeated: Number of observations that repeat an earlier one, []; None as for ``memory``.
        given: Number of further variables that errors are conditional on.
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
    memory: Float[Array, " M"] | None = None
    repeated: Int[Array, ""] | None = None
    given: int = eqx.field(static=True, default=0)

    @property
    def error(self) -> Float[Array, " M"]:
        """Root of ``corrected``, [M]. By "probability" with errors e_k of P(class k), it is the
        root of the mean of (e_1^2 + .. + e_m^2) / 2; for m = 2 the root mean square of e_1. For
        other predictions, it is the root mean square error of P(y <= t-quantile) over all levels t
        and coordinates."""
        return jnp.sqrt(self.corrected)

    def ranking(self) -> list[str]:
        """Return the names of the models, best calibrated first; those without a value last."""
        return [self.names[i] for i in self.order()]

    def order(self) -> np.ndarray:
        """Return the indices of the models in ``names`` in the order of `ranking`, [M]."""
        worse_than = np.sum(np.asarray(self.differences.estimate) > 0, axis=1)
        valued = np.isfinite(np.asarray(self.corrected))
        return np.argsort(np.where(valued, worse_than, len(self.names)), kind="stable")

    def best(self) -> list[str]:
        """Return the names of the models that may be the best, in the order of `ranking`."""
        chosen = np.asarray(self.may_be_best)
        return [name for name in self.ranking() if chosen[self.names.index(name)]]

    def table(self) -> list[Contents]:
        """Return one dict per pair of models, in the order of `ranking`.

        Keys: ``better``, ``worse``, ``difference`` (better minus worse, never positive), ``low``,
        ``high``, ``p_value``, ``p_adjusted`` and ``shown`` (whether the difference is significant:
        ``p_adjusted`` is at most the level).
        """
        order, rows = self.order(), []
        shown = np.asarray(self.differences.p_adjusted) <= self.level  # as `judged`, in its type
        fields = [np.asarray(a) for a in self.differences]
        keys = ("difference", "low", "high", "p_value", "p_adjusted")
        for position, i in enumerate(order):
            for j in order[position + 1 :]:
                values = [float(a[i, j]) for a in fields]
                pair = {"better": self.names[i], "worse": self.names[j]}
                pair |= dict(zip(keys, values, strict=True))
                rows.append(pair | {"shown": bool(shown[i, j])})
        return rows

    def _sentences(self) -> Sentences:
        widths, share = np.asarray(self.bandwidths), np.asarray(self.left_out)
        pairs = len(self.names) * (len(self.names) - 1) // 2
        said: Sentences = [
            (
                "every model has a bandwidth of its own, so the values are norms in different "
                "spaces: only those of equal kernels can be compared [bandwidths-differ]",
                bool(np.any(widths != widths[0])),
            ),
            (
                f"the low rank leaves out up to {share.max():.1%} of the kernel: take a larger rank"
                " [low-rank]",
                bool(np.any(share > 0.01)),
            ),
            (
                f"{self.n_draws} draws cannot give p-values below {1 / (1 + self.n_draws):.2g}, "
                f"with {pairs} pairs to look at: take more [too-few-draws]",
                self.n_draws < 99 or (1 + self.n_draws) * self.level < 1 - 1e-9,
            ),
        ]
        lags = np.zeros(1) if self.covered is None else np.asarray(self.covered.correlation)
        lags = np.broadcast_to(lags.reshape(-1, lags.shape[-1]).max(axis=0), (len(self.names),))
        said = said + [of_a_chain(*one) for one in zip(self.names, lags, strict=True)]
        of_rows = {"dependent-rows": self.memory, "repeated-rows": self.repeated}
        said += sentences({code: value for code, value in of_rows.items() if value is not None})
        said += self._of_classes()
        without_value = np.flatnonzero(~np.isfinite(np.asarray(self.corrected))).tolist()
        return said + [(self._why(k), True) for k in without_value]

    def _of_classes(self) -> Sentences:
        if self.says is None:
            return []
        ends, true = (np.asarray(a) for a in self.says)
        one_class = np.all(np.isin(true, (0, 1))) and np.all(true == true[:1, :, :1])
        equal = np.all(ends[:, :, 0] == ends[:, :, 1], axis=1) & (not self.given)
        of_each = [
            (f"{name}: {text}", holds)
            for name, one in zip(self.names, equal, strict=True)
            for text, holds in sentences({"identical-predictions": one})
        ]
        return sentences({"one-class": one_class}) + of_each

    def _why(self, k: int) -> str:
        """Return the sentence that says why model k has no value."""
        says = f"not a number for {self.names[k]}, which is left out of the others' ranking: "
        if count := int(self.nonfinite_predictions[k]):
            of = "predictions" if self.says is not None else "predictions or targets"
            return says + f"{count} of its {of} are NaN or infinite [nonfinite-predictions]"
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
