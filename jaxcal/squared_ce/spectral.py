r"""One factorisation of a kernel matrix for every ridge: exact, or of low rank for many data.

Both kernel ridges are functions of the same three things, with K = Q diag(v) Q^T:
the lifted query a(p) = Q^T k(p), the eigenvalues v, and the loadings b = Q^T D. With a low rank
K is replaced by G G^T; then a(p) = V^T phi(p) and b = V^T G^T D with G^T G = V diag(v) V^T, and the
formulas stay the same. No ridge needs another factorisation.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import by_values
from jaxcal.numerics import at_least
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.typing import KernelLike, Scalar

PIVOT_ROWS = 8192  # landmarks are looked for among so many observations
QUERY_ROWS = 4096  # so many queries are lifted at a time
MANY = 2048  # observations from which leaving directions out is worth another compilation


class Spectral(eqx.Module):
    """The factorisation for g kernels, from n training points and with r eigenvalues.

    ``centres`` [g, t, q]: what queries are compared with (all training points, or landmarks).
    ``lift`` [g, t, r]: a(p) = k(p, centres) @ lift. ``values`` [g, r]: eigenvalues, not negative.
    ``loadings`` [g, r, d]. ``unexplained`` [g]: the part of the kernel's trace beyond the rank.
    """

    kernels: tuple[Any, ...]
    centres: Float[Array, "g t q"]
    lift: Float[Array, "g t r"]
    values: Float[Array, "g r"]
    loadings: Float[Array, "g r d"]
    unexplained: Float[Array, " g"]

    def lifted(self, queries: Float[Array, "n q"]) -> Float[Array, "g n r"]:
        """a(p) of each query, for each kernel: O(n t r) once an evaluation set."""
        parts = [
            _lift_rows(kernel, centres, lift, queries)
            for kernel, centres, lift in zip(self.kernels, self.centres, self.lift, strict=True)
        ]
        return jnp.stack(parts)


def kernel_matrix(kernel: KernelLike, xs: Float[Array, "n q"], ys: Float[Array, "m q"]) -> Array:
    """``[k(x_i, y_j)]``: by matrix products for radial kernels, else pair by pair."""
    profile = points.profile(kernel)
    if profile is None:
        return points.gram(kernel, xs, ys)
    centre = jnp.mean(ys, axis=0, keepdims=True)
    with jax.default_matmul_precision("highest"):
        return profile(points.squared_distances(xs - centre, ys - centre))


def spectral(kernels: tuple[Any, ...], train: Reduced, rank: int | None) -> Spectral:
    """The factorisation of each kernel's matrix at the training inputs.

    ``rank=None``: one eigendecomposition a kernel, O(n^3) time and O(n^2) memory; outside of jit
    from `MANY` observations on, directions that rounding made negative are left out, see
    `positive_directions`.
    Otherwise landmarks and O(n r^2 + r^3).
    """
    factorisation = _spectral(kernels, train, None if rank is None else min(rank, train.n))
    if rank is not None or train.n < MANY or isinstance(factorisation.values, Tracer):
        return factorisation
    last = slice(-positive_directions(np.asarray(factorisation.values)), None)
    return Spectral(
        kernels,
        factorisation.centres,
        factorisation.lift[:, :, last],
        factorisation.values[:, last],
        factorisation.loadings[:, last],
        factorisation.unexplained,
    )


def positive_directions(values: np.ndarray) -> int:
    """How many of the ascending eigenvalues [g, n] to keep: the positive ones of each kernel.

    Smooth kernels have some hundreds of eigenvalues above rounding; the others are rounding, half
    of them negative. Where v_i = 0 so is a_i(p), for every p, and h does not see the direction. The
    number is rounded up to the next eighth of n, so that folds share their compiled programs.
    """
    n = values.shape[1]
    most = max(int(np.max(np.sum(values > 0, axis=1))), 1)
    return min(n, -(-most * 8 // n) * n // 8)


@eqx.filter_jit
def _spectral(kernels: tuple[Any, ...], train: Reduced, rank: int | None) -> Spectral:
    parts = [
        _exact(kernel, train) if rank is None else _low_rank(kernel, train, rank)
        for kernel in kernels
    ]
    centres, lift, values, loadings, unexplained = (
        jnp.stack(list(column)) for column in zip(*parts, strict=True)
    )
    return Spectral(kernels, centres, lift, values, loadings, unexplained)


def _exact(kernel: KernelLike, train: Reduced) -> tuple[Array, Array, Array, Array, Array]:
    values, vectors = jnp.linalg.eigh(kernel_matrix(kernel, train.inputs, train.inputs))
    loadings = vectors.T @ train.residuals
    none = jnp.zeros((), values.dtype)
    return train.inputs, vectors, at_least(values, 0), loadings, none


def _low_rank(
    kernel: KernelLike, train: Reduced, rank: int
) -> tuple[Array, Array, Array, Array, Array]:
    step = max(1, train.n // max(PIVOT_ROWS, 4 * rank))
    candidates = train.inputs[by_values(train.inputs)[::step]]
    pivoted = pivoted_cholesky(kernel, candidates, rank)
    # phi(p) = L^-1 k(landmarks, p)
    identity = jnp.eye(rank, dtype=pivoted.lower.dtype)
    inverse = jax.scipy.linalg.solve_triangular(pivoted.lower, identity, lower=True)
    features = _lift_rows(kernel, pivoted.landmarks, inverse.T, train.inputs)
    with jax.default_matmul_precision("highest"):
        values, vectors = jnp.linalg.eigh(features.T @ features)
        loadings = vectors.T @ (features.T @ train.residuals)
    trace = jnp.sum(jax.vmap(lambda x: kernel(x, x))(train.inputs))
    unexplained = at_least(1 - jnp.sum(features**2) / trace, 0)
    return pivoted.landmarks, inverse.T @ vectors, at_least(values, 0), loadings, unexplained


class Landmarks(NamedTuple):
    """``landmarks`` [r, q] and ``lower`` [r, r] with ``lower lower^T`` their kernel matrix."""

    landmarks: Float[Array, "r q"]
    lower: Float[Array, "r r"]


def pivoted_cholesky(kernel: KernelLike, xs: Float[Array, "n q"], rank: int) -> Landmarks:
    """Landmarks chosen greedily: each next one is the point that the others explain least.

    Once all points are explained to rounding, further ones get 1 on the diagonal of ``lower``: what
    is left of them is of the size of rounding, and stays so.
    Cost O(n r^2), memory O(n r). Source: Harbrecht, Peters and Schneider (2012).
    """
    start = jax.vmap(lambda x: kernel(x, x))(xs)
    tolerance = jnp.finfo(xs.dtype).eps ** 0.75 * jnp.max(start)

    def step(j: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        left, factor, pivots = state
        pivot = jnp.argmax(left).astype(jnp.int32)
        column = kernel_matrix(kernel, xs, xs[pivot][None])[:, 0] - factor @ factor[pivot]
        enough = left[pivot] <= tolerance
        column = jnp.where(enough, 0.0, column / jnp.sqrt(jnp.where(enough, 1.0, left[pivot])))
        left = at_least(left - column**2, 0).at[pivot].set(0.0)
        return left, factor.at[:, j].set(column), pivots.at[j].set(pivot)

    empty = jnp.zeros((xs.shape[0], rank), xs.dtype)
    state = (start, empty, jnp.zeros(rank, jnp.int32))
    _, factor, pivots = jax.lax.fori_loop(0, rank, step, state)
    lower = jnp.tril(factor[pivots])
    unused = jnp.diag(lower) == 0
    return Landmarks(xs[pivots], lower + jnp.diag(unused.astype(xs.dtype)))


def _lift_rows(kernel: KernelLike, centres: Array, lift: Array, queries: Array) -> Array:
    """``k(queries, centres) @ lift`` in blocks of queries."""

    def block(rows: Array) -> Array:
        with jax.default_matmul_precision("highest"):
            return kernel_matrix(kernel, rows, centres) @ lift

    n = queries.shape[0]
    if n <= QUERY_ROWS:
        return block(queries)
    blocks = -(-n // QUERY_ROWS)
    padding = jnp.broadcast_to(queries[:1], (blocks * QUERY_ROWS - n, queries.shape[1]))
    whole = jnp.concatenate([queries, padding]).reshape(blocks, QUERY_ROWS, -1)
    return jax.lax.map(block, whole).reshape(blocks * QUERY_ROWS, -1)[:n]


def unexplained_share(fitted: Any) -> Scalar:
    """The largest part of a kernel's trace beyond the rank; 0 for an exact factorisation."""
    return jnp.max(fitted.spectral.unexplained)
