"""Kernels on classes 0, .., m - 1."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from jaxcal.read import convert
from jaxcal.typing import KernelLike, Scalar


def of_vectors(kernel: KernelLike, name: str) -> KernelLike:
    """Return the kernel; TypeError if it compares classes."""
    if isinstance(kernel, Delta | ClassGram):
        raise TypeError(
            f"{name}: {type(kernel).__name__} compares classes, and these targets are vectors: use "
            f"jaxcal.kernels.Gaussian() or another kernel on vectors"
        )
    return kernel


def _as_pytree(function: Any) -> Any:
    return function if isinstance(function, eqx.Module | Partial) else Partial(function)


class MatrixKernel(eqx.Module):
    r"""Kernel k((p, y), (q, y')) on predictions and classes jointly that is no product of two.

    Args:
        function: ``K(p, q)`` of two probability vectors [m] that returns the matrix
            :math:`K_{yy'} = k((p, y), (q, y'))`, [m, m]; a function or a callable pytree.
    """

    function: Callable[[Array, Array], Array] = eqx.field(converter=_as_pytree)


class Delta(eqx.Module):
    """Kernel of classes: 1 for equal classes, 0 for different ones.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> jaxcal.kernels.Delta().gram(jnp.array([0, 1]), jnp.array([1, 2, 1])).tolist()
        [[0.0, 0.0, 0.0], [1.0, 0.0, 1.0]]
    """

    def __call__(self, x: Int[Array, ""], y: Int[Array, ""]) -> Scalar:
        return (x == y).astype(jnp.result_type(float))

    def gram(self, xs: Int[Array, " n"], ys: Int[Array, " m"]) -> Float[Array, "n m"]:
        """Gram matrix ``[k(x_i, y_j)]`` of classes [n] and [m], shape [n, m]."""
        return (xs[:, None] == ys[None]).astype(jnp.result_type(float))


def _gram_matrix(value: object) -> Array:
    matrix = convert.floats(value, "matrix")
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(f"matrix: wanted a Gram matrix of shape [m, m], got {matrix.shape}")
    if isinstance(matrix, Tracer):
        return matrix
    entries = np.asarray(matrix)
    if not np.all(np.isfinite(entries)):
        raise ValueError("matrix: the Gram matrix of the classes has NaN or infinite entries")
    largest = max(float(np.max(np.abs(entries), initial=0)), float(np.finfo(entries.dtype).tiny))
    slack = 100 * entries.shape[-1] * float(np.finfo(entries.dtype).eps) * largest
    if np.max(np.abs(entries - np.swapaxes(entries, -1, -2))) > slack:
        raise ValueError("matrix: the Gram matrix of the classes is not symmetric")
    if (low := float(np.linalg.eigvalsh(entries).min())) < -slack:
        raise ValueError(
            f"matrix: the Gram matrix of the classes is not positive semidefinite, its smallest "
            f"eigenvalue is {low:.3g}"
        )
    return matrix


class ClassGram(eqx.Module):
    """Kernel of classes from a similarity matrix: ``k(x, y) = matrix[x, y]``.

    A strictly positive definite matrix detects every difference between two class distributions.

    Args:
        matrix: Positive semidefinite similarity of m classes, [m, m].

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> matrix = jnp.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.5], [0.0, 0.5, 1.0]])
        >>> jaxcal.kernels.ClassGram(matrix).gram(jnp.array([1]), jnp.array([0, 1, 2])).tolist()
        [[0.5, 1.0, 0.5]]
    """

    matrix: Float[Array, "m m"] = eqx.field(converter=_gram_matrix)

    def __call__(self, x: Int[Array, ""], y: Int[Array, ""]) -> Scalar:
        return self.matrix[x, y]

    def gram(self, xs: Int[Array, " n"], ys: Int[Array, " m"]) -> Float[Array, "n m"]:
        """Gram matrix ``[k(x_i, y_j)]`` of classes [n] and [m], shape [n, m]."""
        return self.matrix[xs][:, ys]
