"""One figure of a posterior: verdicts, which parameter, which observations, and coverage."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcal.plots.canvas import BLACK, DARK, LIGHT, axes, legend_above, one, say
from jaxcal.plots.results import null_histogram
from jaxcal.results import confidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def posterior_figure(report: Any) -> "Figure":
    """Four panels of a `jaxcal.sbi.PosteriorReport`.

    Where the statistic of the calibration test lies among its null draws; errors of each
    parameter, with their directions; errors in thirds of the observation's feature along which
    they change most; and the coverage of highest-density regions, where it was given, else the
    statistic of the conditional test.
    """
    from matplotlib.figure import Figure

    one(report, "calibration", "report", "PosteriorReport")
    figure = Figure(figsize=(9.6, 6.6), layout="constrained")
    grid = figure.subplots(2, 2)
    null_histogram(report.calibration.test, ax=grid[0, 0])
    directions(report.conditional, ax=grid[0, 1])
    thirds(report.conditional, ax=grid[1, 0])
    if report.coverage is None:
        null_histogram(report.conditional.test, ax=grid[1, 1])
    else:
        coverage_curve(report.coverage, ax=grid[1, 1])
    for letter, ax in zip("abcd", grid.flat, strict=True):
        ax.set_title(letter, loc="left", x=-0.13, fontweight="bold", fontsize="medium")
    return figure


def directions(result: Any, *, ax: "Axes | None" = None) -> "Axes":
    """Shift and spread of every parameter with limits; black where significant at the level of the
    test (Holm), to which the limits belong.

    The shift is that of the parameter by itself where the diagnosis has it, else given the others;
    the spread is given the others. The legend says which.
    """
    ax = axes(ax)
    diagnosis, names = result.diagnosis, result.names
    shift, spread = _first(diagnosis), diagnosis.spread
    if not all(np.all(np.isfinite(np.asarray(w.estimate))) for w in (shift, spread)):
        return say(ax, "scores are not finite numbers:\nno verdict")
    for means, offset, marker, label in (
        (shift, -0.14, "o", _first_label(diagnosis)),
        (spread, 0.14, "s", SPREAD_LABEL),
    ):
        mean, low, high, p = (
            np.asarray(part) for part in (means.estimate, means.low, means.high, means.p_adjusted)
        )
        at = np.arange(len(names)) + offset
        ax.errorbar(mean, at, xerr=[mean - low, high - mean], fmt="none", ecolor=DARK, linewidth=1)
        for k in range(len(names)):
            face = BLACK if p[k] <= result.test.level else "white"
            ax.plot(mean[k], at[k], marker, color=BLACK, markerfacecolor=face, markersize=6)
        ax.plot([], [], marker, color=BLACK, markerfacecolor="white", label=label)
    ax.axvline(0, color=DARK, linewidth=0.8)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel(f"mean of moment (0 if right; filled: p <= {result.test.level:g} after Holm)")
    legend_above(ax)
    return ax


SPREAD_LABEL = "spread given the others (-: too narrow)"


def _first(diagnosis: Any) -> Any:
    """The shift; without one, the bias given the other parameters."""
    return diagnosis.bias if diagnosis.shift is None else diagnosis.shift


def _first_label(diagnosis: Any) -> str:
    given_others = " given the others" if diagnosis.shift is None else ""
    return f"shift{given_others}, sd (+: too high)"


def thirds(result: Any, *, ax: "Axes | None" = None) -> "Axes":
    """Shift and spread of the parameter whose errors change most along a feature of x."""
    ax = axes(ax)
    diagnosis = result.diagnosis
    if diagnosis.thirds is None:
        return say(ax, "too many features to look for trends:\npass summaries=")
    k, j = (int(i) for i in np.asarray(diagnosis.strongest))
    shift, spread = np.asarray(diagnosis.thirds)
    if not np.all(np.isfinite(shift + spread)):
        return say(ax, "scores are not finite numbers:\nno verdict")
    x = np.asarray(result.features)[:, j]
    edges = np.quantile(x, [0, 1 / 3, 2 / 3, 1])
    at = [f"{a:.2g} to {b:.2g}" for a, b in pairwise(edges)]
    ax.axhline(0, color=DARK, linewidth=0.8)
    where = np.arange(3)
    ax.bar(where - 0.2, shift, 0.36, color=DARK, label=_first_label(diagnosis))
    ax.bar(where + 0.2, spread, 0.36, color=LIGHT, label=SPREAD_LABEL)
    ax.set_xticks(where, at)
    trends = [diagnosis.shift_trend, diagnosis.spread_trend]
    p = min(float(np.asarray(t.p_adjusted)[k, j]) for t in trends)
    ax.set_xlabel(f"x[{j}], in thirds of the pairs (trend: p = {p:.2g} after Holm)")
    ax.set_ylabel(f"mean of moment, {result.names[k]}")
    legend_above(ax)
    return ax


def coverage_curve(coverage: Any, *, ax: "Axes | None" = None) -> "Axes":
    """Share of parameters inside highest-density regions over their level, with its band."""
    ax = axes(ax)
    levels, observed = np.asarray(coverage.levels), np.asarray(coverage.observed)
    ax.set(xlabel="level of the highest-density region", ylabel="share of parameters inside")
    if not np.all(np.isfinite(observed)):
        return say(ax, "densities are not finite numbers:\nno verdict")
    low, high = coverage.band()
    trust = confidence(coverage.level)
    ax.fill_between(levels, low, high, color=LIGHT, linewidth=0, label=f"{trust} band if right")
    ax.plot([0, 1], [0, 1], color=DARK, linestyle="--", linewidth=0.8)
    ax.plot(levels, observed, color=BLACK, label="observed")
    ax.set(xlim=(0, 1), ylim=(0, 1))
    legend_above(ax)
    return ax
