"""Draw compared models and estimators, and how often tests reject."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxcal.ckce.results import Comparison
from jaxcal.plots.canvas import BLACK, DARK, LIGHT, axes, cells, legend_above, one, say
from jaxcal.read import checks, convert
from jaxcal.results import confidence
from jaxcal.squared_ce.pipeline import Report
from jaxcal.typing import ArrayLike, Axes


def comparison(result: Comparison, *, ax: "Axes | None" = None) -> "Axes":
    """Draw each model's calibration error, with its interval, best calibrated on top.

    A calibrated model has error 0. A filled dot means that no other model is significantly better.
    Intervals of two models may overlap although their difference is significant: see `differences`.

    Args:
        result: Result of `jaxcal.compare`.
        ax: Axes to draw on; new ones by default.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> models = jax.random.dirichlet(jax.random.key(0), jnp.ones(3), (2, 60))
        >>> result = jaxcal.compare(1, models, jnp.arange(60) % 3)
        >>> axes = jaxcal.plots.comparison(result)
    """
    one(result, "ridge", "result", "comparison")
    names, order = result.names, result.order()
    ax = axes(ax, (6.4, 1.2 + 0.4 * len(names)))
    in_probability = result.measure == "probability"
    label = "calibration error (root mean square, in units of probability)"
    norm = f"{result.measure.upper()} without label noise (squared norm, no unit)"
    ax.set(xlabel=label if in_probability else norm)
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
            style = {"color": BLACK, "markerfacecolor": fill, "markersize": 6, "label": label}
            ax.plot(values[chosen], places[chosen], "o", **style)
    legend_above(ax)
    ax.set_yticks(places, [names[i] for i in order])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.margins(x=0.08)
    ax.locator_params(axis="x", nbins=6)
    ax.set_title(f"{confidence(result.level)} intervals, n = {result.n}", fontsize="medium", pad=26)
    return ax


def differences(result: Comparison, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the adjusted p-values of all pairs of models.

    Dark cells: the model of the row is significantly better calibrated than the column's model.

    Args:
        result: Result of `jaxcal.compare`.
        ax: Axes to draw on; new ones by default.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> models = jax.random.dirichlet(jax.random.key(0), jnp.ones(3), (2, 60))
        >>> result = jaxcal.compare(1, models, jnp.arange(60) % 3)
        >>> axes = jaxcal.plots.differences(result)
    """
    one(result, "ridge", "result", "comparison")
    names, order = result.names, result.order()
    count = len(names)
    ax = axes(ax, (1.8 + 0.75 * count, 1.4 + 0.55 * count))
    p = np.asarray(result.differences.p_adjusted)[np.ix_(order, order)]
    gaps = np.asarray(result.differences.estimate)[np.ix_(order, order)]
    clear = p <= result.level
    shade = np.where(clear & (gaps < 0), 0.9, np.where(clear, 0.15, 0.0))
    texts = np.asarray(
        [["<.001" if q < 0.001 else f"{q:.3f}".lstrip("0") for q in row] for row in p]
    )
    texts = np.where(np.eye(count, dtype=bool), "", texts)
    shown = [names[i] for i in order]
    cells(ax, shade, shown, shown, texts, np.zeros(p.shape, bool))
    ax.tick_params(axis="x", labelrotation=35)
    for tick in ax.get_xticklabels():
        tick.set(ha="right", rotation_mode="anchor")
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.set_title(
        "p-values for all pairs\ndark: row better calibrated than column", fontsize="medium"
    )
    return ax


def calibration_errors(report: Report, *, ax: "Axes | None" = None) -> "Axes":
    """Draw each estimator's calibration error, its interval, and its estimates from single folds.

    Estimators are ordered by validation risk; labels show 100 sqrt(risk), averaged over folds. The
    selected one is black. Intervals are from one-step corrections; "kkr" (kernel ridge) has none.
    """
    one(report, "selected", "report", "Report")
    if not report.estimators:
        raise ValueError(
            "report: holds no tuned estimators to draw; ask calibration_error for some, such as "
            'estimators="paper"'
        )
    ax = axes(ax)
    tuned = sorted(report.estimators.values(), key=lambda each: np.nan_to_num(each.risk, nan=1e9))
    ax.set_xlabel(f"{report.notion} calibration error (root of the squared error)")
    if not np.isfinite(report.best.error):
        return say(ax, "no estimator gave a finite number")
    labels = {
        "estimate": "ensemble",
        "interval": f"{confidence(report.best.level)} interval, one step",
    }
    for place, each in enumerate(tuned):
        shade = BLACK if each.name == report.selected else DARK
        low, high = (float(end) for end in each.interval[:2])
        if np.isfinite(low):
            label = labels.pop("interval", None)
            ax.plot([low, high], [place, place], color=shade, linewidth=1.5, zorder=2, label=label)
        folds = {"color": LIGHT, "zorder": 1, "label": "single folds" if place == 0 else None}
        at = np.full(each.fold_errors.size, place)
        ax.plot(each.fold_errors, at, "|", markersize=9, **folds)
        ax.plot(each.error, place, "o", color=shade, zorder=3, label=labels.pop("estimate", None))
    names = [f"{each.name}\n100 sqrt(risk) {each.rmse[0]:.2f}" for each in tuned]
    ax.set_yticks(range(len(tuned)), names, fontsize="small")
    ax.invert_yaxis()
    ax.locator_params(axis="x", nbins=6)
    legend_above(ax)
    return ax


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

    Error bars are exact binomial intervals (Clopper and Pearson). Series are shifted slightly so
    that their intervals do not overlap. The horizontal axis is logarithmic for positive settings
    that span a factor of 4 or more.

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
    where = np.asarray(convert.floats(x, "x"), dtype=float)
    if where.ndim != 1 or not where.size:
        raise ValueError(f"x: wanted the settings as one row of numbers, got shape {where.shape}")
    if not isinstance(p_values, Mapping):
        raise TypeError(f"p_values: wanted a dict of series by name, got {convert.say(p_values)}")
    if not p_values:
        raise ValueError("p_values: wanted at least one series")
    level, coverage = checks.level(level), convert.real(coverage, "coverage", above=0, below=1)
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
    values = np.asarray(convert.floats(rows, f"p_values[{name!r}]"))
    if values.ndim != 2 or len(values) != settings or not values.shape[1]:
        raise ValueError(
            f"p_values[{name!r}]: wanted one row of p-values per setting, shape "
            f"({settings}, trials), got {values.shape}"
        )
    if np.any((values < 0) | (values > 1)):
        raise ValueError(f"p_values[{name!r}]: wanted numbers from 0 to 1, or NaN")
    return values


def interval(
    counts: Any, trials: Any, coverage: float
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Return both ends of the exact interval for the rate of ``counts`` successes in ``trials``.

    The rate is inside with probability ``coverage`` or more. Source: Clopper and Pearson (1934).
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage: wanted a number between 0 and 1, got {coverage}")
    from scipy.stats import beta

    k, n = np.broadcast_arrays(np.asarray(counts, float), np.asarray(trials, float))
    tail = (1 - coverage) / 2
    low = np.where(k > 0, beta.ppf(tail, np.maximum(k, 1), n - k + 1), 0.0)
    high = np.where(k < n, beta.ppf(1 - tail, k + 1, np.maximum(n - k, 1)), 1.0)
    return low, high
