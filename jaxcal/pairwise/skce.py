r"""h(i, j) of the kernel calibration error: targets against what the predictions expected.

.. math:: h = k_P(p, p')\, h_Y, \qquad h_Y = k(y, y') - E k(Z, y') - E k(y, Z') + E k(Z, Z')

with independent Z ~ p and Z' ~ p' (Widmann, Lindsten and Zachariah 2021, Section 3.2). It is the
inner product of :math:`k(y, \cdot) - E k(Z, \cdot)` with the same of the other observation, and
its mean over y ~ p is 0 whatever the other observation is. `KernelResidual` is h_Y, which
`jaxcal.pairwise.weighted.Weighted` multiplies by k_P; a kernel k((p, y), (p', y')) that is no such
product cannot be written that way, and is `MatrixSKCE`.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.kernel_means import KernelMeans
from jaxcal.kernels import points
from jaxcal.typing import Features


class Observed(NamedTuple):
    """n observations: targets [n, d] or classes [n], and the features of their kernel means."""

    ys: Array
    distribution: Features


class KernelResidual(eqx.Module):
    r""":math:`\langle \xi_i, \xi_j \rangle` with :math:`\xi = k(y, \cdot) - E k(Z, \cdot)`: h_Y.

    Features: `Observed`. From draws the block is right for different observations only, and the
    diagonal is of independent draws. Cost a pair: a kernel on targets, and the kernel means; of
    classes, a product of residuals :math:`e_y - p`.

    Source: Widmann, Lindsten and Zachariah (2021), Section 3.2.
    """

    means: KernelMeans

    @property
    def channels(self) -> int:
        return 1

    @property
    def route(self) -> str:
        """How the kernel means are taken."""
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


class MatrixSKCE(eqx.Module):
    r"""Pairwise statistic of SKCE for classes and any kernel k((p, y), (p', y')).

    ``operator(p, q)`` returns the matrix :math:`K_{yy'} = k((p, y), (q, y'))`, [m, m], of two
    probability vectors, and :math:`h = (e_y - p)^\top K (e_{y'} - p')`. Features: `Observed` with
    the probabilities [n, m] as ``distribution``. Cost O(m^2) a pair.
    Source: Widmann, Lindsten and Zachariah (2021), App. E.
    """

    operator: Callable[[Array, Array], Array]

    @property
    def channels(self) -> int:
        return 1

    def block(self, rows: Observed, cols: Observed) -> Float[Array, "c r s"]:
        def one(a: tuple[Array, Array], b: tuple[Array, Array]) -> Array:
            return a[1] @ self.operator(a[0], b[0]) @ b[1]

        return points.gram(one, _with_residuals(rows), _with_residuals(cols))[None]

    def diagonal(self, features: Observed) -> Float[Array, "c n"]:
        p, residuals = _with_residuals(features)
        return jax.vmap(lambda p, e: e @ self.operator(p, p) @ e)(p, residuals)[None]


def _with_residuals(observed: Observed) -> tuple[Array, Array]:
    p = observed.distribution
    assert isinstance(p, jax.Array)
    return p, jax.nn.one_hot(observed.ys, p.shape[-1], dtype=p.dtype) - jnp.asarray(p)
