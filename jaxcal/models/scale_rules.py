r"""Quadrature rules for scale mixtures of normals: finite mixtures of normals.

A multivariate Student t is normal given its scale, :math:`N(\mu, \tfrac{\nu}{2 S} \Sigma)` with
:math:`S \sim Gamma(\nu / 2, 1)`. The trapezoidal rule in log S converges exponentially: a normal's
averages are analytic in log S in a strip of width :math:`\pi` and more.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from jaxcal.models.families import Mixtures, Normals
from jaxcal.typing import PredictionsLike

SIZE = 16  # nodes; a pair of predictions costs the square
OUTSIDE = 1e-5  # probability below the first node
LARGEST = 4  # coordinates, beyond which draws are cheaper
FLOOR = -34.0  # log S; below, scales overflow in float32


class ScaleRules(NamedTuple):
    """Mixtures of normals for n predictions, one of twice as many to compare it with, and the
    probability [n] that both leave out."""

    coarse: Mixtures
    fine: Mixtures
    outside: Float[Array, " n"]


def scale_rules(predictions: PredictionsLike) -> ScaleRules | None:
    """Rules for n multivariate Student t predictions of at most 4 coordinates; else None."""
    batch: Any = getattr(predictions, "batch_shape", ())
    event: Any = getattr(predictions, "event_shape", ())
    base: Any = predictions
    while type(base).__name__ == "ExpandedDistribution":
        base = base.base_dist
    if type(base).__name__ != "MultivariateStudentT" or len(batch) != 1 or event[0] > LARGEST:
        return None
    d = event[0]
    shape = jnp.broadcast_to(base.df, batch)[:, None] / 2
    low = (math.log(OUTSIDE) + gammaln(shape + 1)) / shape  # P(S < s) is below s^a / Gamma(a + 1)
    near = shape - 6 * jnp.sqrt(shape)
    low = jnp.maximum(low, jnp.log(jnp.maximum(near, math.exp(FLOOR))))
    high = jnp.log(shape + 5 * jnp.sqrt(shape) + 12)
    at = low + (high - low) * jnp.linspace(0, 1, 2 * SIZE - 1, dtype=shape.dtype)[None]
    log_weights = shape * at - jnp.exp(at)
    weights = jnp.exp(log_weights - jnp.max(log_weights, axis=1, keepdims=True))
    scales = shape * jnp.exp(-at)
    mean = jnp.broadcast_to(base.loc, (*batch, d))
    tril = jnp.broadcast_to(base.scale_tril, (*batch, d, d))
    cov = jnp.einsum("nij,nkj->nik", tril, tril)

    def rule(step: int) -> Mixtures:
        part = weights[:, ::step] / jnp.sum(weights[:, ::step], axis=1, keepdims=True)
        covs = scales[:, ::step, None, None] * cov[:, None]
        means = jnp.broadcast_to(mean[:, None], (*part.shape, d))
        return Mixtures(part, Normals(means, covs))

    outside = jnp.exp(jnp.minimum(shape * low - gammaln(shape + 1), 0))[:, 0]
    return ScaleRules(rule(2), rule(1), jnp.where(near[:, 0] > 0, OUTSIDE, outside))
