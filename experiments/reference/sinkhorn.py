"""Sinkhorn's couplings of the components of two mixtures, by ``ott-jax``."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

MARGINALS = 1e-4  # of the couplings
TOGETHER = 64  # problems of one batch


class Sinkhorn(eqx.Module):
    """Couplings of least cost with an entropic penalty, for `MixtureWasserstein`.

    ``epsilon``: the penalty, as a share of the mean cost of a pair. Stays in the compiled program.
    The coupling is spread out, so distances come out too large, those of equal mixtures too; its
    sums are the weights to 1e-4. NaN where that takes more than ``iterations``.
    """

    epsilon: float = eqx.field(default=0.01, static=True)
    iterations: int = eqx.field(default=2000, static=True)

    def __check_init__(self):
        if not 0 < self.epsilon < float("inf"):
            raise ValueError(f"epsilon: wanted a positive, finite share, got {self.epsilon}")

    def __call__(self, cost: Array, left: Array, right: Array) -> Array:
        from ott.geometry.geometry import Geometry  # pyright: ignore[reportMissingImports]
        from ott.solvers import linear  # pyright: ignore[reportMissingImports]

        def one(cost: Array, a: Array, b: Array) -> Array:
            scale = jnp.mean(cost)
            scale = jnp.where(scale > 0, scale, 1)
            geometry = Geometry(cost_matrix=cost / scale, epsilon=self.epsilon)
            solution = linear.solve(
                geometry, a=a, b=b, threshold=MARGINALS, max_iterations=self.iterations
            )
            return jnp.where(jnp.asarray(solution.converged), solution.matrix, jnp.nan)

        k, m = cost.shape[-2:]
        flat = (cost.reshape(-1, k, m), left.reshape(-1, k), right.reshape(-1, m))
        plans = jax.lax.map(lambda problem: one(*problem), flat, batch_size=TOGETHER)
        return plans.reshape(cost.shape)
