"""What is said of a posterior: the questions, what each method can see, and what is off."""

import numpy as np

from jaxcal.results import confidence
from jaxcal.sbi.diagnosis import Diagnosis
from jaxcal.sbi.ranks import CHAINS, DRAWS

QUESTIONS = {
    "calibrated": "calibrated? Among pairs that get the same posterior, are parameters draws from "
    "it? (The prior passes; it fails the other question.)",
    "conditional": "right for each x? Given x, is the parameter a draw from the posterior? (The "
    "prior fails.)",
}


SOURCES = {DRAWS: "draws of each posterior", CHAINS: "chains from each parameter"}
LABELS = {
    "moments": "moments of log densities",
    "scores": "scores",
    "candidates": "exchangeable candidates",
    "ranks": "ranks and coverage",
    "coverage": "coverage, as passed in",
    "given x": "scores given x",
}
SIGHT = {
    "moments": "moments: shift, spread, correlation, weights of modes and smooth errors; not "
    "errors whose sign changes with x, nor fine structure inside a mode",
    "scores": "scores: shifts of every mode; hardly spread or correlation, and no weights of "
    "modes that lie apart",
    "candidates": "candidates: spread, shift, squares and products, with an exact level at every "
    "n; chains see as far as they walk, and weights of modes where a prior lets them jump",
    "ranks": "ranks: each parameter by itself and the size of highest-density regions; no "
    "correlation, and nothing that cancels over x",
    "coverage": "coverage: the size of highest-density regions; hardly a shift",
    "given x": "given x: information in x that the posterior leaves out, shifts that change with "
    "x; hardly spread that changes with x",
}


def table(d: Diagnosis, names: tuple[str, ...], level: float) -> list[str]:
    """A line a parameter: shift and spread by itself, or given the others where that is all."""
    wide = max(9, *(len(name) for name in names))
    limits, first, alone = f"({confidence(level)})", d.shift is not None, told(d, len(names))
    shifts, condition = (d.shift, "") if d.shift is not None else (d.bias, " | others")
    head = f"too high by{condition} {limits}"
    ratios = _by_itself(d) if alone else _ratios(d)
    spread = d.marginal_spread if alone and d.marginal_spread is not None else d.spread
    title = f"claimed / actual sd{'' if alone else ' | others'} {limits}"
    lines = [f"{'parameter':{wide}}   {head:>28}   p (Holm)   {title:>31}   p (Holm)"]
    columns = zip(
        names,
        zip(*map(np.asarray, shifts), strict=True),
        ratios,
        np.asarray(spread.p_adjusted),
        strict=True,
    )
    for name, (high, _, _, p, least, most), ratio, q in columns:
        size = f"{high:+6.2f} sd ({least:+6.2f} to {most:+6.2f})"
        lines.append(f"{name:{wide}}   {size:>28}   {p:8.3g}   {ratio:>31}   {q:8.3g}")
    if not (first and alone):
        lines.append("(| others: given the other parameters, whose errors it shows too)")
    return lines


def told(d: Diagnosis, k: int) -> bool:
    """Whether the spread of each of k parameters by itself is known."""
    return not any(untold(d, i) for i in range(k))


def _by_itself(d: Diagnosis) -> list[str]:
    """Claimed over actual standard deviation of each parameter by itself."""
    assert d.marginal_spread is not None
    spread = d.marginal_spread
    values = np.exp(np.asarray([spread.estimate, spread.low, spread.high]))
    return [f"{ratio:.2f} ({low:.2f} to {high:.2f})" for ratio, low, high in values.T]


def _ratios(d: Diagnosis) -> list[str]:
    """Claimed over actual standard deviation of each parameter, as far as the pairs know it."""
    ratios, (lows, highs) = np.asarray(d.sd_ratio()), np.asarray(d.sd_ratio_interval())
    return [
        f"{ratio:.2f} ({low:.2f} to {high:.2f})"
        if np.isfinite(high)
        else ("not a number" if np.isnan(low) else f"above {low:.2f}")
        for ratio, low, high in zip(ratios, lows, highs, strict=True)
    ]


