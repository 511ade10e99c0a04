"""Predictions to vectors: where a distance between predictions is Euclidean, this is the map."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def fisher(node_scores: Float[Array, "n m d"]) -> Float[Array, "n md"]:
    r"""``phi(p) = m^-1/2 [s_p(z_1); ..; s_p(z_m)]``, shape ``[n, m d]``, in units of the score.

    :math:`\|\phi(p) - \phi(q)\|^2 = \frac1m \sum_k \|s_p(z_k) - s_q(z_k)\|^2` estimates the
    generalized Fisher divergence :math:`\int \|s_p - s_q\|^2 d\nu` from draws z of the base
    measure nu.
    Source: Glaser et al. (2023), Section 4.
    """
    n, m, d = node_scores.shape
    return node_scores.reshape(n, m * d) / jnp.sqrt(jnp.asarray(m, node_scores.dtype))
