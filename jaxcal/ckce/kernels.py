r"""Build kernels on class probabilities and further variables, and set their bandwidths.

The kernel of CKCE on class probabilities is `simplex_kernel`,
:math:`k(p, q) = p^\top q + \exp(-\|p - q\|^2 / (2 \gamma^2))`: its linear part represents the
predictions, its Gaussian part any deviation from them.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.divergences.vectors import Vectors
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import median_heuristic
from jaxcal.kernels.points import Gaussian, Linear, Sum
from jaxcal.typing import ArrayLike, KernelLike, Points, Scalar


class Equal(points.Kernel):
    """Kernel whose value is 1 if two points are equal, else 0; for groups or equal predictions.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> float(jaxcal.ckce.Equal()(jnp.array([0.5, 0.5]), jnp.array([0.5, 0.5])))
        1.0
    """

    def __call__(self, x: Array, y: Array) -> Scalar:
        return jnp.all(x == y).astype(jnp.result_type(float, x))


class Columns(points.Kernel):
    """Kernel of points x, y: the value of ``kernel`` at x[start:stop] and y[start:stop]."""

    kernel: KernelLike
    start: int = eqx.field(static=True)
    stop: int = eqx.field(static=True)

    def __call__(self, x: Array, y: Array) -> Scalar:
        return self.kernel(x[self.start : self.stop], y[self.start : self.stop])

    def gram(self, xs: Array, ys: Array) -> Array:
        """Return the matrix of values, [n, m], by the kernel's own ``gram`` if it has one."""
        return points.matrix(self.kernel, *(a[:, self.start : self.stop] for a in (xs, ys)))


def simplex_kernel(bandwidth: ArrayLike | None = None) -> Sum:
    r"""Return the paper's kernel :math:`p^\top q + \exp(-\|p - q\|^2 / (2 \gamma^2))`.

    Args:
        bandwidth: Length gamma; None leaves it unset, so that `ckce` takes the median distance.

    Returns:
        The sum of a `Linear` and a `Gaussian` kernel.

    Source: Moskvichev and Sejdinovic, Section 3.2.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> p = jnp.array([0.5, 0.5])
        >>> float(jaxcal.ckce.simplex_kernel(1.0)(p, p))
        1.5
    """
    return Linear() + Gaussian(bandwidth)


@jax.jit
def median_bandwidth(xs: Points) -> Scalar:
    r"""Return the median distance :math:`\|x_i - x_j\|` (not squared) of two different points.

    As in `jaxcal.kernels.bandwidths.median_heuristic`, all pairs are compared for n up to 512, and
    pairs of 512 points, chosen by their values, for larger n. The result is 1 if all points are
    equal or there is only one. Only the pair or two pairs at the median affect its derivative.
    """
    if len(xs) < 2:
        return jnp.ones((), xs.dtype)
    return median_heuristic(Vectors(xs), xs)[0]


def fill(
    kernel: KernelLike, xs: Points, bandwidth: Any = None
) -> tuple[KernelLike, dict[str, Scalar]]:
    """Return the kernel with unset bandwidths set to ``bandwidth``, or to the median distance of
    ``xs`` if None, and {"prediction": this bandwidth}, or {} if all were set."""
    kernel = points.as_kernel(kernel)
    if not points.needs_bandwidth(kernel):
        return kernel, {}
    bandwidth = median_bandwidth(xs) if bandwidth is None else bandwidth
    return points.with_bandwidth(kernel, bandwidth), {"prediction": bandwidth}


def check_bandwidth(kernel: KernelLike, q: int) -> None:
    """Raise ValueError if a kernel has one bandwidth per dimension and their number is not q."""
    for lengths in points.lengths(kernel):
        if lengths.size != q:
            raise ValueError(
                f"prediction_kernel: a bandwidth of {lengths.size} lengths for predictions of {q} "
                f"entries"
            )


def conditioned(
    kernel: KernelLike, q: Points, condition: tuple[Float[Array, "n a"], KernelLike] | None
) -> tuple[KernelLike, Float[Array, "n e"], dict[str, Scalar]]:
    """Return the kernel times the kernel of ``condition``, a pair (variables, kernel on them); the
    points [q, variables] of this product; and {"given": bandwidth of the second kernel}, or {} if
    its bandwidth was set. For the condition None, return kernel, q and {}."""
    if condition is None:
        return kernel, q, {}
    variables, on_variables = condition
    on_variables, widths = fill(on_variables, variables)
    both = jnp.concatenate([q, variables], axis=1)
    m = q.shape[1]
    product = Columns(kernel, 0, m) * Columns(on_variables, m, both.shape[1])
    return product, both, {"given": widths["prediction"]} if widths else {}


def weighted_by_itself(medians: Float[Array, " M"]) -> Scalar:
    r"""Return :math:`\sum_k m_k^2 / \sum_k m_k` for median distances m_k; 1 if all are 0."""
    total = jnp.sum(medians)
    return jnp.where(total == 0, 1, jnp.sum(medians**2) / jnp.where(total == 0, 1, total))
