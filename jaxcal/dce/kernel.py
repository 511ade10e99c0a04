"""Kernel calibration error with any kernel, by the engine over pairs.

The value for the Laplace kernel costs less: `laplace`. Source: Blasiok et al. (2023), Section 8.
"""

import jax.numpy as jnp

from jaxcal import checks
from jaxcal.dce.laplace import KernelCE, of_unit_norm, root
from jaxcal.dce.predictions import binary
from jaxcal.divergences.vectors import Vectors
from jaxcal.kernels.points import Laplace, as_kernel
from jaxcal.pairwise.weighted import Weighted, WeightedFeatures
from jaxcal.quadratic import TILE, quadratic_sums
from jaxcal.results import recorded
from jaxcal.typing import ArrayLike, PointKernel


@recorded
def kernel_ce(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    kernel: PointKernel = Laplace(1.0),
    weights: ArrayLike | None = None,
    tile: int = TILE,
) -> KernelCE:
    """Kernel calibration error with any kernel on points of shape [1], by the engine over pairs.

    Only the Laplace kernel makes it a consistent measure; a Gaussian is blind to fast changes
    (Theorem 8.6). For Laplace use `laplace_ce`, which is exact in O(n log n).

    Args:
        predictions: Probabilities of label 1, [n], n >= 2.
        targets: Labels 0 or 1, or means of such, [n].
        kernel: Kernel on predictions, with a bandwidth.
        weights: Weights of the observations, [n], >= 0.
        tile: Rows and columns of a block of pairs that is computed at a time.

    Returns:
        `KernelCE`.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: n^2 kernel values; memory O(tile^2).

    Source: Blasiok et al. (2023), Section 8.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> predictions, targets = jnp.full(4, 0.7), jnp.array([0, 0, 1, 1])
        >>> kernel = jaxcal.kernels.Gaussian(0.1)
        >>> round(float(jaxcal.dce.kernel_ce(predictions, targets, kernel=kernel).value), 3)
        0.2
    """
    kernel = as_kernel(kernel)
    tile = checks.integer(tile, "tile")
    if getattr(kernel, "bandwidth", 0) is None:
        raise ValueError("kernel: wanted one with a bandwidth, such as Gaussian(0.7071)")
    data = binary(predictions, targets, weights)
    rho = data.w * (data.y - data.v)
    features = WeightedFeatures(data.v[:, None], (rho[:, None],))
    none = jnp.zeros((rho.size, 0), rho.dtype)
    pairwise = Weighted(kernel, Vectors(data.v[:0]))  # h = k(v, v') rho rho'
    pair_sums = quadratic_sums(pairwise, features, none, tile=tile)
    squared = pair_sums.total[0] + jnp.sum(pair_sums.diagonal)
    value = root(squared)
    # the row sums hold rho_i h(v_i) without the diagonal
    times = pair_sums.row_sums[0] + pair_sums.diagonal[0]
    safe = jnp.where(rho != 0, rho, 1)
    witness = of_unit_norm(jnp.where(rho != 0, times / safe, 0), value)
    return KernelCE(value, squared, pair_sums.total[0] / (1 - jnp.sum(data.w**2)), witness)
