"""The distance between the kernel means of two predictions: MMD, always Hilbertian."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.divergences.vectors import NodeScores
from jaxcal.kernel_means.dispatch import kernel_means, own_by_second
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import second_order_heuristic
from jaxcal.models.sampling import check_n_draws
from jaxcal.numerics import at_least
from jaxcal.typing import Features, KernelLike, Key, PredictionsLike


class Embedded(eqx.Module):
    """``features`` of the kernel means, ``squared_norms`` [n]: each kernel mean times itself, and
    the arrays of the formulas, the same in every row."""

    features: PyTree
    squared_norms: Float[Array, " n"]
    formulas: PyTree


class MeanEmbedding(eqx.Module):
    r"""MMD of two predictions, for every pair of kernel and predictions that has kernel means.

    :math:`\kappa_2(p,p) + \kappa_2(q,q) - 2 \kappa_2(p,q)`. From draws each draw is also paired
    with itself, which makes it the distance of two samples. Valid for mixtures, where
    `MixtureWasserstein` promises no positive definite kernels.

    Args:
        kernel: Kernel on targets. None takes the target kernel in an SKCE test, and a Gaussian
            elsewhere. An unset bandwidth follows the second-order heuristic.
        n_draws: Take the kernel means from so many draws of each prediction, not in closed form.

    Cost: that of kappa_2 a pair.

    Source: Gretton et al. (2012), with the kernel means of `jaxcal.kernel_means`.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions, divergence = dist.Normal(centers, 1.0), jaxcal.divergences.MeanEmbedding()
        >>> jaxcal.skce_test(1, predictions, centers + 0.8 + noise, divergence=divergence).verdict
        'rejected'
    """

    kernel: KernelLike | None = None
    n_draws: int | None = eqx.field(default=None, static=True)
    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def __check_init__(self):
        check_n_draws(self.n_draws)

    def with_target_kernel(self, kernel: KernelLike) -> "MeanEmbedding":
        """The same divergence with this kernel where it was given none."""
        return MeanEmbedding(kernel, self.n_draws) if self.kernel is None else self

    def fitted(self, key: Key, predictions: Any, at_nodes: NodeScores | None) -> "MeanEmbedding":
        """The same divergence with a kernel and its bandwidth."""
        kernel = points.Gaussian() if self.kernel is None else self.kernel
        if points.needs_bandwidth(kernel):
            _, bandwidth_key = jax.random.split(key)
            bandwidth = second_order_heuristic(bandwidth_key, predictions)
            kernel = points.with_bandwidth(kernel, bandwidth)
        return MeanEmbedding(kernel, self.n_draws)

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        draw_key, _ = jax.random.split(key)
        kernel = self.fitted(key, predictions, at_nodes).kernel
        assert kernel is not None
        means = kernel_means(kernel, predictions, key=draw_key, n_draws=self.n_draws)
        squared_norms = own_by_second(means.formulas, means.features)
        arrays, rest = eqx.partition(means.formulas, eqx.is_array)
        spread = jax.tree.map(lambda a: jnp.broadcast_to(a, (squared_norms.size, *a.shape)), arrays)
        return Embedded(means.features, squared_norms, eqx.combine(spread, rest))

    def squared_distances(self, rows: Embedded, cols: Embedded) -> Float[Array, "r c"]:
        cross = _formulas(rows).second(rows.features, cols.features)
        return at_least(rows.squared_norms[:, None] + cols.squared_norms[None] - 2 * cross, 0)

    def paired(self, rows: Embedded, cols: Embedded) -> Float[Array, " r"]:
        def one(p: Embedded, q: Embedded) -> Array:
            alone = (jax.tree.map(lambda leaf: leaf[None], side) for side in (p, q))
            return self.squared_distances(*alone)[0, 0]

        return jax.vmap(one)(rows, cols)


def _formulas(rows: Embedded) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, rows.formulas)
