"""Draw what figures share: axes without a box, legends, tables, means over groups, limits."""

import itertools
from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np
from jaxtyping import Float, Int

from jaxcal.read import convert
from jaxcal.results import Means, confidence
from jaxcal.typing import Axes, Figure

BLACK, DARK, LIGHT = "black", "0.35", "0.75"
KEPT = 10  # number of the latest figures made here that stay open in pyplot
MOST = 8  # most rows of one kind; if there are more, the most significant ones are drawn
FARTHEST = 20.0  # limits farther from 0 are drawn at this value
KINDS = {
    "o": "shift, sd (+: too high)",
    "s": "spread, log2 claimed / actual",
    "D": "correlation, claimed less actual",
}
opened: list["ref[Figure]"] = []


def one(result: object, leaf: str, name: str = "result", kind: str = "result") -> None:
    """Raise TypeError unless ``result`` has the attribute ``leaf``, ValueError if it is a batch."""
    if not hasattr(result, leaf) or isinstance(result, type):
        raise TypeError(f"{name}: wanted a {kind} of jaxcal, got {convert.say(result)}")
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
        raise TypeError(f"ax: wanted the axes of a matplotlib figure, got {convert.say(ax)}")
    if ax is None:
        import matplotlib.pyplot as plt

        figure = plt.figure(figsize=size, layout="constrained")
        opened.append(ref(figure))
        if len(opened) > KEPT and (oldest := opened.pop(0)()) is not None:
            plt.close(oldest)
        ax = figure.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def axes_of(result: object, ax: "Axes | None", size: tuple[float, float] = (6.4, 4.0)) -> "Axes":
    """Return `axes` for one result with a p-value; errors are those of `one`."""
    one(result, "p_value")
    return axes(ax, size)


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
    """Write a sentence in the middle of axes that have nothing to draw; return them."""
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
    """Draw a table of grey cells (``shade`` 0 white, 1 black); ``framed`` cells have bold text."""
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


def mean_parts(
    parts: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"], k: int
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Return mean and standard error of the values in each of k groups. Means of empty groups, and
    errors of 1 value or none, are NaN."""
    number = np.bincount(group, minlength=k)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(group, parts, minlength=k) / number
        squares = np.bincount(group, (parts - mean[group]) ** 2, minlength=k)
        error = np.sqrt(squares / (number - 1.0) / number)
    return mean, np.where(number > 1, error, np.nan)


def quantile_bins(where: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the bin of each value [n], bin medians [k], and their distances to bin ends [2, k]."""
    starts = np.unique(np.sort(where)[np.arange(bins) * where.size // bins])
    group = np.searchsorted(starts, where, side="right") - 1
    members = [where[group == k] for k in range(len(starts))]
    at = np.asarray([np.median(values) for values in members])
    ends = np.asarray([[values.min(), values.max()] for values in members]).T
    return group, at, np.abs(ends - at)


def errors(
    ax: "Axes",
    shift: Means,
    spread: Means | None,
    correlation: Means | None,
    names: Sequence[str],
    level: float,
) -> "Axes":
    """Draw shift and spread of each coordinate and correlation of each pair, with limits.

    Spreads are logarithms to base 2 of predicted / actual deviation. Spreads or correlations that
    are None or not finite are left out. Markers are filled if Holm-adjusted p-values <= ``level``.
    """
    pairs = [f"{first} with {second}" for first, second in itertools.combinations(names, 2)]
    kinds = (
        ("o", shift, [f"shift of {name}" for name in names], 1),
        ("s", spread, [f"spread of {name}" for name in names], 1 / np.log(2)),
        ("D", correlation, pairs, 1),
    )
    labels = []
    for marker, means, of_kind, factor in kinds:
        if means is None or (means is not shift and not np.all(np.isfinite(means.estimate))):
            continue
        for k in np.sort(np.argsort(np.asarray(means.p_value), kind="stable")[:MOST]):
            parts = (means.estimate, means.low, means.high)
            size, low, high = (factor * float(part[k]) for part in parts)
            p, at = float(means.p_adjusted[k]), len(labels)
            ends = np.clip([low, high], -FARTHEST, FARTHEST)
            ax.plot(ends, [at, at], color=DARK, linewidth=1)
            face = BLACK if p <= level * (1 + 1e-6) else "white"  # p may be in float32
            ax.plot(size, at, marker, color=BLACK, markerfacecolor=face, markersize=6)
            beside(ax, f"p = {p:.2g}", ends[1], at, fontsize="small")
            labels.append(of_kind[k])
        ax.plot([], [], marker, color=BLACK, markerfacecolor="white", label=KINDS[marker])
    ax.axvline(0, color=DARK, linewidth=0.8)
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.margins(x=0.2)
    ax.locator_params(axis="x", nbins=6)
    ax.set_xlabel(f"{confidence(level)} limits; 0 if right; filled: p <= {level:g} after Holm")
    legend_above(ax, columns=2)
    return ax
