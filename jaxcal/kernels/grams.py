"""Gram matrices in full precision; pivots of incomplete Cholesky and their Nyström features."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import by_values
from jaxcal.numerics import at_least, full_precision
from jaxcal.typing import KernelLike, Points


@full_precision
def pivots(
    kernel: KernelLike, xs: Points, rank: int, tolerance: Array | float
) -> tuple[Int[Array, " r"], Bool[Array, " r"]]:
    """Return row indices [r] of ``xs`` in the order of pivoted Cholesky, and which are in use [r].

    Each step selects the row x whose RKHS element k(x, .) is farthest from the span of the selected
    rows. Selection stops after r = ``rank`` steps, or when the largest squared distance is at most
    ``tolerance`` times the largest k(x, x); the other indices are then not in use. Ties are
    resolved by `by_values`, not by row number. A row whose k(x, x) is not finite comes first, and
    features are then NaN. Cost O(n rank^2), memory O(n rank). Source: Fine and Scheinberg (2002).
    """
    n = xs.shape[0]
    order = by_values(xs)
    ordered = jax.lax.stop_gradient(xs)[order]
    start = gram_diagonal(kernel, ordered)
    least = tolerance * jnp.max(start)

    def go_on(state: PyTree) -> Array:
        step, _, residual, _ = state
        farthest = jnp.max(residual)
        return (step < rank) & ((farthest > least) | ~jnp.isfinite(farthest))

    def take(state: PyTree) -> PyTree:
        step, columns, residual, taken = state
        i = jnp.argmax(residual).astype(jnp.int32)
        column = gram(kernel, ordered, ordered[i][None])[:, 0]
        column = (column - columns @ columns[i]) / jnp.sqrt(residual[i])
        residual = at_least(residual - column**2, 0).at[i].set(0)
        return step + 1, columns.at[:, step].set(column), residual, taken.at[step].set(i)

    empty = (jnp.zeros((), jnp.int32), jnp.zeros((n, rank), xs.dtype), start)
    step, _, _, taken = jax.lax.while_loop(go_on, take, (*empty, jnp.zeros(rank, jnp.int32)))
    return order[taken], jnp.arange(rank, dtype=step.dtype) < step


class NystroemFeatures(eqx.Module):
    """Feature map ``f(q) = k(q, S) L^-T`` with r landmarks S and ``k(S, S) = L L^T``.

    <f(q), f(s)> = k(q, s) for every q and every s in S. ``lift`` [r, p] is L^-T, or L^-T times the
    matrix given to `turned`. ``used`` [r]: whether each landmark is in use; others have no effect.
    """

    kernel: KernelLike
    landmarks: Float[Array, "r m"]
    lift: Float[Array, "r p"]
    used: Bool[Array, " r"]

    @classmethod
    def at(
        cls, kernel: KernelLike, landmarks: Float[Array, "r m"], used: Bool[Array, " r"]
    ) -> "NystroemFeatures":
        """Return the feature map of these landmarks; those in use must be distinct."""
        block = square_gram(kernel, landmarks)
        both = used[:, None] & used[None]
        identity = jnp.eye(len(used), dtype=block.dtype)
        low = jnp.linalg.cholesky(jnp.where(both, block, identity))
        lift = jax.scipy.linalg.solve_triangular(low, identity, lower=True).T
        return cls(kernel, landmarks, jnp.where(used[:, None], lift, 0), used)

    @full_precision
    def turned(self, matrix: Float[Array, "p s"]) -> "NystroemFeatures":
        """Return the map whose features are the features of this map times ``matrix``."""
        return NystroemFeatures(self.kernel, self.landmarks, self.lift @ matrix, self.used)

    @full_precision
    def __call__(self, q: Float[Array, "n m"]) -> Float[Array, "n p"]:
        block = jnp.where(self.used, gram(self.kernel, q, self.landmarks), 0)
        return block @ self.lift


@full_precision
def gram(
    kernel: KernelLike, xs: Float[Array, "n q"], ys: Float[Array, "m q"]
) -> Float[Array, "n m"]:
    """Return ``[k(x_i, y_j)]``: `jaxcal.kernels.points.matrix` in full precision."""
    return points.matrix(kernel, xs, ys)


def square_gram(kernel: KernelLike, xs: Float[Array, "n q"]) -> Float[Array, "n n"]:
    """Return ``[k(x_i, x_j)]``, exactly symmetric."""
    block = gram(kernel, xs, xs)
    return (block + block.T) / 2


def gram_diagonal(kernel: KernelLike, xs: Float[Array, "n q"]) -> Float[Array, " n"]:
    """Return ``[k(x_i, x_i)]``."""
    return jax.vmap(kernel)(xs, xs)
