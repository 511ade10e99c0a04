"""What the figures of the studies share: binomial bands and a file format."""

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
