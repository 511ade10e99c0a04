"""One figure of a posterior: ranks, coverage, which parameter is off and how, and where in x."""

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcal.plots.canvas import BLACK, DARK, LIGHT, axes, legend_above, one, say
from jaxcal.plots.results import contributions, null_histogram
from jaxcal.results import confidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = ("-", "--", ":", "-.")
MOST = 8  # parameters, or pairs, that one panel can name


def posterior_figure(report: Any) -> "Figure":
    """Draw the four panels of a posterior's check.

    Ranks of each parameter against the band that holds them where the posterior is right; coverage
    of highest-density regions; shift, spread and correlation with limits; and the contributions of
    the pairs to the test given x, over the feature of x along which errors change most. Without
    ranks the null draws of the two tests stand in the place of the first two.

    Args:
        report: A `jaxcal.sbi.PosteriorReport`.

    Returns:
        A matplotlib figure.

    Raises:
        TypeError: for anything that is no report.
        ValueError: for a batch of reports.

    Example:
        >>> import jax
        >>> from jaxcal import plots, sbi
        >>> thetas = jax.random.normal(jax.random.key(0), (60, 1))
        >>> def log_prob(theta, x):
        ...     return -((theta - x) ** 2).sum()
        >>> report = sbi.check_posterior(1, log_prob, thetas, thetas, chains=None)
        >>> [ax.get_title(loc="left") for ax in plots.posterior_figure(report).axes]
        ['a', 'b', 'c', 'd']
    """
    from matplotlib.figure import Figure

    one(report, "p_value", "report", "PosteriorReport")
    if not hasattr(report, "conditional"):
        raise TypeError("report: wanted a PosteriorReport of jaxcal")
    figure = Figure(figsize=(10.4, 7.2), layout="constrained")
    grid = figure.subplots(2, 2)
    covered = report.coverage or (report.ranks and coverage_of_ranks(report.ranks, report.level))
    if report.ranks is None:
        null_histogram(report.calibration.test, ax=grid[0, 0])
    else:
        rank_bands(report.ranks, level=report.level, ax=grid[0, 0])
    if covered is None:
        null_histogram(report.conditional.test, ax=grid[0, 1])
    else:
        coverage_curve(covered, ax=grid[0, 1])
    directions(report, ax=grid[1, 0])
    where(report, ax=grid[1, 1])
    for letter, ax in zip("abcd", grid.flat, strict=True):
        ax.set_title(letter, loc="left", x=-0.13, fontweight="bold", fontsize="medium")
    return figure


def rank_bands(ranks: Any, *, level: float, ax: "Axes | None" = None) -> "Axes":
    """Share of parameters below each rank less the rank, with the band of all curves together.

    A posterior that lies too high gives an arch above 0, one that is too narrow falls below it
    on the right after rising on the left. Black: outside of the band.
    """
    ax = axes(ax)
    values, names = np.asarray(ranks.ranks), ranks.statistics
    ax.set(xlabel=f"rank among {ranks.size} {ranks.source}", ylabel="share below less rank")
    if not np.all(np.isfinite(values)):
        return say(ax, "ranks are not numbers:\nno verdict")
    n, r = values.shape
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


def coverage_of_ranks(ranks: Any, level: float) -> Any:
    """The coverage of highest-density regions from ranks of the density; None without densities."""
    import jax.numpy as jnp

    from jaxcal.coverage import Coverage, massart

    if ranks.statistics[0] != "density":
        return None
    u = jnp.asarray(ranks.ranks)[:, 0]
    levels = jnp.linspace(0.005, 0.995, 199, dtype=u.dtype)
    observed = jnp.mean(1 - u[:, None] <= levels[None], axis=0, dtype=u.dtype)
    observed = jnp.where(jnp.all(jnp.isfinite(u)), observed, jnp.nan)
    below = jnp.max(levels - observed)
    return Coverage(
        levels=levels,
        observed=observed,
        ranks=jnp.zeros(u.size, int),
        p_uniform=ranks.p_values[0],
        p_conservative=massart(below, u.size, sides=1),
        unknown=jnp.sum(~jnp.isfinite(u)),
        draws=ranks.size,
        level=level,
    )


