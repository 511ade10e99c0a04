r"""Estimate shifts and spreads, on average and along features, and correlations and tails.

Let :math:`\nu = \Phi^{-1}(r)` be the normal score of the rank r of a target's coordinate. Under
calibration it is standard normal given any prediction. For a Gaussian prediction it is (target -
mean) / standard deviation. Means of :math:`\nu` and :math:`\nu^2` and their slopes along a feature
measure errors in units of the prediction. Tests are exact if these means are normal.

For correlations and tails, trends along features are removed from the normal scores. The residuals
:math:`z` are scaled to mean 0 and variance 1 over all predictions, so that a shift or a spread does
not change them. The mean of :math:`\rho (z_j^2 + z_k^2) / 2 - z_j z_k`, with :math:`\rho` the
expected product of the scores under the prediction, is predicted minus actual correlation (White,
1982). The mean of :math:`|z|`, relative to its value :math:`\sqrt{2 / \pi}` for normal scores, is
below 1 if actual tails are heavier than predicted (Geary, 1935).
"""

import math
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxcal.entries.landed import N_POINTS
from jaxcal.entries.saturation import Directions, agreement, corrected, tested_alone
from jaxcal.moments.attribution import student_p_value, student_quantile
from jaxcal.nulls.contract import holm
from jaxcal.nulls.resampling import Dependence, dependence
from jaxcal.numerics import at_least
from jaxcal.results import Table
from jaxcal.typing import Scalar

Among: TypeAlias = tuple[int, Bool[Array, ""]]  # number of points, whether of equal weights


def table(
    normal: Float[Array, "n d"],
    resolved: Float[Array, "n d"],
    features: Float[Array, "f n d"],
    kept: Bool[Array, " n"],
    level: Scalar | float,
    names: tuple[str, ...],
    columns: tuple[str, ...],
    expected: Float[Array, "n 2 q"],
    in_order: bool = False,
    among: Among | None = None,
) -> Table:
    """Return the table of shifts, spreads, correlations and tails of d coordinates, with p-values.

    Rows: d shifts, d spreads, correlations of the q pairs, d tails. Column 0 holds averages. The
    next f columns hold slopes of shifts and spreads along each standardized feature, and NaN for
    correlations and tails. Observations that are not ``kept`` are ignored.

    ``expected`` is `Ranked.expected`. Standard errors of slopes are the larger of the usual one and
    one robust to heteroscedasticity. Each p-value is the larger of those from ``normal`` and from
    ``resolved`` scores (`Ranked`). If ``in_order``, rows are a time series, and standard errors and
    degrees of freedom allow for its dependence as in `jaxcal.moments.attribution.means`.
    ``among``: as in `with_limits`.
    """
    scores = jnp.stack([normal, resolved])
    of_rows = jax.vmap(lambda normal: _of_rows(normal, features, kept, in_order))
    effects, errors, serial, standard = of_rows(scores)
    of_pairs = jax.vmap(lambda z, rho: _shapes(z, rho, kept, in_order))
    shapes = of_pairs(standard, jnp.swapaxes(expected, 0, 1))
    count = jnp.sum(kept).astype(normal.dtype)
    rows = row_names(names)
    return with_limits(effects, errors, serial, count, level, rows, columns, shapes, among)


SMALL = 3.0  # limits of correlations widen by the share SMALL / m; measured for m = 4 to 49


class Shapes(NamedTuple):
    """Comparison of predicted and actual correlations of q pairs, then of tails of d coordinates:
    ``effect`` [q + d], its standard ``error`` for independent rows, the test statistic ``ratio``
    (nearly Student t), and ``serial``, the `Dependence` of a time series, else None."""

    effect: Array
    error: Array
    ratio: Array
    serial: Dependence | None


