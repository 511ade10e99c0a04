"""Draw figures of one test result: null, contributions, coordinates, parts, table."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from jaxcal.plots.canvas import (
    BLACK,
    DARK,
    LIGHT,
    axes,
    axes_of,
    bars,
    cells,
    dots,
    errors,
    legend_above,
    mean_parts,
    one,
    quantile_bins,
    say,
)
from jaxcal.read import checks, convert
from jaxcal.results import TestResult, confidence, tells
from jaxcal.typing import ArrayLike, Axes

MOST_ROWS = 24  # of a table in a figure


def null_histogram(result: TestResult, *, ax: "Axes | None" = None) -> "Axes":
    """Draw a histogram of the null's draws with the observed statistic and the critical value.

    If the null has no draws, or the statistic is not finite, the axes show a sentence instead.

    Args:
        result: Result of a test.
        ax: Axes to draw on; new ones by default.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> result = jaxcal.skce_test(1, dist.Normal(centers, 1.0), centers + 0.8 + noise)
        >>> axes = jaxcal.plots.null_histogram(result)
    """
    ax = axes_of(result, ax)
    draws, statistic = np.asarray(result.null_samples), float(result.statistic)
    unit = "squared discrepancy" if result.parts is None else "log of averaged evidence"
    ax.set(xlabel=f"statistic of the {result.test} ({unit})")
    ax.set(ylabel=f"number of {result.null} draws")
    if not draws.size:
        p = f"statistic {statistic:.3g}, p = {float(result.p_value):.3g}"
        return say(ax, f"the {result.null} null is a formula and has no draws:\n{p}")
    if not (np.all(np.isfinite(draws)) and np.isfinite(statistic)):
        return say(ax, "the statistic is not a finite number:\nno verdict")
    bins = min(40, max(5, draws.size // 10))
    ax.hist(draws, bins=bins, color=LIGHT, label="if calibrated")
    critical = np.quantile(draws, 1 - result.level)
    label = f"{confidence(result.level)} quantile"
    ax.axvline(critical, color=DARK, linestyle="--", label=label)
    ax.axvline(
        statistic, color=BLACK, linewidth=2, label=f"observed, p = {float(result.p_value):.2g}"
    )
    ax.locator_params(axis="x", nbins=6)
    legend_above(ax)
    return ax


def contributions(
    result: TestResult,
    x: ArrayLike | None = None,
    *,
    bins: int | None = None,
    label: str | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the contribution of each observation to the estimate, or means over groups.

    Contributions are multiplied by n, so that their mean is the estimate; for
    `jaxcal.calibration_test` they are first-order contributions to its statistic. The model is
    wrong where the running mean (over the nearest tenth of the observations) is far above 0. Error
    bars of groups are two standard errors; to test a group, run the test on its observations.

    Args:
        result: Result of a test of n observations.
        x: Numbers or dates (``datetime64``), [n]; by default the index of the observation. Text or
            booleans: one bar per group.
        bins: Number of bins of about equally many observations, whose means are drawn.
        label: Name of x and its unit; by default "x", or "observation, in the order given".
        ax: Axes to draw on; new ones by default.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> result = jaxcal.skce_test(1, dist.Normal(centers, 1.0), centers + 0.8 + noise)
        >>> axes = jaxcal.plots.contributions(result, centers, label="prediction")
        >>> axes = jaxcal.plots.contributions(result, centers, bins=10, label="prediction")
    """
    ax = axes_of(result, ax)
    parts = np.asarray(result.contributions)
    n = parts.size
    where = np.arange(n) if x is None else along(x, n)
    grouped = where.dtype.kind in "USTb"
    bins = None if bins is None else convert.integer(bins, "bins")
    if bins is not None and not grouped and not np.issubdtype(where.dtype, np.number):
        raise ValueError(f"x: wanted numbers or text with bins, got {where.dtype}")
    to = "estimate" if result.parts is None else "log evidence"
    if label is None:
        label = "observation, in the order given" if x is None else "x"
    ax.set(xlabel=label, ylabel=f"n times contribution to {to}")
    if not np.all(np.isfinite(parts)):
        return say(ax, "contributions are not finite numbers:\nno verdict")
    if where.dtype.kind in "fmM" and not np.all(np.isfinite(where)):
        raise ValueError("x: wanted finite numbers or dates, got NaN, NaT or infinity among them")
    ax.axhline(0, color=DARK, linewidth=0.8)
    if grouped or bins is not None:
        _means(ax, n * parts.astype(float), where, bins)
    else:
        _every_one(ax, n * parts, where)
    if result.parts is None:  # their mean is the estimate
        ax.axhline(float(result.estimate), color=DARK, linestyle="--", label="estimate")
    legend_above(ax)
    return ax


