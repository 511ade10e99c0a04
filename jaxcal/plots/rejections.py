"""Rejection curves: how often tests reject, over n or over the size of a fault."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from jaxcal.plots.canvas import DARK, axes, legend_above
from jaxcal.read import checks
from jaxcal.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# grey, line and marker of each series: any two series differ in at least two of these
STYLES = [
    ("black", "-", "o"),
    ("0.35", "--", "s"),
    ("0.55", "-.", "^"),
    ("black", ":", "D"),
    ("0.35", "-", "v"),
    ("0.55", "--", "x"),
]


def rejections(
    x: ArrayLike,
    p_values: Mapping[str, Any],
    *,
    level: float = 0.05,
    coverage: float = 0.95,
    label: str = "number of observations n",
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the rejection rate of each test over k settings, from p-values.

    With exact binomial intervals (Clopper and Pearson). Series are shifted slightly so that their
    intervals do not overlap. The axis is logarithmic for positive settings that span a factor of 4
    or more.

    Args:
        x: Settings, [k].
        p_values: An array [k, trials] for each name, one row per setting; NaN counts as a trial
            that does not reject.
        level: Level of the tests, drawn as a dashed line.
        coverage: Least probability with which each interval contains the true rate.
        label: Name of x and its unit.
        ax: Axes to draw on; new ones by default.

    Example:
        >>> import numpy as np, jaxcal
        >>> p_values = {"uniform": np.random.default_rng(0).uniform(size=(3, 100))}
        >>> axes = jaxcal.plots.rejections([50, 100, 200], p_values)
    """
    where = np.asarray(checks.floats(x, "x"), dtype=float)
    if where.ndim != 1 or not where.size:
        raise ValueError(f"x: wanted the settings as one row of numbers, got shape {where.shape}")
    if not isinstance(p_values, Mapping):
        raise TypeError(f"p_values: wanted a dict of series by name, got {checks.say(p_values)}")
    if not p_values:
        raise ValueError("p_values: wanted at least one series")
    level, coverage = checks.level(level), checks.real(coverage, "coverage", above=0, below=1)
    ax = axes(ax)
    positions, aside = where, 0.006 * (np.ptp(where) or 1.0)
    logarithmic = bool(np.all(where > 0)) and np.max(where) >= 4 * np.min(where)
    if logarithmic:
        positions, aside = np.log(where), 0.006 * np.ptp(np.log(where))
        ax.set_xscale("log", base=2)
        ax.set_xticks(where, [f"{value:g}" for value in where])
        ax.minorticks_off()
    ax.axhline(level, color=DARK, linewidth=0.8, linestyle=(0, (5, 5)), zorder=0)
    order = np.argsort(where, kind="stable")
    for s, (name, rows) in enumerate(p_values.items()):
        values = _p_values(rows, name, where.size)
        k, n = np.sum(values <= level, axis=1), values.shape[1]
        low, high = interval(k, n, coverage)
        at = positions + aside * (s - (len(p_values) - 1) / 2)
        at = np.exp(at) if logarithmic else at
        grey, line, marker = STYLES[s % len(STYLES)]
        ax.errorbar(
            at[order],
            (k / n)[order],
            np.maximum(np.stack([k / n - low, high - k / n]), 0)[:, order],
            color=grey,
            linestyle=line,
            marker=marker,
            markersize=4.5,
            elinewidth=0.8,
            capsize=2,
            label=name,
        )
    ax.set(xlabel=label, ylabel=f"rejection rate at level {level:g}", ylim=(-0.03, 1.03))
    legend_above(ax)
    return ax


def _p_values(rows: Any, name: str, settings: int) -> Float[np.ndarray, "k trials"]:
    values = np.asarray(checks.floats(rows, f"p_values[{name!r}]"))
    if values.ndim != 2 or len(values) != settings or not values.shape[1]:
        raise ValueError(
            f"p_values[{name!r}]: wanted one row of p-values a setting, shape "
            f"({settings}, trials), got {values.shape}"
        )
    if np.any((values < 0) | (values > 1)):
        raise ValueError(f"p_values[{name!r}]: wanted numbers from 0 to 1, or NaN")
    return values


def interval(
    counts: Any, trials: Any, coverage: float
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Return the exact interval of a binomial rate, of at least this coverage for every rate.

    Source: Clopper and Pearson (1934): the rates that a one-sided test of size
    (1 - coverage) / 2 does not reject, which are quantiles of beta distributions.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage: wanted a number between 0 and 1, got {coverage}")
    from scipy.stats import beta

    k, n = np.broadcast_arrays(np.asarray(counts, float), np.asarray(trials, float))
    tail = (1 - coverage) / 2
    low = np.where(k > 0, beta.ppf(tail, np.maximum(k, 1), n - k + 1), 0.0)
    high = np.where(k < n, beta.ppf(1 - tail, k + 1, np.maximum(n - k, 1)), 1.0)
    return low, high
