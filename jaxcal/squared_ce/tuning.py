"""One problem through the folds: candidates chosen by risk, and their mean at the test rows.

Where the chosen candidate lies at an end of its grid, the grid goes on there in its own mean ratio,
as many values at a time as it has, until the choice is no longer the last one tried or a limit is
reached past which candidates do not differ. The same numbers of candidates share compiled programs.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

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
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.squared_ce.splits import Split
from jaxcal.squared_ce.tuned import Tuned
from jaxcal.typing import Contents

MOST = 60  # values past one end
ROUNDING = 1e-9  # of a risk: what a later candidate has to gain


class Range(NamedTuple):
    """Values of a hyperparameter past which candidates do not differ, with what they are there.

    ``whole``: the values are whole numbers. An empty text: no such limit, only the last value that
    can be computed.
    """

    smallest: float
    largest: float
    at_smallest: str
    at_largest: str
    whole: bool = False


@runtime_checkable
class Extendable(Protocol):
    """An estimator whose grid can go on; one without these two methods keeps its grid.

    ``ranges(problem)``: by hyperparameter. ``with_values(name, values)``: the estimator with these
    values of the hyperparameter ``name`` instead of its own.
    """

    def ranges(self, problem: Reduced, /) -> dict[str, Range]: ...

    def with_values(self, name: str, values: tuple[float, ...], /) -> Estimator: ...


class Seen(NamedTuple):
    """Candidates at validation rows, in NumPy: ``rows`` and ``finite`` [c, n] of `AtData`."""

    rows: np.ndarray
    finite: np.ndarray


class Fold(NamedTuple):
    """Training and validation rows, and what estimators of one training set share."""

    train: Reduced
    valid: Reduced
    shared: list[object]


class Search(NamedTuple):
    """What was tried of one estimator on one problem.

    ``fits``: by grid (the first one, then each that extends it) and fold. ``grid``: settings of all
    candidates; ``place``: number of the grid and of the candidate in it. ``seen``: candidates at
    the validation rows, by fold. ``limits``: hyperparameters whose chosen value is at a limit, and
    what the estimator is there.
    """

    fits: list[list[Fitted]]
    grid: list[Setting]
    place: list[tuple[int, int]]
    seen: list[Seen]
    chosen: int
    limits: dict[str, str]

    @property
    def edges(self) -> list[str]:
        """Hyperparameters at an end past which something may differ."""
        return [name for name in on_edge(self.grid, self.chosen) if not self.limits.get(name)]

    @property
    def functions(self) -> list[Candidate]:
        """The chosen candidate of each fold."""
        part, number = self.place[self.chosen]
        return [candidate(fitted, number) for fitted in self.fits[part]]

    def at(self, fold: int, problem: Reduced, use: Bool[Array, " n"]) -> Seen:
        """Return all candidates of a fold at other data."""
        return _stacked([at_data(fits[fold], problem, use) for fits in self.fits], self.place)


def search(estimator: Estimator, problem: Reduced, folds: Sequence[Fold], extend: bool) -> Search:
    """Return all candidates of an estimator, with those past the end of its grid where the choice
    is."""
    grid = estimator.grid(problem)
    fits, at_valid = _through(estimator, folds)
    seen = [_stacked([fold], None) for fold in at_valid]
    place = [(0, number) for number in range(len(grid))]
    tried = Search([fits], grid, place, seen, choose(seen), {})
    if not extend or not isinstance(estimator, Extendable):
        return tried
    for name, bounds in estimator.ranges(problem).items():
        first = sorted({float(setting[name]) for setting in grid if name in setting})
        if len(first) < 2:
            continue
        step, count = (first[-1] / first[0]) ** (1 / (len(first) - 1)), 0
        while name in on_edge(tried.grid, tried.chosen) and count < MOST:
            at = float(tried.grid[tried.chosen][name])
            up = at == max(float(setting[name]) for setting in tried.grid)
            values = beyond(at, step, len(first), bounds, up=up)
            if not values:
                meaning = bounds.at_largest if up else bounds.at_smallest
                tried = tried._replace(limits=tried.limits | {name: meaning})
                break
            count += len(values)
            tried = _joined(tried, estimator.with_values(name, values), problem, folds)
    return tried


def beyond(
    end: float, step: float, count: int, bounds: Range, *, up: bool = True
) -> tuple[float, ...]:
    """``count`` values past an end in ratio ``step``, the last ones at the limit where it is near;
    none where the end is at the limit or past it."""
    limit = bounds.largest if up else bounds.smallest
    if (end >= limit) if up else (end <= limit):
        return ()
    values = end * step ** (np.arange(1, count + 1) * (1 if up else -1))
    if bounds.whole:
        values = np.maximum(np.ceil(values), end + 1) if up else np.minimum(values // 1, end - 1)
    low, high = sorted((end, limit))
    return tuple(np.clip(values, low, high).tolist())


def choose(folds: Sequence[Seen]) -> int:
    """Return the candidate with the lowest mean risk among those that are finite most often."""
    return int(np.argmin(_risks(folds)))


def mean_rows(fold: Seen) -> np.ndarray:
    """Return the candidates' risks [c], over the rows used; NaN where fewer than two were."""
    used = np.isfinite(fold.rows)
    totals = np.sum(np.where(used, fold.rows, 0.0), axis=1)
    sizes = np.sum(used, axis=1)
    return np.where(sizes > 0, totals / np.maximum(sizes, 1), np.nan)


