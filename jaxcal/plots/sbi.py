"""Draw a posterior's check: ranks, coverage, errors of parameters, and errors along x."""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import PyTree

from jaxcal.plots.canvas import BLACK, DARK, LIGHT, MOST, axes, errors, legend_above, one, say
from jaxcal.plots.reliability import coverage
from jaxcal.plots.results import contributions, null_histogram
from jaxcal.plots.where import where as along_input
from jaxcal.results import confidence, tells
from jaxcal.typing import Axes, Figure

STYLES = ("-", "--", ":", "-.")


def posterior_figure(report: Any) -> "Figure":
    """Return the figure of a `PosteriorReport`: ranks, coverage, errors, and errors along x."""
    from matplotlib.figure import Figure

    one(report, "p_value", "report", "PosteriorReport")
    if not hasattr(report, "conditional"):
        raise TypeError("report: wanted a PosteriorReport of jaxcal")
    figure = Figure(figsize=(10.4, 7.2), layout="constrained")
    grid = figure.subplots(2, 2)
    covered = report.coverage or (report.ranks and coverage_of_ranks(report.ranks))
    if report.ranks is None:
        null_histogram(report.calibration.test, ax=grid[0, 0])
    else:
        rank_bands(report.ranks, ax=grid[0, 0])
    if covered is None:
        null_histogram(report.conditional.test, ax=grid[0, 1])
    else:
        coverage(covered, ax=grid[0, 1])
    directions(report, ax=grid[1, 0])
    where(report, ax=grid[1, 1])
    for letter, ax in zip("abcd", grid.flat, strict=True):
        ax.set_title(letter, loc="left", x=-0.13, fontweight="bold", fontsize="medium")
    return figure


def rank_bands(ranks: Any, *, ax: "Axes | None" = None) -> "Axes":
    """Draw F(u) - u of each parameter with a band, with F(u) the share of ranks that are <= u.

    ``ranks`` is a `PosteriorRanks`. If a posterior is too high, the curve is an arch above 0. If it
    is too narrow, the curve is above 0 on the left and below on the right. The band is simultaneous
    and curves outside are black. The `MOST` parameters with the smallest p-values are drawn.
    """
    ax = axes(ax)
    values, names = np.asarray(ranks.ranks), ranks.statistics
    ax.set(xlabel=f"rank among {ranks.size} {ranks.source}", ylabel="share below less rank")
    if not np.all(np.isfinite(values)):
        return say(ax, "ranks are not numbers:\nno verdict")
    (n, r), level = values.shape, ranks.level
    # the inequality of Massart for each of the r curves, as in their p-values
    half = np.sqrt(np.log(2 * r / level) / (2 * n))
    ax.axhspan(-half, half, color=LIGHT, alpha=0.5, linewidth=0, label=f"{confidence(level)} band")
    ax.axhline(0, color=DARK, linewidth=0.8)
    p = np.asarray(ranks.p_values)
    shown = np.sort(np.argsort(p[1:], kind="stable")[:MOST]) + 1
    for place, k in enumerate(shown):
        ordered = np.sort(values[:, k])
        at = np.concatenate([[0.0], ordered, [1.0]])
        gap = np.concatenate([[0.0], np.arange(1, n + 1) / n - ordered, [0.0]])
        out = r * p[k] <= level
        ax.plot(
            at,
            gap,
            drawstyle="steps-post",
            linestyle=STYLES[place % len(STYLES)],
            color=BLACK if out else DARK,
            linewidth=1.6 if out else 0.9,
            label=names[k],
        )
    ax.set_xlim(0, 1)
    legend_above(ax, columns=4)
    return ax


