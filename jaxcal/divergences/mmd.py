"""Compute the maximum mean discrepancy of predictions from averages of a kernel on targets."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.divergences.fisher import ground_kernel
from jaxcal.divergences.vectors import NodeScores
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import second_order_heuristic, spread_of_draws
from jaxcal.kernels.means.dispatch import kernel_means, own_by_second
from jaxcal.numerics import at_least
from jaxcal.read.sampling import check_batch, check_n_samples, drawn
from jaxcal.typing import Features, KernelLike, Key, PredictionsLike


class Embedded(eqx.Module):
    """Kernel means of n predictions: ``features`` and ``formulas`` as in `KernelMeans`, and
    ``squared_norms`` [n]. Arrays in ``formulas`` are repeated n times along a new first axis."""

    features: PyTree
    squared_norms: Float[Array, " n"]
    formulas: PyTree


class MMD(eqx.Module):
    r"""Maximum mean discrepancy (MMD) of two predictions, with a ground kernel on the targets.

    Its square is :math:`E k(Z_p, Z_p') + E k(Z_q, Z_q') - 2 E k(Z_p, Z_q)`, with ground kernel k
    and independent Z, Z' from predictions p and q, computed by `jaxcal.kernels.means`. If
    predictions are represented by draws, pairs of a draw with itself are included, so the square
    has a bias of O(1 / draws). Kernels on the MMD are positive definite. The squared MMD is clipped
    at 0 and has a rounding error of about eps, so an MMD below eps^1/2 is noise.

    Args:
        ground: Scalar kernel on targets, Gaussian by default. An unset bandwidth is
            that of `jaxcal.kernels.bandwidths.second_order_heuristic`, in the units of the test.
        n_samples: Number of draws of each prediction. None uses the closed form if there is one, or
            all draws of `jaxcal.Draws`.
        of_targets: Whether the target kernel of the test replaces ``ground``. `skce_test` does this
            by default, unless predictions are normal, Laplace or classes.

    Cost per pair: O(d), for full covariances O(d^3), with m draws O(m^2 d).

    Source: Gretton et al. (2012); Glaser et al. (2023), Section 4; the closed form as in Widmann et
    al. (2021), App. D.1.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions, divergence = dist.Normal(centers, 1.0), jaxcal.divergences.MMD()
        >>> jaxcal.kccsd_test(1, predictions, centers + 0.8 + noise, divergence=divergence).verdict
        'rejected'
    """

    ground: KernelLike = eqx.field(default=None, converter=ground_kernel)
    n_samples: int | None = eqx.field(default=None, static=True)
    of_targets: bool = eqx.field(default=False, static=True)
    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def __check_init__(self):
        check_n_samples(self.n_samples)

    def with_target_kernel(self, kernel: KernelLike) -> "MMD":
        """Return the MMD with this ground kernel if ``of_targets``, else the MMD unchanged."""
        return MMD(kernel, self.n_samples) if self.of_targets else self

    def fitted(self, key: Key, predictions: Any, at_nodes: NodeScores | None) -> "MMD":
        if not points.needs_bandwidth(self.ground):
            return self
        draw_key, bandwidth_key = jax.random.split(key)
        if self.n_samples is None:
            bandwidth = second_order_heuristic(bandwidth_key, predictions)
        else:
            bandwidth = spread_of_draws(drawn(draw_key, predictions, self.n_samples))
        return MMD(points.with_bandwidth(self.ground, bandwidth), self.n_samples)

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        check_batch(predictions)
        draw_key, _ = jax.random.split(key)
        kernel = self.fitted(key, predictions, at_nodes).ground
        means = kernel_means(kernel, predictions, key=draw_key, n_samples=self.n_samples)
        squared_norms = own_by_second(means.formulas, means.features)
        arrays, rest = eqx.partition(means.formulas, eqx.is_array)
        spread = jax.tree.map(lambda a: jnp.broadcast_to(a, (squared_norms.size, *a.shape)), arrays)
        return Embedded(means.features, squared_norms, eqx.combine(spread, rest))

    def squared_distances(self, rows: Embedded, cols: Embedded) -> Float[Array, "r c"]:
        first_row = jax.tree.map(
            lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, rows.formulas
        )
        cross = first_row.second(rows.features, cols.features)
        return at_least(rows.squared_norms[:, None] + cols.squared_norms[None] - 2 * cross, 0)

    def paired(self, rows: Embedded, cols: Embedded) -> Float[Array, " r"]:
        def one(p: Embedded, q: Embedded) -> Array:
            alone = (jax.tree.map(lambda leaf: leaf[None], side) for side in (p, q))
            return self.squared_distances(*alone)[0, 0]

        return jax.vmap(one)(rows, cols)
