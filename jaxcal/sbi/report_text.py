"""Compose the text of posterior reports: questions, what each test detects, and errors."""

import numpy as np
from jaxtyping import Array

from jaxcal.results import Means, confidence, tells
from jaxcal.results.parts import changes_correlations
from jaxcal.sbi.diagnosis import Diagnosis

QUESTIONS = {
    "calibrated": "Is it calibrated? Among pairs that get the same posterior, the parameters "
    "should be draws from it. (The prior is calibrated; it fails the second question.)",
    "conditional": "Is it right for each x? Given x, the parameter should be a draw from the "
    "posterior. (The prior is not.)",
}

DRAWS, CHAINS = "draws", "chains"
SOURCES = {DRAWS: "draws of each posterior", CHAINS: "chains from each parameter"}
LABELS = {
    "moments": "moments of log densities",
    "scores": "scores",
    "candidates": "exchangeable candidates",
    "ranks": "ranks and coverage",
    "coverage": "coverage, as passed in",
    "given x": "errors along x",
    "witnesses": "each kind of error",
    "discrete": "discrete parameters",
}
GIVEN_X = ("given x", "witnesses", "discrete")  # tests given x; all others test calibration
SIGHT = {
    "moments": "moments detect errors of shift, spread, correlation, tails and mode weights, also "
    "errors that grow with the centre or width of the posterior; they miss details within a mode",
    "scores": "scores detect a shift of all modes; they hardly detect errors of spread or "
    "correlation, and miss the weights of well-separated modes",
    "candidates": "candidates detect errors of spread, shift, squares and products, with an exact "
    "level at every n; chains detect what they reach, mode weights only if a prior lets them jump",
    "ranks": "ranks detect errors of single parameters and of the size of highest-density regions; "
    "they miss correlations and errors that cancel over x",
    "coverage": "coverage detects a wrong size of highest-density regions, but hardly any shift",
    "given x": "the test along x detects information in x that the posterior ignores, and shifts "
    "and spreads that grow along a component of x; from scores alone it hardly detects spreads",
    "witnesses": "the test of each kind of error detects the errors in the table above",
    "discrete": "the tests of discrete parameters detect wrong probabilities given x and the other "
    "parameters; they hardly detect errors that cancel along both",
}


def table(d: Diagnosis, names: tuple[str, ...], level: float) -> list[str]:
    """Return a header and a line per parameter, with estimates of marginal shift and spread. If
    their limits are not finite, lines hold p-values of ``d.bias`` and ``d.spread`` instead."""
    wide = max(9, *(len(name) for name in names))
    if not (tells(d.shift) and tells(d.marginal_spread)):
        lines = [f"{'parameter':{wide}}   given the others: mean, p (Holm)   spread, p (Holm)"]
        each = (np.asarray(means.p_adjusted) for means in (d.bias, d.spread))
        rows = zip(names, *each, strict=True)
        lines += [f"{name:{wide}}   {p:32.3g}   {q:16.3g}" for name, p, q in rows]
        return [*lines, "(p is also small if a parameter on which it depends is wrong)"]
    limits = f"({confidence(level)})"
    head = f"too high by {limits}"
    title = f"claimed / actual sd {limits}"
    lines = [f"{'parameter':{wide}}   {head:>28}   p (Holm)   {title:>31}   p (Holm)"]
    columns = zip(
        names,
        zip(*map(np.asarray, d.shift), strict=True),
        _by_itself(d.marginal_spread),
        np.asarray(d.marginal_spread.p_adjusted),
        strict=True,
    )
    for name, (high, _, _, p, least, most), ratio, q in columns:
        size = f"{high:+6.2f} sd ({least:+6.2f} to {most:+6.2f})"
        lines.append(f"{name:{wide}}   {size:>28}   {p:8.3g}   {ratio:>31}   {q:8.3g}")
    return lines


