"""Other measures on the same inputs: SKCE (= JKCE), proper scores and their split.

Binned errors and reliability are those of `jaxcal.measures`.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal import checks
from jaxcal.ckce import kernels
from jaxcal.ckce.estimator import checked_problem
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.ckce.residuals import checked, residuals
from jaxcal.measures.classes import Cells, cells
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
        squares = jnp.sum(features.residuals**2, axis=1)
        return (kernels.gram_diagonal(self.kernel, features.q) * squares)[None]


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
    ``biased``: :math:`n^{-2} Tr(D K)`. Depends on the distribution of the predictions, where `ckce`
    depends on it less. One pass over tiles, O(n^2 m). Source: Moskvichev and Sejdinovic, Section
    4.3.
    """
    problem = checked_problem(predictions, targets, prediction_kernel, similarity, None, bandwidth)
    if problem.q.shape[0] < 2:
        raise ValueError("predictions: JKCE is a sum over pairs, got n=1")
    return _jkce(problem, checks.integer(tile, "tile"))


def _jkce_sums(problem: Any, tile: int) -> Estimate:
    kernel, _ = kernels.fill(problem.kernel, problem.q, problem.bandwidth)
    features = JointFeatures(problem.q, residuals(problem.q, problem.labels, problem.root))
    n = problem.q.shape[0]
    sums = quadratic_sums(Joint(kernel), features, jnp.zeros((n, 0), problem.q.dtype), tile=tile)
    total = jnp.sum(sums.total)
    return Estimate(total / ordered_pairs(n), (total + jnp.sum(sums.diagonal)) / float(n**2))


_jkce = jax.jit(_jkce_sums, static_argnums=1)


class Skill(NamedTuple):
    """Means over observations, each []: ``accuracy``, ``cross_entropy`` in nats, ``brier`` (sum
    over classes of squared errors, in [0, 2])."""

    accuracy: Scalar
    cross_entropy: Scalar
    brier: Scalar


def skill(predictions: Any, targets: Any) -> Skill:
    """Accuracy and the two proper scores. A probability of 0 that came true costs infinity."""
    return _skill(*checked(predictions, targets))


@jax.jit
def _skill(q: Array, labels: Array) -> Skill:
    probability = jnp.take_along_axis(q, labels[:, None], axis=1)[:, 0]
    return Skill(
        jnp.mean((jnp.argmax(q, axis=1).astype(labels.dtype) == labels).astype(q.dtype)),
        -jnp.mean(jnp.log(probability)),
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
    r"""The Brier score as calibration plus refinement, over cells of predictions.

    :math:`\sum_b \frac{n_b}{n} \|\bar e_b - \bar q_b\|^2` and
    :math:`\sum_b \frac{n_b}{n} (1 - \|\bar e_b\|^2)`, which estimate
    :math:`E\|\pi(Q) - Q\|^2` and :math:`E(1 - \|\pi(Q)\|^2)`. The cells are those of
    `jaxcal.measures.canonical_error`. Source: Kull and Flach (2015); the
    empirical form is Murphy's (1973), its last term Stephenson et al. (2008).
    """
    return _split(*checked(predictions, targets), cells(predictions, targets, bins=bins))


@jax.jit
def _split(q: Array, labels: Array, cells: Cells) -> BrierSplit:
    calibration = cells.weights @ jnp.sum((cells.observed - cells.predicted) ** 2, axis=1)
    refinement = 1 - cells.weights @ jnp.sum(cells.observed**2, axis=1)
    uncertainty = 1 - jnp.sum((cells.weights @ cells.observed) ** 2)
    brier = jnp.mean(jnp.sum(residuals(q, labels) ** 2, axis=1))
    return BrierSplit(
        brier,
        calibration,
        refinement,
        uncertainty,
        uncertainty - refinement,
        brier - calibration - refinement,
    )
