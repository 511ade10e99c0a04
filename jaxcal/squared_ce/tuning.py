"""One problem through the folds: candidates chosen by risk, and their mean at the test rows."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxcal.squared_ce.estimators import Candidate, Estimator, Setting, rows_among
from jaxcal.squared_ce.functions import Factors, finite_rows, on_diagonal
from jaxcal.squared_ce.intervals import claimed_parts, one_step_terms
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.squared_ce.search import Fold, Search, Seen, mean_rows, search
from jaxcal.squared_ce.splits import Split
from jaxcal.squared_ce.tuned import Tuned
from jaxcal.typing import Contents


def tune(
    opt: Reduced,
    final: Reduced,
    pairs: list[Split],
    estimators: dict[str, Estimator],
    keep: bool,
    extend: bool,
) -> dict[str, Contents]:
    """One scalar or vector problem: everything a `Tuned` is made of, by estimator."""
    folds = [Fold(opt.take(train), opt.take(valid), []) for train, valid in pairs]
    searches = {name: search(each, opt, folds, extend) for name, each in estimators.items()}
    seen = _on_common_rows(folds, searches)
    ensembles = {name: tried.functions for name, tried in searches.items()}
    at_final = {name: _ensemble(functions, final) for name, functions in ensembles.items()}
    use = np.all([last["finite"] for last in at_final.values()], axis=0)
    parts = {}
    for name, tried in searches.items():
        last = at_final[name]
        finite = [fold.finite[tried.chosen] for fold in seen[name]]
        parts[name] = {
            "grid": tried.grid,
            "risks": np.stack([mean_rows(fold) for fold in seen[name]]),
            "chosen": tried.chosen,
            "edges": tried.edges,
            "limits": {at: text for at, text in tried.limits.items() if text},
            "diagonal": np.where(last["finite"], last["diagonal"], np.nan),
            "folds": last["folds"],
            "terms": last["terms"],
            "claimed": last["claimed"],
            "test_rows": np.asarray(
                _rows_among(final.residuals, last["factors"], jnp.asarray(use))
            ),
            "nonfinite_validation": int(sum(np.sum(~fold) for fold in finite)),
            "nonfinite_test": int(np.sum(~last["finite"])),
            "unexplained": max(_unexplained(fitted) for fitted in tried.fits[0]),
            "functions": ensembles[name] if keep else None,
        }
    return parts


def _on_common_rows(folds: list[Fold], searches: dict[str, Search]) -> dict[str, list[Seen]]:
    """Risks again, on the rows where the chosen functions of all estimators are finite, if some are
    not: risks on different rows cannot be compared."""
    again = {name: list(tried.seen) for name, tried in searches.items()}
    for number, fold in enumerate(folds):
        masks = [each.seen[number].finite[each.chosen] for each in searches.values()]
        use = np.all(masks, axis=0)
        if use.all():
            continue
        for name, tried in searches.items():
            again[name][number] = tried.at(number, fold.valid, jnp.asarray(use))
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
    grid, risks, chosen = _one_grid(parts)
    if first["claimed"] is not None:
        mean, square = total("claimed")
        claimed = 4 * np.maximum(square - mean**2, 0)
    return Tuned(
        name=name,
        grid=grid,
        risks=risks,
        chosen=chosen,
        contributions=total("diagonal"),
        fold_contributions=total("folds"),
        terms=None if first["terms"] is None else total("terms"),
        claimed=claimed,
        test_rows=total("test_rows"),
        edges=[part["edges"] for part in parts],
        limits=[part["limits"] for part in parts],
        nonfinite_validation=sum(part["nonfinite_validation"] for part in parts),
        nonfinite_test=sum(part["nonfinite_test"] for part in parts),
        unexplained=max(part["unexplained"] for part in parts),
        level=level,
        functions=[part["functions"] for part in parts] if keep else None,
        largest=largest,
    )


def _one_grid(parts: list[Contents]) -> tuple[list[Setting], np.ndarray, np.ndarray]:
    """All candidates of the problems, their risks [P, k, c], NaN where a problem did not try one,
    and the chosen ones."""
    numbers: dict[tuple, int] = {}
    columns = [
        [numbers.setdefault(tuple(setting.items()), len(numbers)) for setting in part["grid"]]
        for part in parts
    ]
    risks = np.full((len(parts), len(parts[0]["risks"]), len(numbers)), np.nan)
    for row, part, places in zip(risks, parts, columns, strict=True):
        row[:, places] = part["risks"]
    chosen = [places[part["chosen"]] for part, places in zip(parts, columns, strict=True)]
    return [dict(setting) for setting in numbers], risks, np.array(chosen)


def _unexplained(fitted: object) -> float:
    spectral = getattr(fitted, "spectral", None)
    return 0.0 if spectral is None else float(jnp.max(spectral.unexplained))
