r"""One factorisation of a kernel matrix for every ridge: exact, or of low rank for many data.

Both kernel ridges are functions of the same three things, with K = Q diag(v) Q^T:
the lifted query a(p) = Q^T k(p), the eigenvalues v, and the loadings b = Q^T D. With a low rank
K is replaced by G G^T; then a(p) = V^T phi(p) and b = V^T G^T D with G^T G = V diag(v) V^T, and the
formulas stay the same. No ridge needs another factorisation.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.kernels.bandwidths import by_values
from jaxcal.kernels.grams import NystroemFeatures, gram, gram_diagonal, pivots
from jaxcal.numerics import at_least
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.typing import KernelLike

PIVOT_ROWS = 8192  # landmarks are looked for among so many observations
QUERY_ROWS = 4096  # so many queries are lifted at a time


class Spectral(eqx.Module):
    """The factorisation for g kernels, from n training points and with r eigenvalues.

    ``centres`` [g, t, q]: what queries are compared with (all training points, or landmarks).
    ``lift`` [g, t, r]: a(p) = k(p, centres) @ lift. ``values`` [g, r]: eigenvalues, not negative.
    ``loadings`` [g, r, d]. ``unexplained`` [g]: the part of the kernel's trace beyond the rank.
    """

    kernels: tuple[KernelLike, ...]
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


def spectral(kernels: tuple[KernelLike, ...], train: Reduced, rank: int | None) -> Spectral:
    """Return the factorisation of each kernel's matrix at the training inputs.

    ``rank=None``: one eigendecomposition a kernel, O(n^3) time and O(n^2) memory. Otherwise
    landmarks and O(n r^2 + r^3).
    """
    return _spectral(kernels, train, None if rank is None else min(rank, train.n))


@eqx.filter_jit
def _spectral(kernels: tuple[KernelLike, ...], train: Reduced, rank: int | None) -> Spectral:
    parts = [
        _exact(kernel, train) if rank is None else _low_rank(kernel, train, rank)
        for kernel in kernels
    ]
    centres, lift, values, loadings, unexplained = (
        jnp.stack(list(column)) for column in zip(*parts, strict=True)
    )
    return Spectral(kernels, centres, lift, values, loadings, unexplained)


def _exact(kernel: KernelLike, train: Reduced) -> tuple[Array, Array, Array, Array, Array]:
    values, vectors = jnp.linalg.eigh(gram(kernel, train.inputs, train.inputs))
    loadings = vectors.T @ train.residuals
    none = jnp.zeros((), values.dtype)
    return train.inputs, vectors, at_least(values, 0), loadings, none


def _low_rank(
    kernel: KernelLike, train: Reduced, rank: int
) -> tuple[Array, Array, Array, Array, Array]:
    step = max(1, train.n // max(PIVOT_ROWS, 4 * rank))
    candidates = train.inputs[by_values(train.inputs)[::step]]
    rows, used = pivots(kernel, candidates, rank, float(jnp.finfo(candidates.dtype).eps) ** 0.75)
    landmarks = candidates[rows]
    to_features = NystroemFeatures.at(kernel, landmarks, used).lift
    features = _lift_rows(kernel, landmarks, to_features, train.inputs)
    with jax.default_matmul_precision("highest"):
        values, vectors = jnp.linalg.eigh(features.T @ features)
        loadings = vectors.T @ (features.T @ train.residuals)
    trace = jnp.sum(gram_diagonal(kernel, train.inputs))
    unexplained = at_least(1 - jnp.sum(features**2) / trace, 0)
    return landmarks, to_features @ vectors, at_least(values, 0), loadings, unexplained


def _lift_rows(kernel: KernelLike, centres: Array, lift: Array, queries: Array) -> Array:
    """``k(queries, centres) @ lift`` in blocks of queries."""

    def block(rows: Array) -> Array:
        with jax.default_matmul_precision("highest"):
            return gram(kernel, rows, centres) @ lift

    n = queries.shape[0]
    if n <= QUERY_ROWS:
        return block(queries)
    blocks = -(-n // QUERY_ROWS)
    padding = jnp.broadcast_to(queries[:1], (blocks * QUERY_ROWS - n, queries.shape[1]))
    whole = jnp.concatenate([queries, padding]).reshape(blocks, QUERY_ROWS, -1)
    return jax.lax.map(block, whole).reshape(blocks * QUERY_ROWS, -1)[:n]
