r"""Averages without a closed form that a rule of few nodes does well: smooth kernels, d = 1.

Gauss-Hermite for normal predictions, and Gauss-Laguerre on both sides of the peak for Laplace
ones. Stated error, absolute, for kernels of height 1 and predictions whose scale is up to a
bandwidth: below 1e-8 (rational quadratic and Matern kernels, which are less smooth than Gaussians:
1e-4); it grows with the scale, to 1e-3 at three bandwidths. More dimensions are left to draws.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxcal.kernel_means.dispatch import Made, NoClosedForm, pair
from jaxcal.kernel_means.normals import gaussian_over_normals
from jaxcal.kernel_means.particles import over_nodes
from jaxcal.kernels.points import IMQ, Gaussian, Matern52, Product, RationalQuadratic, is_smooth
from jaxcal.models.laws import Laplaces, Nodes, Normals

HERMITE = 32
LAGUERRE = 16  # on each side


def hermite(law: Normals, m: int = HERMITE) -> Nodes:
    """m nodes of each of n one-dimensional normal predictions."""
    x, weights = np.polynomial.hermite_e.hermegauss(m)
    scale = jnp.sqrt(law.cov.reshape(law.mean.shape))
    points = law.mean + scale * jnp.asarray(x, law.mean.dtype)
    spread = jnp.asarray(weights / weights.sum(), law.mean.dtype)
    return Nodes(points[:, :, None], jnp.broadcast_to(spread, points.shape))


def laguerre(law: Laplaces, m: int = LAGUERRE) -> Nodes:
    """2 m nodes of each of n one-dimensional Laplace predictions."""
    x, weights = np.polynomial.laguerre.laggauss(m)
    sided = np.concatenate([-x[::-1], x])
    both = np.concatenate([weights[::-1], weights]) / (2 * weights.sum())
    points = law.loc + law.scale * jnp.asarray(sided, law.loc.dtype)
    spread = jnp.asarray(both, law.loc.dtype)
    return Nodes(points[:, :, None], jnp.broadcast_to(spread, points.shape))


@pair(Product, Normals)
def product_over_normals(kernel: Product, law: Normals) -> Made:
    """Two Gaussian kernels are one; other smooth products by quadrature, in one dimension."""
    left, right = kernel.left, kernel.right
    if isinstance(left, Gaussian) and isinstance(right, Gaussian):
        assert left.bandwidth is not None
        assert right.bandwidth is not None
        both = (left.bandwidth**-2 + right.bandwidth**-2) ** -0.5
        return gaussian_over_normals(Gaussian(both), law)
    if law.mean.shape[-1] != 1 or not is_smooth(kernel):
        raise NoClosedForm("products of kernels have no closed form over normal predictions")
    return over_nodes(kernel, hermite(law))


@pair(Gaussian, Laplaces)
@pair(IMQ, Laplaces)
@pair(RationalQuadratic, Laplaces)
@pair(Matern52, Laplaces)
def smooth_over_laplaces(kernel: Any, law: Laplaces) -> Made:
    """By quadrature, in one dimension."""
    if law.loc.shape[-1] != 1:
        raise NoClosedForm("this kernel has no closed form over Laplace predictions")
    return over_nodes(kernel, laguerre(law))
