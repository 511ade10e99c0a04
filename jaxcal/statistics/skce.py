r"""Compute the statistic h(i, j) of the kernel calibration error, from kernel means.

.. math:: h = k_P(p, p')\, h_Y, \qquad h_Y = k(y, y') - E k(Z, y') - E k(y, Z') + E k(Z, Z')

with independent Z ~ p and Z' ~ p' (Widmann, Lindsten and Zachariah 2021, Section 3.2). h_Y is the
inner product of the residuals :math:`k(y, \cdot) - E k(Z, \cdot)` of two observations; its mean
over y ~ p is 0 for every (p', y'). `KernelResidual` computes h_Y, which
`jaxcal.statistics.weighted.Weighted` multiplies by k_P. If a kernel k((p, y), (p', y')) of
classes is not a product, h_Y depends on p and p' too (`jaxcal.kernels.classes.MatrixKernel`).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.kernels.classes import ClassGram, MatrixKernel
from jaxcal.kernels.means.dispatch import KernelMeans
from jaxcal.kernels.means.waves import Wave
from jaxcal.read.families import Classes
from jaxcal.statistics.finite_rank import Draw, Frequencies, twice, waves
from jaxcal.typing import Features


class Observed(NamedTuple):
    """Features for h_Y: targets [n, d] or classes [n], and features of the kernel means."""

    ys: Array
    distribution: Features


class KernelResidual(eqx.Module):
    r"""h_Y: the inner product of residuals :math:`\xi = k(y, \cdot) - E k(Z, \cdot)`.

    Z is a draw of the prediction. Features: `Observed`. For the pair of an observation with itself
    use ``diagonal``: if kernel means come from draws, equal draws bias ``block`` for this pair.
    Cost per pair: a kernel on targets and three means; for classes, a product of vectors [m].

    Source: Widmann, Lindsten and Zachariah (2021), Section 3.2.
    """

    means: KernelMeans

    @property
    def channels(self) -> int:
        return 1

    @property
    def route(self) -> str:
        """Return a text on how the kernel means are computed."""
        return self.means.route

    def block(self, rows: Observed, cols: Observed) -> Float[Array, "c r s"]:
        means = self.means
        if hasattr(means.formulas, "residual"):
            h = means.formulas.residual(rows.distribution, rows.ys, cols.distribution, cols.ys)
            return h[None]
        across = means.first(rows.distribution, cols.ys) + means.first(cols.distribution, rows.ys).T
        between = means.second(rows.distribution, cols.distribution)
        return ((means.gram(rows.ys, cols.ys) - across) + between)[None]

    def diagonal(self, features: Observed) -> Float[Array, "c n"]:
        means = self.means
        if hasattr(means.formulas, "own_residual"):
            return means.formulas.own_residual(features.distribution, features.ys)[None]

        def of_target(ys: Array, distribution: Features) -> Array:
            y, p = ys[None], jax.tree.map(lambda leaf: leaf[None], distribution)
            return means.gram(y, y)[0, 0] - 2 * means.first(p, y)[0, 0]

        at_targets = jax.vmap(of_target)(features.ys, features.distribution)
        return (at_targets + means.own(features.distribution))[None]

    def waves(self, draw: Draw, features: Observed) -> "MeanWaves | ClassWaves":
        """Return the map to random features. For classes, random projections of e_y - p replace
        frequencies of targets. For other targets, ``means`` must be kernel means of a `Wave`."""
        if isinstance(features.distribution, Classes):
            kernel = self.means.kernel
            if isinstance(kernel, MatrixKernel):
                raise TypeError("features: a function as target_kernel has no random features")
            matrix = kernel.matrix if isinstance(kernel, ClassGram) else None
            signs = draw.signs(features.distribution.probabilities.shape[1] - 1)
            return ClassWaves(draw.frequencies(), class_directions(signs, matrix))
        sine = jax.tree.map(
            lambda part: Wave(sine=True) if isinstance(part, Wave) else part,
            self.means,
            is_leaf=lambda part: isinstance(part, Wave),
        )
        return MeanWaves(draw.frequencies(features.ys.shape[1]), self.means, sine)


class MeanWaves(eqx.Module):
    """Map to 2 r numbers per observation, for r frequencies: real and imaginary parts of
    exp(i nu . phi(p)) (exp(i omega . y) - E exp(i omega . Z)), times amplitudes, with Z ~ p."""

    frequencies: Frequencies
    cosine: KernelMeans
    sine: KernelMeans

    def __call__(self, vectors: Float[Array, "q n"], features: Observed) -> Float[Array, "c p n"]:
        _, omega, sizes = self.frequencies
        real, imaginary = (
            (means.gram(features.ys, omega) - means.first(features.distribution, omega)).T
            for means in (self.cosine, self.sine)
        )
        turned_cos, turned_sin = waves(self.frequencies.turns(vectors), twice(sizes))
        return (turned_cos * twice(real) - turned_sin * twice(imaginary))[None]


class ClassWaves(eqx.Module):
    """Map to 2 r numbers per observation: cos(nu . phi(p)) and sin(nu . phi(p)), each times
    g . (e_y - p), for r frequencies nu and rows g of ``directions`` [r, m]. e_y is one-hot."""

    frequencies: Frequencies
    directions: Float[Array, "r m"]

    def __call__(self, vectors: Float[Array, "q n"], features: Observed) -> Float[Array, "c p n"]:
        p = features.distribution.probabilities
        along = self.directions[:, features.ys] - self.directions @ p.T
        cos, _ = waves(self.frequencies.turns(vectors), twice(self.frequencies.sizes))
        return (cos * twice(along))[None]


def class_directions(
    signs: Float[Array, "r k"], matrix: Float[Array, "m m"] | None
) -> Float[Array, "r m"]:
    r"""Return r random directions g [m] with :math:`E (g^\top u)(g^\top v) = u^\top \Lambda v` for
    u, v of sum 0, from random signs [r, m - 1]. ``matrix``: :math:`\Lambda`; None for I."""
    m = signs.shape[1] + 1
    # an orthonormal basis [m, m - 1] of the vectors of sum 0
    ones = jnp.ones((m, 1), signs.dtype)
    basis = jnp.linalg.qr(jnp.concatenate([ones, jnp.eye(m, dtype=signs.dtype)[:, 1:]], 1))[0]
    basis = basis[:, 1:]
    if matrix is None:
        return signs @ basis.T
    gram = basis.T @ matrix.astype(signs.dtype) @ basis
    values, vectors = jnp.linalg.eigh((gram + gram.T) / 2)
    root = vectors * jnp.sqrt(jnp.where(values > 0, values, 0))[None]
    return signs @ (basis @ root).T
