"""Comparing groups of observations: is one model calibrated worse for some of them?"""

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxcal import checks
from jaxcal.ckce.class_comparison import compare_stack, default_rank
from jaxcal.ckce.comparison import Comparison
from jaxcal.ckce.estimator import checked_problem
from jaxcal.ckce.groups import checked_groups, numbered
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.ckce.ridge import Ridge, ridge_at
from jaxcal.results import recorded
from jaxcal.typing import ArrayLike, KernelLike, KeyLike, Names


@recorded
def compare_groups(
    key: KeyLike,
    predictions: ArrayLike,
    targets: ArrayLike,
    groups: ArrayLike,
    *,
    names: Names | None = None,
    n_groups: int | None = None,
    n_draws: int = 999,
    level: float = 0.05,
    rank: int | None = None,
    prediction_kernel: KernelLike = simplex_kernel(),
    similarity: ArrayLike | None = None,
    ridge: Ridge = None,
    bandwidth: ArrayLike | None = None,
) -> Comparison:
    """Is one model calibrated worse for some groups than for others?

    Each group's CKCE is that of its observations alone, without label noise, at one ridge and
    kernel for all groups, so neither the size of a group nor how certain its labels are makes a
    difference on average. Differences, intervals and p-values are as in `compare`.

    The level holds where groups are calibrated. Between equally wrong groups of very different
    sizes p-values are too small (of 60 and 140 observations, .09 reject at .05), and a small wrong
    group is rarely found (`experiments/ckce_intervals`).

    Args:
        key: Random key: typed, legacy or an integer.
        predictions: [n, m] Class probabilities.
        targets: [n] Classes 0..m-1.
        groups: [n] Groups 0..n_groups-1, each with at least 3 observations; or their names.
        names: One name a group, in sorted order where groups are texts; by default these texts, or
            "group 0" and so on.
        n_groups: Number of groups; must be given under jit.
        n_draws: Draws of the bootstrap.
        level: Up to it a p-value counts; intervals have confidence 1 - level.
        rank: As in `compare`.
        prediction_kernel: On probability vectors; unset bandwidths take ``bandwidth``.
        similarity: [m, m] Gram matrix of the classes; None is that of equality.
        ridge: A number, a function of the mean size of a group, or None for its fourth root's
            reciprocal.
        bandwidth: A number, or None for the median distance of all predictions.

    Returns:
        `Comparison`, with groups in the place of models.

    Raises:
        ValueError: Shapes disagree, or a group has fewer than 3 observations.

    Cost: that of `compare` with as many models as groups.

    Source: ours; Moskvichev and Sejdinovic, Section 3.3, condition on groups.

    Example:
        >>> import jax, jaxcal
        >>> from jax.nn import softmax
        >>> logits = jax.random.normal(jax.random.key(0), (400, 3))
        >>> labels = jax.random.categorical(jax.random.key(1), logits)
        >>> groups = [0, 1] * 200
        >>> sharper = jax.numpy.asarray(groups)[:, None] * 2 + 1
        >>> result = jaxcal.ckce.compare_groups(0, softmax(sharper * logits), labels, groups)
        >>> result.best()
        ['group 0']
    """
    key = checks.key(key)
    level, n_draws = checks.level(level), checks.integer(n_draws, "n_draws")
    problem = checked_problem(predictions, targets, prediction_kernel, similarity, None, bandwidth)
    n, m = problem.q.shape
    groups, texts = numbered(groups)
    place, count = checked_groups(groups, n, n_groups)
    if count < 2:
        raise ValueError(f"groups: wanted at least 2 groups, got {count}")
    counted = (place[None] == jnp.arange(count, dtype=place.dtype)[:, None]).astype(problem.q.dtype)
    sizes = jnp.sum(counted, axis=1)
    if not isinstance(sizes, Tracer) and float(jnp.min(sizes)) < 3:
        raise ValueError(
            f"groups: comparing needs at least 3 observations of each, got "
            f"{np.asarray(sizes).astype(int).tolist()}"
        )
    fields = compare_stack(
        key,
        jnp.broadcast_to(problem.q, (count, n, m)),
        counted,
        problem.labels,
        problem.kernel,
        problem.root,
        ridge_at(ridge, max(n // count, 1), problem.q.dtype),
        problem.bandwidth,
        n_draws=n_draws,
        rank=default_rank(n, m) if rank is None else min(checks.integer(rank, "rank"), n),
        level=level,
        thing="group",
    )
    words = checks.names(texts if names is None else names, count, "group")
    return Comparison(
        **fields,
        n=n,
        unit="temperature",
        names=tuple(f"group {g}" for g in range(count)) if words is None else words,
        n_draws=n_draws,
        level=level,
        things="groups",
    )