def evidence(monitored: Any, ax: "Axes | None" = None) -> "Axes":
    """Draw log10 of the evidence in a `Monitored` after each pair, and the limit for rejection."""
    ax = axes(ax)
    logs = np.asarray(monitored.log_evidence) / np.log(10)
    ax.plot(np.arange(1, len(logs) + 1), logs, color=BLACK, linewidth=1.4)
    bound = -np.log10(monitored.level)
    ax.axhline(bound, color=DARK, linestyle="--", linewidth=0.9, label=f"1 / {monitored.level:g}")
    ax.axhline(0, color=LIGHT, linewidth=0.8)
    ax.set(xlabel="pairs", ylabel="log10 of the evidence against the posterior")
    legend_above(ax)
    return ax


def coverage_of_ranks(ranks: Any) -> PyTree:
    """Return the `Coverage` from density ranks of a `PosteriorRanks`; None if there are none."""
    import jax.numpy as jnp

    from jaxcal.coverage import of_counts

    if ranks.statistics[0] != "density":
        return None
    u = np.asarray(ranks.ranks)[:, 0]
    unknown = ~np.isfinite(u)  # their shares are NaN
    counts = jnp.asarray(np.histogram(np.where(unknown, 0, 1 - u), 200, (0, 1))[0])
    shown = of_counts(counts, jnp.asarray(np.sum(unknown)))
    return replace(shown, p_uniform=ranks.p_values[0], level=ranks.level)


def directions(report: Any, *, ax: "Axes | None" = None) -> "Axes":
    """Draw shift and spread of each parameter and correlation of each pair, with limits.

    ``report`` is a `PosteriorReport`. Spreads are logarithms to base 2 of predicted / actual
    deviation. Markers are filled if Holm-adjusted p-values are at most the level. For posteriors
    that are not Gaussian and have no ranks, a text replaces the plot.
    """
    ax = axes(ax)
    diagnosis, names = report.diagnosis(), list(report.names)
    if not np.all(np.isfinite(np.asarray(diagnosis.bias.estimate))):
        return say(ax, "scores are not finite numbers:\nno verdict")
    if not tells(diagnosis.shift):
        return say(ax, "scores identify the wrong parameter\nof Gaussian posteriors only")
    spread, correlation = diagnosis.marginal_spread, diagnosis.correlation
    return errors(ax, diagnosis.shift, spread, correlation, names, report.level)


def where(report: Any, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the strongest error of one parameter along a feature of x, with limits.

    The strongest error is the trend with the smallest p-value. If that is above the level, the
    shift or spread with the smallest p-value is drawn. Without ranks, contributions are drawn.
    """
    diagnosis, result = report.diagnosis(), report.conditional
    x = np.asarray(result.features)
    k, j = (0, 0) if diagnosis.strongest is None else map(int, np.asarray(diagnosis.strongest))
    trends = {"shift": diagnosis.shift_trend, "spread": diagnosis.spread_trend}
    if diagnosis.strongest is None:
        along = {}
    else:
        p = {name: np.nan_to_num(np.asarray(of.p_adjusted), nan=1.0) for name, of in trends.items()}
        along = {name: float(at[k, j]) for name, at in p.items()}
    if not along or result.test.ranks is None or not tells(diagnosis.shift):
        changes = f" (errors change along it: p = {min(along.values()):.2g})" if along else ""
        ax = contributions(result.test, x[:, j], label=f"x[{j}]{changes}", ax=ax)
        ax.set_ylabel("contribution to the test given x")
        return ax
    effect = min(along, key=along.__getitem__)
    if along[effect] > report.level:
        alone = {"shift": diagnosis.shift, "spread": diagnosis.marginal_spread}
        p = {name: np.nan_to_num(np.asarray(of.p_adjusted), nan=1.0) for name, of in alone.items()}
        effect = min(p, key=lambda name: np.min(p[name]))
        k = int(np.argmin(p[effect]))
    changes = float(np.asarray(trends[effect].p_adjusted)[k, j])
    label = f"x[{j}]   (a change of the {effect} along it: p = {changes:.2g})"
    ax = along_input(result.test, x[:, j], coordinate=k, effect=effect, label=label, ax=ax)
    units = {"shift": "too high, claimed sd", "spread": "log(claimed / actual sd)"}
    ax.set_ylabel(f"{report.names[k]}: {units[effect]}")
    return ax
