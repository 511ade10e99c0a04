r"""Compute CKCE from features F whose products F F^T equal or approximate the Gram matrix K.

With F [n, p], residuals R and ridge :math:`\lambda`, CKCE is :math:`\|(F^\top F + n\lambda I)^{-1}
F^\top R\|^2`. F is computed in blocks of rows; `LowRank` gets it from incomplete Cholesky.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree

from jaxcal.ckce import solvers
from jaxcal.ckce.solvers import Approximation, Predictions, Residuals, Solution
from jaxcal.engine import over_rows
from jaxcal.engine.linear import filled, in_blocks, total
from jaxcal.kernels import grams
from jaxcal.kernels.bandwidths import by_values
from jaxcal.kernels.grams import NystroemFeatures, pivots
from jaxcal.numerics import at_least
from jaxcal.read import checks, convert
from jaxcal.typing import KernelLike, Scalar

TILE = 2048
FeatureMap = Callable[[Array], Array]


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
) -> tuple[solvers.Fit, Scalar]:
    r"""Return the `Fit` of CKCE for F = features(points), and the trace of F F^T.

    Symbols are those of `jaxcal.ckce.features`. The first pass over blocks of rows gives
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
    low = solvers.factor(
        (sums.products + sums.products.T) / 2, ridge * (n / sums.products.shape[0])
    )
    theta = solvers.solve(low, sums.moments)
    along = solvers.solve(low, theta)

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
    sizes = solvers.Sizes(b, right, jnp.where(b > 0, moved, 0), height)
    error = solvers.rounding(estimate, sizes, n, ridge, dropped)
    return solvers.Fit(estimate, contributions, influence, error), sums.kept


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


CANDIDATES = 4096


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
    ) -> Solution:
        features = low_rank(kernel, q, self.rank, self.tolerance)
        diagonal = grams.gram_diagonal(kernel, q)
        height, trace = jnp.max(diagonal), jnp.sum(diagonal)
        fit, kept = primal_fit(features, q, residuals, ridge, height, trace, self.tile, self.mesh)
        error = at_least(1 - kept / trace, 0)
        return Solution(fit, Approximation("incomplete Cholesky", jnp.sum(features.used), error))


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
