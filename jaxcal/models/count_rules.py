r"""Rules of 63 nodes for counts that spread over thousands of values.

Sums of smooth functions of a count are sums of fewer terms in wider steps: with
:math:`g(t) = c + a \sinh t`, :math:`\sum_k p(k) f(k) \approx \sum_j p(g(t_j)) g'(t_j) f(g(t_j))
\,\Delta t`, whose error falls exponentially in the number of nodes (trapezoidal rule; Poisson
summation). The nodes lie about the mean where the standard deviation is small against it, and from
0 on, one by one and then ever sparser, where it is not. Few counts are all nodes themselves.

In float32 a log probability of a count near 10,000 has an error of some thousandths, which is more
than a rule may miss: such counts are drawn. Float64 serves means of a million and more.
"""

import copy
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxcal.models.counts import is_count, lattice_size, rounding
from jaxcal.models.families import Nodes
from jaxcal.models.line_rules import weighted_parts
from jaxcal.typing import PredictionsLike

SIZE = 63  # nodes of a component
CURVED = 0.4  # standard deviations over means from which the nodes begin at 0
COARSE = "coarse"  # instead of a number of counts
REACH = 1.42 * (SIZE - 1) / 2  # steps of the middle that sinh t covers for t up to 1.5


class CountRules(NamedTuple):
    """A rule, one of twice as many nodes to compare it with, and how far the probabilities [n] of
    the first are from 1 before they are normalized."""

    coarse: Nodes
    fine: Nodes
    missing: Float[Array, " n"]


def count_rules(predictions: PredictionsLike) -> CountRules | None:
    """Rules for n counts by their means, variances and probabilities.

    None where these are no counts, where values are known and a rule misses probability, and where
    a family has no variance.
    """
    if not is_count(predictions):
        return None
    try:
        parts = _parts(predictions)
        both = [[_rule(part, w, size) for part, w in parts] for size in (SIZE, 2 * SIZE - 1)]
    except (NotImplementedError, AttributeError):
        return None
    rules, totals = [], []
    for of_parts in both:
        points, weights = (
            jnp.concatenate(list(each), axis=1) for each in zip(*of_parts, strict=True)
        )
        total = jnp.sum(weights, axis=1, keepdims=True)
        rules.append(Nodes(points[..., None], weights / total))
        totals.append(total[:, 0])
    missing = jnp.maximum(jnp.abs(totals[0] - 1), jnp.abs(totals[1] - 1))
    if not isinstance(missing, Tracer):
        off = np.asarray(missing)
        if np.any(off[np.isfinite(off)] > rounding()):
            return None
    return CountRules(rules[0], rules[1], missing)


def summation(predictions: PredictionsLike) -> int | str | None:
    """Over how many counts to sum, or `COARSE`; None where they are no counts or are drawn."""
    size = lattice_size(predictions)
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(predictions))
    if size is None and not traced and count_rules(predictions) is not None:
        return COARSE
    return size


def _parts(predictions: Any) -> list[tuple[Any, Array]]:
    """Components of shape [n] or [n, k] with their weights [n, k]; None for a count of 0 alone."""
    if hasattr(predictions, "gate"):
        gate = jnp.broadcast_to(predictions.gate, predictions.batch_shape[:1])[:, None]
        return [(None, gate), (predictions.base_dist, 1 - gate)]
    return weighted_parts(predictions)


def _rule(part: Any, weights: Array, size: int) -> tuple[Array, Array]:
    """Nodes and weights [n, k size] of one component."""
    if part is None:
        return jnp.zeros_like(weights), weights
    shape = (*part.batch_shape, *part.event_shape)
    mean, variance = (jnp.broadcast_to(a, shape) for a in (part.mean, part.variance))
    nodes, steps = _nodes(mean, variance, size)
    p = jnp.exp(jax.vmap(_between_counts(part).log_prob)(nodes))
    inside = jax.vmap(part.support)(jnp.floor(nodes))
    p = jnp.where(inside.reshape(p.shape), p, 0)
    n, k = weights.shape
    nodes, p, steps = (jnp.moveaxis(a.reshape(size, n, k), 0, -1) for a in (nodes, p, steps))
    return nodes.reshape(n, -1), (p * steps * weights[..., None]).reshape(n, -1)


def _between_counts(part: Any) -> Any:
    """The distribution with probabilities of numbers between its counts."""
    part = copy.copy(part)
    part._validate_args = False
    if hasattr(part, "base_dist"):
        part.base_dist = _between_counts(part.base_dist)
    return part


def _nodes(mean: Array, variance: Array, size: int) -> tuple[Array, Array]:
    """Nodes and the number of counts that each stands for, [size, ...]."""
    mean, variance = mean[None].astype(float), variance[None].astype(float)
    deviation, slope = jnp.sqrt(variance), variance / mean
    skewed = deviation > CURVED * mean
    # all but 1e-9 of the probability, by Bernstein's inequality, or for tails exp(-k / slope)
    near = 7 * slope + jnp.sqrt((7 * slope) ** 2 + 42 * variance)
    reach = jnp.where(skewed, mean + 5 * deviation + 25 * slope, near)
    halves = jnp.where(skewed, size - 1, (size - 1) / 2)
    finer = (size - 1) / (SIZE - 1)
    step = jnp.where(skewed, 1.0, jnp.maximum(reach / (REACH * finer), 1.0))
    z = _solve(reach / (halves * step))
    centre = jnp.where(skewed, 0.0, jnp.round(mean))
    number = jnp.arange(size, dtype=float).reshape(-1, *(1,) * (mean.ndim - 1))
    number = number - jnp.where(skewed, 0.0, (size - 1) / 2)
    curved = z > 1e-3  # else the steps are even
    rate = jnp.where(curved, z / halves, 1.0)
    nodes = jnp.where(curved, jnp.sinh(number * rate) / rate, number)
    steps = jnp.where(curved, jnp.cosh(number * rate), 1.0)
    return centre + step * nodes, step * steps


def _solve(ratio: Array) -> Array:
    """z >= 0 of ``sinh(z) / z = ratio``; 0 for ratios up to 1."""
    low, high = jnp.zeros_like(ratio), jnp.full_like(ratio, 40.0)
    for _ in range(40):
        middle = (low + high) / 2
        below = jnp.sinh(middle) < ratio * middle
        low, high = jnp.where(below, middle, low), jnp.where(below, high, middle)
    return jnp.where(ratio > 1, low, 0.0)