def untold(d: Diagnosis, k: int) -> bool:
    """Whether the spread of a parameter by itself is not to be had."""
    return d.marginal_spread is None or bool(np.isnan(np.asarray(d.marginal_spread.p_value)[k]))


def _by_themselves(
    d: Diagnosis, names: tuple[str, ...], level: float, nearer: str = ""
) -> list[str]:
    """Spreads of parameters by themselves, and correlations of pairs."""
    said: list[str] = []
    if d.marginal_spread is not None:
        spread = d.marginal_spread
        for k, name in enumerate(names):
            if float(spread.p_adjusted[k]) <= level:
                ratio, low, high = (
                    float(np.exp(part[k])) for part in (spread.estimate, spread.low, spread.high)
                )
                word = "underconfident (too wide)" if ratio > 1 else "overconfident (too narrow)"
                said.append(
                    f"{name} is {word} by itself: claimed / actual sd {ratio:.2f} ({low:.2f} to "
                    f"{high:.2f}){nearer}"
                )
    if d.correlation is not None:
        pairs, i, j = d.correlation, *np.triu_indices(len(names), 1)
        for k, (first, second) in enumerate(zip(i, j, strict=True)):
            if float(pairs.p_adjusted[k]) <= level:
                size, low, high = (float(p[k]) for p in (pairs.estimate, pairs.low, pairs.high))
                said.append(
                    f"the correlation of {names[first]} and {names[second]} is claimed too high by "
                    f"{size:+.2f} ({low:+.2f} to {high:+.2f})"
                )
    return said


def sentences(
    d: Diagnosis,
    names: tuple[str, ...],
    level: float,
    *,
    by_draws: bool = False,
    by_chains: bool = False,
) -> list[str]:
    """What is significant after Holm at the level, in words.

    ``by_draws``: moments are those of ranks among draws, of each parameter by itself.
    ``by_chains``: spreads are those of ranks among chains.
    """
    said: list[str] = []
    nearer = ", nearer to 1 than it is (ranks among chains)" if by_chains else ""
    others = "" if by_draws else " given the other parameters"
    ratio = np.asarray(d.sd_ratio())
    high, condition = (d.bias, " given the other parameters") if d.shift is None else (d.shift, "")
    for k, name in enumerate(names):
        if float(high.p_adjusted[k]) <= level:
            mean, low, most = (float(part[k]) for part in (high.estimate, high.low, high.high))
            side = "high" if mean > 0 else "low"
            low, most = (low, most) if mean > 0 else (-most, -low)
            said.append(
                f"{name} is too {side}{condition} by {abs(mean):.2f} sd ({low:.2f} to {most:.2f})"
            )
        if untold(d, k) and float(d.spread.p_adjusted[k]) <= level:
            mean = float(d.spread.estimate[k])
            word = "underconfident (too wide)" if mean > 0 else "overconfident (too narrow)"
            if mean < -20:
                more = "; a few pairs far outside their posteriors dominate"
            else:
                more = f": claimed / actual sd about {ratio[k]:.2f}" if ratio[k] > 0 else ""
            said.append(f"{name} is {word} given the other parameters{more}")
    said += _by_themselves(d, names, level, nearer)
    if d.shift_trend is None or d.spread_trend is None or d.thirds is None:
        return said
    trends = [float(np.min(np.asarray(t.p_adjusted))) for t in (d.shift_trend, d.spread_trend)]
    if min(trends) <= level and d.strongest is not None:
        k, j = (int(i) for i in np.asarray(d.strongest))
        shift, spread = np.asarray(d.thirds)
        actual = ", ".join(f"{b:+.2f}" for b in shift)
        shares = ", ".join(f"{1 - s:.2f}" for s in spread)
        said.append(
            f"errors change with x[{j}], most in {names[k]}: in its lowest, middle and highest "
            f"third too high{condition} by {actual} sd, actual / claimed variance{others} "
            f"{shares}"
        )
    return said
