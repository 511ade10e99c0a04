"""Calibration within groups: P(Y | prediction, group) = prediction."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from jaxcal import checks
from jaxcal.batching import one_at_a_time
from jaxcal.ckce import kernels, solve
from jaxcal.ckce.estimator import CKCE, Problem, checked_problem, result
from jaxcal.ckce.kernels import Equal, simplex_kernel
from jaxcal.ckce.residuals import residuals
from jaxcal.ckce.ridge import Ridge
from jaxcal.ckce.solvers import Solution
from jaxcal.kernels import grams, points
from jaxcal.results import recorded
from jaxcal.typing import ArrayLike, KernelLike, Points, Scalar


class ByGroup(NamedTuple):
    """CKCE given prediction and group, and the part of each group.

    Attributes:
        total: `CKCE` given prediction and group.
        estimate: Part of each group, [g]; they sum to that of ``total``.
        counts: Number of observations of each group, [g].
        ridge: Part g is the CKCE of that group alone at this ridge, [g].

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (60, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> result = jaxcal.ckce.ckce_by_group(jax.nn.softmax(logits), targets, jnp.arange(60) % 2)
        >>> result.counts.tolist()
        [30, 30]
    """

    total: CKCE
    estimate: Float[Array, " g"]
    counts: Int[Array, " g"]
    ridge: Float[Array, " g"]


@recorded
def ckce_given(
    predictions: ArrayLike,
    targets: ArrayLike,
    covariates: ArrayLike,
    *,
    covariate_kernel: KernelLike = points.Gaussian(),
    prediction_kernel: KernelLike = simplex_kernel(),
    similarity: ArrayLike | None = None,
    ridge: Ridge = None,
    bandwidth: ArrayLike | None = None,
    covariate_bandwidth: ArrayLike | None = None,
) -> CKCE:
    """CKCE given the prediction and covariates: the product of two kernels.

    Without covariates it is `ckce`; with the input itself it asks whether every single prediction
    is right.

    Args:
        predictions: Class probabilities, [n, m].
        targets: Classes 0, .., m - 1, [n].
        covariates: Covariates, [n, a].
        covariate_kernel: Kernel on covariates.
        prediction_kernel: As in `ckce`.
        similarity: As in `ckce`.
        ridge: As in `ckce`.
        bandwidth: As in `ckce`.
        covariate_bandwidth: Bandwidth of a covariate kernel without one; by default the median
            distance of the covariates.

    Returns:
        `CKCE`.

    Raises:
        ValueError: Shapes, probabilities or classes are wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: that of `ckce`.

    Source: Moskvichev and Sejdinovic, Section 3.3.

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (60, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> result = jaxcal.ckce.ckce_given(jax.nn.softmax(logits), targets, logits[:, :1])
        >>> sorted(result.bandwidths)
        ['covariate', 'prediction']
    """
    problem = checked_problem(predictions, targets, prediction_kernel, similarity, ridge, bandwidth)
    covariates = checks.rows(covariates, problem.q.shape[0], "covariates").astype(problem.q.dtype)
    kernel = points.as_kernel(covariate_kernel, "covariate_kernel")
    if covariate_bandwidth is not None:
        covariate_bandwidth = checks.number(covariate_bandwidth, "covariate_bandwidth", above=0)
    return _ckce_given(problem, covariates, kernel, covariate_bandwidth)


@jax.jit
def _ckce_given(
    problem: Problem,
    covariates: Points,
    covariate_kernel: KernelLike,
    covariate_bandwidth: ArrayLike | None,
) -> CKCE:
    def one(
        problem: Problem, covariates: Points, kernel_a: KernelLike, bandwidth_a: Array | None
    ) -> CKCE:
        kernel, bandwidths = kernels.fill(problem.kernel, problem.q, problem.bandwidth)
        kernel_a, bandwidths_a = kernels.fill(kernel_a, covariates, bandwidth_a)
        if bandwidths_a:
            bandwidths["covariate"] = bandwidths_a["prediction"]
        gram = grams.square_gram(kernel, problem.q) * grams.square_gram(kernel_a, covariates)
        left = residuals(problem.q, problem.labels, problem.root)
        return result(Solution(solve.fit(gram, left, problem.ridge)), problem, bandwidths)

    return one_at_a_time(one)(problem, covariates, covariate_kernel, covariate_bandwidth)


def ckce_by_group(
    predictions: ArrayLike,
    targets: ArrayLike,
    groups: ArrayLike,
    *,
    n_groups: int | None = None,
    prediction_kernel: KernelLike = simplex_kernel(),
    similarity: ArrayLike | None = None,
    ridge: Ridge = None,
    bandwidth: ArrayLike | None = None,
) -> ByGroup:
    """CKCE given the prediction and the group, and each group's part of it.

    The kernel on groups is equality, so observations of different groups do not meet: group g
    counts with the ridge ``ridge`` n / n_g. One bandwidth serves all.

    Args:
        predictions: Class probabilities, [n, m].
        targets: Classes 0, .., m - 1, [n].
        groups: Groups 0, .., ``n_groups`` - 1, [n]; or texts, numbered in their sorted order.
        n_groups: Number of groups; must be given under jit.
        prediction_kernel: As in `ckce`.
        similarity: As in `ckce`.
        ridge: As in `ckce`.
        bandwidth: As in `ckce`.

    Returns:
        `ByGroup`.

    Raises:
        ValueError: Shapes, probabilities, classes or groups are wrong; the message names them.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: that of `ckce`.

    Source: Moskvichev and Sejdinovic, Section 3.3.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (60, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> result = jaxcal.ckce.ckce_by_group(jax.nn.softmax(logits), targets, jnp.arange(60) % 2)
        >>> result.estimate.shape
        (2,)
    """
    problem = checked_problem(predictions, targets, prediction_kernel, similarity, ridge, bandwidth)
    named, n_groups = checked_groups(groups, problem.q.shape[0], n_groups)
    return _by_group(problem, named, n_groups)


def checked_groups(groups: ArrayLike, n: int, n_groups: int | None) -> tuple[Int[Array, " n"], int]:
    """Groups [n] and their number, or an error that names the argument."""
    groups, _ = numbered(groups)
    if n_groups is None:
        if isinstance(groups, Tracer):
            raise ValueError("n_groups: say how many groups there are inside jit or vmap")
        groups = checks.array(groups, "groups")
        if not jnp.issubdtype(groups.dtype, jnp.integer):
            groups = checks.labels(groups, n, 2, "groups")
        n_groups = max(int(np.max(np.asarray(groups), initial=0)), 0) + 1
    else:
        n_groups = checks.integer(n_groups, "n_groups")
    return checks.labels(groups, n, n_groups, "groups"), n_groups


def numbered(groups: ArrayLike) -> tuple[ArrayLike, list[str] | None]:
    """Texts as numbers of their sorted values, and these; numbers as they are, and None."""
    if isinstance(groups, jax.Array) or hasattr(groups, "detach"):
        return groups, None
    entries = np.asarray(groups)
    if entries.size == 0 or not all(isinstance(entry, str) for entry in entries.ravel()):
        return groups, None
    names, place = np.unique(entries.astype(str), return_inverse=True)
    return place.reshape(entries.shape), names.tolist()


@partial(jax.jit, static_argnums=2)
def _by_group(problem: Problem, named: Array, n_groups: int) -> ByGroup:
    n, dtype = problem.q.shape[0], problem.q.dtype
    total = _ckce_given(problem, named[:, None].astype(dtype), Equal(), None)
    count = jax.ops.segment_sum(jnp.ones(n, jnp.int32), named, n_groups)
    parts = jax.ops.segment_sum(total.contributions, named, n_groups)
    shares: Scalar = count.astype(dtype)
    return ByGroup(total, parts, count, problem.ridge * n / jnp.maximum(shares, 1))
