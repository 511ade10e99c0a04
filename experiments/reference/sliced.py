"""Sliced Wasserstein distance between predictions, as a divergence of one's own."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.divergences.vectors import NodeScores, _Euclidean
from jaxcal.read.sampling import check_n_samples, drawn
from jaxcal.typing import Features, Key, PredictionsLike


def sliced_wasserstein(
    samples: Float[Array, "n m d"], directions: Float[Array, "q d"]
) -> Float[Array, "n qm"]:
    r"""``phi(p) = (q m)^-1/2 sort(<theta_l, y_k>)``, sorted over k for each direction theta_l.

    :math:`\|\phi(p) - \phi(q)\|^2` is the mean over directions of the squared 2-Wasserstein
    distance of the projected samples, which pairs sorted values. In units of the
    targets; cost O(n q m (d + log m)).
    Source: Bonneel et al. (2015), Sliced and Radon Wasserstein barycenters of measures.
    """
    n, m, _ = samples.shape
    projected = jnp.sort(jnp.einsum("nmd,qd->nqm", samples, directions), axis=-1)
    return projected.reshape(n, -1) / jnp.sqrt(jnp.asarray(m * len(directions), samples.dtype))


class SlicedWasserstein(_Euclidean, eqx.Module):
    """Sliced 2-Wasserstein distance, from draws of each prediction.

    Root mean square, over random directions, of the 2-Wasserstein distance of the projected draws;
    in one dimension, the distance of the draws themselves. Equal predictions have a positive
    distance of order n_samples^-1/2, since their draws differ.

    Args:
        n_samples: Number of draws of each prediction; None takes all draws of `jaxcal.Draws`.
        n_projections: Number of directions.

    Cost per pair: ``n_samples n_projections`` multiplications, the length of the features.

    Source: Bonneel et al. (2015), Sliced and Radon Wasserstein barycenters of measures.
    """

    n_samples: int | None = eqx.field(default=50, static=True)
    n_projections: int = eqx.field(default=20, static=True)
    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def __check_init__(self):
        check_n_samples(self.n_samples)
        if not isinstance(self.n_projections, int) or self.n_projections < 1:
            raise ValueError(
                f"n_projections: wanted a positive number of directions, got {self.n_projections!r}"
            )

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        draw_key, direction_key = jax.random.split(key)
        samples = drawn(draw_key, predictions, self.n_samples)
        d = samples.shape[-1]
        number = self.n_projections if d > 1 else 1
        directions = jax.random.normal(direction_key, (number, d), samples.dtype)
        directions = directions / jnp.linalg.norm(directions, axis=-1, keepdims=True)
        return sliced_wasserstein(samples, directions)
