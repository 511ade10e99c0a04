"""Rejection curves: how often tests reject, over n or over the size of a fault."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from jaxcal import checks
from jaxcal.plots.canvas import DARK, axes, legend_above
from jaxcal.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# grey, line and marker of each series: any two differ in at least two of them
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
    """Draw the share of data sets on which each test rejects, from p-values, over k settings.

    Args:
        x: Settings, [k].
        p_values: For each name an array [k, trials], one row a setting; NaN does not reject, and
            is counted as a trial.
        level: Level of the tests.
        coverage: As in `rejection_rates`.
        label: As in `rejection_rates`.
        ax: Axes to draw on; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import numpy as np, jaxcal
        >>> p_values = {"uniform": np.random.default_rng(0).uniform(size=(3, 100))}
        >>> axes = jaxcal.plots.rejections([50, 100, 200], p_values)
    """
    counts, trials = {}, {}
    level, x = checks.level(level), np.asarray(checks.floats(x, "x"))
    for name, rows in _series(p_values, "p_values").items():
        values = np.asarray(checks.floats(rows, f"p_values[{name!r}]"))
        if values.ndim != 2 or len(values) != np.size(x) or not values.shape[1]:
            raise ValueError(
                f"p_values[{name!r}]: wanted one row of p-values a setting, shape "
                f"({np.size(x)}, trials), got {values.shape}"
            )
        if np.any((values < 0) | (values > 1)):
            raise ValueError(f"p_values[{name!r}]: wanted numbers from 0 to 1, or NaN")
        counts[name], trials[name] = np.sum(values <= level, axis=1), values.shape[1]
    return rejection_rates(x, counts, trials, level=level, coverage=coverage, label=label, ax=ax)


def rejection_rates(
    x: ArrayLike,
    rejected: Mapping[str, Any],
    trials: Mapping[str, Any] | int,
    *,
    level: float = 0.05,
    coverage: float = 0.95,
    label: str = "number of observations n",
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw rejection rates with exact binomial intervals, from counts, over k settings.

    The intervals are those of Clopper and Pearson; series are moved aside a little so that
    intervals stay apart. Positive settings that span a factor of 4 or more get a logarithmic axis.

    Args:
        x: Settings, [k].
        rejected: For each name the number of data sets rejected in each setting, [k].
        trials: How many data sets there were: one number, or for each name a number or [k].
        level: Nominal level, drawn as a dashed line.
        coverage: Each interval holds the true rate with at least this probability.
        label: Name of x and its unit.
        ax: Axes to draw on; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import jaxcal
        >>> rejected = {"KCCSD": [5, 6, 4], "SKCE": [8, 5, 5]}
        >>> axes = jaxcal.plots.rejection_rates([50, 100, 200], rejected, 100)
    """
    where = np.asarray(checks.floats(x, "x"), dtype=float)
    if where.ndim != 1 or not where.size:
        raise ValueError(f"x: wanted the settings as one row of numbers, got shape {where.shape}")
    if not _series(rejected, "rejected"):
        raise ValueError("rejected: wanted at least one series")
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
    for s, (name, counts) in enumerate(rejected.items()):
        if isinstance(trials, Mapping) and name not in trials:
            raise ValueError(f"trials: wanted a number for {name!r} too, got {list(trials)}")
        number = trials[name] if isinstance(trials, Mapping) else trials
        k, n = _counts(name, counts, number, where.size)
        low, high = interval(k, n, coverage)
        at = positions + aside * (s - (len(rejected) - 1) / 2)
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


def _series(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: wanted a dict of series by name, got {checks.say(value)}")
    return value


def interval(
    counts: Any, trials: Any, coverage: float
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Ends of the exact interval of a binomial rate, at least ``coverage`` for every true rate.

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


def _counts(name: str, counts: Any, trials: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts and trials as arrays [k], or an error that names the series."""
    k = np.asarray(checks.floats(counts, f"rejected[{name!r}]"), float)
    n = np.asarray(checks.floats(trials, f"trials[{name!r}]"), float)
    if k.shape != (size,):
        raise ValueError(f"rejected[{name!r}]: wanted one count a setting, {size}, got {k.shape}")
    if n.shape not in ((), (size,)):
        raise ValueError(f"trials[{name!r}]: wanted a number or {size} of them, got {n.shape}")
    n = np.broadcast_to(n, k.shape)
    if not np.all((n >= 1) & (k >= 0) & (k <= n)):
        raise ValueError(
            f"rejected[{name!r}]: wanted counts from 0 to the number of trials, which is at least 1"
        )
    return k, n
