"""Tuning of one problem: candidates are chosen by risk and averaged over folds."""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxcal.squared_ce.estimators import (
    AtData,
    Candidate,
    Estimator,
    Fitted,
    Setting,
    at_data,
    candidate,
    on_edge,
    rows_among,
)
from jaxcal.squared_ce.functions import Factors, finite_rows, on_diagonal
from jaxcal.squared_ce.intervals import claimed_parts, one_step_terms
from jaxcal.squared_ce.kernel_ridge import FittedRidge
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.squared_ce.splits import Split
from jaxcal.squared_ce.tuned import Tuned, in_numpy
from jaxcal.typing import Contents


class Fold(NamedTuple):
    """Training and validation rows, and the list that estimators of one training set share."""

    train: Reduced
    valid: Reduced
    shared: list[object]


class Search(NamedTuple):
    """Search over the candidates of one estimator on one problem.

    ``grid``: settings of all candidates. ``fits``: the candidates of each fold; ``at_valid``: their
    values at the validation rows, in NumPy. ``chosen``: the candidate of the lowest mean risk.
    """

    grid: list[Setting]
    fits: list[Fitted]
    at_valid: list[AtData]
    chosen: int

    @property
    def functions(self) -> list[Candidate]:
        """The chosen candidate of each fold."""
        return [candidate(fitted, self.chosen) for fitted in self.fits]


def search(estimator: Estimator, problem: Reduced, folds: Sequence[Fold]) -> Search:
    """Fit all candidates of an estimator on every fold, and choose the one with the lowest risk."""
    fits = [estimator.fit(fold.train, fold.shared) for fold in folds]
    pairs = zip(fits, folds, strict=True)
    at_valid = [in_numpy(at_data(fitted, fold.valid)) for fitted, fold in pairs]
    return Search(estimator.grid(problem), fits, at_valid, choose(at_valid))


def choose(folds: Sequence[AtData]) -> int:
    """Return the candidate with the lowest mean risk among those with the most finite values."""
    bad = sum(np.sum(~fold.finite, axis=1) for fold in folds)
    risks = np.mean([mean_rows(fold) for fold in folds], axis=0)
    return int(np.argmin(np.where((bad == np.min(bad)) & np.isfinite(risks), risks, np.inf)))


def mean_rows(fold: AtData) -> np.ndarray:
    """Return the candidates' risks [c] over the rows used; NaN for fewer than two."""
    used = np.isfinite(fold.rows)
    totals = np.sum(np.where(used, fold.rows, 0.0), axis=1)
    sizes = np.sum(used, axis=1)
    return np.where(sizes > 0, totals / np.maximum(sizes, 1), np.nan)


def tune(
    opt: Reduced, final: Reduced, pairs: list[Split], estimators: dict[str, Estimator], keep: bool
) -> dict[str, Contents]:
    """Tune all estimators on one problem; return the fields of a `Tuned`, by estimator."""
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
    """Recompute risks on the rows where the chosen functions of all estimators are finite, as risks
    on different rows cannot be compared."""
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
    """Return the mean of the folds' functions at the test rows."""
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
    """Join the problems of a notion: squared errors and risks add up."""

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
    """Return the largest share of a kernel's trace that a low rank leaves out."""
    return float(jnp.max(fitted.spectral.unexplained)) if isinstance(fitted, FittedRidge) else 0.0
