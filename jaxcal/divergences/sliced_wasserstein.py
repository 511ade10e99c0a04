"""The sliced Wasserstein distance, from draws."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxcal.divergences import embeddings
from jaxcal.divergences.vectors import NodeScores, _Euclidean
from jaxcal.models.sampling import check_n_draws, drawn
from jaxcal.typing import Features, Key


class SlicedWasserstein(_Euclidean, eqx.Module):
    """Sliced 2-Wasserstein distance, from ``n_draws`` of each prediction.

    The root mean square, over ``n_projections`` random directions, of the 2-Wasserstein distance
    of the projected draws; in one dimension there is one direction, and the distance is that of
    the draws themselves. ``n_draws=None`` takes all draws of `jaxcal.Draws`. Features have length
    ``n_draws n_projections``: those are the multiplications per pair. Two predictions that agree
    have a positive distance, of the order of n_draws^-1/2, since their draws differ.
    """

    n_draws: int | None = eqx.field(default=50, static=True)
    n_projections: int = eqx.field(default=20, static=True)
    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def __check_init__(self):
        check_n_draws(self.n_draws)
        if not isinstance(self.n_projections, int) or self.n_projections < 1:
            raise ValueError(
                f"n_projections: wanted a positive number of directions, got {self.n_projections!r}"
            )

    def features(self, key: Key, predictions: Any, at_nodes: NodeScores | None) -> Features:
        draw_key, direction_key = jax.random.split(key)
        samples = drawn(draw_key, predictions, self.n_draws)
        d = samples.shape[-1]
        number = self.n_projections if d > 1 else 1
        directions = jax.random.normal(direction_key, (number, d), samples.dtype)
        directions = directions / jnp.linalg.norm(directions, axis=-1, keepdims=True)
        return embeddings.sliced_wasserstein(samples, directions)
