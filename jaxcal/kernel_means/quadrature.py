r"""Averages without a closed form that a rule of few nodes does well: smooth kernels, d = 1.

Stated errors, absolute, for kernels of height 1 in float64. Gaussian kernels over Laplace
predictions: below 1e-7 for all scales. IMQ, rational quadratic and Matern kernels over Laplace
predictions (Gauss-Laguerre on both sides of the peak), and products of such kernels over normal
ones (Gauss-Hermite): below 2e-5 for scales up to half a bandwidth, 5e-4 up to one, 5e-3 up to two.
More dimensions are left to draws.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxcal.kernel_means.dispatch import Made, NoClosedForm, pair
from jaxcal.kernel_means.mixtures import over_mixtures
from jaxcal.kernel_means.normals import gaussian_over_normals
from jaxcal.kernel_means.particles import over_nodes
from jaxcal.kernel_means.scale_mixtures import gamma_rule
from jaxcal.kernels.points import IMQ, Gaussian, Matern52, Product, RationalQuadratic, is_smooth
from jaxcal.models.laws import Laplaces, Mixtures, Nodes, Normals

HERMITE = 32
LAGUERRE = 24  # on each side


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
def gaussian_over_laplaces(kernel: Gaussian, law: Laplaces) -> Made:
    """A Laplace distribution is a normal of random variance: a mixture over the rule's nodes."""
    _one_dimension(law)
    s, weights = gamma_rule(1.0)
    dtype = law.loc.dtype
    variances = 2 * law.scale[:, None] ** 2 * jnp.asarray(s, dtype)[:, None]
    means = jnp.broadcast_to(law.loc[:, None], variances.shape)
    spread = jnp.broadcast_to(jnp.asarray(weights, dtype), variances.shape[:2])
    return over_mixtures(kernel, Mixtures(spread, Normals(means, variances)))


@pair(IMQ, Laplaces)
@pair(RationalQuadratic, Laplaces)
@pair(Matern52, Laplaces)
def smooth_over_laplaces(kernel: Any, law: Laplaces) -> Made:
    """By Gauss-Laguerre quadrature."""
    _one_dimension(law)
    return over_nodes(kernel, laguerre(law))


def _one_dimension(law: Laplaces) -> None:
    if law.loc.shape[-1] != 1:
        raise NoClosedForm("this kernel has no closed form over Laplace predictions")
