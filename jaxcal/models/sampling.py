"""Draws from predictions, for the distances that need them."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal import convert
from jaxcal.models.arrays import Draws
from jaxcal.models.standardized import Standardized
from jaxcal.typing import KeyLike


def draws(key: KeyLike, predictions: Any, m: int) -> Float[Array, "n m *event"]:
    """m draws from each prediction: sampled where there is a sampler, the given ones otherwise.

    Raises ValueError where fewer than m draws were given, TypeError where there is no way to draw.
    """
    if isinstance(predictions, Standardized):
        raw = draws(key, predictions.predictions, m)
        return predictions.units.points(raw.reshape(*raw.shape[:2], -1))
    if isinstance(predictions, Draws):
        if (given := predictions.samples.shape[1]) < m:
            raise ValueError(f"asked for {m} draws of each prediction, but Draws holds {given}")
        return predictions.samples[:, :m]
    if hasattr(predictions, "sample") and hasattr(predictions, "batch_shape"):
        samples = jnp.moveaxis(predictions.sample(convert.key(key), (m,)), 0, 1)
        return samples if predictions.event_shape else samples[..., None]
    raise TypeError(
        f"{type(predictions).__name__} has no sampler: this distance needs draws from the "
        f"predictions; pass a numpyro distribution or Draws, or use Fisher(), which needs scores"
    )
