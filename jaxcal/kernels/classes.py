"""Kernels on classes 0, .., m - 1, and on sequences of tokens: integer arrays of one length l.

Kernels on sequences compare tokens for equality and have no derivatives: pass ``standardize=False``
to tests. A kernel ``exp(-rate * distance)`` of the edit distance is not offered: it is not positive
definite for every rate (Cortes, Haffner and Mohri, 2004).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int

from jaxcal.kernels.algebra import Kernel
from jaxcal.numerics import safe_sqrt
from jaxcal.read import convert
from jaxcal.typing import DTypeLike, Scalar


def _as_pytree(function: Any) -> Any:
    return function if isinstance(function, eqx.Module | Partial) else Partial(function)


class MatrixKernel(eqx.Module):
    r"""Kernel k((p, y), (q, y')) of two pairs (prediction, class), not necessarily a product.

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
        """Return the Gram matrix ``[k(x_i, y_j)]`` of classes [n] and [m], [n, m]."""
        return (xs[:, None] == ys[None]).astype(jnp.result_type(float))


def gram_matrix(value: object, name: str = "matrix") -> Array:
    """Return a symmetric, positive semidefinite array [.., m, m]; ValueError for other values.
    Rows and columns of a data frame are put into the order of the classes that they name."""
    matrix = convert.floats(value, name)
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(f"{name}: wanted a Gram matrix of shape [m, m], got {matrix.shape}")
    if order := convert.class_columns(value, name):
        rows = [*map(str, getattr(value, "index", ()))]
        if rows != [*map(str, convert.column_names(value))]:
            raise ValueError(f"{name}: wanted rows named as the columns, got {rows}")
        matrix = matrix[np.ix_(order, order)]
    if isinstance(matrix, Tracer):
        return matrix
    entries = np.asarray(matrix)
    if not np.all(np.isfinite(entries)):
        raise ValueError(f"{name}: the Gram matrix of the classes has NaN or infinite entries")
    largest = max(float(np.max(np.abs(entries), initial=0)), float(np.finfo(entries.dtype).tiny))
    slack = 100 * entries.shape[-1] * float(np.finfo(entries.dtype).eps) * largest
    if np.max(np.abs(entries - np.swapaxes(entries, -1, -2))) > slack:
        raise ValueError(f"{name}: the Gram matrix of the classes is not symmetric")
    if (low := float(np.linalg.eigvalsh(entries).min())) < -slack:
        raise ValueError(
            f"{name}: the Gram matrix of the classes is not positive semidefinite, its smallest "
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

    matrix: Float[Array, "m m"] = eqx.field(converter=gram_matrix)

    def __call__(self, x: Int[Array, ""], y: Int[Array, ""]) -> Scalar:
        return self.matrix[x, y]

    def gram(self, xs: Int[Array, " n"], ys: Int[Array, " m"]) -> Float[Array, "n m"]:
        """Return the Gram matrix ``[k(x_i, y_j)]`` of classes [n] and [m], [n, m]."""
        return self.matrix[xs][:, ys]


class Hamming(Kernel):
    """Hamming kernel ``exp(-rate h)``, h the number of positions at which two sequences differ.

    It is positive definite and characteristic, because it is a product over positions of kernels
    that are 1 for equal and ``exp(-rate)`` for different tokens.

    Args:
        rate: Above 0; suggested: 1 / (typical number of positions at which two sequences differ).

    Source: Glaser et al. (2024), who use it to compare conditional models of proteins.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> kernel = jaxcal.kernels.Hamming(0.5)
        >>> x, y = jnp.array([3, 1, 4, 1]), jnp.array([3, 1, 5, 9])
        >>> round(float(kernel(x, y)), 3)  # exp(-0.5 * 2)
        0.368
    """

    rate: Scalar = eqx.field(default=1.0, converter=partial(convert.number, name="rate", above=0))

    def __call__(self, x: Array, y: Array) -> Scalar:
        dtype = _real(x)
        return jnp.exp(-self.rate.astype(dtype) * jnp.sum(x != y, dtype=dtype))


class Spectrum(Kernel):
    """Spectrum kernel: cosine of the vectors that count each run of ``length`` successive tokens.

    It is positive semidefinite and depends only on the relative frequencies of runs in a sequence.
    Negative tokens are padding and belong to no run; if a sequence has no run, the kernel is 0.

    Args:
        length: Number of tokens in a run, at least 1 and at most the length of the sequences.

    Cost: O(length l^2) comparisons per pair of sequences of l tokens.

    Source: Leslie, Eskin and Noble (2002).

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> kernel = jaxcal.kernels.Spectrum(2)
        >>> x, y = jnp.array([0, 1, 0, 1]), jnp.array([1, 0, 1, -1])
        >>> round(float(kernel(x, y)), 3)  # counts of 01 and 10: (2, 1) and (1, 1), 3 / sqrt(10)
        0.949
    """

    length: int = eqx.field(default=2, static=True)

    def __check_init__(self):
        convert.integer(self.length, "length")

    def __call__(self, x: Array, y: Array) -> Scalar:
        if min(len(x), len(y)) < self.length:
            raise ValueError(
                f"length: wanted runs no longer than the sequences, got {self.length} for "
                f"sequences of {min(len(x), len(y))} tokens"
            )
        dtype = _real(x)
        norms = self._shared(x, x, dtype) * self._shared(y, y, dtype)
        return self._shared(x, y, dtype) / jnp.where(norms > 0, safe_sqrt(norms), 1)

    def _shared(self, x: Array, y: Array, dtype: DTypeLike) -> Scalar:
        """Return the number of pairs of equal runs, one run of x and one of y."""
        same: Bool[Array, "l k"] = (x[:, None] == y[None]) & (x[:, None] >= 0)
        rows, cols = (len(z) - self.length + 1 for z in (x, y))
        runs = same[:rows, :cols]
        for i in range(1, self.length):
            runs = runs & same[i : i + rows, i : i + cols]
        return jnp.sum(runs, dtype=dtype)


def _real(x: Array) -> DTypeLike:
    return x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.result_type(float)
