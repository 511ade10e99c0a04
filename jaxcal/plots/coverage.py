"""Shares of targets inside highest-density regions and below predicted quantiles."""

from typing import TYPE_CHECKING

import numpy as np

from jaxcal.coverage import Coverage
from jaxcal.measures.quantiles import QuantileCalibration
from jaxcal.plots.canvas import BLACK, DARK, LIGHT, axes, legend_above, one, say
from jaxcal.results import confidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SQUARE = {"xlim": (0, 1), "ylim": (0, 1), "aspect": "equal"}  # both axes are probabilities


def coverage(result: Coverage, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the share of targets inside regions of growing level, with the band of calibration.

    The band holds a single share with confidence 1 - ``result.level``. Below the diagonal regions
    are too small (overconfident); above it they are too large, which is called conservative.

    Args:
        result: Result of `jaxcal.coverage.coverage`.
        ax: Axes to draw on; new ones by default.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> predictions = dist.Normal(jnp.zeros(100), 1.0)
        >>> draws = predictions.sample(jax.random.key(0), (19,)).T
        >>> targets = 3 * jax.random.normal(jax.random.key(1), (100,))
        >>> result = jaxcal.coverage.coverage(predictions, targets, draws)
        >>> axes = jaxcal.plots.coverage(result)
    """
    one(result, "p_uniform")
    ax = axes(ax, (4.6, 4.6))
    ax.set(xlabel="level of highest-density region", ylabel="share of targets inside", **SQUARE)
    levels, observed = np.asarray(result.levels), np.asarray(result.observed)
    if not np.all(np.isfinite(observed)):
        return say(ax, "densities are not numbers:\nno verdict")
    low, high = result.band()
    label = f"{confidence(result.level)} band"
    closed = np.concatenate([[0.0], levels, [1.0]])

    def whole(values: np.ndarray) -> np.ndarray:
        return np.concatenate([[0.0], values, [1.0]])

    ax.fill_between(closed, whole(low), whole(high), color=LIGHT, linewidth=0, label=label)
    ax.plot([0, 1], [0, 1], color=DARK, linestyle="--", label="calibrated")
    ax.plot(closed, whole(observed), color=BLACK, linewidth=1.6, label="observed")
    p, least = float(result.p_uniform), float(result.p_conservative)
    text = f"p = {p:.2g}: each level holds its share\np = {least:.2g}: at least its share"
    ax.annotate(text, (0.97, 0.05), xycoords="axes fraction", ha="right")
    legend_above(ax)
    return ax


def quantile_calibration(result: QuantileCalibration, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the empirical distribution of the transforms against the diagonal, with a band.

    The band holds the whole curve of a calibrated model with probability 1 - ``result.level`` at
    least, and p is below the level where the curve leaves it. The curve of m draws is known, and
    tested, at levels k / (m + 1); lines join these.

    Args:
        result: Result of `jaxcal.measures.quantile_calibration`.
        ax: Axes to draw on; new ones by default.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> targets = 3 * jax.random.normal(jax.random.key(0), (100,))
        >>> predictions = dist.Normal(jnp.zeros(100), 1.0)
        >>> result = jaxcal.measures.quantile_calibration(predictions, targets)
        >>> axes = jaxcal.plots.quantile_calibration(result)
    """
    one(result, "p_value")
    ax, pit = axes(ax, (4.6, 4.6)), np.asarray(result.pit)
    ax.set(xlabel="level of predicted quantile", ylabel="share of targets below", **SQUARE)
    if not np.all(np.isfinite(pit)):
        return say(ax, "transforms are not numbers:\nno verdict")
    n = pit.size
    half = np.sqrt(np.log(2 / result.level) / (2 * n))  # where the p-value is the level
    label = f"{confidence(result.level)} band"
    line = np.array([0.0, 1.0])
    ax.fill_between(line, line - half, line + half, color=LIGHT, linewidth=0, label=label)
    ax.plot(line, line, color=DARK, linestyle="--", label="calibrated")
    if m := result.draws:
        where = np.arange(m + 2) / (m + 1)
        share = np.searchsorted(np.sort(pit), where, side="right") / n
        ax.plot(where, share, color=BLACK, linewidth=1.6, label="observed")
    else:
        where = np.concatenate([[0.0], np.sort(pit), [1.0]])
        share = np.concatenate([[0.0], np.arange(1, n + 1) / n, [1.0]])
        ax.step(where, share, where="post", color=BLACK, linewidth=1.6, label="observed")
    ax.annotate(
        f"p = {float(result.p_value):.2g}", (0.97, 0.05), xycoords="axes fraction", ha="right"
    )
    legend_above(ax)
    return ax