def _risks(folds: Sequence[Seen]) -> np.ndarray:
    """Return mean risks; infinite for candidates that are finite less often than others."""
    bad = sum(np.sum(~fold.finite, axis=1) for fold in folds)
    risks = np.mean([mean_rows(fold) for fold in folds], axis=0)
    return np.where((bad == np.min(bad)) & np.isfinite(risks), risks, np.inf)


def _through(estimator: Estimator, folds: Sequence[Fold]) -> tuple[list[Fitted], list[AtData]]:
    fits = [estimator.fit(fold.train, fold.shared) for fold in folds]
    pairs = zip(fits, folds, strict=True)
    return fits, [at_data(fitted, fold.valid) for fitted, fold in pairs]


def _joined(tried: Search, more: Estimator, problem: Reduced, folds: Sequence[Fold]) -> Search:
    """Add the candidates of another grid; the choice moves where that lowers the risk."""
    fits, seen = _through(more, folds)
    grid, place = list(tried.grid), list(tried.place)
    for number, setting in enumerate(more.grid(problem)):
        if setting not in grid:
            grid.append(setting)
            place.append((len(tried.fits), number))
    fresh = [(0, number) for _, number in place[len(tried.grid) :]]
    whole = [
        Seen(*map(np.concatenate, zip(old, _stacked([new], fresh), strict=True)))
        for old, new in zip(tried.seen, seen, strict=True)
    ]
    risks = _risks(whole)
    best, before = int(np.argmin(risks)), risks[tried.chosen]
    gains = risks[best] < before - ROUNDING * abs(before)
    chosen = best if gains or not np.isfinite(before) else tried.chosen
    return Search([*tried.fits, fits], grid, place, whole, chosen, tried.limits)


def _stacked(parts: Sequence[AtData], place: Sequence[tuple[int, int]] | None) -> Seen:
    """Return the candidates at ``place`` of several grids; all of them by default."""
    starts = np.cumsum([0, *(np.shape(part.rows)[0] for part in parts)])
    numbers = slice(None) if place is None else [int(starts[p]) + i for p, i in place]
    rows = np.concatenate([np.asarray(part.rows) for part in parts])
    finite = np.concatenate([np.asarray(part.finite) for part in parts])
    return Seen(rows[numbers], finite[numbers])


def tune(
    opt: Reduced,
    final: Reduced,
    pairs: list[Split],
    estimators: dict[str, Estimator],
    keep: bool,
    extend: bool,
) -> dict[str, Contents]:
    """Tune all estimators on one problem; return what a `Tuned` is made of, by estimator."""
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
    """Return all candidates of the problems, their risks [P, k, c], NaN where a problem did not try
    one, and the chosen ones."""
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
