r"""CKCE without a Gram matrix: conjugate gradients, with products K V made of blocks of K.

The condition number of A = K + n lambda I is at most 1 + max k(q, q) / lambda, about 20 at n = 10^4
and the default ridge, so some ten steps give the exact value to rounding.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float

from jaxcal import checks
from jaxcal.batching import one_at_a_time
from jaxcal.ckce import kernels, solve
from jaxcal.ckce.estimator import CKCE, Approximation, Problem, problem, result
from jaxcal.ckce.features import over_rows
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.ckce.residuals import residuals
from jaxcal.ckce.ridge import Ridge
from jaxcal.numerics import at_least

TILE = 1024


def gram_times(
    kernel: Any,
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
    def rows(columns: Any, mine: Array) -> Array:
        kernel, *blocks = columns

        def row(x: Array) -> Array:
            @jax.checkpoint
            def step(total: Array, block: list[Array]) -> tuple[Array, None]:
                y, v = block
                with jax.default_matmul_precision("highest"):
                    return total + kernels.gram(kernel, x, y) @ v, None

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
    product: Any, right: Float[Array, "n p"], *, tolerance: float, steps: int
) -> Solved:
    """Solve A x = b for every column of ``right`` at once, A by its product with [n, p].

    Stops where every column's residual is at most ``tolerance`` times its right side.
    """
    size = jnp.sum(right**2, axis=0)
    scale = jnp.where(size > 0, size, 1)

    def go_on(state: Any) -> Array:
        step, _, _, _, left = state
        # NaN stops too
        return (step < steps) & (jnp.max(left / scale) > tolerance**2)

    def take(state: Any) -> Any:
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


def ckce_conjugate(
    predictions: Any,
    targets: Any,
    *,
    prediction_kernel: Any = simplex_kernel(),
    similarity: Any = None,
    ridge: Ridge = None,
    bandwidth: Any = None,
    tolerance: float | None = None,
    steps: int = 100,
    tile: int = TILE,
    mesh: Mesh | None = None,
) -> CKCE:
    """`ckce` by conjugate gradients, without holding the Gram matrix.

    Cost n^2 (m + q) a step, memory O(tile^2 + n m). Stops at a relative residual of ``tolerance``
    (100 eps by default) or after ``steps``; ``result.approximation`` says what it took.
    Differentiable in reverse mode, by solving once more. ``mesh``: devices that share the rows of
    the Gram matrix. Other arguments as in `ckce`.
    """
    made = problem(predictions, targets, prediction_kernel, similarity, ridge, bandwidth)
    steps, tile = checks.integer(steps, "steps"), checks.integer(tile, "tile")
    eps = float(jnp.finfo(made.q.dtype).eps)
    tolerance = checks.tolerance(tolerance, 100 * eps)
    checks.devices(mesh)
    return _conjugate(made, tolerance=tolerance, steps=steps, tile=tile, mesh=mesh)


@partial(jax.jit, static_argnames=("tolerance", "steps", "tile", "mesh"))
def _conjugate(
    made: Problem, *, tolerance: float, steps: int, tile: int, mesh: Mesh | None
) -> CKCE:
    def one(made: Problem) -> CKCE:
        kernel, bandwidths = kernels.fill(made.kernel, made.q, made.bandwidth)
        left = residuals(made.q, made.labels, made.root)
        n = left.shape[0]

        def product(vectors: Array) -> Array:
            found = gram_times(kernel, made.q, vectors, tile=tile, mesh=mesh)
            return found + n * made.ridge * vectors

        def solver(matvec: Any, right: Array) -> tuple[Array, Array]:
            found = conjugate_gradients(matvec, right, tolerance=tolerance, steps=steps)
            return found.x, found.steps

        def solved(right: Array) -> tuple[Array, Array]:
            return jax.lax.custom_linear_solve(product, right, solver, symmetric=True, has_aux=True)

        b, taken = solved(left)
        fitted = gram_times(kernel, made.q, b, tile=tile, mesh=mesh)
        along = b - n * made.ridge * solved(b)[0]
        contributions, pull = jnp.sum(b * fitted, axis=1), jnp.sum(along * b, axis=1)
        influence = 2 * float(n) ** 2 * made.ridge * (pull - jnp.mean(pull))
        estimate, residual = jnp.sum(contributions), left - fitted - n * made.ridge * b
        b2, right, rest = (jnp.sum(side**2) for side in (b, left, residual))
        sizes = solve.Sizes(b2, right, rest, jnp.max(kernels.gram_diagonal(kernel, made.q)))
        rounding = solve.rounding(estimate, sizes, n, made.ridge)
        fit = solve.Fit(estimate, contributions, influence, rounding)
        held = jax.lax.stop_gradient((left, b, fitted))
        error = jnp.linalg.norm(held[0] - held[2] - n * made.ridge * held[1])
        error = error / at_least(jnp.linalg.norm(held[0]), jnp.finfo(error.dtype).tiny)
        by = Approximation("conjugate gradients", taken, error)
        return result(fit, made, bandwidths, by)

    return one_at_a_time(one)(made)
