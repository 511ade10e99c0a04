"""Rows with limits for shifts, spreads and correlations."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxcal.plots.canvas import BLACK, DARK, beside, legend_above
from jaxcal.results import Means, confidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 8  # rows of one kind: the clearest where there are more
FARTHEST = 20.0  # limits beyond are drawn here
KINDS = {
    "o": "shift, sd (+: too high)",
    "s": "spread, log2 claimed / actual",
    "D": "correlation, claimed less actual",
}


class Row(NamedTuple):
    """A mean with its limits, its Holm-adjusted p-value, and the marker of its kind."""

    label: str
    size: float
    low: float
    high: float
    p: float
    marker: str


def shifts(means: Means, names: list[str]) -> list[Row]:
    """Return one row per coordinate."""
    return _rows(means, [f"shift of {name}" for name in names], "o")


def spreads(means: Means | None, names: list[str]) -> list[Row]:
    """Return one row per coordinate, in logarithms to base 2; none if spreads are unknown."""
    if means is None or not np.all(np.isfinite(np.asarray(means.estimate))):
        return []
    return _rows(means, [f"spread of {name}" for name in names], "s", 1 / np.log(2))


def pairs(means: Means | None, names: list[str]) -> list[Row]:
    """Return one row per pair (0, 1), (0, 2), .., (1, 2), ..; none if correlations are unknown."""
    if means is None or not np.all(np.isfinite(np.asarray(means.estimate))):
        return []
    i, j = np.triu_indices(len(names), 1)
    return _rows(means, [f"{names[a]} with {names[b]}" for a, b in zip(i, j, strict=True)], "D")


def _rows(means: Means, labels: list[str], marker: str, factor: float = 1.0) -> list[Row]:
    size, low, high = (factor * np.asarray(m) for m in (means.estimate, means.low, means.high))
    p = np.asarray(means.p_adjusted)
    clearest = np.sort(np.argsort(np.asarray(means.p_value), kind="stable")[:MOST])
    return [
        Row(labels[k], float(size[k]), float(low[k]), float(high[k]), float(p[k]), marker)
        for k in clearest
    ]


def draw(rows: list[Row], level: float, ax: "Axes") -> None:
    """Draw the rows from top to bottom with a line at 0; filled if p is at most the level."""
    for at, row in enumerate(rows):
        ends = np.clip([row.low, row.high], -FARTHEST, FARTHEST)
        ax.plot(ends, [at, at], color=DARK, linewidth=1)
        face = BLACK if row.p <= level else "white"
        ax.plot(row.size, at, row.marker, color=BLACK, markerfacecolor=face, markersize=6)
        beside(ax, f"p = {row.p:.2g}", ends[1], at, fontsize="small")
    ax.axvline(0, color=DARK, linewidth=0.8)
    ax.set_yticks(range(len(rows)), [row.label for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.margins(x=0.2)
    ax.locator_params(axis="x", nbins=6)
    for marker, label in KINDS.items():
        if any(row.marker == marker for row in rows):
            ax.plot([], [], marker, color=BLACK, markerfacecolor="white", label=label)
    ax.set_xlabel(f"{confidence(level)} limits; 0 if right; filled: p <= {level:g} after Holm")
    legend_above(ax, columns=2)
