"""Draws from predictions, for the distances that need them."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal import convert
from jaxcal.models.arrays import Draws
from jaxcal.models.standardized import Standardized
from jaxcal.typing import Key, KeyLike


def sample(key: Key, distribution: Any, shape: tuple[int, ...], name: str) -> Array:
    """Draws of a distribution, or TypeError where it has no sampler."""
    try:
        return distribution.sample(key, shape)
    except (NotImplementedError, ImportError):
        raise TypeError(
            f"{name}: {type(distribution).__name__} has no sampler, and draws are needed"
        ) from None


def draws(key: KeyLike, predictions: Any, m: int) -> Float[Array, "n m *event"]:
    """m draws from each prediction: sampled where there is a sampler, the given ones otherwise.

    Raises ValueError where fewer than m draws were given, TypeError where there is no way to draw.
    """
    m = convert.integer(m, "m")
    if isinstance(predictions, Standardized):
        raw = draws(key, predictions.predictions, m)
        return predictions.units.points(raw.reshape(*raw.shape[:2], -1))
    if isinstance(predictions, Draws):
        if (given := predictions.samples.shape[1]) < m:
            raise ValueError(f"m: asked for {m} draws of each prediction, but Draws holds {given}")
        return predictions.samples[:, :m]
    if hasattr(predictions, "sample") and hasattr(predictions, "batch_shape"):
        samples = jnp.moveaxis(sample(convert.key(key), predictions, (m,), "predictions"), 0, 1)
        return samples if predictions.event_shape else samples[..., None]
    raise TypeError(
        f"predictions: {type(predictions).__name__} has no sampler: draws from them are "
        f"needed; pass a numpyro distribution or Draws, or use Fisher(), which needs scores"
    )
