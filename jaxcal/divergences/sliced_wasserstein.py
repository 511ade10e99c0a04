"""The sliced Wasserstein distance, from draws."""

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxcal.divergences import embeddings
from jaxcal.divergences.vectors import NodeScores, _Euclidean
from jaxcal.models.sampling import check_n_draws, drawn
from jaxcal.typing import Features, Key, PredictionsLike


class SlicedWasserstein(_Euclidean, eqx.Module):
    """Sliced 2-Wasserstein distance, from draws of each prediction.

    The root mean square, over random directions, of the 2-Wasserstein distance of the projected
    draws; in one dimension there is one direction, and the distance is that of the draws
    themselves. Two predictions that agree have a positive distance, of the order of
    n_draws^-1/2, since their draws differ.

    Args:
        n_draws: Number of draws of each prediction; None takes all draws of `jaxcal.Draws`.
        n_projections: Number of directions.

    Cost: ``n_draws n_projections`` multiplications a pair, the length of the features.

    Source: Bonneel et al. (2015), Sliced and Radon Wasserstein barycenters of measures.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions = dist.Normal(centers, 1.0)
        >>> divergence = jaxcal.divergences.SlicedWasserstein(n_draws=20)
        >>> jaxcal.skce_test(1, predictions, centers + 0.8 + noise, divergence=divergence).verdict
        'rejected'
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

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        draw_key, direction_key = jax.random.split(key)
        samples = drawn(draw_key, predictions, self.n_draws)
        d = samples.shape[-1]
        number = self.n_projections if d > 1 else 1
        directions = jax.random.normal(direction_key, (number, d), samples.dtype)
        directions = directions / jnp.linalg.norm(directions, axis=-1, keepdims=True)
        return embeddings.sliced_wasserstein(samples, directions)
