"""Figures of tuned calibration errors: risks over a grid, and the estimates side by side."""

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcal.plots.canvas import BLACK, DARK, LIGHT, axes, legend_above, say
from jaxcal.squared_ce.report import Report, Tuned

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def calibration_errors(report: Report, *, ax: "Axes | None" = None) -> "Axes":
    """Each estimator's error: the interval of the test sample, and its folds' own estimates.

    Ordered by validation risk, the selected one at the top in black; its risk is in the label.
    """
    ax = axes(ax)
    tuned = sorted(report.estimators.values(), key=lambda each: np.nan_to_num(each.risk, nan=1e9))
    ax.set_xlabel(f"{report.notion} calibration error (root of the squared error)")
    if not np.isfinite(report.best.error):
        return say(ax, "no estimator gave a finite number")
    for place, each in enumerate(tuned):
        shade = BLACK if each.name == report.selected else DARK
        low, high = (float(end) for end in each.interval[:2])
        ax.plot([low, high], [place, place], color=shade, linewidth=1.5, zorder=2)
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
        label = f"ensemble, {each.level:.0%} interval over test samples" if place == 0 else None
        ax.plot(each.error, place, "o", color=shade, zorder=3, label=label)
    names = [f"{each.name}\n100 sqrt(risk) {each.rmse[0]:.2f}" for each in tuned]
    ax.set_yticks(range(len(tuned)), names, fontsize="small")
    ax.invert_yaxis()
    legend_above(ax)
    return ax


def risk_over_grid(tuned: Tuned, *, problem: int = 0, ax: "Axes | None" = None) -> "Axes":
    """The validation risk over the grid of one hyperparameter: folds, their mean, the choice.

    Risks are in per cent above the lowest mean: the levels of all folds are nearly the same, and
    only differences within a fold matter. Raises ValueError for a grid of several hyperparameters
    or of one candidate.
    """
    ax = axes(ax)
    names = sorted({name for setting in tuned.grid for name in setting})
    if len(names) != 1 or len(tuned.grid) < 2:
        raise ValueError(f"tuned: wanted a grid of one hyperparameter, {tuned.name} has {names}")
    if not 0 <= problem < tuned.risks.shape[0]:
        raise ValueError(f"problem: wanted 0 to {tuned.risks.shape[0] - 1}, got {problem}")
    grid = np.array([setting[names[0]] for setting in tuned.grid])
    order = np.argsort(grid)
    risks = tuned.risks[problem]
    chosen = int(tuned.chosen[problem])
    ax.set(xlabel=f"{names[0]} of {tuned.name}", ylabel="validation risk\n(% above the choice)")
    if not np.isfinite(risks[:, chosen]).all():
        return say(ax, "the risk is not a finite number")
    above = 100 * (risks / risks[:, [chosen]] - 1)
    for k, fold in enumerate(above):
        ax.plot(grid[order], fold[order], color=LIGHT, label="single folds" if k == 0 else None)
    mean = 100 * (risks.mean(axis=0) / risks[:, chosen].mean() - 1)
    ax.plot(grid[order], mean[order], color=BLACK, label="mean")
    ax.plot(grid[chosen], 0, "o", color=BLACK, label=f"chosen: {grid[chosen]:.3g}")
    if names[0] != "bins":
        ax.set_xscale("log")
    ax.set_yscale("symlog", linthresh=_threshold(mean))
    legend_above(ax)
    return ax


def _threshold(values: Any) -> float:
    finite = values[np.isfinite(values) & (values > 0)]
    return float(np.quantile(finite, 0.25)) if finite.size else 1.0