def _shapes(
    z: Float[Array, "n d"], expected: Float[Array, "n q"], kept: Bool[Array, " n"], in_order: bool
) -> Shapes:
    """Return `Shapes` from scores ``z`` of mean 0 and variance 1. For each of q pairs (j, k) of
    coordinates, ``expected`` holds the mean of z_j z_k under the prediction."""
    weight = kept[:, None].astype(z.dtype)
    count = jnp.sum(weight)
    j, k = np.triu_indices(z.shape[1], 1)
    size = jnp.sum(weight * jnp.abs(z), axis=0) / count
    pairs = expected * (z[:, j] ** 2 + z[:, k] ** 2) / 2 - z[:, j] * z[:, k]
    sizes = jnp.abs(z) / size[None] - 1 - (z**2 - 1) / 2
    moments = weight * jnp.concatenate([pairs, sizes], axis=1)
    of_pairs = jnp.sum(moments[:, : len(j)], axis=0) / count
    gaps = moments.at[:, : len(j)].add(-weight * of_pairs[None])
    error = jnp.sqrt(jnp.sum(gaps**2, axis=0) / (count - 1) / count)
    relative = size * math.sqrt(math.pi / 2)
    # error for normal scores; the fourth power has next to no skewness
    of_tails = (relative**4 - 1) / 4 / jnp.sqrt((math.pi / 2 - 1.5) / count)
    effect = jnp.concatenate([of_pairs, jnp.log(relative)])
    ratio = jnp.concatenate([of_pairs / error[: len(j)], of_tails])
    return Shapes(effect, error, ratio, dependence(gaps) if in_order else None)


def _of_rows(
    normal: Float[Array, "n d"],
    features: Float[Array, "f n d"],
    kept: Bool[Array, " n"],
    in_order: bool,
) -> tuple[Float[Array, "r c"], Float[Array, "r c"], Dependence | None, Float[Array, "n d"]]:
    """Return the effects [2 d, 1 + f], their standard errors for independent rows, the `Dependence`
    of each effect if rows are ``in_order``, else None, and residuals [n, d]. Effects have d rows of
    shifts, then d of spreads; column 0 holds averages, the others slopes along features.
    Residuals are scores minus their trends along features, scaled to mean 0 and variance 1."""
    weight = kept[:, None].astype(normal.dtype)
    count = jnp.sum(weight)
    mean = jnp.sum(weight * normal, axis=0) / count
    errors = weight * (normal - mean[None])
    features = features * weight[None]

    def without(remainder: Array, f: Array) -> tuple[Array, None]:
        size = jnp.sum(f**2, axis=0)
        slope = jnp.sum(f * remainder, axis=0) / jnp.where(size > 0, size, 1)
        return remainder - f * slope[None], None

    # one feature at a time: a trend of the shift must not count as spread
    explained, _ = jax.lax.scan(without, errors, features)
    square = jnp.sum(explained**2, axis=0) / (count - 1)
    relative = weight * (explained**2 / square[None] - 1) / 2
    of_each = jnp.moveaxis(features, 2, 0)
    products, sums = of_each @ jnp.swapaxes(of_each, 1, 2), jnp.sum(of_each, axis=2)
    degrees = jax.vmap(_degrees, in_axes=(None, 0, 0))(count, products, sums)
    # half the square of a normal score has variance 1/2, which small samples underestimate
    about = at_least(jnp.sqrt(jnp.sum(relative**2, axis=0) / (count - 1)), 0.5**0.5) / degrees**0.5
    everywhere = jnp.stack([-mean, -jnp.log(square * (count - 1) / degrees) / 2])
    its_error = jnp.stack([jnp.sqrt(jnp.sum(errors**2, axis=0) / (count - 1) / count), about])
    moments = jnp.stack([errors, relative])

    def serial(terms: Array) -> Dependence | None:
        return jax.vmap(dependence)(terms) if in_order else None

    def trends(f: Array) -> tuple[Array, Array, Dependence | None]:
        size = jnp.sum(f**2, axis=0)
        safe = jnp.where(size > 0, size, jnp.nan)[None]
        slope = jnp.sum(f[None] * moments, axis=1) / safe
        remainder = moments - f[None] * slope[:, None]
        plain = jnp.sum(remainder**2, axis=1) * safe / count
        varying = jnp.sum((f[None] * remainder) ** 2, axis=1)
        error = jnp.sqrt(at_least(varying, plain) * count / (count - 2)) / safe
        return -slope, error, serial(f[None] * remainder)

    cells = jax.tree.map(
        lambda first, others: jnp.concatenate([first[None], others]).reshape(1 + len(others), -1).T,
        (everywhere, its_error, serial(moments)),
        jax.lax.map(trends, features),
    )
    return *cells, explained / jnp.sqrt(square)[None]


