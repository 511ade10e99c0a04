"""Calibration errors of tuned estimators side by side."""

from typing import TYPE_CHECKING

import numpy as np

from jaxcal.plots.canvas import BLACK, DARK, LIGHT, axes, legend_above, one, say
from jaxcal.results import confidence
from jaxcal.squared_ce.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        raise ValueError(
            "report: holds no tuned estimators to draw; ask calibration_error for some, such as "
            'estimators="paper"'
        )
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
