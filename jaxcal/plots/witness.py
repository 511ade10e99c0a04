"""Where a model is off: the estimate as a mean over parts of the inputs.

The witness of a kernel test is the function whose mean over the observations is the estimate;
its value at observation i is n times that observation's contribution.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxcal.plots.canvas import BLACK, DARK, LIGHT, legend_above, say
from jaxcal.plots.results import _axes, estimate_line
from jaxcal.read import checks, convert
from jaxcal.results import TestResult
from jaxcal.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Parts(NamedTuple):
    """The witness over k groups of observations: mean, its standard error, number; each [k].

    Means weighted by the numbers average to the estimate, except for `jaxcal.calibration_test`.
    """

    mean: Float[np.ndarray, " k"]
    error: Float[np.ndarray, " k"]
    number: Int[np.ndarray, " k"]


def witness(
    result: TestResult,
    x: ArrayLike,
    *,
    bins: int = 10,
    label: str = "input",
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the witness over an input, averaged in bins of equally many observations.

    Text or truth values make one bar a group instead. Bars are two standard errors either way, of
    the mean of that bin alone: they say which parts stand out, and are no test of them (that is
    the p-value of a test run on those observations).

    Args:
        result: Result of a test of n observations.
        x: Numbers, text or truth values, [n].
        bins: Number of bins.
        label: Name of x and its unit.
        ax: Axes to draw on; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> result = jaxcal.skce_test(1, dist.Normal(centers, 1.0), centers + 0.8 + noise)
        >>> axes = jaxcal.plots.witness(result, centers, label="prediction")
    """
    ax = _axes(result, ax)
    parts, where = _checked(result, x)
    what = "squared discrepancy" if result.parts is None else "log evidence, to first order"
    ax.set(xlabel=label, ylabel=f"witness ({what})")
    if not np.all(np.isfinite(parts)):
        return say(ax, "contributions are not finite numbers:\nno verdict")
    grouped = not np.issubdtype(where.dtype, np.number)
    if grouped:
        names, group = np.unique(where, return_inverse=True)
        at, reach = np.arange(len(names), dtype=float), None
        ax.set_xticks(at, [str(name) for name in names])
    else:
        group, at, reach = quantile_bins(where.astype(float), convert.integer(bins, "bins"))
    means = mean_parts(parts, group, len(at))
    ax.axhline(0, color=DARK, linewidth=0.8)
    estimate_line(result, ax)
    if grouped:
        ax.bar(at, means.mean, width=0.6, color=LIGHT)
    ax.errorbar(
        at,
        means.mean,
        2 * means.error,
        reach,
        color=BLACK,
        linestyle="none",
        marker="o",
        markersize=4.5,
        elinewidth=1,
        label="mean of a group" if grouped else f"mean of about {len(parts) // len(at)}",
    )
    legend_above(ax)
    return ax


def mean_parts(parts: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"], k: int) -> Parts:
    """Mean and its standard error in each of k groups; NaN where a group has none, or just one."""
    number = np.bincount(group, minlength=k)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(group, parts, minlength=k) / number
        squares = np.bincount(group, (parts - mean[group]) ** 2, minlength=k)
        error = np.sqrt(squares / (number - 1.0) / number)
    return Parts(mean, np.where(number > 1, error, np.nan), number)


def quantile_bins(where: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bin of every value, the median of each bin, and how far it reaches below and above."""
    starts = np.unique(np.sort(where)[np.arange(bins) * where.size // bins])
    group = np.searchsorted(starts, where, side="right") - 1
    members = [where[group == k] for k in range(len(starts))]
    at = np.asarray([np.median(values) for values in members])
    ends = np.asarray([[values.min(), values.max()] for values in members]).T
    return group, at, np.abs(ends - at)


def _checked(result: TestResult, x: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """n times the contributions, and the variable that they are shown over."""
    numbers = isinstance(x, list | tuple) and not all(isinstance(entry, str) for entry in x)
    parts, where = np.asarray(result.contributions), checks.array(x, "x") if numbers else x
    where = np.asarray(where)
    if where.shape != parts.shape:
        raise ValueError(
            f"x: wanted one value an observation, shape ({parts.size},), got {where.shape}"
        )
    if np.issubdtype(where.dtype, np.number):
        if not np.all(np.isfinite(where)):
            raise ValueError("x: wanted finite numbers, got NaN or infinity among them")
    elif where.dtype.kind not in "USTb":
        raise ValueError(f"x: wanted numbers or text, got {where.dtype}")
    return parts.size * parts.astype(float), where
