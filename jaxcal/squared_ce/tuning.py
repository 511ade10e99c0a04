"""One problem through the folds: candidates chosen by risk, and their mean at the test rows."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxcal.squared_ce.estimators import (
    AtData,
    Candidate,
    Estimator,
    Fitted,
    at_data,
    candidate,
    on_edge,
    rows_among,
)
from jaxcal.squared_ce.functions import Factors, finite_rows, on_diagonal
from jaxcal.squared_ce.intervals import claimed_parts, one_step_terms
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.squared_ce.splits import Split
from jaxcal.squared_ce.tuned import Tuned
from jaxcal.typing import Contents


def tune(
    opt: Reduced, final: Reduced, pairs: list[Split], estimators: dict[str, Estimator], keep: bool
) -> dict[str, Contents]:
    """One scalar or vector problem: everything a `Tuned` is made of, by estimator."""
    fits: dict[str, list[Fitted]] = {name: [] for name in estimators}
    seen: dict[str, list[AtData]] = {name: [] for name in estimators}
    for train, valid in pairs:
        shared: list[object] = []
        for name, estimator in estimators.items():
            fits[name].append(estimator.fit(opt.take(train), shared))
            seen[name].append(_without_residuals(at_data(fits[name][-1], opt.take(valid))))
    chosen = {name: _choose(folds) for name, folds in seen.items()}
    seen = _on_common_rows(opt, pairs, fits, seen, chosen)
    ensembles = {
        name: [candidate(fitted, chosen[name]) for fitted in fits[name]] for name in estimators
    }
    at_final = {name: _ensemble(functions, final) for name, functions in ensembles.items()}
    use = np.all([last["finite"] for last in at_final.values()], axis=0)
    parts = {}
    for name, estimator in estimators.items():
        last = at_final[name]
        risks = np.stack([_mean_rows(fold) for fold in seen[name]])
        finite = [np.asarray(fold.finite)[chosen[name]] for fold in seen[name]]
        parts[name] = {
            "grid": estimator.grid(opt),
            "risks": risks,
            "chosen": chosen[name],
            "diagonal": np.where(last["finite"], last["diagonal"], np.nan),
            "folds": last["folds"],
            "terms": last["terms"],
            "claimed": last["claimed"],
            "test_rows": np.asarray(
                _rows_among(final.residuals, last["factors"], jnp.asarray(use))
            ),
            "nonfinite_validation": int(sum(np.sum(~fold) for fold in finite)),
            "nonfinite_test": int(np.sum(~last["finite"])),
            "unexplained": max(_unexplained(fitted) for fitted in fits[name]),
            "functions": ensembles[name] if keep else None,
        }
    return parts


def _choose(folds: list[AtData]) -> int:
    """The candidate with the lowest mean risk among those that are finite most often."""
    bad = sum(np.sum(~np.asarray(fold.finite), axis=1) for fold in folds)
    risks = np.mean([_mean_rows(fold) for fold in folds], axis=0)
    risks = np.where((bad == np.min(bad)) & np.isfinite(risks), risks, np.inf)
    return int(np.argmin(risks))


def _on_common_rows(
    opt: Reduced,
    pairs: list[Split],
    fits: dict[str, list[Fitted]],
    seen: dict[str, list[AtData]],
    chosen: dict[str, int],
) -> dict[str, list[AtData]]:
    """Risks again, on the rows where the chosen functions of all estimators are finite, if some are
    not: risks on different rows cannot be compared."""
    again = {name: list(folds) for name, folds in seen.items()}
    for number, (_, valid) in enumerate(pairs):
        masks = [np.asarray(seen[name][number].finite)[chosen[name]] for name in seen]
        use = np.all(masks, axis=0)
        if use.all():
            continue
        for name, folds in fits.items():
            fresh = at_data(folds[number], opt.take(valid), jnp.asarray(use))
            again[name][number] = _without_residuals(fresh)
    return again


def _ensemble(functions: list[Candidate], final: Reduced) -> Contents:
    """The mean of the folds' functions at the test rows."""
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
    """The problems of a notion together: squared errors and risks add up."""

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
        edges=[on_edge(part["grid"], part["chosen"]) for part in parts],
        nonfinite_validation=sum(part["nonfinite_validation"] for part in parts),
        nonfinite_test=sum(part["nonfinite_test"] for part in parts),
        unexplained=max(part["unexplained"] for part in parts),
        level=level,
        functions=[part["functions"] for part in parts] if keep else None,
        largest=largest,
    )


def _mean_rows(fold: AtData) -> np.ndarray:
    """The candidates' risks [c], over the rows used; NaN where fewer than two were."""
    rows = np.asarray(fold.rows)
    used = np.isfinite(rows)
    totals = np.sum(np.where(used, rows, 0.0), axis=1)
    sizes = np.sum(used, axis=1)
    return np.where(sizes > 0, totals / np.maximum(sizes, 1), np.nan)


def _without_residuals(fold: AtData) -> AtData:
    return AtData(fold.rows, fold.diagonal, fold.finite, None)


def _unexplained(fitted: object) -> float:
    spectral = getattr(fitted, "spectral", None)
    return 0.0 if spectral is None else float(jnp.max(spectral.unexplained))
