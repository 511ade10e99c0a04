"""Figure of coverage: of highest-density regions, or of predicted quantiles."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxcal.coverage import Coverage
from jaxcal.measures.quantiles import QuantileCalibration
from jaxcal.plots.canvas import BLACK, DARK, LIGHT, axes, legend_above, one, say
from jaxcal.results import confidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class _Curve(NamedTuple):
    """Axis labels, the observed curve, its band and a text beside it."""

    level: str
    share: str
    at: Float[np.ndarray, " k"]
    observed: Float[np.ndarray, " k"]
    low: Float[np.ndarray, " k"]
    high: Float[np.ndarray, " k"]
    text: str
    steps: bool = False


def coverage(result: Coverage | QuantileCalibration, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the share of targets inside regions, or below quantiles, against their level.

    For highest-density regions the band is pointwise: it contains the share of a calibrated model
    at one level with confidence 1 - ``result.level``. Below the diagonal regions are too small
    (overconfident), above it too large (conservative). For quantiles the band contains the whole
    curve with at least that probability, and p is below the level if the curve leaves the band.
    From m draws the curve is known at levels k / (m + 1), which are joined by lines.
    """
    if isinstance(result, QuantileCalibration):
        one(result, "p_value")
        curve = _of_quantiles(result)
    else:
        one(result, "p_uniform")
        curve = _of_regions(result)
    ax = axes(ax, (4.6, 4.6))
    ax.set(xlabel=curve.level, ylabel=curve.share, xlim=(0, 1), ylim=(0, 1), aspect="equal")
    if not np.all(np.isfinite(curve.observed)):
        return say(ax, "ranks of targets are not numbers:\nno verdict")
    label = f"{confidence(result.level)} band"
    ax.fill_between(curve.at, curve.low, curve.high, color=LIGHT, linewidth=0, label=label)
    ax.plot([0, 1], [0, 1], color=DARK, linestyle="--", label="calibrated")
    style = "steps-post" if curve.steps else "default"
    ax.plot(curve.at, curve.observed, color=BLACK, linewidth=1.6, label="observed", drawstyle=style)
    x, y, ha, va = 0.97, 0.03, "right", "bottom"
    if np.mean(curve.observed - curve.at) < 0:  # the empty corner
        x, y, ha, va = 0.03, 0.97, "left", "top"
    ax.text(x, y, curve.text, ha=ha, va=va, fontsize="small", transform=ax.transAxes)
    legend_above(ax)
    return ax


def _of_regions(result: Coverage) -> _Curve:
    low, high = result.band()
    at, observed, low, high = (
        np.concatenate([[0.0], np.asarray(part), [1.0]])
        for part in (result.levels, result.observed, low, high)
    )
    p, least = float(result.p_uniform), float(result.p_conservative)
    return _Curve(
        "level of highest-density region",
        "share of targets inside",
        at,
        observed,
        low,
        high,
        f"p = {p:.2g}: each level holds its share\np = {least:.2g}: at least its share",
    )


def _of_quantiles(result: QuantileCalibration) -> _Curve:
    pit, m = np.sort(np.asarray(result.pit)), result.draws
    n = pit.size
    if m:
        at = np.arange(m + 2) / (m + 1)
        share = np.searchsorted(pit, at, side="right") / n
        share = np.where(np.isfinite(pit).all(), share, np.nan)
    else:
        at = np.concatenate([[0.0], pit, [1.0]])
        share = np.concatenate([[0.0], np.where(np.isfinite(pit), np.arange(1, n + 1) / n, np.nan)])
        share = np.append(share, 1.0)
    half = np.sqrt(np.log(2 / result.level) / (2 * n))  # where the p-value is the level
    return _Curve(
        "level of predicted quantile",
        "share of targets below",
        at,
        share,
        at - half,
        at + half,
        f"p = {float(result.p_value):.2g}",
        steps=not m,
    )
