"""Shared parts of figures: greys, axes without a box, legends, tables, means over groups."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np
from jaxtyping import Float, Int

from jaxcal.read import checks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, DARK, LIGHT = "black", "0.35", "0.75"
KEPT = 10  # figures made here that pyplot holds
opened: list["ref[Figure]"] = []


def one(result: object, leaf: str, name: str = "result", kind: str = "result") -> None:
    """Raise TypeError for an object without this attribute and ValueError for a batch."""
    if not hasattr(result, leaf) or isinstance(result, type):
        raise TypeError(f"{name}: wanted a {kind} of jaxcal, got {checks.say(result)}")
    if np.ndim(getattr(result, leaf)):
        raise ValueError(
            f"{name}: a figure shows one {kind}, got a batch of shape "
            f"{np.shape(getattr(result, leaf))}: take one by "
            f"jax.tree.map(lambda leaf: leaf[0], results)"
        )


def axes(ax: "Axes | None", size: tuple[float, float] = (6.4, 4)) -> "Axes":
    """Return the axes, without a box, or those of a new pyplot figure of this size in inches.

    The new figure is the current one, as `matplotlib.pyplot.savefig` expects. Pyplot keeps only the
    last `KEPT` of these figures.
    """
    if ax is not None and not hasattr(ax, "spines"):
        raise TypeError(f"ax: wanted the axes of a matplotlib figure, got {checks.say(ax)}")
    if ax is None:
        import matplotlib.pyplot as plt

        figure = plt.figure(figsize=size, layout="constrained")
        opened.append(ref(figure))
        if len(opened) > KEPT and (oldest := opened.pop(0)()) is not None:
            plt.close(oldest)
        ax = figure.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def legend_above(ax: "Axes", *, columns: int = 3) -> None:
    """Add a legend above the axes, where it covers no data."""
    ax.legend(
        frameon=False,
        fontsize="small",
        ncols=columns,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        columnspacing=1.2,
        handlelength=1.6,
    )


def say(ax: "Axes", text: str) -> "Axes":
    """Write a sentence in the axes if there is nothing to draw."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center")
    return ax


def beside(ax: "Axes", text: str, x: Any, y: Any, **style: Any) -> None:
    """Write a text just to the right of a point."""
    ax.annotate(text, (x, y), xytext=(5, 0), textcoords="offset points", va="center", **style)


def bars(
    ax: "Axes", names: Sequence[str], sizes: np.ndarray, p: np.ndarray, greys: Sequence[str]
) -> None:
    """Draw horizontal bars from top to bottom, each with its p-value beside it."""
    count = len(names)
    ax.barh(range(count), sizes, height=0.6, color=greys)
    ax.set_yticks(range(count), names)
    ax.set_ylim(count - 0.4, -0.6)
    for row, (end, p_value) in enumerate(zip(np.maximum(sizes, 0), p, strict=True)):
        beside(ax, f"p = {p_value:.2g}", float(end), row)


def dots(ax: "Axes", x: Any, y: Any, up: Any, across: Any, *, label: str) -> None:
    """Draw dots with error bars in both directions."""
    bars = {"linestyle": "none", "elinewidth": 1, "label": label}
    ax.errorbar(x, y, up, across, color=BLACK, marker="o", markersize=4.5, **bars)


def cells(
    ax: "Axes",
    shade: Float[np.ndarray, "r c"],
    rows: Sequence[str],
    columns: Sequence[str],
    texts: np.ndarray,
    framed: np.ndarray,
) -> None:
    """Draw a table of grey cells (0 white, 1 black) with texts, some in bold and framed."""
    ax.imshow(shade, cmap="Greys", vmin=0, vmax=1, aspect="auto")
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    for row, column in np.ndindex(shade.shape):
        clear = framed[row, column]
        ax.text(
            column,
            row,
            str(texts[row, column]),
            ha="center",
            va="center",
            fontsize="small",
            fontweight="bold" if clear else "normal",
            color="white" if shade[row, column] > 0.8 else BLACK,
            bbox={"facecolor": "none", "edgecolor": BLACK if clear else "none", "pad": 2},
        )


class Parts(NamedTuple):
    """Values over k groups of observations: mean, its standard error, number; each [k]."""

    mean: Float[np.ndarray, " k"]
    error: Float[np.ndarray, " k"]
    number: Int[np.ndarray, " k"]


def mean_parts(parts: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"], k: int) -> Parts:
    """Return the mean and its standard error in each of k groups; NaN for too few values."""
    number = np.bincount(group, minlength=k)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(group, parts, minlength=k) / number
        squares = np.bincount(group, (parts - mean[group]) ** 2, minlength=k)
        error = np.sqrt(squares / (number - 1.0) / number)
    return Parts(mean, np.where(number > 1, error, np.nan), number)


def quantile_bins(where: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the bin of each value, and the median of each bin with its distances to both ends."""
    starts = np.unique(np.sort(where)[np.arange(bins) * where.size // bins])
    group = np.searchsorted(starts, where, side="right") - 1
    members = [where[group == k] for k in range(len(starts))]
    at = np.asarray([np.median(values) for values in members])
    ends = np.asarray([[values.min(), values.max()] for values in members]).T
    return group, at, np.abs(ends - at)
