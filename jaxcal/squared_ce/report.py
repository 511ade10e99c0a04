"""Results of tuning and estimation: a `Tuned` of each estimator, and the `Report` of them."""

from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from jaxcal.results import Interval, Result, Sentences, confidence, plain
from jaxcal.squared_ce.estimators import Setting
from jaxcal.squared_ce.intervals import (
    OneStep,
    RiskDifference,
    compare_risks,
    mean_interval,
    one_step,
    root,
)
from jaxcal.squared_ce.noticed import Data
from jaxcal.squared_ce.sentences import about_data, about_estimator

Numbers = np.ndarray


class Tuned(eqx.Module):
    """One estimator after tuning, over P problems, k folds, c candidates and t test observations.

    P is m for the class-wise notion, else 1. Arrays are float64 NumPy arrays.

    Attributes:
        name: Name of the estimator.
        grid: Hyperparameters of each candidate, [c] dicts.
        risks: Risks on the validation rows, [P, k, c].
        chosen: Candidate with the lowest mean risk, [P].
        contributions: h(p, p) of the ensemble, summed over problems, [t]; their mean is the
            squared error.
        fold_contributions: The same of each fold's function, [k, t].
        terms: One-step terms, [t], where h is a product of residuals; else None.
        test_rows: Row means of the risk of the ensemble among the test observations, [t], for the
            paired test only.
        edges: Hyperparameters at an end of their grid, by problem.
        nonfinite_validation: Validation observations where the chosen function is not finite; the
            means leave them out.
        nonfinite_test: Test observations where it is not finite.
        unexplained: Largest part of a kernel's trace that a low rank left out.
        level: Intervals have confidence 1 - ``level``.
        claimed: Variances that the predictions claim for the terms, [t]; None without terms.
        functions: Fitted functions of the k folds, a list for each problem, where they were kept;
            else None.
        largest: The most that a squared error can be: 1 where a problem is one probability, 2 for
            vectors and for sums over classes.

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (60, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> bins = jaxcal.squared_ce.Bins((2, 4))
        >>> report = jaxcal.calibration_error(2, jax.nn.softmax(logits), targets, estimators=[bins])
        >>> tuned = report.best
        >>> tuned.risks.shape, tuned.contributions.shape
        ((1, 5, 2), (12,))
    """

    name: str = eqx.field(static=True)
    grid: list[Setting]
    risks: Numbers
    chosen: Numbers
    contributions: Numbers
    fold_contributions: Numbers
    terms: Numbers | None
    test_rows: Numbers
    edges: list[list[str]]
    nonfinite_validation: int
    nonfinite_test: int
    unexplained: float
    level: float = eqx.field(static=True)
    claimed: Numbers | None = None
    functions: list[Any] | None = None
    largest: float = eqx.field(static=True, default=1.0)

    @property
    def settings(self) -> list[Setting]:
        """The chosen hyperparameters of each problem."""
        return [self.grid[i] for i in self.chosen]

    @property
    def fold_risks(self) -> Float[np.ndarray, " k"]:
        """The chosen candidates' risk in each fold, summed over problems."""
        picked = np.take_along_axis(self.risks, self.chosen[:, None, None], axis=2)
        return picked[..., 0].sum(axis=0)

    @property
    def risk(self) -> float:
        """The mean validation risk, by which families are compared."""
        return float(np.mean(self.fold_risks))

    @property
    def rmse(self) -> tuple[float, float]:
        """100 times the root of the risk as tables show it: mean over folds and standard error."""
        roots = 100 * np.sqrt(np.maximum(self.fold_risks, 0))
        k = roots.size
        return float(np.mean(roots)), float(np.std(roots, ddof=1) / k**0.5) if k > 1 else np.nan

    @property
    def squared(self) -> float:
        """The signed mean of h on the diagonal: the squared error.

        Negative is possible for kkr and debiased bins, and more than ``largest`` where h was fitted
        to too few observations.
        """
        return _mean(self.contributions)

    @property
    def mean_squared(self) -> float:
        """``squared`` over the number of problems.

        The mean over classes of the class-wise notion, whose ``squared`` is the sum.
        """
        return self.squared / len(self.chosen)

    @property
    def error(self) -> float:
        """The calibration error: root of ``squared`` held between 0 and ``largest`` (eq. 21)."""
        return float(np.sqrt(np.clip(self.squared, 0, self.largest)))

    @property
    def fold_errors(self) -> Float[np.ndarray, " k"]:
        """The root of each fold's own estimate; the spread shows what refitting changes."""
        squares = np.array([_mean(fold) for fold in self.fold_contributions])
        return np.sqrt(np.clip(squares, 0, self.largest))

    @property
    def interval(self) -> Interval:
        """Interval of the calibration error, that of ``one_step`` on the scale of the error.

        NaN ends where h is no product of residuals.
        """
        if self.one_step is None:
            return Interval(np.nan, np.nan, self.level)  # pyright: ignore[reportArgumentType]
        return root(self.one_step.interval, self.largest)

    @property
    def plug_in_interval(self) -> Interval:
        """For ``error`` alone: what other test data would change, the fitted function being fixed.
        It leaves out the fit's own bias, so it does NOT cover the calibration error: nominal 95 %
        held it in 0 to 44 % of data sets (experiments/squared_ce_intervals)."""
        return root(
            in_float64(mean_interval, _finite(self.contributions), self.level), self.largest
        )

    @property
    def one_step(self) -> OneStep | None:
        """The one-step estimate with its interval on the scale of SQUARES, and a lower bound.

        Its error is of second order in that of the fit. None where h is no product of residuals.
        """
        return together([self])

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON; without arrays over test observations."""
        return plain(
            {
                "settings": self.settings,
                "risk": self.risk,
                "fold_risks": self.fold_risks,
                "rmse": self.rmse,
                "squared": self.squared,
                "error": self.error,
                "interval": self.interval,
                "plug_in_interval": self.plug_in_interval,
                "fold_errors": self.fold_errors,
                "one_step": self.one_step,
                "edges": self.edges,
                "nonfinite_validation": self.nonfinite_validation,
                "nonfinite_test": self.nonfinite_test,
            }
        )


class Report(Result):
    """All estimators after tuning, and the one of the lowest validation risk.

    The test rows had no part in that choice, so its estimate is not biased by it.

    Attributes:
        notion: Notion of calibration.
        estimators: `Tuned` estimators by name.
        selected: Name of the one with the lowest mean validation risk.
        brier: Brier score of the test rows.
        data: What is known of the data.

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (60, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> bins = jaxcal.squared_ce.Bins((2, 4))
        >>> report = jaxcal.calibration_error(2, jax.nn.softmax(logits), targets, estimators=[bins])
        >>> report.best.name == report.selected
        True
    """

    _scalar: ClassVar[str] = "brier"

    notion: str = eqx.field(static=True)
    estimators: dict[str, Tuned]
    selected: str = eqx.field(static=True)
    brier: float
    data: Data

    @property
    def best(self) -> Tuned:
        """The selected estimator: quote its estimate."""
        return self.estimators[self.selected]

    @property
    def quoted(self) -> Tuned:
        """The estimator whose interval to quote.

        The selected one; or, where its h is no product of residuals (kkr) and so has no interval,
        the one of the lowest validation risk that has.
        """
        some = [each for each in self.estimators.values() if each.terms is not None]
        if self.best.terms is not None or not some:
            return self.best
        return min(some, key=lambda each: _rank(each.risk))

    @property
    def widest(self) -> Tuned:
        """The estimator with the largest upper end.

        No fit's one-step estimate is too large on average, so this end is too low only where those
        of all fits are.
        """
        ends = {name: each.interval.high for name, each in self.estimators.items()}
        return self.estimators[max(ends, key=lambda name: np.nan_to_num(ends[name], nan=-1))]

    @property
    def interval(self) -> Interval:
        """Interval of the calibration error; NaN ends where no estimator has one.

        Lower end by ``quoted``, upper end by ``widest``. At 60 test observations a nominal 95 %
        held the error in 96 to 100 % of data sets of five populations, and in 90 % where all
        confidences lie above .8 (experiments/squared_ce_intervals).
        """
        return self.quoted.interval._replace(high=self.widest.interval.high)

    def compare(self, first: str, second: str) -> RiskDifference:
        """Test on the test observations that the first ensemble has the lower risk.

        For statements about estimators. Do not choose the estimate to quote by it: that choice is
        made on the validation rows. Its level at finite n is that of `compare_risks`.

        Args:
            first: Name of an estimator.
            second: Name of another one.

        Returns:
            What `compare_risks` returns.

        Raises:
            ValueError: There is no estimator of this name.
        """
        for name in (first, second):
            if name not in self.estimators:
                names = ", ".join(self.estimators)
                raise ValueError(f"estimators: wanted one of {names}, got {name!r}")
        rows = [self.estimators[name].test_rows for name in (first, second)]
        both = np.isfinite(rows[0]) & np.isfinite(rows[1])
        level = self.best.level
        with jax.enable_x64(True):
            difference = compare_risks(
                jnp.asarray(rows[0][both]), jnp.asarray(rows[1][both]), level
            )
            return _numpy(difference)

    def fold_difference(self, first: str, second: str) -> tuple[float, float]:
        """Mean difference of validation risks over folds and its standard error (ddof 1).

        Args:
            first: Name of an estimator.
            second: Name of another one.

        Returns:
            The difference, first minus second, and its standard error; NaN for one fold.
        """
        gaps = self.estimators[first].fold_risks - self.estimators[second].fold_risks
        k = gaps.size
        return float(np.mean(gaps)), float(np.std(gaps, ddof=1) / k**0.5) if k > 1 else np.nan

    def table(self) -> list[dict[str, Any]]:
        """One row an estimator, lowest validation risk first, for a data frame or a CSV file."""
        rows = []
        for tuned in sorted(self.estimators.values(), key=lambda each: _rank(each.risk)):
            rmse, rmse_error = tuned.rmse
            one_step = tuned.one_step
            bound = None
            if one_step is not None:
                bound = float(np.sqrt(np.clip(float(one_step.lower_bound), 0, tuned.largest)))
            rows.append(
                {
                    "estimator": tuned.name,
                    "rmse": rmse,
                    "rmse_se": rmse_error,
                    "error": tuned.error,
                    "low": float(tuned.interval.low),
                    "high": float(tuned.interval.high),
                    "squared": tuned.squared,
                    "one_step_squared": None if one_step is None else float(one_step.squared),
                    "lower_bound": bound,
                    "settings": "; ".join(sorted({_setting(s) for s in tuned.settings})),
                    "edge": ", ".join(sorted({name for names in tuned.edges for name in names})),
                }
            )
        return rows

    def _sentences(self) -> Sentences:
        each = (text for tuned in self.estimators.values() for text in about_estimator(tuned))
        return [(text, True) for text in (*about_data(self), *each)]

    def _contents(self) -> dict[str, Any]:
        each = {name: tuned.to_dict() for name, tuned in self.estimators.items()}
        return super()._contents() | {"estimators": each}

    def _lines(self) -> list[str]:
        data, best, interval = self.data, self.best, self.interval
        means = f"one step of {self.quoted.name}"
        if self.widest is not self.quoted:
            means += f", upper end of {self.widest.name}"
        if not np.isfinite(interval.low):
            ends = "none: no estimator here has one"
        else:
            ends = f"{float(interval.low):.4f} to {float(interval.high):.4f}, {means}"
        lines = [
            f"{self.notion} calibration error, tuned on {data.tuning} observations in {data.folds} "
            f"folds, estimated on {data.test}",
            f"  error {best.error:.4f}, by {best.name}, lowest validation risk",
            f"  {confidence(best.level)} interval {ends}",
            "  estimator            100 sqrt(risk)      error   at least   chosen",
        ]
        for row in self.table():
            bound = "       -" if row["lower_bound"] is None else f"{row['lower_bound']:8.4f}"
            lines.append(
                f"  {row['estimator']:18s} {row['rmse']:8.3f} ± {row['rmse_se']:5.3f}   "
                f"{row['error']:8.4f}   {bound}   {_short(row['settings'])}"
                + (f" (edge: {row['edge']})" if row["edge"] else "")
            )
        return lines


def _finite(values: Numbers) -> Numbers:
    return values[np.isfinite(values)]


def _mean(values: Numbers) -> float:
    finite = _finite(values)
    return float(np.mean(finite)) if finite.size else np.nan


def together(parts: Sequence[Tuned]) -> OneStep | None:
    """One step over the test observations of several, where all of them have terms."""
    terms, claimed = [], []
    for part in parts:
        if part.terms is None or part.claimed is None:
            return None
        kept = np.isfinite(part.terms)
        terms.append(part.terms[kept])
        claimed.append(part.claimed[kept])
    with jax.enable_x64(True):
        values, variances = (jnp.asarray(np.concatenate(each)) for each in (terms, claimed))
        return _numpy(one_step(values, parts[0].level, variances))


def in_float64(function: Any, values: Numbers, level: float) -> Any:
    """A function of JAX arrays in float64, whatever the setting around it."""
    with jax.enable_x64(True):
        return _numpy(function(jnp.asarray(values), level))


def _numpy(tree: PyTree) -> Any:
    """Arrays as NumPy arrays, which keep float64 outside of the setting; other leaves as is."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, tree)


def _rank(risk: float) -> float:
    return risk if np.isfinite(risk) else np.inf


def _setting(setting: Setting) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in setting.items())


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