def _by_itself(spread: Means) -> list[str]:
    """Return texts "ratio (low to high)": posterior / actual standard deviation per parameter."""
    values = np.exp(np.asarray([spread.estimate, spread.low, spread.high]))
    return [f"{ratio:.2f} ({low:.2f} to {high:.2f})" for ratio, low, high in values.T]


def least_p_value(d: Diagnosis) -> float:
    """Return the combined p-value of all errors that `sentences` reports, NaN if all are NaN: the
    smallest Holm-adjusted p-value of shifts, spreads, correlations, tails and trends, times the
    number of these kinds that could be computed (Bonferroni)."""
    by_itself = [d.shift, d.marginal_spread, d.correlation, d.tails]
    named = by_itself if tells(d.shift) else [d.bias, d.spread]
    kinds = [np.asarray(means.p_adjusted) for means in named if means is not None]
    if d.shift_trend is not None and d.spread_trend is not None:
        trends = d.shift_trend.p_adjusted, d.spread_trend.p_adjusted
        kinds.append(np.concatenate([np.ravel(p) for p in trends]))
    least = [np.nanmin(p) for p in kinds if not np.all(np.isnan(p))]
    return min(1.0, len(least) * float(min(least))) if least else np.nan


def _by_themselves(
    d: Diagnosis, names: tuple[str, ...], level: float, *, by_ranks: bool
) -> list[str]:
    """Return sentences on significant errors of marginal spread, correlation and tails. A parameter
    with a significant error of shift or spread gets none on tails. With ``by_ranks``, it also gets
    none on correlations if this error is large (`changes_correlations`)."""
    said: list[str] = []
    wrong, far = np.zeros((2, len(names)), bool)
    if d.shift is not None and d.marginal_spread is not None:
        both = (d.shift, d.marginal_spread)
        named = np.stack([np.asarray(means.p_adjusted) <= level for means in both])
        sizes = np.concatenate([np.asarray(means.estimate) for means in both])
        large = changes_correlations(sizes[:, None]).reshape(2, -1)
        wrong, far = np.any(named, axis=0), np.any(named & large, axis=0)
    if d.marginal_spread is not None:
        ratios = _by_itself(d.marginal_spread)
        for k, name in enumerate(names):
            if float(d.marginal_spread.p_adjusted[k]) <= level:
                wide = float(d.marginal_spread.estimate[k]) > 0
                word = "underconfident (too wide)" if wide else "overconfident (too narrow)"
                said.append(f"{name} is {word} by itself: claimed / actual sd {ratios[k]}")
    if d.correlation is not None:
        pairs, i, j = d.correlation, *np.triu_indices(len(names), 1)
        for k, (first, second) in enumerate(zip(i, j, strict=True)):
            changed = by_ranks and (far[first] or far[second])
            if float(pairs.p_adjusted[k]) <= level and not changed:
                of = f"the correlation of {names[first]} and {names[second]} is claimed"
                said.append(f"{of} {_too(pairs, k)}")
    if d.tails is not None:
        sizes = np.exp([d.tails.estimate, d.tails.low, d.tails.high]).T
        told = (np.asarray(d.tails.p_adjusted) <= level) & ~wrong
        for name, tails, (size, low, high) in zip(names, told, sizes, strict=True):
            if tails:
                said.append(
                    f"the tails of {name} are claimed too {'heavy' if size > 1 else 'light'}: its "
                    f"mean |error| / sd is {size:.2f} ({low:.2f} to {high:.2f}) times that claimed"
                )
    return said


def _too(means: Means, k: int, unit: str = "") -> str:
    """Return the text "too high by size unit (low to high)", or "too low by ..", for mean k."""
    mean, low, high = (float(part[k]) for part in (means.estimate, means.low, means.high))
    side, low, high = ("high", low, high) if mean > 0 else ("low", -high, -low)
    return f"too {side} by {abs(mean):.2f}{unit} ({low:.2f} to {high:.2f})"


