r"""Where the target stands among its candidates: ranks that are uniform under calibration."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal import convert
from jaxcal.candidates.proposals import Candidates
from jaxcal.typing import KeyLike, Vector

Statistic = Callable[[Candidates], Float[Array, "n k"]]  # one number a candidate


def log_density(candidates: Candidates) -> Float[Array, "n k"]:
    """Ranks of it are the coverage of highest-density regions."""
    _of_candidates(candidates)
    return candidates.log_densities


def coordinate(j: int) -> Statistic:
    """Ranks of a coordinate are those of simulation-based calibration (SBC)."""
    j = convert.integer(j, "j", least=0)

    def statistic(candidates: Candidates) -> Array:
        if j >= (d := candidates.points.shape[2]):
            raise ValueError(f"j: wanted a coordinate from 0 to {d - 1}, got {j}")
        return candidates.points[:, :, j]

    return statistic


def distance_to(references: Float[Array, "n d"]) -> Statistic:
    """Ranks of the distance to a reference point a prediction are those of TARP."""
    centres = convert.floats(references, "references")

    def statistic(candidates: Candidates) -> Array:
        if centres.shape != (wanted := candidates.points[:, 0].shape):
            raise ValueError(
                f"references: wanted shape {wanted}, one a target, got {centres.shape}"
            )
        return jnp.sum((candidates.points - centres[:, None]) ** 2, axis=-1)

    return statistic


def ranks(key: KeyLike, candidates: Candidates, statistic: Statistic = log_density) -> Vector:
    r"""The randomized rank of each target among its candidates, shape [n], in [0, 1].

    :math:`u = \sum_{f(a_k) < f(y)} w_k + U \sum_{f(a_k) = f(y)} w_k` with U uniform; the target is
    one of the ties. Under calibration u is uniform and independent over observations, exactly and
    for every n, whatever the statistic f, as long as f does not know which candidate is the target.
    NaN where a weight or a value is. Cost O(n m).
    """
    key = convert.key(key)
    _of_candidates(candidates)
    convert.function(statistic, "statistic", "candidates")
    values, w = statistic(candidates), candidates.weights
    if not isinstance(values, Array | np.ndarray) or values.shape != w.shape:
        raise ValueError(
            f"statistic: wanted one number a candidate, shape {w.shape}, got {convert.say(values)}"
        )
    below = jnp.sum(jnp.where(values < values[:, :1], w, 0), axis=1)
    ties = jnp.sum(jnp.where(values == values[:, :1], w, 0), axis=1)
    u = below + jax.random.uniform(key, below.shape, below.dtype) * ties
    finite = ~jnp.any(jnp.isnan(values) | jnp.isnan(w), axis=1)
    return jnp.where(finite, jnp.clip(u, 0, 1), jnp.nan)


def _of_candidates(value: Any) -> None:
    if not isinstance(value, Candidates):
        raise TypeError(f"candidates: wanted those of a proposal, got {convert.say(value)}")
