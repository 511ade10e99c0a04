"""Tune estimators: choose candidates by risk, and average their functions over the folds.

The result for each estimator is a `Tuned`, with its estimates on the test rows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcal.results import Interval, plain
from jaxcal.squared_ce.functions import (
    AtData,
    Candidate,
    Estimator,
    Factors,
    Fitted,
    Setting,
    at_data,
    candidate,
    finite_rows,
    on_diagonal,
    on_edge,
    rows_among,
)
from jaxcal.squared_ce.kernel_ridge import FittedRidge
from jaxcal.squared_ce.leave_one_out import OneStep, claimed_parts, one_step, one_step_terms, root
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.squared_ce.splits import Split
from jaxcal.typing import Contents

Numbers = np.ndarray


class Tuned(eqx.Module):
    """One estimator after tuning, over P problems, k folds, c candidates and t test observations.

    P is m for the class-wise notion, else 1. The ensemble is the mean of the k folds' functions h
    with the chosen hyperparameters. Arrays are float64 NumPy arrays.

    Attributes:
        name: Name of the estimator.
        grid: Hyperparameters of each candidate, [c] dicts.
        risks: Risks on the validation rows, [P, k, c].
        chosen: Index of the candidate with the lowest mean risk, [P].
        contributions: h(p, p) of the ensemble, summed over problems, [t]; ``squared`` is the mean.
        fold_contributions: h(p, p) of each fold's function, summed over problems, [k, t].
        terms: `one_step_terms`, with mean ``one_step.squared``, [t]; None if h is no product of
            residuals.
        test_rows: `Risk.rows` of the ensemble at the test observations, [t].
        edges: Names of hyperparameters at an end of their grid, one list per problem.
        nonfinite_validation: Number of validation rows at which the chosen function is not finite.
        nonfinite_test: Number of test observations at which the ensemble is not finite.
        unexplained: Largest share of the trace of a Gram matrix that a low rank omits.
        level: Intervals have confidence 1 - ``level``.
        claimed: Variances of ``terms`` if the predictions are calibrated, [t]; None without terms.
        functions: Functions of the k folds, one list per problem, if requested; else None.
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
        """Possible problems of the estimate: a dict from the code of a warning to a number."""
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
        """The validation risk, a mean over folds, by which the best estimator is selected."""
        return float(np.mean(self.fold_risks))

    @property
    def rmse(self) -> tuple[float, float]:
        """Mean of 100 sqrt(validation risk) over folds, and its standard error (NaN for 1 fold)."""
        roots = 100 * np.sqrt(np.maximum(self.fold_risks, 0))
        k = roots.size
        return float(np.mean(roots)), float(np.std(roots, ddof=1) / k**0.5) if k > 1 else np.nan

    @property
    def squared(self) -> float:
        """The squared calibration error: the mean of h(p, p) over the test rows.

        It may be negative for kkr and debiased bins, and exceed ``largest`` if h was fitted to too
        few observations.
        """
        return _mean(self.contributions)

    @property
    def error(self) -> float:
        """The calibration error: root of ``squared`` after clipping to [0, ``largest``]."""
        return float(np.sqrt(np.clip(self.squared, 0, self.largest)))

    @property
    def fold_errors(self) -> Float[np.ndarray, " k"]:
        """Errors on the test rows by each fold's function; their spread is due to training data."""
        squares = np.array([_mean(fold) for fold in self.fold_contributions])
        return np.sqrt(np.clip(squares, 0, self.largest))

    @property
    def interval(self) -> Interval:
        """Interval of the calibration error: root of the interval of ``one_step``.

        A negative one-step estimate counts as 0 for the upper end. Both ends are NaN if h is not a
        product of residuals.
        """
        step = self.one_step
        if step is None:
            return Interval(np.nan, np.nan, self.level)  # pyright: ignore[reportArgumentType]
        raised = step.interval.high - np.minimum(step.squared, 0)
        return root(step.interval._replace(high=raised), self.largest)

    @property
    def one_step(self) -> OneStep | None:
        """The one-step estimate of the SQUARED error, its interval and lower bound.

        Its bias is of second order in the error of h. None if h is not a product of residuals.
        """
        if self.terms is None or self.claimed is None:
            return None
        finite = np.isfinite(self.terms)
        with jax.enable_x64(True):
            values, variances = (jnp.asarray(each[finite]) for each in (self.terms, self.claimed))
            return in_numpy(one_step(values, self.level, variances))

    def to_dict(self) -> Contents:
        """Return a dict of numbers and lists, for JSON, without values per test observation."""
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
    """Return the tree with arrays as NumPy arrays, which stay float64 if JAX has float32 only."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, tree)


class Fold(NamedTuple):
    """Training and validation rows, and the list ``shared`` for `Estimator.fit`."""

    train: Reduced
    valid: Reduced
    shared: list[object]


class Search(NamedTuple):
    """Search over the candidates of one estimator on one problem.

    ``grid``: hyperparameters of each candidate. ``fits``: the fitted estimator of each fold.
    ``at_valid``: values at each fold's validation rows, in NumPy. ``chosen``: index from `choose`.
    """

    grid: list[Setting]
    fits: list[Fitted]
    at_valid: list[AtData]
    chosen: int

    @property
    def functions(self) -> list[Candidate]:
        """The chosen candidate as a function, one per fold."""
        return [candidate(fitted, self.chosen) for fitted in self.fits]


def search(estimator: Estimator, problem: Reduced, folds: Sequence[Fold]) -> Search:
    """Return the `Search`: fit all candidates on every fold, and choose the one of lowest risk."""
    fits = [estimator.fit(fold.train, fold.shared) for fold in folds]
    pairs = zip(fits, folds, strict=True)
    at_valid = [in_numpy(at_data(fitted, fold.valid)) for fitted, fold in pairs]
    return Search(estimator.grid(problem), fits, at_valid, choose(at_valid))


def choose(folds: Sequence[AtData]) -> int:
    """Return the index of the candidate with fewest non-finite rows; the least risk breaks ties."""
    bad = sum(np.sum(~fold.finite, axis=1) for fold in folds)
    risks = np.mean([mean_rows(fold) for fold in folds], axis=0)
    return int(np.argmin(np.where((bad == np.min(bad)) & np.isfinite(risks), risks, np.inf)))


def mean_rows(fold: AtData) -> np.ndarray:
    """Return the risk of each candidate, [c]: the mean of its finite ``rows``, NaN if none."""
    used = np.isfinite(fold.rows)
    totals = np.sum(np.where(used, fold.rows, 0.0), axis=1)
    sizes = np.sum(used, axis=1)
    return np.where(sizes > 0, totals / np.maximum(sizes, 1), np.nan)


def tune(
    opt: Reduced, final: Reduced, pairs: list[Split], estimators: dict[str, Estimator], keep: bool
) -> dict[str, Contents]:
    """Tune all estimators on ``opt`` by ``pairs`` of training and validation rows, and evaluate
    them on the test rows ``final``. Return one dict per estimator, by name, for `join`."""
    folds = [Fold(opt.take(train), opt.take(valid), []) for train, valid in pairs]
    searches = {name: search(each, opt, folds) for name, each in estimators.items()}
    at_valid = _on_common_rows(folds, searches)
    ensembles = {name: tried.functions for name, tried in searches.items()}
    at_final = {name: _ensemble(functions, final) for name, functions in ensembles.items()}
    use = np.all([last["finite"] for last in at_final.values()], axis=0)
    parts = {}
    for name, tried in searches.items():
        last = at_final[name]
        finite = [fold.finite[tried.chosen] for fold in at_valid[name]]
        parts[name] = {
            "grid": tried.grid,
            "risks": np.stack([mean_rows(fold) for fold in at_valid[name]]),
            "chosen": tried.chosen,
            "edges": on_edge(tried.grid, tried.chosen),
            "diagonal": np.where(last["finite"], last["diagonal"], np.nan),
            "folds": last["folds"],
            "terms": last["terms"],
            "claimed": last["claimed"],
            "test_rows": np.asarray(
                _rows_among(final.residuals, last["factors"], jnp.asarray(use))
            ),
            "nonfinite_validation": int(sum(np.sum(~fold) for fold in finite)),
            "nonfinite_test": int(np.sum(~last["finite"])),
            "unexplained": max(_unexplained(fitted) for fitted in tried.fits),
            "functions": ensembles[name] if keep else None,
        }
    return parts


def _on_common_rows(folds: list[Fold], searches: dict[str, Search]) -> dict[str, list[AtData]]:
    """Return the values of each estimator at the folds' validation rows. Risks are over the rows at
    which all chosen functions are finite, so that they are comparable."""
    again = {name: list(tried.at_valid) for name, tried in searches.items()}
    for number, fold in enumerate(folds):
        masks = [each.at_valid[number].finite[each.chosen] for each in searches.values()]
        use = np.all(masks, axis=0)
        if use.all():
            continue
        for name, tried in searches.items():
            again[name][number] = in_numpy(
                at_data(tried.fits[number], fold.valid, jnp.asarray(use))
            )
    return again


def _ensemble(functions: list[Candidate], final: Reduced) -> Contents:
    """Return a dict: "folds" [k, t] is h(p, p) of each of k ``functions`` at t test rows. The other
    entries are of the mean function: "diagonal" [t], h(p, p); "finite" [t]; "factors"; "terms" [t]
    (`one_step_terms`), "claimed" [2, t] (`claimed_parts`), both None if h is not r(p) . r(p')."""
    parts = [_factors(function, final.inputs) for function in functions]
    folds = np.stack([np.asarray(on_diagonal(part)) for part in parts])
    finite = np.all([np.asarray(finite_rows(part)) for part in parts], axis=0)
    terms = claimed = None
    if functions[0].fitted.is_product:
        mean = jnp.mean(jnp.stack([part.left for part in parts]), axis=0)
        terms = np.where(finite, np.asarray(one_step_terms(final.residuals, mean)), np.nan)
        claimed = np.stack(claimed_parts(final.inputs, mean))
    left = jnp.concatenate([part.left for part in parts], axis=1) / len(parts)
    right = jnp.concatenate([part.right for part in parts], axis=1)
    return {
        "folds": folds,
        "diagonal": folds.mean(axis=0),
        "finite": finite,
        "terms": terms,
        "claimed": claimed,
        "factors": Factors(left, right),
    }


@eqx.filter_jit
def _factors(function: Candidate, inputs: Array) -> Factors:
    return function.factors(inputs)


_rows_among = eqx.filter_jit(rows_among)


def join(name: str, parts: list[Contents], level: float, keep: bool, largest: float) -> Tuned:
    """Return the `Tuned` of one estimator; ``parts`` are its dicts from `tune`, one per problem."""

    def total(name: str) -> np.ndarray:
        return np.sum([part[name] for part in parts], axis=0)

    first, claimed = parts[0], None
    if first["claimed"] is not None:
        mean, square = total("claimed")
        claimed = 4 * np.maximum(square - mean**2, 0)
    return Tuned(
        name=name,
        grid=first["grid"],
        risks=np.stack([part["risks"] for part in parts]),
        chosen=np.array([part["chosen"] for part in parts]),
        contributions=total("diagonal"),
        fold_contributions=total("folds"),
        terms=None if first["terms"] is None else total("terms"),
        claimed=claimed,
        test_rows=total("test_rows"),
        edges=[part["edges"] for part in parts],
        nonfinite_validation=sum(part["nonfinite_validation"] for part in parts),
        nonfinite_test=sum(part["nonfinite_test"] for part in parts),
        unexplained=max(part["unexplained"] for part in parts),
        level=level,
        functions=[part["functions"] for part in parts] if keep else None,
        largest=largest,
    )


def _unexplained(fitted: Fitted) -> float:
    """Return the largest share of a Gram matrix's trace that a low rank omits; 0 if exact."""
    return float(jnp.max(fitted.spectral.unexplained)) if isinstance(fitted, FittedRidge) else 0.0
