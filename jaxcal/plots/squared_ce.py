"""Figures of tuned calibration errors: risks over a grid, and the estimates side by side."""

from typing import TYPE_CHECKING

import numpy as np

from jaxcal import checks
from jaxcal.plots.canvas import BLACK, DARK, LIGHT, axes, legend_above, one, say
from jaxcal.results import confidence
from jaxcal.squared_ce.report import Report
from jaxcal.squared_ce.tuned import Tuned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DECADES = 4  # that have a label each: more of them touch in a small figure


def calibration_errors(report: Report, *, ax: "Axes | None" = None) -> "Axes":
    """Draw each estimator's calibration error with its one-step interval, and its folds' estimates.

    Estimators are ordered by validation risk, the selected one at the top in black; the risk is
    in the label. kkr has no interval.

    Args:
        report: Report of `jaxcal.calibration_error`.
        ax: Axes to draw on; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> predictions = jax.nn.softmax(jax.random.normal(jax.random.key(0), (60, 3)))
        >>> targets = jax.random.categorical(jax.random.key(1), jnp.log(predictions))
        >>> report = jaxcal.calibration_error(
        ...     2, predictions, targets, estimators=[jaxcal.squared_ce.Bins((5, 10))]
        ... )
        >>> axes = jaxcal.plots.calibration_errors(report)
    """
    one(report, "selected", "report", "Report")
    if not report.estimators:
        raise ValueError("report: holds no tuned estimators to draw")
    ax = axes(ax)
    tuned = sorted(report.estimators.values(), key=lambda each: np.nan_to_num(each.risk, nan=1e9))
    ax.set_xlabel(f"{report.notion} calibration error (root of the squared error)")
    if not np.isfinite(report.best.error):
        return say(ax, "no estimator gave a finite number")
    labels = {
        "estimate": "ensemble",
        "interval": f"{confidence(report.best.level)} interval, one step",
    }
    for place, each in enumerate(tuned):
        shade = BLACK if each.name == report.selected else DARK
        low, high = (float(end) for end in each.interval[:2])
        if np.isfinite(low):
            label = labels.pop("interval", None)
            ax.plot([low, high], [place, place], color=shade, linewidth=1.5, zorder=2, label=label)
        ax.plot(
            each.fold_errors,
            np.full(each.fold_errors.size, place),
            linestyle="none",
            marker="|",
            markersize=9,
            color=LIGHT,
            zorder=1,
            label="single folds" if place == 0 else None,
        )
        ax.plot(each.error, place, "o", color=shade, zorder=3, label=labels.pop("estimate", None))
    names = [f"{each.name}\n100 sqrt(risk) {each.rmse[0]:.2f}" for each in tuned]
    ax.set_yticks(range(len(tuned)), names, fontsize="small")
    ax.invert_yaxis()
    ax.locator_params(axis="x", nbins=6)
    legend_above(ax)
    return ax


def risk_over_grid(tuned: Tuned, *, problem: int = 0, ax: "Axes | None" = None) -> "Axes":
    """Draw the validation risk over the grid of one hyperparameter: folds, their mean, the choice.

    Risks are in per cent above the lowest mean: the levels of all folds are nearly the same, and
    only differences within a fold matter.

    Args:
        tuned: An estimator tuned by `jaxcal.calibration_error`, ``report.best`` or another of
            ``report.estimators``.
        problem: Which of several problems, as of the classes of ``notion="class-wise"``.
        ax: Axes to draw on; new ones by default.

    Returns:
        The axes.

    Raises:
        ValueError: The grid is of several hyperparameters, or of one candidate.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> predictions = jax.nn.softmax(jax.random.normal(jax.random.key(0), (60, 3)))
        >>> targets = jax.random.categorical(jax.random.key(1), jnp.log(predictions))
        >>> report = jaxcal.calibration_error(
        ...     2, predictions, targets, estimators=[jaxcal.squared_ce.Bins((5, 10))]
        ... )
        >>> axes = jaxcal.plots.risk_over_grid(report.best)
    """
    one(tuned, "name", "tuned", "Tuned")
    ax = axes(ax)
    names = sorted({name for setting in tuned.grid for name in setting})
    if len(names) != 1 or len(tuned.grid) < 2:
        raise ValueError(f"tuned: wanted a grid of one hyperparameter, {tuned.name} has {names}")
    problem = checks.integer(problem, "problem", least=0, most=tuned.risks.shape[0] - 1)
    tried = np.isfinite(tuned.risks[problem]).any(axis=0)  # by this problem
    tried[tuned.chosen[problem]] = True
    grid = np.array([setting[names[0]] for setting in tuned.grid])[tried]
    order = np.argsort(grid)
    risks = tuned.risks[problem][:, tried]
    chosen = int(np.sum(tried[: tuned.chosen[problem]]))
    label = "number of bins" if names[0] == "bins" else f"{names[0]} of {tuned.name}"
    ax.set(xlabel=label, ylabel="validation risk\n(% above the choice)")
    if not np.isfinite(risks[:, chosen]).all():
        return say(ax, "the risk is not a finite number")
    above = 100 * (risks / risks[:, [chosen]] - 1)
    for k, fold in enumerate(above):
        ax.plot(grid[order], fold[order], color=LIGHT, label="single folds" if k == 0 else None)
    mean = 100 * (risks.mean(axis=0) / risks[:, chosen].mean() - 1)
    ax.plot(grid[order], mean[order], color=BLACK, label="mean")
    ax.plot(grid[chosen], 0, "o", color=BLACK, label=f"chosen: {grid[chosen]:.3g}")
    if names[0] != "bins":
        _log_ticks(ax, grid)
    _zero_and_decades(ax, above, _threshold(mean))
    legend_above(ax)
    return ax


def _log_ticks(ax: "Axes", grid: np.ndarray) -> None:
    """A logarithmic axis with labels at powers of ten, or at 1, 2 and 5 where there are few."""
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter

    ax.set_xscale("log")
    wide = np.log10(grid.max() / grid.min()) > 2
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=7))
    ax.xaxis.set_major_formatter(LogFormatterSciNotation() if wide else "{x:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())


def _zero_and_decades(ax: "Axes", values: np.ndarray, threshold: float) -> None:
    """A vertical scale that is linear up to ``threshold``, then logarithmic, around ``values``."""
    finite = values[np.isfinite(values)]
    low, high = min(float(finite.min()), -0.2 * threshold), max(float(finite.max()), threshold)
    up, down = (np.ceil(np.log10(end / threshold) - 1e-9) for end in (high, max(-low, threshold)))
    every = max(1, -(-int(up + down) // MOST_DECADES))
    ticks = [0.0, *(threshold * 10.0**k for k in range(0, int(up) + 1, every))]
    ticks += [-threshold * 10.0**k for k in range(0, int(down) + 1, every) if -low >= threshold]
    ax.set_yscale("symlog", linthresh=threshold, linscale=0.8)
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_yticks([], minor=True)
    ax.set_ylim(1.3 * low, 1.3 * high)


def _threshold(values: np.ndarray) -> float:
    """The power of ten below a quarter of the positive values."""
    finite = values[np.isfinite(values) & (values > 0)]
    return 10.0 ** np.floor(np.log10(np.quantile(finite, 0.25))) if finite.size else 1.0
