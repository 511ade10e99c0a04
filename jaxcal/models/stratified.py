r"""64 points of each prediction of one number, at random and as even as its quantiles.

Two independent halves of 32 points: the a-th point of a half is drawn from between the quantiles
of :math:`a / 32` and :math:`(a + 1) / 32`, so that the mean of f over a half is unbiased for its
average. Its standard error falls as :math:`m^{-3/2}` in the number m of points for smooth f, where
that of independent draws falls as :math:`m^{-1/2}`. Points of different predictions are
independent.

A continuous distribution with an ``icdf`` is asked for these quantiles: nothing else is known about
it, and what it contains is not looked at. Of any other, 512 draws a half are sorted, and one of
each 16 neighbours is taken, which is unbiased as well. Source: Owen (2013), Monte Carlo theory,
methods and examples, section 8.4.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.models.families import Stratified, bare
from jaxcal.models.sampling import in_type_of, sample, value_if_any
from jaxcal.typing import Key, PredictionsLike

STRATA = 32
NEIGHBOURS = 16


def stratified(key: Key, predictions: PredictionsLike) -> Stratified | None:
    """Points of n predictions of one number, in the units of the data; None for others.

    Raises TypeError where there is neither an inverse distribution function nor a sampler.
    """
    batch: Any = getattr(predictions, "batch_shape", ())
    event = getattr(predictions, "event_shape", (0,))
    if len(batch) != 1 or event not in ((), (1,)) or not hasattr(predictions, "sample"):
        return None
    base = bare(predictions)
    # an icdf of counts may lie between them
    counts = getattr(getattr(base, "support", None), "is_discrete", True)
    points = None if counts else _of_quantiles(key, base, (*batch, *event))
    if points is None:
        points = _of_neighbours(key, predictions)
    points = in_type_of(predictions, points).reshape(2 * STRATA, *batch, 1)
    return Stratified(jnp.moveaxis(points, 0, 1))


def _of_quantiles(key: Key, base: Any, shape: tuple[int, ...]) -> Array | None:
    """Points between quantiles; None where the distribution has no inverse."""
    u = jax.random.uniform(key, (2, STRATA, *shape))
    stratum = jnp.arange(STRATA, dtype=u.dtype).reshape(STRATA, *(1,) * len(shape))
    limits = jnp.finfo(u.dtype)
    u = jnp.clip((stratum[None] + u) / STRATA, limits.tiny, 1 - limits.eps)
    quantiles = value_if_any(base.icdf, u) if hasattr(base, "icdf") else None
    return None if quantiles is None else jnp.broadcast_to(quantiles, u.shape)


def _of_neighbours(key: Key, predictions: Any) -> Array:
    draw_key, pick_key = jax.random.split(key)
    draws = sample(draw_key, predictions, (2, STRATA * NEIGHBOURS), "predictions")
    draws = jnp.sort(draws, axis=1).reshape(2, STRATA, NEIGHBOURS, *draws.shape[2:])
    one = jax.random.randint(pick_key, (2, STRATA, 1, *draws.shape[3:]), 0, NEIGHBOURS)
    return jnp.take_along_axis(draws, one, axis=2)[:, :, 0]