def _every_one(ax: "Axes", parts: Float[np.ndarray, " n"], where: np.ndarray) -> None:
    """Draw a dot (where, part) per observation, and the running mean over a tenth of all dots."""
    order = np.argsort(where, kind="stable")
    parts, where, width = parts[order], where[order], max(1, parts.size // 10)
    low, high, outside = _crowd(parts)
    label = f"one observation ({outside} outside)" if outside else "one observation"
    ax.plot(where, parts, ".", color=LIGHT, markersize=4, label=label)
    ax.plot(where, _running_mean(parts, width), color=BLACK, label=f"mean of {width}")
    if outside:
        ax.set_ylim(low, high)
    if np.issubdtype(where.dtype, np.datetime64):
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator()
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def _means(ax: "Axes", parts: Float[np.ndarray, " n"], where: np.ndarray, bins: int | None) -> None:
    if bins is None or where.dtype.kind in "USTb":
        names, group = np.unique(where, return_inverse=True)
        at, reach, label = np.arange(len(names), dtype=float), None, "mean of a group"
        ax.set_xticks(at, [str(name) for name in names])
        ax.bar(at, mean_parts(parts, group, len(at))[0], width=0.6, color=LIGHT)
    else:
        group, at, reach = quantile_bins(where.astype(float), bins)
        label = f"mean of about {parts.size // len(at)}"
    means, errors_of = mean_parts(parts, group, len(at))
    dots(ax, at, means, 2 * errors_of, reach, label=label)


def coordinates(
    result: TestResult, names: Sequence[str] | None = None, *, ax: "Axes | None" = None
) -> "Axes":
    """Draw shift and spread of each target coordinate, and the correlation of pairs, with limits.

    Markers are filled if Holm-adjusted p-values are at most the level of the test. Spreads and
    correlations are omitted if the result has none. For predictions that are not Gaussian, shifts
    (``marginal_mean``) may have no limits. Bars then show ``coordinates.estimate``: the parts of
    the estimate that test a coordinate given the others.

    Args:
        result: Result of a test that ran with ``coordinates=True``.
        names: Names of the coordinates.
        ax: Axes to draw on; new ones by default.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 60, 2))
        >>> predictions = dist.Normal(centers, 1.0).to_event(1)
        >>> result = jaxcal.kccsd_test(1, predictions, centers + noise, coordinates=True)
        >>> axes = jaxcal.plots.coordinates(result, ["height", "width"])
    """
    ax = axes_of(result, ax)
    if result.coordinates is None:
        raise ValueError("this result is not split: run the test with coordinates=True")
    split, means = result.coordinates, result.coordinates.marginal_mean
    estimates, adjusted = np.asarray(split.estimate), np.asarray(split.p_adjusted)
    d = estimates.size
    names = list(checks.names(names, d, "coordinate") or [f"coordinate {c}" for c in range(d)])
    if not np.all(np.isfinite(estimates)):
        return say(ax, "estimates are not finite numbers:\nno verdict")
    if tells(means):
        return errors(ax, means, split.marginal_spread, split.correlation, names, result.level)
    ax.set(xlabel="part of the estimate given the other coordinates")
    bars(ax, names, estimates, adjusted, [DARK if p <= result.level else LIGHT for p in adjusted])
    ax.axvline(0, color=BLACK, linewidth=0.8)
    ax.margins(x=0.3)
    ax.locator_params(axis="x", nbins=5)
    ax.set_title(f"p-values after Holm; dark: at most {result.level:g}", fontsize="medium")
    return ax


def parts(result: TestResult, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the share of each alternative in the evidence of a `jaxcal.calibration_test`.

    One bar per alternative, with its own p-value; the strongest is black if the test rejects.

    Args:
        result: Result of `jaxcal.calibration_test`.
        ax: Axes to draw on; new ones by default.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> result = jaxcal.calibration_test(1, dist.Normal(centers, 1.0), centers + 2 * noise)
        >>> axes = jaxcal.plots.parts(result)
    """
    ax = axes_of(result, ax)
    if result.parts is None:
        raise ValueError("this result has no parts: it is not of a calibration_test")
    of, c = result.parts, len(result.parts.names)
    evidence, p_values = np.asarray(of.statistics), np.asarray(of.p_values)
    ax.set(xlabel="share of the evidence", xlim=(0, 1.3), xticks=(0, 0.5, 1))
    if not np.isfinite(result.p_value):
        return say(ax, "the statistic is not a finite number:\nno verdict")
    shares = np.exp(evidence - np.max(evidence))
    shares = shares / np.sum(shares)
    greys = [LIGHT] * c
    if result.verdict == "rejected":
        greys[int(of.winner)] = BLACK
    bars(ax, of.names, shares, p_values, greys)
    return ax


def table(result: TestResult, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the table of a `jaxcal.calibration_test`: shifts and spreads along each feature.

    One row per shift, spread, correlation or tail; one column per feature. Cells hold effects:
    shifts in predicted deviations, spreads as the log of predicted over actual deviation. A cell
    is darker the more standard errors its effect is from 0, and framed if its adjusted p-value is
    at most the level. At most 24 rows are drawn, those with the smallest p-values.

    Args:
        result: Result of `jaxcal.calibration_test`.
        ax: Axes to draw on; new ones by default.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> result = jaxcal.calibration_test(1, dist.Normal(centers, 1.0), 0.7 * centers + noise)
        >>> axes = jaxcal.plots.table(result)
    """
    one(result, "p_value")
    if (of := result.table) is None:
        raise ValueError("this result has no table: it is not of a calibration_test, or of too few")
    effect, low, high, p = map(np.asarray, (of.effect, of.low, of.high, of.p_value))
    smallest = np.argsort(np.min(np.where(np.isnan(p), np.inf, p), axis=1), kind="stable")
    rows = np.sort(smallest[:MOST_ROWS])
    ax = axes(ax, (max(6.4, 2.4 + 0.8 * len(of.columns)), max(4.0, 0.8 + 0.27 * len(rows))))
    size = effect / np.where(high > low, (high - low) / 4, np.inf)
    shade = np.minimum(np.abs(np.nan_to_num(size)), 8) / 12
    texts = np.where(np.isfinite(effect), np.vectorize("{:+.2f}".format)(effect), "")
    framed = np.asarray(of.p_adjusted) <= result.level
    cells(ax, shade[rows], [of.rows[k] for k in rows], of.columns, texts[rows], framed[rows])
    if len(rows) < len(of.rows):
        ax.set_title(f"{len(rows)} of {len(of.rows)} rows, by p-value", fontsize="small")
    ax.set_xlabel(
        "above 0: too high (shift), too wide (spread)\ndarker: more standard errors from 0"
    )
    return ax


def along(x: ArrayLike, n: int, name: str = "x") -> np.ndarray:
    """Return ``x`` as an array [n] of numbers, dates or text; errors name the argument."""
    first = x[0] if isinstance(x, list | tuple) and x else x
    kind = "U" if isinstance(first, str | bool) else getattr(first, "dtype", np.dtype(float)).kind
    if kind == "O" and all(isinstance(word, str) for word in np.asarray(x)):  # of pandas
        x, kind = np.asarray(x, str), "U"
    where = np.asarray(x if kind in "MUSTb" else convert.array(x, name))
    if where.shape != (n,):
        raise ValueError(
            f"{name}: wanted one value per observation, shape ({n},), got {where.shape}"
        )
    if np.issubdtype(where.dtype, np.complexfloating):
        raise TypeError(f"{name}: wanted real numbers or dates, got {where.dtype}")
    return where


def _running_mean(values: Float[np.ndarray, " n"], width: int) -> Float[np.ndarray, " n"]:
    window = np.ones(width)
    counts = np.convolve(np.ones(values.size), window, mode="same")
    return np.convolve(values, window, mode="same") / counts


def _crowd(values: Float[np.ndarray, " n"]) -> tuple[float, float, int]:
    """Return axis limits, low and high, and the number of extreme values outside of them."""
    low, high = np.quantile(values, [0.005, 0.995])
    low, high = float(low - 0.4 * (high - low)), float(high + 0.4 * (high - low))
    return low, high, int(np.sum((values < low) | (values > high)))
