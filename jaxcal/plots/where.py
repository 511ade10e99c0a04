"""Draw the shift or spread of predictions along an input, from ranks."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Float, Int
from scipy.special import ndtri

from jaxcal.nulls.resampling import dependence
from jaxcal.plots.canvas import DARK, axes_of, cells, dots, legend_above, quantile_bins, say
from jaxcal.read import convert
from jaxcal.results import TestResult, confidence
from jaxcal.typing import ArrayLike, Axes

EFFECTS = {"shift": "too high by (claimed sd)", "spread": "too wide: log(claimed / actual sd)"}
FEWEST = 30  # observations per bin on average
LEAST = 3  # observations in a group with limits


class Effects(NamedTuple):
    """Effects in k groups, with simultaneous limits, each field [k]."""

    effect: Float[np.ndarray, " k"]
    low: Float[np.ndarray, " k"]
    high: Float[np.ndarray, " k"]


def where(
    result: TestResult,
    x: ArrayLike,
    *,
    coordinate: int = 0,
    effect: str = "shift",
    bins: int | None = None,
    label: str | Sequence[str] = "input",
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the shift or the spread of one target coordinate along an input.

    Bins hold about equally many observations. Limits are simultaneous, of confidence 1 -
    ``result.level``, and allow for dependence after `jaxcal.nulls.DependentWild`. Two inputs give a
    map, with frames around cells whose limits exclude 0. Effects are computed from normal scores of
    the ranks of targets. For Gaussian predictions they are errors in predicted deviations. Large
    spread errors look smaller, because each rank is among only 97 points. `jaxcal.results.Table`
    corrects this for draws; this figure does not.

    Args:
        result: Result of `jaxcal.calibration_test`.
        x: Numbers [n], or [n, 2] for a map; not necessarily inputs of the test.
        coordinate: Target coordinate, 0 to d - 1; d + k is entry k of the test's ``statistics``.
        effect: "shift", predicted minus actual mean in predicted standard deviations, or "spread",
            the logarithm of predicted over actual standard deviation.
        bins: Number of bins; by default n / 30, at least 2 and at most 10. For a map, along each
            input; by default sqrt(n / 30), at least 2 and at most 10.
        label: Name of the input; for a map one name for both inputs, or a pair of names.
        ax: Axes to draw on; new ones by default.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 200))
        >>> result = jaxcal.calibration_test(1, dist.Normal(centers, 1.0), 0.7 * centers + noise)
        >>> axes = jaxcal.plots.where(result, centers, label="claimed mean")
    """
    ax = axes_of(result, ax)
    if result.ranks is None:
        raise ValueError("this result has no ranks: it is not of a calibration_test")
    convert.choice(effect, "effect", tuple(EFFECTS))
    ranks = np.asarray(result.ranks, float)[:, 1:]
    n, d = ranks.shape
    coordinate = convert.integer(coordinate, "coordinate", least=0, most=d - 1)
    values = np.asarray(convert.floats(x, "x"))
    if values.shape not in ((n,), (n, 2)) or not np.all(np.isfinite(values)):
        raise ValueError(
            f"x: wanted finite numbers of shape ({n},) or ({n}, 2), got {values.shape}"
        )
    z = ndtri(np.clip(ranks[:, coordinate], 1e-7, 1 - 1e-7))
    kept = np.isfinite(z)
    if not np.any(kept):
        return say(ax, "ranks are not numbers:\nno verdict")
    z, values = z[kept], values[kept].reshape(np.sum(kept), -1)
    groups, in_order = values.shape[1], result.null == "DependentWild"
    if bins is None:
        bins = int(np.clip((len(z) / FEWEST) ** (1 / groups), 2, 10))
    bins = convert.integer(bins, "bins")
    of = partial(effects, z, effect=effect, level=result.level, in_order=in_order)
    sure = confidence(result.level)
    if groups == 1:
        _along(ax, values[:, 0], bins, of, sure)
        ax.set(xlabel=str(label), ylabel=EFFECTS[effect])
        return ax
    labels = (label, label) if isinstance(label, str) else tuple(map(str, label))
    if len(labels) != 2:
        raise ValueError(f"label: wanted a name, or one for each of two inputs, got {label!r}")
    _map(ax, values, bins, of)
    ax.set(xlabel=f"{labels[0]} (median of a column)", ylabel=f"{labels[1]} (median of a row)")
    said = f"darker: more standard errors, framed: {sure}, all together"
    ax.set_title(f"{EFFECTS[effect]}; {said}", fontsize="small")
    return ax