def sentences(
    d: Diagnosis, names: tuple[str, ...], level: float, *, by_ranks: bool = False
) -> list[str]:
    """Return sentences on errors with Holm-adjusted p-values of at most ``level``. They name the
    parameters if limits of ``d.shift`` are finite. Otherwise (scores of posteriors that are not
    Gaussian) `_unnamed` makes the sentences. ``by_ranks``: whether ``d`` is from ranks."""
    if not tells(d.shift):
        return _unnamed(d, level)
    said: list[str] = []
    for k, name in enumerate(names):
        if float(d.shift.p_adjusted[k]) <= level:
            said.append(f"{name} is {_too(d.shift, k, ' sd')}")
    said += _by_themselves(d, names, level, by_ranks=by_ranks)
    if _changes(d, level) and d.thirds is not None:
        k, j = map(int, np.asarray(d.strongest))
        filled = ~np.isnan(np.asarray(d.thirds[0]))  # at least two; equal values are in one third
        shift, spread = np.asarray(d.thirds)[:, filled]
        *which, last = np.asarray(["lowest", "middle", "highest"])[filled]
        actual = ", ".join(f"{b:+.2f}" for b in shift)
        shares = ", ".join(f"{1 - s:.2f}" for s in spread)
        others = "" if by_ranks else " given the other parameters"
        said.append(
            f"errors change with x[{j}], most in {names[k]}: in its {', '.join(which)} and {last} "
            f"third claimed minus actual mean {actual} sd, actual / claimed variance{others} "
            f"{shares}"
        )
    return said


def exchanges(ratios: Array | None, names: tuple[str, ...], level: float) -> list[str]:
    """Return [sentence] on the largest of ``ratios`` (`exchange_evidence`); [] if this is below
    log(d (d - 1) / (2 level)). A right posterior gives [] with probability >= 1 - level."""
    if ratios is None:
        return []
    logs, d = np.asarray(ratios, float), len(names)
    j, k = np.unravel_index(int(np.argmax(np.nan_to_num(logs, nan=-np.inf))), logs.shape)
    if not logs[j, k] >= np.log(d * (d - 1) / 2 / level):
        return []
    return [
        f"{names[j]} and {names[k]} may be swapped: with the two exchanged, the log density of all "
        f"parameters is higher by {logs[j, k]:.0f} (of a right posterior, it is lower), and no "
        f"error is left"
    ]


def excluded(count: int, n: int) -> list[str]:
    """Return a sentence if ``count``, the number of pairs with almost no posterior density at
    theta, is at least max(2, n / 10); else []. A right posterior has P(count > 0) = 1e-6."""
    if count < max(2, n / 10):
        return []
    return [
        f"{count} of {n} parameters lie where the posterior has almost no density: a mode may be "
        f"missing there, or it is far too narrow"
    ]


def _unnamed(d: Diagnosis, level: float) -> list[str]:
    """Return up to two sentences, which name no parameter: moments of the scores are wrong; errors
    change with x[j]. For scores of posteriors that are not Gaussian."""
    said: list[str] = []
    least = min(float(np.min(np.asarray(means.p_adjusted))) for means in (d.bias, d.spread))
    if least <= level:
        said.append(
            f"moments of the scores are wrong (p = {least:.2g}); scores identify the parameter "
            f"only if posteriors are Gaussian, draws of each posterior (draws=) always do"
        )
    if _changes(d, level):
        said.append(f"errors change with x[{int(np.asarray(d.strongest)[1])}]")
    return said


def _changes(d: Diagnosis, level: float) -> bool:
    """Return whether errors change significantly along a feature of x."""
    if d.shift_trend is None or d.spread_trend is None or d.strongest is None:
        return False
    trends = (d.shift_trend, d.spread_trend)
    return min(float(np.min(np.asarray(trend.p_adjusted))) for trend in trends) <= level
