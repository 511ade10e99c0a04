"""Solvers of CKCE by random Fourier features and by conjugate gradients, as users would write them.

`Fourier` is the estimator of Moskvichev and Sejdinovic, Appendix B: random features in the place of
the Gaussian part of the kernel. `ConjugateGradients` gives the exact value without a Gram matrix:
the condition number of A = K + n lambda I is at most 1 + max k(q, q) / lambda, about 20 at n = 10^4
and the default ridge, so some ten steps are enough.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.ckce import solvers
from jaxcal.ckce.solvers import TILE, Approximation, Fit, Predictions, Residuals, primal_fit
from jaxcal.kernels import grams
from jaxcal.kernels.points import Gaussian, Linear, Sum
from jaxcal.numerics import at_least
from jaxcal.typing import KernelLike, Key, Scalar


class FourierFeatures(eqx.Module):
    r"""``[q, D^-1/2 cos(w_r . q), D^-1/2 sin(w_r . q)]``, length m + 2 D, of the simplex kernel.

    The linear part is exact; the Gaussian part has the right mean and variance O(1 / D) over
    ``normals`` [m, D], standard normal draws, w = normals / bandwidth. Models that are compared
    share the normals.
    """

    normals: Float[Array, "m D"]
    bandwidth: Scalar

    def __call__(self, q: Float[Array, "n m"]) -> Float[Array, "n p"]:
        with jax.default_matmul_precision("highest"):
            phase = q @ (self.normals / self.bandwidth)
        scale = self.normals.shape[1] ** -0.5
        return jnp.concatenate([q, scale * jnp.cos(phase), scale * jnp.sin(phase)], axis=1)


class Fourier(eqx.Module):
    """Solver with ``n_features`` random frequencies for the kernel `simplex_kernel`.

    Cost O(n p^2) with p = m + 2 features entries a row where p < n, O(n^3) otherwise. The same key
    gives all models the same normal draws. ``approximation.error`` is the standard deviation of an
    entry of the Gram matrix, n_features^(-1/2) times at most 2^(-1/2).
    """

    key: Key
    n_features: int = eqx.field(default=100, static=True)

    def __call__(
        self, kernel: KernelLike, q: Predictions, residuals: Residuals, ridge: Scalar
    ) -> Fit:
        match kernel:
            case Sum(left=Linear(), right=Gaussian(bandwidth=bandwidth)):
                pass
            case _:
                raise TypeError(f"prediction_kernel: wanted simplex_kernel(), got {kernel}")
        n, m = q.shape
        normals = jax.random.normal(self.key, (m, self.n_features), q.dtype)
        features = FourierFeatures(normals, jnp.asarray(bandwidth, q.dtype))
        if m + 2 * self.n_features < n:
            height = jnp.max(grams.gram_diagonal(kernel, q))
            fit, _ = primal_fit(features, q, residuals, ridge, height=height)
        else:
            fit = solvers.fit(grams.square_gram(Linear(), features(q)), residuals, ridge)
        error = jnp.asarray((2 * self.n_features) ** -0.5, q.dtype)
        size = jnp.asarray(self.n_features)
        return fit._replace(approximation=Approximation("random Fourier features", size, error))


def gram_times(
    kernel: KernelLike, xs: Float[Array, "n m"], vectors: Float[Array, "n p"], *, tile: int = TILE
) -> Float[Array, "n p"]:
    """K V without K: cost n^2 (m + p) multiplications, memory O(tile^2 + n (m + p)).

    Differentiable; the backward pass makes the blocks again.
    """
    n = xs.shape[0]
    side = min(tile, n)
    missing = -n % side
    # rows that repeat the first fill the last block; their vectors are 0
    points = jnp.concatenate([xs, xs[:1].repeat(missing, 0)]).reshape(-1, side, xs.shape[1])
    right = jnp.pad(vectors, ((0, missing), (0, 0))).reshape(-1, side, vectors.shape[1])

    def row(x: Array) -> Array:
        @jax.checkpoint
        def step(total: Array, block: list[Array]) -> tuple[Array, None]:
            y, v = block
            with jax.default_matmul_precision("highest"):
                return total + grams.gram(kernel, x, y) @ v, None

        start = jnp.zeros((side, vectors.shape[1]), xs.dtype)
        return jax.lax.scan(step, start, [points, right])[0]

    return jax.lax.map(row, points).reshape(-1, vectors.shape[1])[:n]


class Solved(NamedTuple):
    """``x`` [n, p] with A x = b, the number of steps, and max |b - A x| / |b| over columns."""

    x: Float[Array, "n p"]
    steps: Array
    error: Array


def conjugate_gradients(
    product: Callable[[Array], Array], right: Float[Array, "n p"], *, tolerance: float, steps: int
) -> Solved:
    """Solve A x = b for every column of ``right`` at once, A by its product with [n, p].

    Stops where every column's residual is at most ``tolerance`` times its right side.
    """
    size = jnp.sum(right**2, axis=0)
    scale = jnp.where(size > 0, size, 1)

    def go_on(state: PyTree) -> Array:
        step, _, _, _, left = state
        # NaN stops too
        return (step < steps) & (jnp.max(left / scale) > tolerance**2)

    def take(state: PyTree) -> PyTree:
        step, x, r, d, left = state
        ad = product(d)
        curve = jnp.sum(d * ad, axis=0)
        length = jnp.where(curve > 0, left / jnp.where(curve > 0, curve, 1), 0)
        x, r = x + length[None] * d, r - length[None] * ad
        new = jnp.sum(r**2, axis=0)
        turn = jnp.where(left > 0, new / jnp.where(left > 0, left, 1), 0)
        return step + 1, x, r, r + turn[None] * d, new

    start = (jnp.zeros((), jnp.int32), jnp.zeros_like(right), right, right, size)
    step, x, _, _, left = jax.lax.while_loop(go_on, take, start)
    return Solved(x, step, jnp.sqrt(jnp.max(left / scale)))


class ConjugateGradients(eqx.Module):
    """Solver by conjugate gradients, without holding the Gram matrix.

    ``tolerance``: relative residual at which to stop, 100 eps by default. ``steps``: at most so
    many. ``tile``: rows and columns of a block at a time. ``result.approximation`` says what it
    took. Differentiable in reverse mode, by solving once more. Cost n^2 (m + p) a step for p
    residuals; memory O(tile^2 + n m).
    """

    tolerance: float | None = eqx.field(default=None, static=True)
    steps: int = eqx.field(default=100, static=True)
    tile: int = eqx.field(default=1024, static=True)

    def __call__(
        self, kernel: KernelLike, q: Predictions, residuals: Residuals, ridge: Scalar
    ) -> Fit:
        n, tile = q.shape[0], self.tile
        tolerance = 100 * float(jnp.finfo(q.dtype).eps)
        if self.tolerance is not None:
            tolerance = self.tolerance

        def product(vectors: Array) -> Array:
            smoothed = gram_times(kernel, q, vectors, tile=tile)
            return smoothed + n * ridge * vectors

        def iterate(matvec: Callable[[Array], Array], right: Array) -> tuple[Array, Array]:
            solved = conjugate_gradients(matvec, right, tolerance=tolerance, steps=self.steps)
            return solved.x, solved.steps

        def inverse(right: Array) -> tuple[Array, Array]:
            return jax.lax.custom_linear_solve(
                product, right, iterate, symmetric=True, has_aux=True
            )

        b, taken = inverse(residuals)
        fitted = gram_times(kernel, q, b, tile=tile)
        along = b - n * ridge * inverse(b)[0]
        contributions, pull = jnp.sum(b * fitted, axis=1), jnp.sum(along * b, axis=1)
        influence = 2 * float(n) ** 2 * ridge * (pull - jnp.mean(pull))
        estimate, left = jnp.sum(contributions), residuals - fitted - n * ridge * b
        b2, right, rest = (jnp.sum(side**2) for side in (b, residuals, left))
        sizes = solvers.Sizes(b2, right, rest, jnp.max(grams.gram_diagonal(kernel, q)))
        rounding = solvers.rounding(estimate, sizes, n, ridge)
        left, right = jax.lax.stop_gradient((left, residuals))
        size = jnp.linalg.norm(right)
        error = jnp.linalg.norm(left) / at_least(size, jnp.finfo(size.dtype).tiny)
        by = Approximation("conjugate gradients", taken, error)
        return Fit(estimate, contributions, influence, rounding, by)
