"""One estimator after tuning, with its estimates on the test rows."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from jaxcal.results import Interval, plain
from jaxcal.squared_ce.estimators import Candidate, Setting
from jaxcal.squared_ce.intervals import OneStep, one_step, root
from jaxcal.typing import Contents

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
        fold_contributions: The same for each fold's function, [k, t].
        terms: One-step terms, [t], if h is a product of residuals; else None.
        test_rows: Row means of the risk of the ensemble among the test observations, [t], for the
            paired test only.
        edges: Hyperparameters at an end of their grid, by problem; values past it may lower the
            risk.
        nonfinite_validation: Number of validation observations at which the chosen function is not
            finite; the means leave them out.
        nonfinite_test: Number of test observations at which it is not finite.
        unexplained: Largest share of a kernel's trace that a low rank left out.
        level: Intervals have confidence 1 - ``level``.
        claimed: Variances that the predictions claim for the terms, [t]; None without terms.
        functions: Fitted functions of the k folds, one list per problem, if they were kept; else
            None.
        largest: Largest possible squared error: 1 for single probabilities, 2 for vectors and sums
            over classes.
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
    functions: list[list[Candidate]] | None = None
    largest: float = eqx.field(static=True, default=1.0)

    @property
    def notes(self) -> dict[str, Any]:
        """Possible problems of the estimate, by the codes of warnings."""
        squared = self.squared
        return {
            "edge-of-grid": sum(bool(names) for names in self.edges),
            "nonfinite-h": self.nonfinite_validation + self.nonfinite_test,
            "negative-error": -squared,
            "error-too-large": squared if squared > self.largest else 0,
            "low-rank": self.unexplained,
        }

    @property
    def settings(self) -> list[Setting]:
        """The chosen hyperparameters of each problem."""
        return [self.grid[i] for i in self.chosen]

    @property
    def fold_risks(self) -> Float[np.ndarray, " k"]:
        """Risk of the chosen candidates in each fold, summed over problems."""
        picked = np.take_along_axis(self.risks, self.chosen[:, None, None], axis=2)
        return picked[..., 0].sum(axis=0)

    @property
    def risk(self) -> float:
        """The mean validation risk, by which estimators are compared."""
        return float(np.mean(self.fold_risks))

    @property
    def rmse(self) -> tuple[float, float]:
        """100 times the root of the risk, as in the paper: mean over folds, standard error."""
        roots = 100 * np.sqrt(np.maximum(self.fold_risks, 0))
        k = roots.size
        return float(np.mean(roots)), float(np.std(roots, ddof=1) / k**0.5) if k > 1 else np.nan

    @property
    def squared(self) -> float:
        """The squared error: mean of h on the diagonal.

        It may be negative for kkr and debiased bins, and exceed ``largest`` if h was fitted to too
        few observations.
        """
        return _mean(self.contributions)

    @property
    def error(self) -> float:
        """The calibration error: root of ``squared``, clipped to [0, ``largest``] (eq. 21)."""
        return float(np.sqrt(np.clip(self.squared, 0, self.largest)))

    @property
    def fold_errors(self) -> Float[np.ndarray, " k"]:
        """Root of the estimate of each fold; their spread shows the effect of refitting."""
        squares = np.array([_mean(fold) for fold in self.fold_contributions])
        return np.sqrt(np.clip(squares, 0, self.largest))

    @property
    def interval(self) -> Interval:
        """Interval of the calibration error: root of the interval of ``one_step``.

        It contains the root of the one-step estimate, which counts as 0 if it is negative. NaN if h
        is not a product of residuals.
        """
        step = self.one_step
        if step is None:
            return Interval(np.nan, np.nan, self.level)  # pyright: ignore[reportArgumentType]
        raised = step.interval.high - np.minimum(step.squared, 0)
        return root(step.interval._replace(high=raised), self.largest)

    @property
    def one_step(self) -> OneStep | None:
        """The one-step estimate of the SQUARED error with its interval and a lower bound.

        Its error is of second order in that of the fit. None if h is not a product of residuals.
        """
        if self.terms is None or self.claimed is None:
            return None
        kept = np.isfinite(self.terms)
        with jax.enable_x64(True):
            values, variances = (jnp.asarray(each[kept]) for each in (self.terms, self.claimed))
            return in_numpy(one_step(values, self.level, variances))

    def to_dict(self) -> Contents:
        """Return numbers and lists, for JSON, without arrays over test observations."""
        return plain(
            {
                "settings": self.settings,
                "risk": self.risk,
                "fold_risks": self.fold_risks,
                "rmse": self.rmse,
                "squared": self.squared,
                "error": self.error,
                "interval": self.interval,
                "fold_errors": self.fold_errors,
                "one_step": self.one_step,
                "edges": self.edges,
                "nonfinite_validation": self.nonfinite_validation,
                "nonfinite_test": self.nonfinite_test,
            }
        )


def _mean(values: Numbers) -> float:
    finite = values[np.isfinite(values)]
    return float(np.mean(finite)) if finite.size else np.nan


def in_numpy(tree: PyTree) -> PyTree:
    """Return arrays as NumPy arrays, which stay float64 whatever the setting of JAX."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, tree)
