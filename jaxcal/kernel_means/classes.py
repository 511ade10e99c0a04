r"""Kernels on classes averaged over class probabilities.

With the Gram matrix Lambda of the classes, :math:`\kappa_1(p, y) = (\Lambda p)_y` and
:math:`\kappa_2(p, q) = p^\top \Lambda q`. The four terms of h_Y are computed together as
:math:`(e_y - p)^\top \Lambda (e_{y'} - p')`, without differences of large numbers.
Source: Widmann, Lindsten and Zachariah (2021), App. E.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.kernel_means.dispatch import Averages, pair
from jaxcal.kernels.classes import ClassGram, Delta, MatrixKernel
from jaxcal.read.families import Classes


class ClassMeans(eqx.Module):
    """Kernel means from products with the Gram matrix of the classes; None is the identity."""

    matrix: Float[Array, "m m"] | None

    def _times(self, vectors: Array) -> Array:
        return vectors if self.matrix is None else vectors @ self.matrix.astype(vectors.dtype)

    def first(self, rows: Classes, ys: Array) -> Array:
        return self._times(rows.probabilities)[:, ys]

    def second(self, rows: Classes, cols: Classes) -> Array:
        return self._times(rows.probabilities) @ cols.probabilities.T

    def own(self, features: Classes) -> Array:
        return jnp.sum(self._times(features.probabilities) * features.probabilities, axis=-1)

    def residual(self, rows: Classes, ys: Array, cols: Classes, others: Array) -> Array:
        """Return the sum of the four terms, [r, c]."""
        return self._times(_residuals(rows, ys)) @ _residuals(cols, others).T

    def own_residual(self, features: Classes, ys: Array) -> Array:
        """Return the sum of the four terms of each observation with itself, [n]."""
        residuals = _residuals(features, ys)
        return jnp.sum(self._times(residuals) * residuals, axis=-1)


class MatrixMeans(eqx.Module):
    r"""Sum of the four terms, :math:`(e_y - p)^\top K(p, q) (e_{y'} - q)`; O(m^2) per pair."""

    kernel: MatrixKernel

    def residual(self, rows: Classes, ys: Array, cols: Classes, others: Array) -> Array:
        """Return the sum of the four terms, [r, c], with c matrices in memory at a time."""
        p, q = rows.probabilities, cols.probabilities
        at_cols = (q, _residuals(cols, others))

        def of_row(row: tuple[Array, Array]) -> Array:
            return jax.vmap(lambda col: row[1] @ self.kernel.function(row[0], col[0]) @ col[1])(
                at_cols
            )

        return jax.lax.map(of_row, (p, _residuals(rows, ys)))

    def own_residual(self, features: Classes, ys: Array) -> Array:
        """Return the sum of the four terms of each observation with itself, [n]."""

        def own(p: Array, residual: Array) -> Array:
            return residual @ self.kernel.function(p, p) @ residual

        return jax.vmap(own)(features.probabilities, _residuals(features, ys))

    def _of_pairs(self, *_: PyTree) -> Array:
        raise TypeError("target_kernel: a function of two predictions has no mean without both")

    first = second = own = _of_pairs


def _residuals(distribution: Classes, ys: Array) -> Array:
    p = distribution.probabilities
    return jax.nn.one_hot(ys, p.shape[-1], dtype=p.dtype) - p


@pair(Delta, Classes)
def delta_over_classes(kernel: Delta, distribution: Classes) -> Averages:
    """Return kernel means of `Delta`."""
    return distribution, ClassMeans(None)


@pair(MatrixKernel, Classes)
def matrix_over_classes(kernel: MatrixKernel, distribution: Classes) -> Averages:
    """Return the sum of the four terms of a kernel on predictions and classes jointly."""
    return distribution, MatrixMeans(kernel)


@pair(ClassGram, Classes)
def gram_over_classes(kernel: ClassGram, distribution: Classes) -> Averages:
    """Return kernel means of a similarity matrix of classes."""
    if kernel.matrix.shape[0] != (m := distribution.probabilities.shape[-1]):
        raise ValueError(
            f"target_kernel: a Gram matrix of {kernel.matrix.shape[0]} classes for probabilities "
            f"of {m}"
        )
    return distribution, ClassMeans(kernel.matrix)
