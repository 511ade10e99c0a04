r"""Shift and spread of each coordinate, on average and along features.

The normal score :math:`\nu = \Phi^{-1}(r)` of the rank of a coordinate is standard normal given the
prediction, for every shape of it, under calibration; for a Gaussian prediction it is the error in
claimed deviations. Means of :math:`\nu`, of :math:`\nu^2`, and their slopes along a feature
therefore measure errors in units of the prediction, with tests exact up to the normality of means.
"""

import jax
import jax.numpy as jnp
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
    each of f standardized features, which has its own values for each coordinate.

    Limits and p-values by Student's t, with the larger of the usual errors and those robust to a
    spread that varies along the feature. p-values are the larger ones of two: of ``normal`` scores,
    and of ``resolved`` ones, on which an error of another coordinate has hardly any influence.
    """
    both = jax.vmap(lambda scores: _effects(scores, features, kept))(jnp.stack([normal, resolved]))
    degrees = jnp.sum(kept).astype(normal.dtype) - 2
    p = jnp.max(student_p_value(*both, degrees), axis=0)
    effect, error = (part[0] for part in both)
    there = jnp.isfinite(effect) & jnp.isfinite(error)
    order = jnp.where(there, p, 1).reshape(-1)
    adjusted = jnp.where(there, holm(order).reshape(p.shape), jnp.nan)
    reach = student_quantile(1 - level / 2, degrees) * error
    labels = tuple(f"{kind} of {name}" for kind in ("shift", "spread") for name in names)
    return Table(labels, columns, effect, effect - reach, effect + reach, p, adjusted)


def _effects(
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
    # halved squares of normal scores have variance 1/2, which small samples underestimate
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
