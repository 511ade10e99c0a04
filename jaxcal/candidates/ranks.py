r"""Compute ranks of targets among their candidates, which are uniform under calibration."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.candidates.proposals import Candidates
from jaxcal.numerics import full_precision
from jaxcal.read import checks, convert
from jaxcal.typing import KeyLike, Vector

Statistic = Callable[[Candidates], Float[Array, "n k"]]  # one number per candidate


def log_density(candidates: Candidates) -> Float[Array, "n k"]:
    """Return the log density of targets and candidates; its ranks test highest-density coverage."""
    return candidates.log_densities


def coordinate(j: int) -> Statistic:
    """Return a statistic for `ranks`: coordinate j, as in simulation-based calibration (SBC)."""
    return lambda candidates: candidates.points[:, :, j]


def distance_to(references: Float[Array, "n d"]) -> Statistic:
    """Return a statistic for `ranks`: the squared distance to a point per row, as in TARP."""
    return lambda candidates: jnp.sum((candidates.points - references[:, None]) ** 2, axis=-1)


@full_precision
def ranks(key: KeyLike, candidates: Candidates, statistic: Statistic = log_density) -> Vector:
    r"""Return the randomized rank of each target among its candidates, in [0, 1].

    :math:`u = \sum_{f(a_k) < f(y)} w_k + U \sum_{f(a_k) = f(y)} w_k`, with U uniform, w the weights
    and the target y among the m + 1 points :math:`a_k`. Under calibration u is uniform and
    independent over rows, exactly, for every n and every f that does not use which point is y.

    Args:
        key: Random key that breaks ties.
        candidates: `Candidates` of a proposal.
        statistic: Function f of `Candidates` that returns one number per candidate, [n, m + 1]; by
            default the log density (coverage). Coordinate j, ``points[:, :, j]``, gives ranks of
            simulation-based calibration (SBC), the distance to reference points those of TARP.

    Returns:
        Ranks, [n]; NaN if a weight or a value is NaN.

    Cost: O(n m).

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> points = jnp.linspace(0, 1, 20)[None, :, None].repeat(5, axis=0)  # the target is least
        >>> one = jnp.ones((5, 20))
        >>> candidates = jaxcal.candidates.Candidates(points, -one, one / 20, jnp.ones(()))
        >>> ranks = jaxcal.candidates.ranks(0, candidates, lambda of: of.points[:, :, 0])
        >>> bool(ranks.max() <= 1 / 20)
        True
    """
    key = convert.key(key)
    checks.instance(candidates, Candidates, "candidates")
    convert.function(statistic, "statistic", "candidates")
    values, w = statistic(candidates), candidates.weights
    if not isinstance(values, Array | np.ndarray) or values.shape != w.shape:
        raise ValueError(
            f"statistic: wanted one number per candidate, shape {w.shape}, got "
            f"{convert.say(values)}"
        )
    below = jnp.sum(jnp.where(values < values[:, :1], w, 0), axis=1)
    ties = jnp.sum(jnp.where(values == values[:, :1], w, 0), axis=1)
    u = below + jax.random.uniform(key, below.shape, below.dtype) * ties
    finite = ~jnp.any(jnp.isnan(values) | jnp.isnan(w), axis=1)
    return jnp.where(finite, jnp.clip(u, 0, 1), jnp.nan)
