"""Other measures on the same inputs: SKCE (= JKCE) and proper scores.

Binned errors and reliability are those of `jaxcal.measures`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.ckce import kernels
from jaxcal.ckce.estimator import Problem, checked_problem
from jaxcal.ckce.inputs import checked, residuals
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.divergences.vectors import Vectors
from jaxcal.engine.quadratic import TILE, pair_means
from jaxcal.read import checks
from jaxcal.results import Estimate
from jaxcal.statistics.weighted import Weighted, WeightedFeatures
from jaxcal.typing import ArrayLike, KernelLike, Scalar


def jkce(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    prediction_kernel: KernelLike = simplex_kernel(),
    similarity: ArrayLike | None = None,
    bandwidth: ArrayLike | None = None,
    tile: int = TILE,
) -> Estimate:
    r"""Return the joint kernel calibration error (JKCE), which is SKCE, with the kernels of `ckce`.

    :math:`n^{-2} Tr(D K)`. Depends on the distribution of the predictions, where `ckce` depends on
    it less.

    Args:
        predictions: Class probabilities, [n, m].
        targets: Classes 0, .., m - 1, [n].
        prediction_kernel: As in `ckce`.
        similarity: As in `ckce`.
        bandwidth: As in `ckce`.
        tile: Rows and columns of a block of pairs that is computed at a time.

    Returns:
        `Estimate`: ``unbiased`` is
        :math:`\frac1{n(n-1)} \sum_{i \ne j} k(q_i, q_j) D_{ij}`, ``biased`` :math:`n^{-2} Tr(D K)`.

    Cost: O(n^2 m), one pass over tiles.

    Source: Moskvichev and Sejdinovic, Section 4.3.

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (100, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> bool(jaxcal.ckce.jkce(jax.nn.softmax(logits), targets).biased > 0)
        True
    """
    problem = checked_problem(predictions, targets, prediction_kernel, similarity, None, bandwidth)
    if problem.q.shape[0] < 2:
        raise ValueError("predictions: JKCE is a sum over pairs, got n=1")
    return _jkce(problem, checks.integer(tile, "tile"))


def _jkce_sums(problem: Problem, tile: int) -> Estimate:
    kernel, _ = kernels.fill(problem.kernel, problem.q, problem.bandwidth)
    # h = k(q, q') r.r', r the residuals
    residual = residuals(problem.q, problem.labels, problem.root)
    pairwise = Weighted(kernel, Vectors(problem.q[:0]))
    return pair_means(pairwise, WeightedFeatures(problem.q, residual), tile=tile)


_jkce = jax.jit(_jkce_sums, static_argnums=1)


def mean_skill(q: Array, labels: Array, weights: Array) -> dict[str, Scalar]:
    """Return means over the rows that count, by the names of a comparison's columns."""
    each = jax.vmap(lambda q, label: skill(q[None], label[None]))(q, labels)
    means = [jnp.sum(jnp.where(weights > 0, a, 0)) / jnp.sum(weights) for a in each]
    return dict(zip(("accuracy", "log", "Brier"), means, strict=True))


class Skill(NamedTuple):
    """Accuracy and two proper scores: means over observations.

    Attributes:
        accuracy: Share of observations whose most likely class is the target, [].
        cross_entropy: Mean negative log probability of the target in nats, [].
        brier: Sum over classes of squared errors, in [0, 2], [].
    """

    accuracy: Scalar
    cross_entropy: Scalar
    brier: Scalar


def skill(predictions: ArrayLike, targets: ArrayLike) -> Skill:
    """Return accuracy, cross-entropy and Brier score of class probabilities.

    A probability of 0 that came true costs infinity.

    Args:
        predictions: Class probabilities, [n, m].
        targets: Classes 0, .., m - 1, [n].

    Returns:
        `Skill`.

    Cost: O(n m).

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> skill = jaxcal.ckce.skill(jnp.array([[0.75, 0.25]] * 4), jnp.array([0, 0, 0, 1]))
        >>> float(skill.accuracy)
        0.75
    """
    return _skill(*checked(predictions, targets))


@jax.jit
def _skill(q: Array, labels: Array) -> Skill:
    probability = jnp.take_along_axis(q, labels[:, None], axis=1)[:, 0]
    return Skill(
        jnp.mean((jnp.argmax(q, axis=1).astype(labels.dtype) == labels).astype(q.dtype)),
        -jnp.mean(jnp.log(probability)),
        jnp.mean(jnp.sum(residuals(q, labels) ** 2, axis=1)),
    )
