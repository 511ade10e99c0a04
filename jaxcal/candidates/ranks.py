r"""Where the target stands among its candidates: ranks that are uniform under calibration."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.candidates.proposals import Candidates
from jaxcal.typing import Key, Vector

Statistic = Callable[[Candidates], Float[Array, "n k"]]  # one number a candidate


def log_density(candidates: Candidates) -> Float[Array, "n k"]:
    """Ranks of it are the coverage of highest-density regions."""
    return candidates.log_densities


def coordinate(j: int) -> Statistic:
    """Ranks of a coordinate are those of simulation-based calibration (SBC)."""
    return lambda candidates: candidates.points[:, :, j]


def distance_to(references: Float[Array, "n d"]) -> Statistic:
    """Ranks of the distance to a reference point a prediction are those of TARP."""
    return lambda candidates: jnp.sum((candidates.points - references[:, None]) ** 2, axis=-1)


def ranks(key: Key, candidates: Candidates, statistic: Statistic = log_density) -> Vector:
    r"""The randomized rank of each target among its candidates, shape [n], in [0, 1].

    :math:`u = \sum_{f(a_k) < f(y)} w_k + U \sum_{f(a_k) = f(y)} w_k` with U uniform; the target is
    one of the ties. Under calibration u is uniform and independent over observations, exactly and
    for every n, whatever the statistic f, as long as f does not know which candidate is the target.
    NaN where a weight or a value is. Cost O(n m).
    """
    values, w = statistic(candidates), candidates.weights
    below = jnp.sum(jnp.where(values < values[:, :1], w, 0), axis=1)
    ties = jnp.sum(jnp.where(values == values[:, :1], w, 0), axis=1)
    u = below + jax.random.uniform(key, below.shape, below.dtype) * ties
    finite = ~jnp.any(jnp.isnan(values) | jnp.isnan(w), axis=1)
    return jnp.where(finite, jnp.clip(u, 0, 1), jnp.nan)