@jax.jit
def _degrees(count: Scalar, products: Float[Array, "f f"], sums: Float[Array, " f"]) -> Scalar:
    r"""Return the degrees of freedom [] of scores without their trends, at least 1: the expected
    sum of squared residuals of ``count`` independent scores of variance 1.

    Scores v are centred by H and regressed on one of f features, columns of F, after the other:
    :math:`(I - F L^{-1} F^\top) H v` remain, with L the lower triangle of :math:`F^\top F`, the
    ``products``. ``sums``: sums of features. Uncorrelated features give count - 1 - f.
    """
    if not (f := len(sums)):
        return count - 1
    eye = jnp.eye(f, dtype=sums.dtype)
    safe = jnp.where(jnp.diagonal(products) > 0, jnp.diagonal(products), 1)

    def substituted(k: Array, inverse: Array) -> Array:
        return inverse.at[k].set((eye[k] - products[k] @ inverse) / safe[k])

    inverse = jax.lax.fori_loop(0, f, substituted, jnp.zeros_like(products))  # of L
    explained = inverse @ (products - sums[:, None] * sums[None] / count)
    lost = 2 * jnp.trace(explained) - jnp.sum((explained @ inverse.T) * products)
    return at_least(count - 1 - lost, 1)


def with_limits(
    effects: Float[Array, "2 r c"],
    errors: Float[Array, "2 r c"],
    serial: Dependence | None,
    count: Scalar,
    level: Scalar | float,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    shapes: Shapes | None = None,
    among: Among | None = None,
) -> Table:
    """Return the `Table` of effects from ``count`` observations, with limits and p-values. Inputs
    at index 0 come from normal scores of ranks, and at index 1 from `Ranked.resolved`. Index 0
    gives the effects and limits; each p-value is the larger of its two values. ``errors`` are
    standard errors for independent rows. ``serial`` is the `Dependence` of each effect in a time
    series, else None. ``shapes`` adds rows to the table, with values in column 0 only. ``among``:
    number of points among which targets are ranked, and whether their weights are equal. P-values
    are then those of an error of the shift, or of the spread, alone."""
    _, r, c = effects.shape
    limited: tuple[Any, Any, Any] = jax.tree.map(
        lambda part: part.reshape(2, -1), (effects, errors, serial)
    )
    tested: tuple[Any, Any, Any] = limited
    if among is not None:
        m, even = among
        effect, error = (
            jnp.where(even, alone.reshape(2, -1), plain)
            for alone, plain in zip(tested_alone(effects, errors, m), limited[:2], strict=True)
        )
        tested = effect, error, limited[2]
    if shapes is not None:
        ratios = shapes.ratio, jnp.ones_like(shapes.ratio), shapes.serial
        parts = shapes.effect, shapes.error, shapes.serial
        tested, limited = (
            jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1), of, further)
            for of, further in ((tested, ratios), (limited, parts))
        )
    p = jnp.max(student_p_value(*_in_order(count, *tested)), axis=0)
    effect, error, degrees = _in_order(count, *jax.tree.map(lambda part: part[0], limited))
    there = jnp.isfinite(effect) & jnp.isfinite(error)
    adjusted = jnp.where(there, holm(jnp.where(there, p, 1)), jnp.nan)
    reach = student_quantile(1 - level / 2, degrees) * error

    def by_row(cells: Float[Array, " k"]) -> Float[Array, "r2 c"]:
        first = jnp.full((len(rows) - r, c), jnp.nan, cells.dtype).at[:, 0].set(cells[r * c :])
        return jnp.concatenate([cells[: r * c].reshape(r, c), first])

    of_cells = map(by_row, (effect, effect - reach, effect + reach, p, adjusted))
    return Table(rows, columns, *of_cells)


def _in_order(
    count: Scalar, effect: Array, error: Array, serial: Dependence | None
) -> tuple[Array, Array, Array]:
    """Return effects, standard errors and degrees of freedom that allow for dependence."""
    if serial is None:
        return effect, error, count - 2
    return effect, error * jnp.sqrt(serial.inflation), serial.degrees(count)


