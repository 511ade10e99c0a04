"""Compute Fisher divergences (GFD, and KGFD with a ground kernel) from scores at nodes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from jaxcal.divergences.vectors import NodeScores, Vectors, _Euclidean
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import median_heuristic, second_order_heuristic
from jaxcal.numerics import psd_root
from jaxcal.typing import Features, KernelLike, Key, Nodes, PredictionsLike, Scalar


def fisher(node_scores: Float[Array, "n m d"]) -> Float[Array, "n md"]:
    """Return ``m^-1/2 s``, [n, m d], of scores s at m nodes: the features of `Fisher`."""
    n, m, d = node_scores.shape
    return node_scores.reshape(n, m * d) / jnp.sqrt(jnp.asarray(m, node_scores.dtype))


class Fisher(_Euclidean, eqx.Module):
    r"""Generalized Fisher divergence (GFD), from scores at nodes.

    :math:`\frac1m \sum_k \|s_p(z_k) - s_q(z_k)\|^2` estimates :math:`\int \|s_p - s_q\|^2 d\nu`
    from scores s of p and q at m draws z of the base measure nu, without normalizing constants.
    Like every distance of scores, GFD hardly depends on mixing proportions of well-separated modes.

    Args:
        zero_outside: Whether scores that are not finite, as at nodes of density 0, count as 0;
            otherwise the result is not finite.

    Cost: n m scores for m nodes.

    Source: Glaser et al. (2023), Section 4.1.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions, divergence = dist.Normal(centers, 1.0), jaxcal.divergences.Fisher()
        >>> jaxcal.kccsd_test(1, predictions, centers + 0.8 + noise, divergence=divergence).verdict
        'rejected'
    """

    zero_outside: bool = eqx.field(default=False, static=True)
    needs_nodes: bool = eqx.field(default=True, static=True, init=False)

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        assert at_nodes is not None
        values = at_nodes.values
        if self.zero_outside:
            values = jnp.where(jnp.isfinite(values), values, 0)
        return fisher(values)


def ground_kernel(kernel: KernelLike | None) -> Any:
    """Return a ground kernel as a pytree; for None, a Gaussian with unset bandwidth."""
    if kernel is None:
        return points.Gaussian()
    if not callable(kernel):
        raise TypeError(
            f"ground: wanted a kernel k(x, y) of two points, such as jaxcal.kernels.Gaussian(), "
            f"got {type(kernel).__name__}"
        )
    # a Python function becomes a static part of the pytree
    return kernel if isinstance(kernel, (eqx.Module, Partial)) else Partial(kernel)


def kernel_fisher(
    node_scores: Float[Array, "n m d"], ground: Float[Array, "m m"] | Float[Array, "m m d d"]
) -> Float[Array, "n md"]:
    """Return ``K^1/2 s / m``, [n, m d], of scores s at m nodes: the features of `KernelFisher`.

    K is ``ground``, the Gram matrix of the ground kernel at the nodes: [m, m], or for a
    matrix-valued kernel [m, m, d, d]. Squared distances of features include pairs of a node with
    itself, so they have a bias of O(1/m) and are never negative (the paper calls them unbiased).
    Cost O(m^3 + n m^2 d), for matrix-valued K O(m^3 d^3 + n m^2 d^2).
    """
    n, m, d = node_scores.shape
    if ground.ndim == 2:
        root = psd_root(ground)
        return jnp.einsum("kl,nld->nkd", root, node_scores).reshape(n, m * d) / m
    wide = jnp.swapaxes(ground, 1, 2).reshape(m * d, m * d)
    return node_scores.reshape(n, m * d) @ psd_root(wide) / m


class KernelFisher(_Euclidean, eqx.Module):
    r"""Kernelized Fisher divergence (KGFD), from scores at nodes and a ground kernel.

    KGFD is :math:`\frac1{m^2} \sum_{kl} (s_p - s_q)(z_k)^\top K(z_k, z_l) (s_p - s_q)(z_l)`, with
    scores s at nodes z as in `Fisher`. The kernel K smooths the scores; KGFD is at most GFD times
    the maximum of K. Like GFD, it hardly depends on mixing proportions of well-separated modes.

    Args:
        ground: Kernel K of two points, scalar or matrix-valued [d, d] (`GradientKernel`, or a
            function), in the units of the test (standardized targets by default). None: a Gaussian.
            An unset bandwidth is set by `jaxcal.kernels.bandwidths.second_order_heuristic` for
            Gaussian or sampled predictions, else by the median distance of the nodes.

    Cost: n m scores for m nodes, and O(m^3 + n m^2 d).

    Source: Glaser et al. (2023), Section 4.2.

    Example:
        >>> import jaxcal
        >>> divergence = jaxcal.divergences.KernelFisher()  # an option of `jaxcal.skce_test`
    """

    ground: KernelLike = eqx.field(default=None, converter=ground_kernel)
    needs_nodes: bool = eqx.field(default=True, static=True, init=False)

    def fitted(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> "KernelFisher":
        if at_nodes is None or at_nodes.nodes is None or not points.needs_bandwidth(self.ground):
            return self
        bandwidth = _ground_bandwidth(key, predictions, at_nodes.nodes)
        return KernelFisher(points.with_bandwidth(self.ground, bandwidth))

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        if at_nodes is None or at_nodes.nodes is None:
            raise ValueError(
                "KernelFisher needs the base points as well as the scores there: give "
                "Scores.at_nodes and Scores.nodes, or use Fisher(), which needs the scores alone"
            )
        nodes, values = at_nodes.nodes, at_nodes.values
        kernel = self.fitted(key, predictions, at_nodes).ground
        wanted = ((), (nodes.shape[1],) * 2)
        if (shape := jax.eval_shape(kernel, nodes[0], nodes[0]).shape) not in wanted:
            raise ValueError(
                f"ground: wanted a kernel with values of shape {wanted[0]} or {wanted[1]}, got "
                f"{shape}"
            )
        gram = jax.vmap(lambda x: jax.vmap(lambda y: kernel(x, y))(nodes))(nodes)
        return kernel_fisher(values, gram.astype(values.dtype))


class GradientKernel(eqx.Module):
    r"""The matrix-valued kernel :math:`\nabla_x \nabla_y^\top k(x, y)`, [d, d], of a scalar k.

    With this ground kernel in `KernelFisher`, :math:`\sqrt{KGFD}` is the initial speed at which
    Langevin flows of p and q, started at the base measure, move apart in MMD with kernel k.

    Args:
        kernel: Scalar kernel k of two points; an unset bandwidth is set as in `KernelFisher`.

    Source: Glaser et al. (2023), Proposition 4.3.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> kernel = jaxcal.divergences.GradientKernel(jaxcal.kernels.Gaussian(1.0))
        >>> kernel(jnp.zeros(2), jnp.zeros(2)).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """

    kernel: KernelLike = eqx.field(converter=ground_kernel)

    def __call__(self, x: Array, y: Array) -> Float[Array, "d d"]:
        return jax.jacfwd(jax.grad(self.kernel, argnums=0), argnums=1)(x, y)


def _ground_bandwidth(key: Key, predictions: Any, nodes: Nodes) -> Scalar:
    try:
        bandwidth = second_order_heuristic(key, predictions)
    except (TypeError, NotImplementedError):  # neither moments nor draws
        if len(nodes) < 2:
            return jnp.ones((), nodes.dtype)  # a single node has no distances
        bandwidth, _ = median_heuristic(Vectors(nodes), nodes)
    return bandwidth.astype(nodes.dtype)
