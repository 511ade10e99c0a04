r"""Shift and spread of each coordinate, on average and along features.

Under calibration the normal score :math:`\nu = \Phi^{-1}(r)` of the rank of a coordinate is
standard normal given the prediction, whatever its shape; for a Gaussian prediction it is the error
in claimed deviations. Means of :math:`\nu` and :math:`\nu^2`, and their slopes along a feature,
therefore measure errors in units of the prediction, with tests that are exact up to the normality
of means.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxcal.moments.marginal_means import student_p_value, student_quantile
from jaxcal.nulls.contract import holm
from jaxcal.numerics import at_least
from jaxcal.results import Table
from jaxcal.typing import Scalar


def table(
    normal: Float[Array, "n d"],
    resolved: Float[Array, "n d"],
    features: Float[Array, "f n d"],
    kept: Bool[Array, " n"],
    level: Scalar | float,
    names: tuple[str, ...],
    columns: tuple[str, ...],
) -> Table:
    """Return a table: rows for shift, then spread, of each coordinate; columns for the average and
    each of f standardized features, whose values may differ between coordinates.

    Limits and p-values are by Student's t, with the larger of the usual error and one robust to a
    spread that varies along the feature. Of the p-values from ``normal`` and from ``resolved``
    scores the larger is used; errors of other coordinates hardly affect the latter.
    """
    scores = jnp.stack([normal, resolved])
    effects, errors = jax.vmap(lambda normal: _of_rows(normal, features, kept))(scores)
    count = jnp.sum(kept).astype(normal.dtype)
    return with_limits(effects, errors, count, level, names, columns)


def _of_rows(
    normal: Float[Array, "n d"], features: Float[Array, "f n d"], kept: Bool[Array, " n"]
) -> tuple[Float[Array, "r c"], Float[Array, "r c"]]:
    """Return shifts and spreads of normal scores on average, and their slopes along features, with
    standard errors."""
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
    # half the square of a normal score has variance 1/2, which small samples underestimate
    about = at_least(jnp.sqrt(jnp.sum(relative**2, axis=0) / (count - 1)), 0.5**0.5) / count**0.5
    everywhere = jnp.stack([-mean, -jnp.log(square) / 2])
    its_error = jnp.stack([jnp.sqrt(jnp.sum(errors**2, axis=0) / (count - 1) / count), about])
    moments = jnp.stack([errors, relative])

    def trends(f: Array) -> tuple[Array, Array]:
        size = jnp.sum(f**2, axis=0)
        safe = jnp.where(size > 0, size, jnp.nan)[None]
        slope = jnp.sum(f[None] * moments, axis=1) / safe
        remainder = moments - f[None] * slope[:, None]
        plain = jnp.sum(remainder**2, axis=1) * safe / count
        varying = jnp.sum((f[None] * remainder) ** 2, axis=1)
        return -slope, jnp.sqrt(at_least(varying, plain) * count / (count - 2)) / safe

    slopes, slope_errors = jax.lax.map(trends, features)
    effect, error = (
        jnp.concatenate([first[None], others]).reshape(len(features) + 1, -1).T
        for first, others in ((everywhere, slopes), (its_error, slope_errors))
    )
    return effect, error


def with_limits(
    effects: Float[Array, "2 r c"],
    errors: Float[Array, "2 r c"],
    count: Scalar,
    level: Scalar | float,
    names: tuple[str, ...],
    columns: tuple[str, ...],
) -> Table:
    """Return a table from effects and errors for ``count`` observations. Effects and limits are
    those of normal scores; p-values are the larger of these and of resolved scores."""
    degrees = count - 2
    p = jnp.max(student_p_value(effects, errors, degrees), axis=0)
    effect, error = effects[0], errors[0]
    there = jnp.isfinite(effect) & jnp.isfinite(error)
    order = jnp.where(there, p, 1).reshape(-1)
    adjusted = jnp.where(there, holm(order).reshape(p.shape), jnp.nan)
    reach = student_quantile(1 - level / 2, degrees) * error
    labels = tuple(f"{kind} of {name}" for kind in ("shift", "spread") for name in names)
    return Table(labels, columns, effect, effect - reach, effect + reach, p, adjusted)


def table_sums(
    normal: Float[Array, "n d"], features: Float[Array, "f n d"], kept: Bool[Array, " n"]
) -> tuple[Float[Array, "d s s s"], Float[Array, "d f 5 5"]]:
    """Return the sums that `summed_table` needs: sums of all products of three factors among 1, the
    normal score and the features; and of powers 0 to 4 of each feature times powers of the
    score."""
    numbers = jnp.concatenate([jnp.ones_like(normal)[None], normal[None], features])
    u = jnp.where(kept[None, :, None], numbers, 0).transpose(2, 1, 0)
    d, n, s = u.shape
    pairs = (u[:, :, :, None] * u[:, :, None]).reshape(d, n, s * s)
    weight, score, along = u[:, :, :1], u[:, :, 1:2], u[:, :, 2:]
    scores = jnp.concatenate([weight * score**k for k in range(5)], axis=2)
    powers = jnp.stack([along**k for k in range(5)], axis=3).reshape(d, n, -1)
    with jax.default_matmul_precision("highest"):
        cubes, products = (jnp.swapaxes(a, 1, 2) @ b for a, b in ((pairs, u), (powers, scores)))
    return cubes.reshape(d, s, s, s), products.reshape(d, s - 2, 5, 5)


def summed_table(
    cubes: Float[np.ndarray, "2 d s s s"],
    powers: Float[np.ndarray, "2 d f 5 5"],
    level: float,
    columns: tuple[str, ...],
) -> Table:
    """Return the table from `table_sums` of normal and resolved scores, with the effects of
    `table`; coordinates are called 0, 1, ..

    Errors of the spread are computed before trends of the shift are removed, so limits are wider if
    these trends are strong.
    """
    d, f = powers.shape[1:3]
    of_scores = zip(cubes.reshape(-1, *cubes.shape[2:]), powers.reshape(-1, f, 5, 5), strict=True)
    each = np.stack([_of_sums(*of) for of in of_scores])  # [2 d, effects and errors, 2, 1 + f]
    both = each.reshape(2, d, 2, 2, 1 + f).transpose(2, 0, 3, 1, 4).reshape(2, 2, 2 * d, 1 + f)
    effects, errors, count = (jnp.asarray(part) for part in (*both, cubes[0, 0, 0, 0, 0]))
    return with_limits(effects, errors, count, level, tuple(map(str, range(d))), columns)


def _of_sums(
    cubes: Float[np.ndarray, "s s s"], powers: Float[np.ndarray, "f 5 5"]
) -> tuple[np.ndarray, np.ndarray]:
    """Return effects and their errors, [2, 1 + f] each: shift, then spread."""
    n, f, products = cubes[0, 0, 0], len(powers), cubes[0]
    mean = products[0] / n
    centred = np.eye(2 + f)
    centred[1:, 0] = -mean[1:]
    # residual of the score after regression on one feature after the other, as coefficients
    left = centred[1]
    for axis in centred[2:]:
        square = axis @ products @ axis
        left = left - axis * (axis @ products @ left) / (square if square > 0 else 1)
    spread, variance = (axis @ products @ axis / (n - 1) for axis in (left, centred[1]))
    effect, error = np.full((2, 2, 1 + f), np.nan)
    effect[:, 0] = -mean[1], -np.log(spread) / 2
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
        error[1, 0] = np.sqrt(max(of_spread[0] / (n - 1), 0.5) / n)
        if (size := c[2, 0]) > 0:
            along = np.einsum("a,b,c,abc->", axis, left, left, cubes)
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
    """Return the error of the slope of a moment m along a feature f of deviation 1, from sums: f^2,
    f^4, m^2, m f, m f^3 and m^2 f^2."""
    slope = first / size
    plain = (square - slope * first) * size / n
    varying = fourth - 2 * slope * third + slope**2 * quartic
    return float(np.sqrt(max(varying, plain) / (n - 2) / size))


def _about(mean: float) -> Float[np.ndarray, "5 5"]:
    """Return the matrix that maps powers of x to powers of x - mean."""
    return np.array(
        [[math.comb(i, j) * (-mean) ** max(i - j, 0) for j in range(5)] for i in range(5)]
    )
