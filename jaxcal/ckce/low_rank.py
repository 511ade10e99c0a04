"""CKCE of many observations by incomplete Cholesky, or with chosen landmarks."""

import equinox as eqx
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array

from jaxcal import checks
from jaxcal.ckce.features import TILE, primal_fit
from jaxcal.ckce.solvers import Approximation, Predictions, Residuals, Solution
from jaxcal.kernels import grams
from jaxcal.kernels.bandwidths import by_values
from jaxcal.kernels.low_rank import NystroemFeatures, pivots
from jaxcal.numerics import at_least
from jaxcal.typing import KernelLike, Scalar

CANDIDATES = 4096


def _landmarks(value: object) -> Array | None:
    if value is None:
        return None
    points = checks.floats(value, "landmarks")
    if points.ndim != 2 or points.shape[0] < 1:
        raise ValueError(f"landmarks: wanted shape [r, m], got {points.shape}")
    return points


class LowRank(eqx.Module):
    """Solver by a Gram matrix of low rank, from incomplete Cholesky; n does not grow its memory.

    Predictions are chosen by their pivots among 4,096 spread over the data's values (all, where
    there are fewer). Exact where the rank reaches that of the Gram matrix; what is left of its
    trace is in ``result.approximation``.

    Args:
        rank: Largest number of predictions to choose.
        tolerance: Share of the trace at which to stop earlier; 1,000 eps by default.
        landmarks: Points of your own instead, [r, m].
        tile: Rows at a time.
        mesh: Devices that share the rows.

    Raises:
        ValueError: A number or shape is wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: O(n rank^2); memory O(tile rank + rank^2) beyond the data, and O(4,096 rank) for the
    choice.

    Source: Moskvichev and Sejdinovic, App. B, names it; not evaluated there.

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (100, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> solver = jaxcal.ckce.LowRank(32)
        >>> result = jaxcal.ckce.ckce(jax.nn.softmax(logits), targets, solver=solver)
        >>> bool(result.approximation.error < 0.01)
        True
    """

    rank: int = eqx.field(default=256, static=True)
    tolerance: Array | float | None = eqx.field(
        default=None, converter=lambda t: None if t is None else checks.tolerance(t, 0.0)
    )
    landmarks: Array | None = eqx.field(default=None, converter=_landmarks)
    tile: int = eqx.field(default=TILE, static=True)
    mesh: Mesh | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        checks.integer(self.rank, "rank")
        checks.integer(self.tile, "tile")
        checks.devices(self.mesh)

    def __call__(
        self, kernel: KernelLike, q: Predictions, residuals: Residuals, ridge: Scalar
    ) -> Solution:
        candidates, broken = spread(q), 0
        if self.landmarks is not None:
            candidates = self.landmarks.astype(q.dtype)
            if candidates.shape[1] != q.shape[1]:
                raise ValueError(
                    f"landmarks: wanted shape [r, {q.shape[1]}], got {candidates.shape}"
                )
            broken = jnp.sum(~jnp.isfinite(candidates))
        eps = float(jnp.finfo(q.dtype).eps)
        tolerance = 1000 * eps if self.tolerance is None else self.tolerance
        chosen, used = pivots(kernel, candidates, min(self.rank, len(candidates)), tolerance)
        features = NystroemFeatures.at(kernel, candidates[chosen], used)
        diagonal = grams.gram_diagonal(kernel, q)
        height, whole = jnp.max(diagonal), jnp.sum(diagonal)
        fit, kept = primal_fit(
            features,
            q,
            residuals,
            ridge,
            height=height,
            whole=whole,
            tile=self.tile,
            mesh=self.mesh,
        )
        error = at_least(1 - kept / whole, 0)
        return Solution(fit, Approximation("incomplete Cholesky", jnp.sum(used), error), broken)


def spread(xs: Array) -> Array:
    """At most `CANDIDATES` rows, evenly spread over their order by values."""
    n = xs.shape[0]
    return xs if n <= CANDIDATES else xs[by_values(xs)[jnp.arange(CANDIDATES) * n // CANDIDATES]]
