r"""Solve the ridge regression of residuals on predictions, exactly or with a low rank.

K [n, n] is the Gram matrix of the predictions, R [n, p] holds the residuals, A = K + n lambda I and
B = A^-1 R. The fitted function is :math:`f = \sum_i B_i k(q_i, \cdot)`, and CKCE is its squared
norm, :math:`Tr(B^\top K B) = Tr(A^{-1} R R^\top A^{-1} K)`. No matrix is inverted. Any object with
the signature of `Solver` is a solver.

`Exact` uses a Cholesky factor of A. `LowRank` needs no Gram matrix: if F [n, p] are features whose
products F F^T equal or approximate K, CKCE is :math:`\|(F^\top F + n\lambda I)^{-1} F^\top R\|^2`.
F is computed in blocks of rows, from incomplete Cholesky.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree

from jaxcal.engine import over_rows
from jaxcal.engine.linear import filled, in_blocks, total
from jaxcal.kernels import grams
from jaxcal.kernels.bandwidths import by_values
from jaxcal.kernels.grams import NystroemFeatures, pivots
from jaxcal.numerics import at_least
from jaxcal.read import checks, convert
from jaxcal.typing import KernelLike, Scalar

TILE = 2048  # rows of features that are computed at a time
CANDIDATES = 4096  # most predictions among which pivots are chosen
FeatureMap = Callable[[Array], Array]
Gram = Float[Array, "n n"]
Predictions = Float[Array, "n m"]
Residuals = Float[Array, "n p"]


class Approximation(eqx.Module):
    """Approximation of the Gram matrix by a solver, and its error.

    Attributes:
        how: Name of the method, such as "incomplete Cholesky".
        size: Number of features, or of steps of an iterative solver, [].
        error: Omitted share of the trace, or relative residual of an iterative solver, [].
    """

    how: str = eqx.field(static=True)
    size: Int[Array, ""]
    error: Scalar


class Fit(NamedTuple):
    """One estimate from a solver.

    Attributes:
        estimate: The estimate, [].
        contributions: Contribution of each observation, [n]; they sum to the estimate.
        influence: Derivative of the estimate in the weight of each observation, [n]; its mean is 0.
        rounding: Bound on the rounding error of the estimate, []; see `rounding`.
        approximation: How the Gram matrix was approximated; None if it was exact.
    """

    estimate: Scalar
    contributions: Float[Array, " n"]
    influence: Float[Array, " n"]
    rounding: Scalar
    approximation: Approximation | None = None


class Sizes(NamedTuple):
    """Squared norms of B, R (``right``) and R - A B (``left``), with the symbols of
    `jaxcal.ckce.solvers`; ``height``: largest k(q, q)."""

    b: Scalar
    right: Scalar
    left: Scalar
    height: Scalar


def rounding(
    estimate: Scalar, sizes: Sizes, n: int, ridge: Scalar, dropped: Scalar | float = 0.0
) -> Scalar:
    r"""Return a bound on the rounding error of the estimate, []; the error is usually much smaller.

    Symbols are those of `jaxcal.ckce.solvers`. Rounding errors E of K change the estimate by
    :math:`Tr(B^\top (2 n \lambda A^{-1} - I) E B)`, at most :math:`\|E\| \|B\|^2`. A residual
    r = R - A B of the solve changes it by at most :math:`2 \|B\| \|r\|`. These first-order bounds
    need :math:`\|E\|` far below :math:`n \lambda`; otherwise the result is the largest possible
    estimate, :math:`\|R\|^2 / 4 n \lambda`. For :math:`\|E\|` the code takes 8 eps n^(1/2) max
    k(q, q) + n^(-1/2) ``dropped``, where ``dropped`` is the trace of an omitted part of K.
    """
    error = 8 * jnp.finfo(estimate.dtype).eps * sizes.height * n**0.5 + dropped / n**0.5
    share = error / (n * ridge)
    first = error * sizes.b + 2 * jnp.sqrt(sizes.b * sizes.left)
    first = first / jnp.where(share < 0.5, 1 - share, 1) ** 2
    far = sizes.right / (4 * n * ridge)
    most = jnp.where(jnp.abs(estimate) > far, jnp.abs(estimate), far)
    return jnp.where((share < 0.5) & (first < most), first, most)


def factor(gram: Gram, ridge: Scalar) -> Gram:
    """Return the lower Cholesky factor of K + n ridge I; NaN if rounding makes it indefinite."""
    n = gram.shape[0]
    shifted = gram + n * ridge * jnp.eye(n, dtype=gram.dtype)
    return jax.lax.linalg.cholesky(shifted, symmetrize_input=False)


def solve(low: Gram, right: Float[Array, "n p"]) -> Float[Array, "n p"]:
    """Return A^-1 times ``right``, from the lower Cholesky factor of A."""
    return jax.scipy.linalg.cho_solve((low, True), right)


def fit(gram: Gram, residuals: Residuals, ridge: Scalar) -> Fit:
    r"""Compute CKCE as :math:`Tr(B^\top K B)`, with contributions and influence of observations.

    Symbols are those of `jaxcal.ckce.solvers`. The influence is the derivative of the estimate in
    the weight of observation i, :math:`2 n^2 \lambda [(K A^{-1} B)_i \cdot B_i - mean]`, at fixed
    ridge and bandwidth. The squared standard error is the mean square of the influence, divided by
    n. Cost n^3 / 3 + 3 n^2 p multiplications. Differentiable.
    Source of the estimate: Moskvichev and Sejdinovic, Section 3.1; the influence is ours.
    """
    n = gram.shape[0]
    low = factor(gram, ridge)
    b = solve(low, residuals)
    fitted = gram @ b
    contributions = jnp.sum(b * fitted, axis=1)
    # K A^-1 B = B - n lambda A^-1 B
    along = b - n * ridge * solve(low, b)
    pull = jnp.sum(along * b, axis=1)
    influence = 2 * float(n) ** 2 * ridge * (pull - jnp.mean(pull))
    estimate = jnp.sum(contributions)
    unsolved = jnp.sum((residuals - fitted - n * ridge * b) ** 2)
    sizes = Sizes(jnp.sum(b**2), jnp.sum(residuals**2), unsolved, jnp.max(jnp.diagonal(gram)))
    return Fit(estimate, contributions, influence, rounding(estimate, sizes, n, ridge))


def fit_products(gram: Gram, products: Gram, ridge: Scalar) -> Fit:
    r"""Compute `fit` from the products D = R R^T of the residuals, [n, n], instead of R.

    CKCE is the inner product of :math:`A^{-1} D A^{-1}` and K. Cost 10/3 n^3 multiplications.
    """
    n = gram.shape[0]
    low = factor(gram, ridge)
    s = solve(low, solve(low, products).T)
    contributions = jnp.sum(((s + s.T) / 2) * gram, axis=1)
    # the diagonal of (K A^-1 B) B^T = K A^-1 S
    along = solve(low, gram)
    pull = jnp.sum(along.T * s, axis=1)
    influence = 2 * float(n) ** 2 * ridge * (pull - jnp.mean(pull))
    estimate = jnp.sum(contributions)
    b, right = jnp.abs(jnp.trace(s)), jnp.trace(products)
    sizes = Sizes(b, right, 0 * b, jnp.max(jnp.diagonal(gram)))
    return Fit(estimate, contributions, influence, rounding(estimate, sizes, n, ridge))


def null_weights(gram: Gram, ridge: Scalar) -> Gram:
    r"""Return W = A^-1 K A^-1, with the module's symbols: CKCE is Tr(W R R^T). Cost 7/3 n^3."""
    low = factor(gram, ridge)
    w = solve(low, solve(low, gram).T)
    return (w + w.T) / 2