def row_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of table rows: "shift of a", .., "correlation of a and b", "tails of a", .."""
    rows = [f"{kind} of {name}" for kind in ("shift", "spread") for name in names]
    rows += [f"correlation of {a} and {b}" for a, b in combinations(names, 2)]
    return (*rows, *(f"tails of {name}" for name in names))


def sharpened(table: Table, even: Bool[Array, ""], m: int = N_POINTS) -> Table:
    """Return the table corrected for ranking targets among m points, which shrinks effects, and
    makes a shift look like a spread (`jaxcal.entries.saturation`). If points have unequal weights
    (``even`` is False), the table is unchanged. Corrected correlations may be too small by a
    fraction `SMALL` / m; limits are widened by this fraction."""
    count = len(table.rows)
    d = sum(name.startswith("shift of") for name in table.rows)
    of_each = agreement(table.effect[d : 2 * d, 0], m)
    j, k = np.triu_indices(d, 1)
    pairs = of_each[j] * of_each[k] * m / (m + 1)  # what is expected counts the target as a draw
    share = jnp.concatenate([pairs, jnp.ones(d, pairs.dtype)])[: count - 2 * d, None]
    of_pair = (np.arange(count) < 2 * d + len(j))[2 * d :, None]
    plain = table.effect, table.low, table.high
    sizes = _sizes(table.effect[: 2 * d], table.low[: 2 * d], table.high[: 2 * d], m)
    effect, low, high = (
        jnp.where(even, jnp.concatenate([size, part[2 * d :] / share]), part)
        for size, part in zip(sizes, plain, strict=True)
    )
    further = jnp.concatenate([np.zeros((2 * d, 1), bool), of_pair])
    further = jnp.where(even & further, 1 + SMALL / m, 1)
    low = jnp.where(low < 0, low * further, low)
    high = jnp.where(high > 0, high * further, high)
    return replace(table, effect=effect, low=low, high=high)


def _sizes(
    effect: Float[Array, "r c"], low: Float[Array, "r c"], high: Float[Array, "r c"], m: int
) -> tuple[Float[Array, "r c"], Float[Array, "r c"], Float[Array, "r c"]]:
    """Return effects on targets and their limits, from those on normal scores among m draws."""
    (means, logs), (of_mean, of_log) = (jnp.split(of, 2) for of in (-effect, (high - low) / 2))
    everywhere = corrected(means[:, 0], logs[:, 0], of_mean[:, 0], of_log[:, 0], m)
    at = Directions.at(everywhere.shift[0], everywhere.spread[0], m)
    apart, rises = at.apart(means, logs, of_mean, of_log), (at.shift_rise, at.factor_rise)
    slopes, widths = (
        jnp.concatenate([part / rise[:, None] for part, rise in zip(parts, rises, strict=True)])
        for parts in zip(*apart, strict=True)
    )
    sizes = (slopes, slopes - widths, slopes + widths)
    first = (jnp.concatenate(of) for of in zip(*everywhere, strict=True))
    actual, least, most = (of.at[:, 0].set(size) for of, size in zip(sizes, first, strict=True))
    return -actual, -most, -least


def table_sums(
    normal: Float[Array, "n d"], features: Float[Array, "f n d"], kept: Bool[Array, " n"]
) -> tuple[Float[Array, "d s s s"], Float[Array, "d f 5 5"]]:
    """For each of d coordinates, return sums over observations of v_a v_b v_c and of feature^i
    score^j, with v = (1, score, features) of length s = 2 + f, and with i and j from 0 to 4."""
    numbers = jnp.concatenate([jnp.ones_like(normal)[None], normal[None], features])
    u = jnp.where(kept[None, :, None], numbers, 0).transpose(2, 1, 0)
    d, n, s = u.shape
    pairs = (u[:, :, :, None] * u[:, :, None]).reshape(d, n, s * s)
    weight, score, along = u[:, :, :1], u[:, :, 1:2], u[:, :, 2:]
    scores = jnp.concatenate([weight * score**k for k in range(5)], axis=2)
    powers = jnp.stack([along**k for k in range(5)], axis=3).reshape(d, n, -1)
    cubes, products = (jnp.swapaxes(a, 1, 2) @ b for a, b in ((pairs, u), (powers, scores)))
    return cubes.reshape(d, s, s, s), products.reshape(d, s - 2, 5, 5)


def summed_table(
    cubes: Float[np.ndarray, "2 d s s s"],
    powers: Float[np.ndarray, "2 d f 5 5"],
    level: float,
    names: tuple[str, ...],
    columns: tuple[str, ...],
    among: Among | None = None,
) -> Table:
    """Return the rows of shifts and spreads of `table`, computed from sums over observations.

    ``cubes`` and ``powers``: from `table_sums`, with the leading axis of `with_limits`. Errors of
    spreads are computed before trends of the shift are removed, so strong trends widen limits.
    """
    d, f = powers.shape[1:3]
    of_scores = zip(cubes.reshape(-1, *cubes.shape[2:]), powers.reshape(-1, f, 5, 5), strict=True)
    each = np.stack([_of_sums(*of) for of in of_scores])  # [2 d, effects and errors, 2, 1 + f]
    both = each.reshape(2, d, 2, 2, 1 + f).transpose(2, 0, 3, 1, 4).reshape(2, 2, 2 * d, 1 + f)
    effects, errors, count = (jnp.asarray(part) for part in (*both, cubes[0, 0, 0, 0, 0]))
    rows = row_names(names)[: 2 * d]
    return with_limits(effects, errors, None, count, level, rows, columns, None, among)


def _of_sums(
    cubes: Float[np.ndarray, "s s s"], powers: Float[np.ndarray, "f 5 5"]
) -> tuple[np.ndarray, np.ndarray]:
    """Return effects on one coordinate and their standard errors, from its `table_sums`. Both are
    [2, 1 + f]: row 0 for shifts, row 1 for spreads, with columns as in `_of_rows`."""
    n, f, products = cubes[0, 0, 0], len(powers), cubes[0]
    mean = products[0] / n
    centred = np.eye(2 + f)
    centred[1:, 0] = -mean[1:]
    # residual of the score after regression on one feature after the other, as coefficients
    residual = centred[1]
    for axis in centred[2:]:
        square = axis @ products @ axis
        residual = residual - axis * (axis @ products @ residual) / (square if square > 0 else 1)
    spread, variance = (axis @ products @ axis / (n - 1) for axis in (residual, centred[1]))
    of_trends = centred[2:] @ products @ centred[2:].T, np.zeros(f)
    degrees = float(_degrees(*map(jnp.asarray, (n, *of_trends))))
    effect, error = np.full((2, 2, 1 + f), np.nan)
    effect[:, 0] = -mean[1], -np.log(spread * (n - 1) / degrees) / 2
    error[0, 0] = np.sqrt(variance / n)
    about = [_about(of) for of in mean[1:]]
    for k, axis in enumerate(centred[2:]):
        c = about[1 + k] @ powers[k] @ about[0].T
        square, first, third, fourth = (c[a] / variance for a in ((0, 4), (1, 2), (3, 2), (2, 4)))
        of_spread = (
            (square / variance - 2 * c[0, 2] / variance + n) / 4,
            first / 2,
            (third - c[3, 0]) / 2,
            (fourth / variance - 2 * c[2, 2] / variance + c[2, 0]) / 4,
        )
        error[1, 0] = np.sqrt(max(of_spread[0] / (n - 1), 0.5) / degrees)
        if (size := c[2, 0]) > 0:
            along = np.einsum("a,b,c,abc->", axis, residual, residual, cubes)
            effect[:, 1 + k] = (
                -c[1, 1] / np.sqrt(n * size),
                -along / (2 * spread * np.sqrt(n * size)),
            )
            of_shift = c[0, 2], c[1, 1], c[3, 1], c[2, 2]
            error[:, 1 + k] = [_error(n, size, c[4, 0], *of) for of in (of_shift, of_spread)]
    return effect, error


def _error(
    n: float, size: float, quartic: float, square: float, first: float, third: float, fourth: float
) -> float:
    """Return the standard error of the slope of a variable m against f / sd(f). Arguments after n
    are sums over n observations: of f^2, f^4, m^2, m f, m f^3 and m^2 f^2, in this order."""
    slope = first / size
    plain = (square - slope * first) * size / n
    varying = fourth - 2 * slope * third + slope**2 * quartic
    return float(np.sqrt(max(varying, plain) / (n - 2) / size))


def _about(mean: float) -> Float[np.ndarray, "5 5"]:
    return np.array(
        [[math.comb(i, j) * (-mean) ** max(i - j, 0) for j in range(5)] for i in range(5)]
    )
