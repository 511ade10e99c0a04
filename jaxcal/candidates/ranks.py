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
    """Return the log density of targets and candidates; its ranks test highest-density coverage.

    Args:
        candidates: `Candidates` of a proposal.

    Returns:
        One number for each target (first) and candidate, [n, m + 1].

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> points, one = jnp.zeros((5, 4, 1)), jnp.ones((5, 4))
        >>> candidates = jaxcal.candidates.Candidates(points, -one, one / 4, jnp.ones(()))
        >>> jaxcal.candidates.log_density(candidates).shape
        (5, 4)
    """
    checks.instance(candidates, Candidates, "candidates")
    return candidates.log_densities


def coordinate(j: int) -> Statistic:
    """Return a statistic for `ranks`: one coordinate, as in simulation-based calibration (SBC).

    Args:
        j: Index of the coordinate, from 0.

    Returns:
        Function of `Candidates` that returns one number per candidate, [n, m + 1].

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> points, one = jax.random.normal(jax.random.key(0), (5, 4, 2)), jnp.ones((5, 4))
        >>> candidates = jaxcal.candidates.Candidates(points, -one, one / 4, jnp.ones(()))
        >>> jaxcal.candidates.ranks(1, candidates, jaxcal.candidates.coordinate(1)).shape
        (5,)
    """
    j = convert.integer(j, "j", least=0)

    def statistic(candidates: Candidates) -> Array:
        if j >= (d := candidates.points.shape[2]):
            raise ValueError(f"j: wanted a coordinate from 0 to {d - 1}, got {j}")
        return candidates.points[:, :, j]

    return statistic


def distance_to(references: Float[Array, "n d"]) -> Statistic:
    """Return a statistic for `ranks`: the squared distance to reference points, as in TARP.

    Args:
        references: Reference points, [n, d], one per prediction.

    Returns:
        Function of `Candidates` that returns the squared distance of each candidate, [n, m + 1].

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> points, one = jax.random.normal(jax.random.key(0), (5, 4, 2)), jnp.ones((5, 4))
        >>> candidates = jaxcal.candidates.Candidates(points, -one, one / 4, jnp.ones(()))
        >>> statistic = jaxcal.candidates.distance_to(jnp.zeros((5, 2)))
        >>> jaxcal.candidates.ranks(1, candidates, statistic).shape
        (5,)
    """
    centres = convert.floats(references, "references")

    def statistic(candidates: Candidates) -> Array:
        if centres.shape != (wanted := candidates.points[:, 0].shape):
            raise ValueError(
                f"references: wanted shape {wanted}, one per target, got {centres.shape}"
            )
        return jnp.sum((candidates.points - centres[:, None]) ** 2, axis=-1)

    return statistic


@full_precision
def ranks(key: KeyLike, candidates: Candidates, statistic: Statistic = log_density) -> Vector:
    r"""Return the randomized rank of each target among its candidates, in [0, 1].

    :math:`u = \sum_{f(a_k) < f(y)} w_k + U \sum_{f(a_k) = f(y)} w_k`, with U uniform, w the weights
    and the target y among the m + 1 points :math:`a_k`. Under calibration u is uniform and
    independent over rows, exactly, for every n and every f that does not use which point is y.

    Args:
        key: Random key that breaks ties.
        candidates: `Candidates` of a proposal.
        statistic: Function f of `Candidates` that returns one number per candidate, [n, m + 1]:
            `log_density`, ``coordinate(j)``, ``distance_to(references)``, or your own.

    Returns:
        Ranks, [n]; NaN if a weight or a value is NaN.

    Cost: O(n m).

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> points = jnp.linspace(0, 1, 20)[None, :, None].repeat(5, axis=0)  # the target is least
        >>> one = jnp.ones((5, 20))
        >>> candidates = jaxcal.candidates.Candidates(points, -one, one / 20, jnp.ones(()))
        >>> ranks = jaxcal.candidates.ranks(0, candidates, jaxcal.candidates.coordinate(0))
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
