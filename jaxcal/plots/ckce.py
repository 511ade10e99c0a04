"""Figures of CKCE: models with their intervals, all differences."""

from typing import TYPE_CHECKING

import numpy as np

from jaxcal.ckce.results import Comparison
from jaxcal.plots.canvas import BLACK, DARK, axes, legend_above, one, say
from jaxcal.results import confidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def comparison(result: Comparison, *, ax: "Axes | None" = None) -> "Axes":
    """Draw each model's calibration error, with its interval, best calibrated on top.

    0 is the value of a calibrated model. Filled dots: no other model is shown to be
    better; open ones: worse than some. By CKCE, on the right, the temperature or shift that is as
    wrong.
    Intervals of two models may overlap although their difference is clear: see `differences`.

    Args:
        result: Result of `jaxcal.compare`.
        ax: Axes to draw on; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> good = jax.nn.softmax(jax.random.normal(jax.random.key(0), (60, 3)))
        >>> targets = jax.random.categorical(jax.random.key(1), jnp.log(good))
        >>> models = {"good": good, "sharp": good**3 / jnp.sum(good**3, axis=1, keepdims=True)}
        >>> result = jaxcal.compare(2, models, targets)
        >>> axes = jaxcal.plots.comparison(result)
    """
    names, order = _one(result), result.order()
    ax = axes(ax, (6.4, 1.2 + 0.4 * len(names)))
    in_probability = result.unit == "probability"
    label = "calibration error (root mean square, in units of probability)"
    ax.set(xlabel=label if in_probability else "CKCE without label noise (squared norm, no unit)")
    if not np.all(np.isfinite(np.asarray(result.corrected))):
        return say(ax, "not a finite number for some model:\nno ranking")
    values, low, high = (np.asarray(a)[order] for a in (result.corrected, result.low, result.high))
    if in_probability:
        values, low, high = (np.sqrt(a) for a in (values, low, high))
    places = np.arange(len(names))
    ax.axvline(0, color=DARK, linewidth=0.8, linestyle=":")
    ax.hlines(places, low, high, color=DARK, linewidth=1.5)
    best = np.asarray(result.may_be_best)[order]
    for chosen, fill, label in ((best, BLACK, "may be the best"), (~best, "white", "worse")):
        if np.any(chosen):
            ax.plot(
                values[chosen],
                places[chosen],
                "o",
                color=BLACK,
                markerfacecolor=fill,
                markersize=6,
                label=label,
            )
    legend_above(ax)
    if result.effect is not None:
        sizes = np.asarray(result.effect.value)[order]
        beside = ax.secondary_yaxis("right")
        beside.set_yticks(places, [f"{size:.2f}" if size == size else "none" for size in sizes])
        beside.set_ylabel(f"{result.unit}\nthat is as wrong")
        beside.tick_params(length=0)
    ax.set_yticks(places, [names[i] for i in order])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.margins(x=0.08)
    ax.locator_params(axis="x", nbins=6)
    ax.set_title(f"{confidence(result.level)} intervals, n = {result.n}", fontsize="medium", pad=26)
    return ax


def differences(result: Comparison, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the adjusted p-values of all pairs of models.

    Dark where the model of the row is better calibrated than that of the column.

    Args:
        result: Result of `jaxcal.compare`.
        ax: Axes to draw on; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> good = jax.nn.softmax(jax.random.normal(jax.random.key(0), (60, 3)))
        >>> targets = jax.random.categorical(jax.random.key(1), jnp.log(good))
        >>> models = {"good": good, "sharp": good**3 / jnp.sum(good**3, axis=1, keepdims=True)}
        >>> result = jaxcal.compare(2, models, targets)
        >>> axes = jaxcal.plots.differences(result)
    """
    names, order = _one(result), result.order()
    count = len(names)
    ax = axes(ax, (1.8 + 0.75 * count, 1.4 + 0.55 * count))
    p = np.asarray(result.differences.p_adjusted)[np.ix_(order, order)]
    gaps = np.asarray(result.differences.estimate)[np.ix_(order, order)]
    clear = p <= result.level
    shade = np.where(clear & (gaps < 0), 0.45, np.where(clear, 0.85, 1.0))
    ax.imshow(shade, cmap="gray", vmin=0, vmax=1, aspect="auto")
    for i in range(count):
        for j in range(count):
            if i != j:
                dark = shade[i, j] < 0.6
                text = "<.001" if p[i, j] < 0.001 else f"{p[i, j]:.3f}".lstrip("0")
                ax.text(
                    j,
                    i,
                    text,
                    ha="center",
                    va="center",
                    fontsize="small",
                    color="white" if dark else BLACK,
                )
    shown = [names[i] for i in order]
    ax.set_xticks(range(count), shown, rotation=35, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(count), shown)
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.set_title(
        "p-values for all pairs\ndark: row better calibrated than column", fontsize="medium"
    )
    return ax


def _one(result: Comparison) -> tuple[str, ...]:
    one(result, "ridge", "result", "comparison")
    return result.names
