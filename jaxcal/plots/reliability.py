"""The reliability diagram: how often what was announced came true."""

from typing import TYPE_CHECKING

import numpy as np

from jaxcal import checks
from jaxcal.measures.reliability import Reliability
from jaxcal.plots.canvas import BLACK, DARK, LIGHT, axes, legend_above, one

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def reliability(
    result: Reliability,
    *,
    counts: bool = True,
    label: str = "confidence",
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the observed frequency over the mean confidence in each bin that holds observations.

    Bars are 95 % intervals of Wilson.

    Args:
        result: Result of `jaxcal.measures.reliability`.
        counts: Show by grey columns from the bottom how many observations each bin holds, the
            fullest being a fifth of the height.
        label: Name of what was announced.
        ax: Axes to draw on; new ones by default.

    Returns:
        The axes, with both scales from 0 to 1, so that other curves of confidence can be drawn on
        them.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> confidence, correct = jnp.linspace(0, 1, 100), jnp.arange(100) % 2 == 0
        >>> result = jaxcal.measures.reliability(confidence, correct)
        >>> axes = jaxcal.plots.reliability(result)
    """
    one(result, "ece")
    counts = checks.flag(counts, "counts")
    ax = axes(ax, (4.6, 4.6))
    ax.set(xlabel=label, ylabel="share that came true", xlim=(0, 1), ylim=(0, 1.01), aspect="equal")
    used = np.asarray(result.filled)
    count, edges = np.asarray(result.count), np.asarray(result.edges)
    if counts and used.any():
        ax.bar(
            edges[:-1],
            0.2 * count / count.max(),
            np.diff(edges),
            align="edge",
            color=LIGHT,
            edgecolor="white",
            linewidth=0.5,
            zorder=0,
            label=f"observations (at most {count.max()})",
        )
    ax.plot([0, 1], [0, 1], color=DARK, linestyle="--", zorder=1, label="calibrated")
    x, y, low, high = (
        np.asarray(values)[used]
        for values in (result.confidence, result.accuracy, result.low, result.high)
    )
    ends = np.clip(np.stack([y - low, high - y]), 0, None)  # rounding may leave -1e-17
    ax.errorbar(
        x,
        y,
        ends,
        fmt="o-",
        color=BLACK,
        ecolor=DARK,
        markersize=4,
        linewidth=1.2,
        elinewidth=1,
        capsize=2,
        zorder=2,
        label="observed",
    )
    ax.annotate(f"ECE {float(result.ece):.3f}", (0.03, 0.95), xycoords="axes fraction", va="top")
    legend_above(ax)
    return ax