def effects(
    z: Float[np.ndarray, " n"],
    group: Int[np.ndarray, " n"],
    k: int,
    effect: str,
    level: float,
    in_order: bool = False,
) -> Effects:
    """Return the `Effects` of normal scores z in k groups; NaN for groups of fewer than `LEAST`.
    Limits use Student's t (shift) or chi squared (spread) with Bonferroni's correction. If scores
    are ``in_order``, errors and degrees of freedom allow for their `Dependence`."""
    number = np.bincount(group, minlength=k)
    enough = number >= LEAST
    count = np.where(enough, number, LEAST)
    mean = np.bincount(group, z, minlength=k) / count
    squares = np.bincount(group, (z - mean[group]) ** 2, minlength=k)
    degrees = count - 1
    deviation = np.sqrt(squares / degrees)
    if in_order:
        terms = z - mean[group] if effect == "shift" else (z - mean[group]) ** 2
        terms = terms - (effect != "shift") * (squares / count)[group]
        series = np.where(group[:, None] == np.arange(k), terms[:, None], 0)
        serial = dependence(jnp.asarray(series))
        degrees = np.asarray(serial.degrees(jnp.asarray(count, float)))
        count = count / np.asarray(serial.inflation)
    tail = level / max(1, np.sum(enough)) / 2
    if effect == "shift":
        middle = -mean
        reach = scipy.stats.t.isf(tail, degrees) * deviation / count**0.5
        low, high = middle - reach, middle + reach
    else:
        with np.errstate(divide="ignore"):
            middle = -np.log(deviation)
        ends = (scipy.stats.chi2.isf(q, degrees) / degrees for q in (1 - tail, tail))
        low, high = (middle + np.log(end) / 2 for end in ends)
    middle, low, high = (np.where(enough, part, np.nan) for part in (middle, low, high))
    return Effects(middle, low, high)


def _along(ax: "Axes", x: np.ndarray, bins: int, of: Callable[..., Effects], sure: str) -> None:
    group, at, reach = quantile_bins(x, bins)
    parts = of(group, len(at))
    ax.axhline(0, color=DARK, linewidth=0.8)
    reaches = [parts.effect - parts.low, parts.high - parts.effect]
    label = f"about {len(x) // len(at)} observations, {sure} for all together"
    dots(ax, at, parts.effect, reaches, reach, label=label)
    legend_above(ax)


def _map(ax: "Axes", x: np.ndarray, bins: int, of: Callable[..., Effects]) -> None:
    (first, *across), (second, *up) = (quantile_bins(x[:, k], bins) for k in (0, 1))
    columns, rows = len(across[0]), len(up[0])
    parts = of(second * columns + first, rows * columns)
    size = np.abs(parts.effect / (parts.high - parts.low)).reshape(rows, columns)
    effects_of = parts.effect.reshape(rows, columns)
    texts = np.where(np.isfinite(effects_of), np.vectorize("{:+.2f}".format)(effects_of), "")
    framed = ((parts.low > 0) | (parts.high < 0)).reshape(rows, columns)
    up_names, names = ([f"{value:.2g}" for value in side[0]] for side in (up, across))
    cells(ax, np.minimum(np.nan_to_num(size) / 3, 1), up_names, names, texts, framed)
    ax.invert_yaxis()
