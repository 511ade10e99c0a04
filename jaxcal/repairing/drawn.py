r"""Predictions that are draws: moved by the map of normal distributions with their moments.

Draws are replaced by normal distributions with their mean and covariance. The likelihood of these
is largest if errors have mean 0 and the claimed covariance, for any form of draws and targets, so
the map matches moments. Its gain is measured by the energy score of the draws themselves,

.. math:: E |X - y| - E |X - X'| / 2

(smaller is better), which is proper for all predictions with a mean. The estimate assumes
independent draws; moved draws share an estimated mean, so gains from m draws are too large by up to
about 1 / (4 m) of a deviation.

Source: Gneiting and Raftery (2007), Section 4.3.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.read import Draws
from jaxcal.repairing.move import Move
from jaxcal.typing import Vector


def gaussians(draws: Draws) -> Any:
    """Return normal distributions with the moments of draws [n, m] or [n, m, d].

    Raises:
        ValueError: There are fewer than d + 2 draws, or targets are not vectors.
    """
    import numpyro.distributions as dist

    samples = jnp.asarray(draws.samples)
    if samples.ndim not in (2, 3) or samples.shape[1] < (samples[0, 0].size + 2):
        raise ValueError(
            f"predictions: a repair needs draws of shape [n, m] or [n, m, d] with m >= d + 2, got "
            f"{samples.shape}"
        )
    mean = jnp.mean(samples, axis=1)
    if samples.ndim == 2:
        return dist.Normal(mean, jnp.std(samples, axis=1, ddof=1))
    gaps = samples - mean[:, None]
    covariance = jnp.einsum("nmi,nmj->nij", gaps, gaps) / (gaps.shape[1] - 1)
    return dist.MultivariateNormal(mean, covariance)


def moved_draws(draws: Draws, move: Move) -> Draws:
    """Return the draws of n predictions, moved row by row."""
    samples = jnp.asarray(draws.samples)
    rows = samples.reshape(*samples.shape[:2], -1)
    return Draws(jax.vmap(move.of, in_axes=1, out_axes=1)(rows).reshape(samples.shape), draws.rhat)


def energy_scores(draws: Draws, targets: Array) -> Vector:
    """Return the energy score of each prediction, [n]; smaller is better. Cost: n m^2."""
    samples = jnp.asarray(draws.samples)
    n, m = samples.shape[:2]

    def one(row: tuple[Float[Array, "m d"], Float[Array, " d"]]) -> Array:
        xs, y = row
        lengths = lambda gaps: jnp.linalg.norm(gaps, axis=1)  # noqa: E731
        between = jax.lax.map(lambda x: jnp.sum(lengths(xs - x[None])), xs)
        return jnp.mean(lengths(xs - y[None])) - jnp.sum(between) / (2 * m * (m - 1))

    rows = samples.reshape(n, m, -1), targets.reshape(n, -1)
    return jax.lax.map(one, rows, batch_size=min(n, 256))
