"""What the figures of the studies share: binomial bands and a file format."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import scipy.stats
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def band(rate: float, trials: int, coverage: float) -> tuple[float, float]:
    """The rates between which a binomial count falls with at least this probability."""
    low, high = scipy.stats.binom.interval(coverage, trials, rate)
    return low / trials, high / trials


def standard_error(rate: float, trials: int) -> float:
    """Of an observed rate; never 0, so that 0 of 1000 does not look certain."""
    kept = min(max(rate, 1 / trials), 1 - 1 / trials)
    return (kept * (1 - kept) / trials) ** 0.5


def shade(axes: Axes, rate: float, trials: int, coverage: float) -> None:
    """A grey band around the nominal rate."""
    axes.axhspan(*band(rate, trials, coverage), color="0.9", zorder=0)
    axes.axhline(rate, color="0.5", linewidth=0.8, zorder=1)


def save(figure: Figure, path: Path) -> None:
    """A PNG file of moderate size."""
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def cell(axes: Axes, row: int, column: int, rate: float | None, text: str, size: str) -> None:
    """A square of a table, the darker the larger its rate, with a text in it."""
    left, top = column - 0.5, row - 0.5
    axes.fill(
        [left, left + 1, left + 1, left],
        [top, top, top + 1, top + 1],
        color="white" if rate is None else str(1 - 0.75 * rate),
    )
    color = "white" if (rate or 0) > 0.6 else "black"
    axes.text(column, row, text, ha="center", va="center", fontsize=size, color=color)


def as_table(axes: Axes, rows: Sequence[str], columns: Sequence[str], *, size: str) -> None:
    """Names of rows and columns around the squares, and no frame."""
    axes.set_yticks(range(len(rows)), rows, fontsize=size)
    axes.set_xticks(range(len(columns)), columns, rotation=40, ha="left", fontsize="small")
    axes.xaxis.tick_top()
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
