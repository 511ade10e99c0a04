"""Shares of targets inside highest-density regions against the regions' levels."""

from typing import TYPE_CHECKING

import numpy as np

from jaxcal.coverage import Coverage
from jaxcal.plots.canvas import BLACK, DARK, LIGHT, axes, legend_above, one, say
from jaxcal.results import confidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def coverage(result: Coverage, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the share of targets inside regions of growing level, with the band of calibration.

    The band holds a single share with confidence 1 - ``result.level``. Below the diagonal regions
    are too small (overconfident); above it they are too large, which is called conservative.

    Args:
        result: Result of `jaxcal.coverage.coverage`.
        ax: Axes to draw on; new ones by default.

    Returns:
        The axes.

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
    ax.set(
        xlabel="level of highest-density region",
        ylabel="share of targets inside",
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
    )
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