def directions(report: Any, *, ax: "Axes | None" = None) -> "Axes":
    """Shift and spread of every parameter and correlation of every pair, with limits.

    Spread is the logarithm to base 2 of claimed over actual standard deviation, by itself where
    that is known, else given the other parameters. Filled: p at most the level after Holm.
    """
    ax = axes(ax)
    diagnosis, names, level = report.diagnosis(), report.names, report.level
    shift = diagnosis.bias if diagnosis.shift is None else diagnosis.shift
    rows = _rows(diagnosis, names, shift)
    if not np.all(np.isfinite([row[1] for row in rows])):
        return say(ax, "scores are not finite numbers:\nno verdict")
    for at, (_, size, low, high, p, marker) in enumerate(rows):
        ends = np.clip([low, high], -20, 20)
        ax.plot(ends, [at, at], color=DARK, linewidth=1)
        face = BLACK if p <= level else "white"
        ax.plot(size, at, marker, color=BLACK, markerfacecolor=face, markersize=6)
    ax.axvline(0, color=DARK, linewidth=0.8)
    ax.set_yticks(range(len(rows)), [row[0] for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    given = " | others" if diagnosis.shift is None else ""
    for marker, label in (
        ("o", f"shift{given}, sd (+: too high)"),
        ("s", "spread, log2 claimed / actual"),
        ("D", "correlation, claimed less actual"),
    ):
        if any(row[5] == marker for row in rows):
            ax.plot([], [], marker, color=BLACK, markerfacecolor="white", label=label)
    ax.set_xlabel(f"{confidence(level)} limits; 0 if right; filled: p <= {level:g} after Holm")
    legend_above(ax, columns=2)
    return ax


Row = tuple[str, float, float, float, float, str]


def _rows(diagnosis: Any, names: tuple[str, ...], shift: Any) -> list[Row]:
    """Label, size, limits, p-value and marker, a line each; the clearest where there are many."""

    def each(means: Any, labels: list[str], marker: str, factor: float = 1.0) -> list[Row]:
        parts = (means.estimate, means.low, means.high)
        size, low, high = (factor * np.asarray(part) for part in parts)
        p = np.asarray(means.p_adjusted)
        raw = np.asarray(means.p_value)
        order = np.sort(np.argsort(raw, kind="stable")[:MOST])
        return [
            (labels[k], float(size[k]), float(low[k]), float(high[k]), float(p[k]), marker)
            for k in order
        ]

    shifts = each(shift, [f"shift of {name}" for name in names], "o")
    known = diagnosis.marginal_spread
    if known is not None and np.all(np.isfinite(np.asarray(known.estimate))):
        spreads = each(known, [f"spread of {name}" for name in names], "s", 1 / np.log(2))
    else:
        ratio, (low, high) = np.asarray(diagnosis.sd_ratio()), diagnosis.sd_ratio_interval()
        logs = diagnosis.spread._replace(
            **{
                name: np.log2(np.clip(np.asarray(value), 2.0**-20, 2.0**20))
                for name, value in (("estimate", ratio), ("low", low), ("high", high))
            }
        )
        logs = logs._replace(estimate=np.nan_to_num(logs.estimate, nan=-20.0))
        spreads = each(logs, [f"spread of {name} | others" for name in names], "s")
    pairs: list[Row] = []
    of_pairs = diagnosis.correlation
    if of_pairs is not None and np.all(np.isfinite(np.asarray(of_pairs.estimate))):
        i, j = np.triu_indices(len(names), 1)
        labels = [f"{names[a]} with {names[b]}" for a, b in zip(i, j, strict=True)]
        pairs = each(of_pairs, labels, "D")
    return shifts + spreads + pairs


def where(report: Any, *, ax: "Axes | None" = None) -> "Axes":
    """Contributions of the pairs to the test given x, over the feature along which errors of one
    parameter change most; over the first where none was looked for."""
    diagnosis, result = report.diagnosis(), report.conditional
    k, j = (0, 0) if diagnosis.strongest is None else map(int, np.asarray(diagnosis.strongest))
    ax = contributions(result.test, np.asarray(result.features)[:, j], label=f"x[{j}]", ax=ax)
    if diagnosis.strongest is not None:
        trends = (diagnosis.shift_trend, diagnosis.spread_trend)
        p = min(float(np.asarray(trend.p_adjusted)[k, j]) for trend in trends)
        ax.set_xlabel(f"x[{j}] (errors of {report.names[k]} change along it: p = {p:.2g})")
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
