"""CKCE of many observations: incomplete Cholesky (or chosen landmarks), and random features."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from jaxcal import checks
from jaxcal.batching import one_at_a_time
from jaxcal.ckce import kernels, solve
from jaxcal.ckce.estimator import CKCE, Approximation, Problem, problem, result
from jaxcal.ckce.features import TILE, Fourier, Nystroem, primal_fit
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.ckce.residuals import residuals
from jaxcal.ckce.ridge import Ridge
from jaxcal.kernels.bandwidths import by_values
from jaxcal.kernels.points import Gaussian, Linear, Sum
from jaxcal.numerics import at_least
from jaxcal.typing import Key, KeyLike, Points

CANDIDATES = 4096


def pivots(
    kernel: Any, xs: Points, rank: int, tolerance: Any
) -> tuple[Int[Array, " r"], Bool[Array, " r"]]:
    """Rows of ``xs`` in the order incomplete Cholesky takes them, and which of them count.

    Each step takes the row whose feature is farthest from the span of those taken; it stops after
    ``rank`` steps, or where that squared distance is at most ``tolerance`` times the largest
    k(x, x). Of several as far the one that their values put first, wherever it stands. Cost
    O(n rank^2), memory O(n rank). Source: Fine and Scheinberg (2002).
    """
    n = xs.shape[0]
    order = by_values(xs)
    held = jax.lax.stop_gradient(xs)[order]
    start = kernels.gram_diagonal(kernel, held)
    least = tolerance * jnp.max(start)

    def go_on(state: Any) -> Array:
        step, _, left, _ = state
        return (step < rank) & (jnp.max(left) > least)

    def take(state: Any) -> Any:
        step, columns, left, taken = state
        i = jnp.argmax(left).astype(jnp.int32)
        column = kernels.gram(kernel, held, held[i][None])[:, 0]
        with jax.default_matmul_precision("highest"):
            column = (column - columns @ columns[i]) / jnp.sqrt(left[i])
        left = at_least(left - column**2, 0).at[i].set(0)
        return step + 1, columns.at[:, step].set(column), left, taken.at[step].set(i)

    empty = (jnp.zeros((), jnp.int32), jnp.zeros((n, rank), xs.dtype), start)
    step, _, _, taken = jax.lax.while_loop(go_on, take, (*empty, jnp.zeros(rank, jnp.int32)))
    return order[taken], jnp.arange(rank, dtype=step.dtype) < step


def ckce_low_rank(
    predictions: Any,
    targets: Any,
    *,
    rank: int = 256,
    tolerance: float | None = None,
    landmarks: Any = None,
    prediction_kernel: Any = simplex_kernel(),
    similarity: Any = None,
    ridge: Ridge = None,
    bandwidth: Any = None,
    tile: int = TILE,
    mesh: Mesh | None = None,
) -> CKCE:
    """`ckce` with a Gram matrix of low rank, by incomplete Cholesky; n does not grow its memory.

    At most ``rank`` predictions are chosen by their pivots among 4,096 spread over the data's
    values (all, where there are fewer); ``tolerance`` stops earlier (1,000 eps by default). Or give
    ``landmarks`` [r, m] of your own. Exact where the rank reaches that of the Gram matrix; what is
    left of its trace is in ``result.approximation``. Cost O(n rank^2), memory O(tile rank + rank^2)
    beyond the data and O(4,096 rank) for the choice. ``mesh``: devices that share the rows.
    Source: Moskvichev and Sejdinovic, App. B, names it; not evaluated there.
    """
    made = problem(predictions, targets, prediction_kernel, similarity, ridge, bandwidth)
    n, m = made.q.shape
    rank = checks.integer(rank, "rank")
    tile = checks.integer(tile, "tile")
    if landmarks is not None:
        landmarks = checks.floats(landmarks, "landmarks").astype(made.q.dtype)
        if landmarks.ndim != 2 or landmarks.shape[1] != m:
            raise ValueError(f"landmarks: wanted shape [r, {m}], got {landmarks.shape}")
    tolerance = checks.tolerance(tolerance, 1000 * float(jnp.finfo(made.q.dtype).eps))
    checks.devices(mesh)
    return _low_rank(made, landmarks, tolerance, rank=min(rank, n), tile=tile, mesh=mesh)


@partial(jax.jit, static_argnames=("rank", "tile", "mesh"))
def _low_rank(
    made: Problem, landmarks: Any, tolerance: Any, *, rank: int, tile: int, mesh: Mesh | None
) -> CKCE:
    def one(made: Problem, landmarks: Any, tolerance: Any) -> CKCE:
        kernel, bandwidths = kernels.fill(made.kernel, made.q, made.bandwidth)
        given = _spread(made.q) if landmarks is None else landmarks
        size = min(rank, len(given))
        chosen, used = pivots(kernel, given, size, tolerance)
        features = Nystroem.at(kernel, given[chosen], used)
        left = residuals(made.q, made.labels, made.root)
        diagonal = kernels.gram_diagonal(kernel, made.q)
        height, whole = jnp.max(diagonal), jnp.sum(diagonal)
        fit, kept = primal_fit(
            features, made.q, left, made.ridge, height=height, whole=whole, tile=tile, mesh=mesh
        )
        error = at_least(1 - kept / whole, 0)
        by = Approximation("incomplete Cholesky", jnp.sum(used), error)
        broken = 0 if landmarks is None else jnp.sum(~jnp.isfinite(landmarks))
        return result(fit, made, bandwidths, by, broken)

    return one_at_a_time(one)(made, landmarks, tolerance)


def _spread(xs: Array) -> Array:
    """At most `CANDIDATES` rows, evenly spread over their order by values."""
    n = xs.shape[0]
    return xs if n <= CANDIDATES else xs[by_values(xs)[jnp.arange(CANDIDATES) * n // CANDIDATES]]


def ckce_fourier(
    key: KeyLike,
    predictions: Any,
    targets: Any,
    *,
    n_features: int = 100,
    prediction_kernel: Any = simplex_kernel(),
    similarity: Any = None,
    ridge: Ridge = None,
    bandwidth: Any = None,
    tile: int = TILE,
    mesh: Mesh | None = None,
) -> CKCE:
    """`ckce` with the Gaussian part of the kernel replaced by ``n_features`` random frequencies.

    The paper's estimator, with its default of 100. The same key gives all models the same normal
    draws, divided by each bandwidth, so that comparing them adds no noise. With p = m + 2 features
    entries a row, cost O(n p^2) where p < n, O(n^3) otherwise; ``approximation.error`` is the
    standard deviation of an entry of the Gram matrix, n_features^(-1/2) times at most 2^(-1/2).
    Source: Moskvichev and Sejdinovic, App. B.
    """
    key = checks.key(key)
    made = problem(predictions, targets, prediction_kernel, similarity, ridge, bandwidth)
    kernel = made.kernel
    if not (type(kernel) is Sum and type(kernel.left) is Linear and type(kernel.right) is Gaussian):
        raise TypeError(
            f"prediction_kernel: random features are those of simplex_kernel(), Linear() + "
            f"Gaussian(), got {kernel}; `ckce_low_rank` takes any kernel"
        )
    n_features, tile = checks.integer(n_features, "n_features"), checks.integer(tile, "tile")
    checks.devices(mesh)
    return _fourier(key, made, n_features=n_features, tile=tile, mesh=mesh)


@partial(jax.jit, static_argnames=("n_features", "tile", "mesh"))
def _fourier(key: Key, made: Problem, *, n_features: int, tile: int, mesh: Mesh | None) -> CKCE:
    n, m = made.q.shape
    normals = jax.random.normal(key, (m, n_features), made.q.dtype)

    def one(made: Problem, normals: Float[Array, "m D"]) -> CKCE:
        kernel, bandwidths = kernels.fill(made.kernel, made.q, made.bandwidth)
        features = Fourier(normals, kernel.right.bandwidth)
        left = residuals(made.q, made.labels, made.root)
        if m + 2 * n_features < n:
            height = jnp.max(kernels.gram_diagonal(kernel, made.q))
            fit, _ = primal_fit(
                features, made.q, left, made.ridge, height=height, tile=tile, mesh=mesh
            )
        else:
            fit = solve.fit(kernels.square_gram(Linear(), features(made.q)), left, made.ridge)
        error = jnp.asarray((2 * n_features) ** -0.5, made.q.dtype)
        by = Approximation("random Fourier features", jnp.asarray(n_features), error)
        return result(fit, made, bandwidths, by)

    return one_at_a_time(one)(made, normals)
