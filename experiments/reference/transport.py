"""Wasserstein distances that are no distances of vectors: of Gaussians with covariances that do not
commute, and by optimal transport between the components of two mixtures.

Kernels on mixture distances need not be positive definite. Theorem D.1 of Widmann, Lindsten and
Zachariah (2021) states that MW_s is a Hilbert space distance; its proof factorizes couplings that
cannot be factorized, and four mixtures of two normals are a counterexample. The biased SKCE with
such a kernel may be negative, and its p-values have no theory;
experiments/reference/definiteness.py computes the eigenvalues of a kernel on given predictions.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcal.divergences.gaussians import Cov, moments, wasserstein
from jaxcal.divergences.vectors import NodeScores
from jaxcal.kernels.points import by_rows
from jaxcal.numerics import at_least, psd_root, safe_sqrt
from jaxcal.read import Standardized, convert
from jaxcal.read.families import Laplaces, Mixtures, Normals, distribution_of
from jaxcal.read.sampling import check_batch
from jaxcal.typing import Features, Key, Points, PredictionsLike

TOGETHER = 64  # linear programs per call, which share its overhead
TOLERANCE = 1e-10  # the smallest that HiGHS accepts


@runtime_checkable
class Transport(Protocol):
    """Protocol of functions from costs and weights [..., k], [..., l] to couplings [..., k, l]."""

    def __call__(self, cost: Array, left: Array, right: Array, /) -> Array: ...


class Exact(eqx.Module):
    """Exact optimal couplings for any weights and numbers of components, by SciPy on the host.

    Equal weights and numbers of components are an assignment problem (about 10 microseconds per
    pair for 10 components); others are linear programs by HiGHS, several pairs per call (a tenth of
    a millisecond per pair and more). n^2 / 2 pairs are solved outside of the compiled program, so
    use few observations.
    """

    def __call__(self, cost: Array, left: Array, right: Array) -> Array:
        shape = jax.ShapeDtypeStruct(cost.shape, cost.dtype)
        return jax.pure_callback(_couplings, shape, cost, left, right, vmap_method="broadcast_all")


class Components(NamedTuple):
    """``weights`` [n, k], and vectors [n, k, q] whose distances are those of the components."""

    weights: Float[Array, "n k"]
    vectors: Float[Array, "n k q"]


class GaussianRoots(NamedTuple):
    """Means [n, d] and symmetric roots of the covariances, standard deviations [n, d] or [n, d, d].

    ``size`` [n]: the trace of the covariance.
    """

    mean: Points
    root: Cov
    size: Float[Array, " n"]


class Bures(eqx.Module):
    r"""2-Wasserstein distance of Gaussian predictions with any covariances, pair by pair.

    :math:`\|\mu - \mu'\|^2 + tr(\Sigma + \Sigma' - 2 (\Sigma'^{1/2} \Sigma \Sigma'^{1/2})^{1/2})`.
    For covariances that do not commute it is not Euclidean, and ``exp(-W^2 / 2 s^2)`` need not be
    positive definite: a statistic with this kernel can be negative. Prefer `Wasserstein`, which is
    equal for commuting covariances.

    Cost: O(n^2 d^3).

    Source: Widmann, Lindsten and Zachariah (2021), App. D.1.
    """

    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        mean, cov = moments(predictions)
        if cov.ndim == 2:
            return GaussianRoots(mean, safe_sqrt(cov), jnp.sum(cov, axis=-1))
        size = jnp.trace(cov, axis1=1, axis2=2)
        return GaussianRoots(mean, psd_root(cov), size)

    def squared_distances(self, rows: GaussianRoots, cols: GaussianRoots) -> Float[Array, "r c"]:
        return by_rows(_bures, rows, cols)

    def paired(self, rows: GaussianRoots, cols: GaussianRoots) -> Float[Array, " r"]:
        return jax.vmap(_bures)(rows, cols)


def _bures(p: GaussianRoots, q: GaussianRoots) -> Array:
    shift = jnp.sum((p.mean - q.mean) ** 2)
    if p.root.ndim == 1:
        return shift + jnp.sum((p.root - q.root) ** 2)
    product = p.root @ q.root
    # the singular values of R R' are the eigenvalues of (R' Sigma R')^1/2
    overlap = jnp.sum(safe_sqrt(jnp.linalg.eigvalsh(product.T @ product)))
    return shift + at_least(p.size + q.size - 2 * overlap, 0)


class MixtureWasserstein(eqx.Module):
    r"""``MW_s``: Wasserstein distance of two mixtures as discrete measures on their components.

    :math:`MW_s(p, q) = \min_w (\sum_{ij} w_{ij} d(p_i, q_j)^s)^{1/s}` over couplings w of the two
    weight vectors, with d the distance `Wasserstein` of the components: W2 for normals with
    commuting covariances and for Laplace components, an upper bound otherwise. A metric, at least
    W_2 of the mixtures for s = 2; kernels on it need not be positive definite (see the module).
    Accepts numpyro's ``MixtureSameFamily`` and ``MixtureGeneral`` of normals or Laplace
    distributions with batch shape [n], and these distributions themselves. Gradients flow through
    the components; couplings and weights are constants.

    Args:
        s: Order, at least 1.
        transport: How couplings are computed: `Exact` of `jaxcal.divergences.transport` by SciPy,
            or a function of (cost, weights, weights), such as Sinkhorn's algorithm.

    Cost per pair: an optimal transport of the components, by default on the host.

    Source: Widmann, Lindsten and Zachariah (2021), eq. (D.2); Delon and Desolneux (2020) for
    s = 2.
    """

    s: float = eqx.field(default=2.0, static=True)
    transport: Transport = Exact()
    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def __check_init__(self):
        if not convert.real(self.s, "s") >= 1:
            raise ValueError(f"s: wanted a finite order s >= 1, got {self.s}")

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Components:
        return components(predictions)

    def squared_distances(self, rows: Components, cols: Components) -> Float[Array, "r c"]:
        def one(row: Components) -> Array:
            many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (c, *leaf.shape)), row)
            return self.paired(many, cols)

        c = cols.weights.shape[0]
        return jax.lax.map(one, rows)

    def paired(self, rows: Components, cols: Components) -> Float[Array, " r"]:
        gaps = rows.vectors[:, :, None] - cols.vectors[:, None]
        squared = jnp.sum(gaps**2, axis=-1)
        cost = squared if self.s == 2 else _power(squared, self.s / 2)
        constants = jax.lax.stop_gradient((cost, rows.weights, cols.weights))
        total = jnp.sum(jax.lax.stop_gradient(self.transport(*constants)) * cost, axis=(1, 2))
        return total if self.s == 2 else _power(total, 2 / self.s)


def _power(values: Array, exponent: float) -> Array:
    """Return values >= 0 to a positive power, with gradient 0 at 0."""
    if exponent == 0.5:
        return safe_sqrt(values)
    positive = values > 0
    return jnp.where(
        positive, jnp.where(positive, values, 1) ** exponent, jnp.where(positive, 0, values)
    )


def components(predictions: PredictionsLike) -> Components:
    """Return weights and component vectors of n mixtures; TypeError for other predictions."""
    original = predictions.predictions if isinstance(predictions, Standardized) else predictions
    check_batch(original)
    distribution = distribution_of(predictions)
    if isinstance(distribution, (Normals, Laplaces)):
        one = jnp.ones((jax.tree.leaves(distribution)[0].shape[0], 1))
        distribution = Mixtures(one, jax.tree.map(lambda leaf: leaf[:, None], distribution))
    if not isinstance(distribution, Mixtures) or not isinstance(
        distribution.parts, (Normals, Laplaces)
    ):
        raise TypeError(
            f"predictions: this distance wants mixtures whose components are all normal or all "
            f"Laplace, or one of these alone, got {type(original).__name__}"
        )
    vectors = _vectors(distribution.parts)
    if vectors.ndim != 3:
        raise ValueError(
            f"predictions: wanted mixtures with batch shape [n] on numbers or vectors, got batch "
            f"shape {tuple(getattr(original, 'batch_shape', ()))}"
        )
    return Components(distribution.weights.astype(vectors.dtype), vectors)


def _vectors(parts: Normals | Laplaces) -> Array:
    """Return vectors [n, k, q] whose distances are the 2-Wasserstein distances of components."""
    if isinstance(parts, Laplaces):
        return jnp.concatenate([parts.loc, 2**0.5 * parts.scale], axis=-1)
    mean, cov = parts
    *batch, d = mean.shape
    flat = wasserstein(mean.reshape(-1, d), cov.reshape(-1, *cov.shape[len(batch) :]))
    return flat.reshape(*batch, -1)


def _couplings(cost: Any, left: PyTree, right: PyTree) -> np.ndarray:
    """Return optimal couplings, [..., k, l]; NaN where a cost or a weight is not finite."""
    cost = np.asarray(cost)
    k, m = cost.shape[-2:]
    costs = cost.reshape(-1, k, m).astype(float)
    a, b = (np.asarray(w).reshape(-1, w.shape[-1]).astype(float) for w in (left, right))
    with np.errstate(invalid="ignore", divide="ignore"):
        a, b = (w / w.sum(axis=1, keepdims=True) for w in (a, b))
    plans = np.full(costs.shape, np.nan)
    finite = np.all([np.isfinite(x).reshape(len(x), -1).all(axis=1) for x in (costs, a, b)], axis=0)
    equal = finite & (k == m) & (np.ptp(a, axis=1) + np.ptp(b, axis=1) < 1e-15 * k)
    for i in np.flatnonzero(equal):
        plans[i] = _assigned(costs[i])
    rest = np.flatnonzero(finite & ~equal)
    for some in np.split(rest, range(TOGETHER, rest.size, TOGETHER)):
        if some.size:
            plans[some] = _linear_programs(costs[some], a[some], b[some])
    return plans.reshape(cost.shape).astype(cost.dtype)


def _assigned(cost: np.ndarray) -> np.ndarray:
    """Return the optimal assignment as a coupling of equal weights."""
    from scipy.optimize import linear_sum_assignment

    plan = np.zeros_like(cost)
    plan[linear_sum_assignment(cost)] = 1 / len(cost)
    return plan


def _linear_programs(costs: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return couplings of several pairs from ONE linear program with block constraints."""
    from scipy import sparse
    from scipy.optimize import linprog

    pairs, k, m = costs.shape
    if k == 1 or m == 1:
        return a[:, :, None] * b[:, None, :]
    sums = np.concatenate(
        [np.kron(np.eye(k), np.ones(m)), np.kron(np.ones(k), np.eye(m))[:-1]]
    )  # the others imply the sum of the last column
    scale = np.maximum(costs.max(axis=(1, 2), keepdims=True), np.finfo(float).tiny)
    solution = linprog(
        (costs / scale).ravel(),
        A_eq=sparse.kron(sparse.eye(pairs), sums, format="csc"),
        b_eq=np.concatenate([a, b[:, :-1]], axis=1).ravel(),
        method="highs",
        options={
            "primal_feasibility_tolerance": TOLERANCE,
            "dual_feasibility_tolerance": TOLERANCE,
        },
    )
    if solution.x is None:
        raise RuntimeError(
            f"HiGHS found no coupling of the mixtures' components: {solution.message}"
        )
    return np.maximum(solution.x, 0).reshape(costs.shape)