@runtime_checkable
class Solver(Protocol):
    """Protocol of solvers of ``(K + n ridge I) B = R``, K the Gram matrix of q, called inside jit.

    ``solver(kernel, q, residuals, ridge)`` takes a kernel with all bandwidths set, n predictions q
    [n, m], residuals R [n, p] and the ridge, and returns a `Fit`.
    """

    def __call__(
        self, kernel: KernelLike, q: Predictions, residuals: Residuals, ridge: Scalar, /
    ) -> Fit: ...


class Exact(eqx.Module):
    """Solver by one Cholesky factor of the Gram matrix.

    Cost: n^3 / 3 multiplications, memory n^2.

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (100, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> result = jaxcal.ckce.ckce(jax.nn.softmax(logits), targets, solver=jaxcal.ckce.Exact())
        >>> result.approximation is None
        True
    """

    def __call__(
        self, kernel: KernelLike, q: Predictions, residuals: Residuals, ridge: Scalar
    ) -> Fit:
        return fit(grams.square_gram(kernel, q), residuals, ridge)


class _Sums(NamedTuple):
    products: Float[Array, "p p"]  # F^T F
    moments: Float[Array, "p q"]  # F^T R
    kept: Scalar  # the trace of F F^T


def primal_fit(
    features: FeatureMap,
    points: Float[Array, "n m"],
    residuals: Float[Array, "n p"],
    ridge: Scalar,
    height: Scalar,
    whole: Scalar | None = None,
    tile: int = TILE,
    mesh: Mesh | None = None,
) -> tuple[Fit, Scalar]:
    r"""Return the `Fit` of CKCE for F = features(points), and the trace of F F^T.

    Symbols are those of `jaxcal.ckce.solvers`. The first pass over blocks of rows gives
    :math:`\theta = (F^\top F + n\lambda I)^{-1} F^\top R`, the second pass gives contributions and
    influence. ``height``: the largest k(q, q). ``whole``: the trace of K, for the bound on the
    error of F F^T; None if F F^T = K. ``mesh``: devices among which the rows are divided. Cost
    2 n p^2 + p^3 / 3, memory O(tile p + p^2). Source: App. B, which omits the cost of F^T F.
    """
    n, devices = points.shape[0], 1 if mesh is None else mesh.size
    side = min(tile, -(-n // devices))
    # rows of weight 0 fill the last block
    ones = jnp.ones((n, 1), points.dtype)
    data, real = filled((points, residuals), ones, -n % (side * devices))
    rows = (*data, real[:, 0])

    @partial(over_rows, mesh=mesh, reduce=True)
    def gather(features: FeatureMap, rows: PyTree) -> _Sums:
        return normal_equations(features, *rows, side=side)

    sums = gather(features, rows)
    low = factor((sums.products + sums.products.T) / 2, ridge * (n / sums.products.shape[0]))
    theta = solve(low, sums.moments)
    along = solve(low, theta)

    @partial(over_rows, mesh=mesh, reduce=False)
    def spread(shared: PyTree, rows: PyTree) -> tuple[Array, ...]:
        features, theta, along, ridge = shared

        def one(block: PyTree) -> tuple[Array, ...]:
            x, r, _ = block
            f = features(x)
            fitted = f @ theta
            b = (r - fitted) / (n * ridge)
            squares = jnp.sum(b**2, axis=1)
            return jnp.sum(b * fitted, axis=1), jnp.sum((f @ along) * b, axis=1), squares

        parts = jax.lax.map(one, in_blocks(rows, side))
        return tuple(part.reshape(-1) for part in parts)

    contributions, pull, squares = spread((features, theta, along, ridge), rows)
    contributions, pull, squares = contributions[:n], pull[:n], squares[:n]
    influence = 2 * float(n) ** 2 * ridge * (pull - jnp.mean(pull))
    estimate, right = jnp.sum(theta**2), jnp.sum(residuals**2)
    dropped = 0.0 if whole is None else jnp.where(whole > sums.kept, whole - sums.kept, 0)
    # rounding of the products and the moments counts as a residual of the solve
    noise = jnp.finfo(theta.dtype).eps * (
        sums.kept * jnp.sqrt(estimate) + jnp.sqrt(sums.kept * right)
    )
    moved = jnp.sum(along**2) * noise**2 / (b := jnp.sum(squares))
    sizes = Sizes(b, right, jnp.where(b > 0, moved, 0), height)
    error = rounding(estimate, sizes, n, ridge, dropped)
    return Fit(estimate, contributions, influence, error), sums.kept


def normal_equations(
    features: FeatureMap,
    points: Float[Array, "n m"],
    residuals: Float[Array, "n p"],
    weights: Float[Array, " n"],
    *,
    side: int = TILE,
) -> _Sums:
    """Return F^T F, F^T R and the trace of F F^T for features F and residuals R, over rows of
    weight 1; ``side`` rows are computed at a time."""
    data = filled((points, residuals), weights[:, None], -points.shape[0] % side)

    def of_block(block: PyTree) -> _Sums:
        (x, r), weight = block
        f = features(x) * weight
        return _Sums(f.T @ f, f.T @ r, jnp.sum(f**2))

    return total(of_block, in_blocks(data, side))


class LowRank(eqx.Module):
    """Solver by incomplete Cholesky with a low rank; its memory does not grow with n.

    Pivots are chosen among at most 4,096 predictions, spread over the values of the data. The
    result is exact if the rank reaches that of the Gram matrix; ``result.approximation.error`` is
    the omitted share of the trace.

    Args:
        rank: Largest number of pivots.
        tolerance: Pivots are added while the largest error of k(q, q) exceeds ``tolerance`` times
            the largest k(q, q), both over the candidates q; by default 1,000 eps.
        tile: Number of rows computed at a time.
        mesh: Devices that share the rows.

    Cost: O(n rank^2); memory O((tile + rank + 4,096) rank) beyond the data.

    Source: Moskvichev and Sejdinovic, App. B, which does not evaluate it.

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (100, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> solver = jaxcal.ckce.LowRank(32)
        >>> result = jaxcal.ckce.ckce(jax.nn.softmax(logits), targets, solver=solver)
        >>> bool(result.approximation.error < 0.01)
        True
    """

    rank: int = eqx.field(default=256, static=True)
    tolerance: Array | float | None = eqx.field(
        default=None, converter=lambda t: None if t is None else checks.tolerance(t, 0.0)
    )
    tile: int = eqx.field(default=TILE, static=True)
    mesh: Mesh | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        convert.integer(self.rank, "rank")
        convert.integer(self.tile, "tile")
        checks.devices(self.mesh)

    def __call__(
        self, kernel: KernelLike, q: Predictions, residuals: Residuals, ridge: Scalar
    ) -> Fit:
        features = low_rank(kernel, q, self.rank, self.tolerance)
        diagonal = grams.gram_diagonal(kernel, q)
        height, trace = jnp.max(diagonal), jnp.sum(diagonal)
        fit, kept = primal_fit(features, q, residuals, ridge, height, trace, self.tile, self.mesh)
        error = at_least(1 - kept / trace, 0)
        by = Approximation("incomplete Cholesky", jnp.sum(features.used), error)
        return fit._replace(approximation=by)


def low_rank(
    kernel: KernelLike, xs: Array, rank: int, tolerance: Array | float | None = None
) -> NystroemFeatures:
    """Return the feature map from incomplete Cholesky; see `LowRank` for the arguments."""
    n, candidates = len(xs), xs
    if n > CANDIDATES:
        candidates = xs[by_values(xs)[np.arange(CANDIDATES) * n // CANDIDATES]]  # beyond 32 bits
    if tolerance is None:
        tolerance = 1000 * float(jnp.finfo(xs.dtype).eps)
    chosen, used = pivots(kernel, candidates, min(rank, len(candidates)), tolerance)
    return NystroemFeatures.at(kernel, candidates[chosen], used)
