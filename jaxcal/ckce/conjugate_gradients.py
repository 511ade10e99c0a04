r"""CKCE without a Gram matrix: conjugate gradients, with products K V made of blocks of K.

The condition number of A = K + n lambda I is at most 1 + max k(q, q) / lambda, about 20 at n = 10^4
and the default ridge, so some ten steps give the exact value to rounding.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree

from jaxcal.ckce import solvers
from jaxcal.ckce.solvers import Approximation, Predictions, Residuals, Solution
from jaxcal.engine.batching import over_rows
from jaxcal.kernels import grams
from jaxcal.numerics import at_least
from jaxcal.read import checks
from jaxcal.typing import KernelLike, Scalar

TILE = 1024


def gram_times(
    kernel: KernelLike,
    xs: Float[Array, "n m"],
    vectors: Float[Array, "n p"],
    *,
    tile: int = TILE,
    mesh: Mesh | None = None,
) -> Float[Array, "n p"]:
    """K V without K: cost n^2 (m + p) multiplications, memory O(tile^2 + n (m + p)).

    Differentiable; the backward pass makes the blocks again. ``mesh``: devices that share the rows
    of K; each holds all of ``xs`` and ``vectors``.
    """
    n, devices = xs.shape[0], 1 if mesh is None else mesh.size
    side = min(tile, -(-n // devices))
    missing = -n % (side * devices)
    # rows that repeat the first fill the last block; their vectors are 0
    points = jnp.concatenate([xs, xs[:1].repeat(missing, 0)]).reshape(-1, side, xs.shape[1])
    right = jnp.pad(vectors, ((0, missing), (0, 0))).reshape(-1, side, vectors.shape[1])

    @partial(over_rows, mesh=mesh, reduce=False)
    def rows(columns: PyTree, mine: Array) -> Array:
        kernel, *blocks = columns

        def row(x: Array) -> Array:
            @jax.checkpoint
            def step(total: Array, block: list[Array]) -> tuple[Array, None]:
                y, v = block
                with jax.default_matmul_precision("highest"):
                    return total + grams.gram(kernel, x, y) @ v, None

            start = jnp.zeros((side, vectors.shape[1]), xs.dtype)
            return jax.lax.scan(step, start, blocks)[0]

        return jax.lax.map(row, mine)

    return rows((kernel, points, right), points).reshape(-1, vectors.shape[1])[:n]


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

    ``result.approximation`` says what it took. Differentiable in reverse mode, by solving once
    more.

    Args:
        tolerance: Relative residual at which to stop; 100 eps by default.
        steps: Largest number of steps.
        tile: Rows and columns of a block at a time.
        mesh: Devices that share the rows of the Gram matrix.

    Raises:
        ValueError: A number is wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: n^2 (m + p) a step for p residuals; memory O(tile^2 + n m).

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (100, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> solver = jaxcal.ckce.ConjugateGradients(tolerance=1e-4)
        >>> result = jaxcal.ckce.ckce(jax.nn.softmax(logits), targets, solver=solver)
        >>> bool(result.approximation.error < 1e-3)
        True
    """

    tolerance: float | None = eqx.field(default=None, static=True)
    steps: int = eqx.field(default=100, static=True)
    tile: int = eqx.field(default=TILE, static=True)
    mesh: Mesh | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        checks.tolerance(self.tolerance, 0.0)
        checks.integer(self.steps, "steps")
        checks.integer(self.tile, "tile")
        checks.devices(self.mesh)

    def __call__(
        self, kernel: KernelLike, q: Predictions, residuals: Residuals, ridge: Scalar
    ) -> Solution:
        n, tile, mesh = q.shape[0], self.tile, self.mesh
        tolerance = checks.tolerance(self.tolerance, 100 * float(jnp.finfo(q.dtype).eps))

        def product(vectors: Array) -> Array:
            smoothed = gram_times(kernel, q, vectors, tile=tile, mesh=mesh)
            return smoothed + n * ridge * vectors

        def iterate(matvec: Callable[[Array], Array], right: Array) -> tuple[Array, Array]:
            solved = conjugate_gradients(matvec, right, tolerance=tolerance, steps=self.steps)
            return solved.x, solved.steps

        def inverse(right: Array) -> tuple[Array, Array]:
            return jax.lax.custom_linear_solve(
                product, right, iterate, symmetric=True, has_aux=True
            )

        b, taken = inverse(residuals)
        fitted = gram_times(kernel, q, b, tile=tile, mesh=mesh)
        along = b - n * ridge * inverse(b)[0]
        contributions, pull = jnp.sum(b * fitted, axis=1), jnp.sum(along * b, axis=1)
        influence = 2 * float(n) ** 2 * ridge * (pull - jnp.mean(pull))
        estimate, left = jnp.sum(contributions), residuals - fitted - n * ridge * b
        b2, right, rest = (jnp.sum(side**2) for side in (b, residuals, left))
        sizes = solvers.Sizes(b2, right, rest, jnp.max(grams.gram_diagonal(kernel, q)))
        rounding = solvers.rounding(estimate, sizes, n, ridge)
        fit = solvers.Fit(estimate, contributions, influence, rounding)
        left, right = jax.lax.stop_gradient((left, residuals))
        size = jnp.linalg.norm(right)
        error = jnp.linalg.norm(left) / at_least(size, jnp.finfo(size.dtype).tiny)
        return Solution(fit, Approximation("conjugate gradients", taken, error))
