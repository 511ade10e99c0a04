"""The candidates of one estimator through the folds, and past the ends of its grid.

Where the chosen candidate lies at an end, the grid goes on there in its own mean ratio, as many
values at a time as it has, until the choice is no longer the last one tried or a limit is reached
past which candidates do not differ. The same numbers of candidates share compiled programs.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

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
)
from jaxcal.squared_ce.reductions import Reduced

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
        """All candidates of a fold at other data."""
        return _stacked([at_data(fits[fold], problem, use) for fits in self.fits], self.place)


def search(estimator: Estimator, problem: Reduced, folds: Sequence[Fold], extend: bool) -> Search:
    """All candidates of an estimator, with those past the end of its grid where the choice is."""
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
    """The candidate with the lowest mean risk among those that are finite most often."""
    return int(np.argmin(_risks(folds)))


def mean_rows(fold: Seen) -> np.ndarray:
    """The candidates' risks [c], over the rows used; NaN where fewer than two were."""
    used = np.isfinite(fold.rows)
    totals = np.sum(np.where(used, fold.rows, 0.0), axis=1)
    sizes = np.sum(used, axis=1)
    return np.where(sizes > 0, totals / np.maximum(sizes, 1), np.nan)


def _risks(folds: Sequence[Seen]) -> np.ndarray:
    """Mean risks; infinite for candidates that are finite less often than others."""
    bad = sum(np.sum(~fold.finite, axis=1) for fold in folds)
    risks = np.mean([mean_rows(fold) for fold in folds], axis=0)
    return np.where((bad == np.min(bad)) & np.isfinite(risks), risks, np.inf)


def _through(estimator: Estimator, folds: Sequence[Fold]) -> tuple[list[Fitted], list[AtData]]:
    fits = [estimator.fit(fold.train, fold.shared) for fold in folds]
    pairs = zip(fits, folds, strict=True)
    return fits, [at_data(fitted, fold.valid) for fitted, fold in pairs]


def _joined(tried: Search, more: Estimator, problem: Reduced, folds: Sequence[Fold]) -> Search:
    """With the candidates of another grid; the choice moves where that lowers the risk."""
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
    """The candidates at ``place`` of several grids; all of them by default."""
    starts = np.cumsum([0, *(np.shape(part.rows)[0] for part in parts)])
    numbers = slice(None) if place is None else [int(starts[p]) + i for p, i in place]
    rows = np.concatenate([np.asarray(part.rows) for part in parts])
    finite = np.concatenate([np.asarray(part.finite) for part in parts])
    return Seen(rows[numbers], finite[numbers])
