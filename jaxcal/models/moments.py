"""Mean and covariance of Gaussian predictions, for the distances with closed forms."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.models.standardized import Standardized

Moments = tuple[Float[Array, "*n d"], Float[Array, "*nd d"]]


def gaussian_moments(predictions: Any) -> Moments:
    """Mean [n, d], and variances [n, d] or covariances [n, d, d], of n Gaussian predictions.

    Batch axes beyond the first stay: the components [n, k] of mixtures have means [n, k, d].

    Accepts numpyro's ``Normal``, ``Normal(...).to_event(1)`` and ``MultivariateNormal``; anything
    else raises TypeError, because a closed form for Gaussians says nothing about it.
    """
    if isinstance(predictions, Standardized):
        mean, cov = gaussian_moments(predictions.predictions)
        scale = predictions.units.scale
        wide = cov.ndim > mean.ndim
        return predictions.units.points(mean), cov / (scale[:, None] * scale if wide else scale**2)
    base = predictions
    while type(base).__name__ in ("Independent", "ExpandedDistribution"):
        base = base.base_dist
    name = type(base).__name__
    if name == "Normal":
        shape = (*predictions.batch_shape, *(predictions.event_shape or (1,)))
        loc, scale = (_expand(a, predictions, shape) for a in (base.loc, base.scale))
        return loc, scale**2
    if name == "MultivariateNormal":
        shape = (*predictions.batch_shape, *predictions.event_shape)
        return _expand(base.loc, predictions, shape), jnp.broadcast_to(
            base.covariance_matrix, (*shape, shape[-1])
        )
    raise TypeError(
        f"this distance has a closed form for numpyro Normal and MultivariateNormal predictions "
        f"only, got {type(predictions).__name__}: use Fisher() for densities known up to their "
        f"constant, or a distance from draws"
    )


def _expand(array: Any, predictions: Any, shape: tuple[int, ...]) -> Array:
    array = jnp.asarray(array)
    if array.shape and not predictions.event_shape:
        array = array[..., None]  # scalar targets become vectors of length 1
    return jnp.broadcast_to(array, shape)
