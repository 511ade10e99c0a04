r"""Other measures on the same inputs: SKCE (= JKCE), binned ECE, proper scores and their split."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.ckce import kernels
from jaxcal.ckce.estimator import problem
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.ckce.large import whole_number
from jaxcal.ckce.residuals import checked, residuals
from jaxcal.quadratic import TILE, ordered_pairs, quadratic_sums
from jaxcal.results import Estimate
from jaxcal.typing import Scalar


class JointFeatures(NamedTuple):
    """Predictions [n, m] and residuals [n, p] of n observations."""

    q: Float[Array, "n m"]
    residuals: Float[Array, "n p"]


class Joint(eqx.Module):
    r"""Pairwise statistic :math:`h = k(q, q')\, r^\top r'` of JKCE, which is SKCE."""

    kernel: Any

    @property
    def channels(self) -> int:
        return 1

    def block(self, rows: JointFeatures, cols: JointFeatures) -> Float[Array, "c r s"]:
        return (kernels.gram(self.kernel, rows.q, cols.q) * (rows.residuals @ cols.residuals.T))[
            None
        ]

    def diagonal(self, features: JointFeatures) -> Float[Array, "c n"]:
        own = jnp.sum(features.residuals**2, axis=1)
        return (kernels.gram_diagonal(self.kernel, features.q) * own)[None]


def jkce(
    predictions: Any,
    targets: Any,
    *,
    prediction_kernel: Any = simplex_kernel(),
    similarity: Any = None,
    bandwidth: Any = None,
    tile: int = TILE,
) -> Estimate:
    r"""The joint kernel calibration error, which is SKCE, with the kernels of `ckce`.

    ``unbiased``: :math:`\frac1{n(n-1)} \sum_{i \ne j} k(q_i, q_j) D_{ij}`, may be negative;
    ``biased``: :math:`n^{-2} Tr(D K)`. Depends on the law of the predictions, where `ckce` depends
    on it less. One pass over tiles, O(n^2 m). Source: Moskvichev and Sejdinovic, Section 4.3.
    """
    made = problem(predictions, targets, prediction_kernel, similarity, None, bandwidth)
    if made.q.shape[0] < 2:
        raise ValueError("predictions: JKCE is a sum over pairs, got n=1")
    return _jkce(made, tile)


def _jkce_sums(made: Any, tile: int) -> Estimate:
    kernel, _ = kernels.fill(made.kernel, made.q, made.bandwidth)
    features = JointFeatures(made.q, residuals(made.q, made.labels, made.root))
    n = made.q.shape[0]
    sums = quadratic_sums(Joint(kernel), features, jnp.zeros((n, 0), made.q.dtype), tile=tile)
    total = jnp.sum(sums.total)
    return Estimate(total / ordered_pairs(n), (total + jnp.sum(sums.diagonal)) / float(n**2))


_jkce = jax.jit(_jkce_sums, static_argnums=1)


def cells(q: Float[Array, "n m"], bins: int) -> Int[Array, " n"]:
    """The cell of each prediction where every axis is cut into ``bins`` equal intervals, 0..n-1.

    Numbers are those of occupied cells only: there is no table of bins^m. At most ``bins`` entries
    of a probability vector are outside the first interval, so these (class, interval) pairs,
    sorted, name the cell exactly, for any m. Intervals are half open, the last one closed.
    """
    n, m = q.shape
    held = jax.lax.stop_gradient(q)
    k = min(bins, m)
    values, classes = jax.lax.top_k(held, k)
    places = jnp.minimum(jnp.floor(values * bins), bins - 1).astype(jnp.int32)
    codes = jnp.sort(jnp.where(places > 0, classes.astype(jnp.int32) * bins + places, -1), axis=1)
    order = jnp.lexsort(codes.T)
    ranked = codes[order]
    new = jnp.any(ranked[1:] != ranked[:-1], axis=1).astype(jnp.int32)
    numbers = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(new, dtype=jnp.int32)])
    return jnp.zeros(n, jnp.int32).at[order].set(numbers)


def ece(predictions: Any, targets: Any, *, bins: int = 3, metric: str = "l1") -> Scalar:
    r"""Binned expected calibration error on the simplex, for any number of classes.

    :math:`\sum_b \frac{n_b}{n} d(\bar e_b, \bar q_b)` over occupied cells, with their mean label
    and mean prediction: d is the "l1" distance (the paper's), half of it ("tv"), the Euclidean
    ("l2"), or its square ("mmd2", the squared MMD for classes that agree or do not). Biased
    upwards where cells hold few observations. Cost O(n m + n log n).
    Source: Moskvichev and Sejdinovic, Section 4.2; bins as in Vaicenavicius et al. (2019).
    """
    q, labels = checked(predictions, targets)
    if metric not in ("l1", "tv", "l2", "mmd2"):
        raise ValueError(f"metric: wanted 'l1', 'tv', 'l2' or 'mmd2', got {metric!r}")
    return _ece(q, labels, whole_number(bins, "bins"), metric)


def _binned(q: Array, labels: Array, bins: int, metric: str) -> Scalar:
    n = q.shape[0]
    where = cells(q, bins)
    sums = jax.ops.segment_sum(residuals(q, labels), where, n)
    if metric in ("l1", "tv"):
        return jnp.sum(jnp.abs(sums)) / n / (2 if metric == "tv" else 1)
    squared = jnp.sum(sums**2, axis=1)
    if metric == "l2":
        positive = squared > 0
        return jnp.sum(jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1)), 0)) / n
    counts = jax.ops.segment_sum(jnp.ones(n, q.dtype), where, n)
    return jnp.sum(squared / jnp.maximum(counts, 1)) / n


_ece = jax.jit(_binned, static_argnums=(2, 3))


class Reliability(NamedTuple):
    """Per bin [b]: ``confidence`` the mean prediction, ``accuracy`` how often it came true, both
    NaN where ``counts`` is 0; ``ece`` [] the weighted mean of their absolute difference."""

    confidence: Float[Array, " b"]
    accuracy: Float[Array, " b"]
    counts: Int[Array, " b"]
    ece: Scalar


def reliability(
    predictions: Any, targets: Any, *, bins: int = 10, label: int | None = None
) -> Reliability:
    """The statistics of a reliability diagram over equal bins of a probability.

    ``label``: of that class, as in the paper's binary diagrams (class 0), or of the most probable
    class of each prediction where None; ``ece`` is then the usual confidence ECE.
    Source: Moskvichev and Sejdinovic, App. C.2 and eq. 1.
    """
    q, labels = checked(predictions, targets)
    bins = whole_number(bins, "bins")
    if label is not None and not 0 <= label < q.shape[1]:
        raise ValueError(f"label: wanted a class below {q.shape[1]}, got {label}")
    if label is None:
        said, came = jnp.max(q, axis=1), jnp.argmax(q, axis=1) == labels
    else:
        said, came = q[:, label], labels == label
    where = jnp.clip(jnp.floor(said * bins), 0, bins - 1).astype(jnp.int32)
    columns = jnp.stack([jnp.ones_like(said), said, came.astype(said.dtype)], axis=1)
    count, confidence, accuracy = jax.ops.segment_sum(columns, where, bins).T
    share = jnp.maximum(count, 1)
    missing = jnp.where(count > 0, 0, jnp.nan)
    gap = jnp.sum(jnp.abs(confidence - accuracy)) / said.size
    return Reliability(
        confidence / share + missing, accuracy / share + missing, count.astype(jnp.int32), gap
    )


class Scores(NamedTuple):
    """Means over observations, each []: ``accuracy``, ``cross_entropy`` in nats, ``brier`` (sum
    over classes of squared errors, in [0, 2])."""

    accuracy: Scalar
    cross_entropy: Scalar
    brier: Scalar


def scores(predictions: Any, targets: Any) -> Scores:
    """Accuracy and the two proper scores. A probability of 0 that came true costs infinity."""
    q, labels = checked(predictions, targets)
    own = jnp.take_along_axis(q, labels[:, None], axis=1)[:, 0]
    return Scores(
        jnp.mean((jnp.argmax(q, axis=1) == labels).astype(q.dtype)),
        -jnp.mean(jnp.log(own)),
        jnp.mean(jnp.sum(residuals(q, labels) ** 2, axis=1)),
    )


class BrierSplit(NamedTuple):
    """``brier`` = ``calibration`` + ``refinement`` + ``within``, each [].

    ``refinement`` = ``uncertainty`` - ``resolution``. ``within``: what predictions that differ
    inside a cell add, 0 where they do not.
    """

    brier: Scalar
    calibration: Scalar
    refinement: Scalar
    uncertainty: Scalar
    resolution: Scalar
    within: Scalar


def brier_split(predictions: Any, targets: Any, *, bins: int = 10) -> BrierSplit:
    r"""The Brier score as calibration plus refinement, over the cells of `ece`.

    :math:`\sum_b \frac{n_b}{n} \|\bar e_b - \bar q_b\|^2` and
    :math:`\sum_b \frac{n_b}{n} (1 - \|\bar e_b\|^2)`, which estimate
    :math:`E\|\pi(Q) - Q\|^2` and :math:`E(1 - \|\pi(Q)\|^2)`. Source: Kull and Flach (2015); the
    empirical form is Murphy's (1973), its last term Stephenson et al. (2008).
    """
    q, labels = checked(predictions, targets)
    n = q.shape[0]
    where = cells(q, whole_number(bins, "bins"))
    came = jax.nn.one_hot(labels, q.shape[1], dtype=q.dtype)
    count = jnp.maximum(jax.ops.segment_sum(jnp.ones(n, q.dtype), where, n), 1)[:, None]
    means = [jax.ops.segment_sum(a, where, n) / count for a in (came, q)]
    weight = jax.ops.segment_sum(jnp.ones(n, q.dtype), where, n) / n
    calibration = weight @ jnp.sum((means[0] - means[1]) ** 2, axis=1)
    refinement = 1 - weight @ jnp.sum(means[0] ** 2, axis=1)
    uncertainty = 1 - jnp.sum(jnp.mean(came, axis=0) ** 2)
    brier = jnp.mean(jnp.sum((came - q) ** 2, axis=1))
    return BrierSplit(
        brier,
        calibration,
        refinement,
        uncertainty,
        uncertainty - refinement,
        brier - calibration - refinement,
    )
