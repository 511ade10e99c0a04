r"""Any kernel averaged over points: independent draws of each prediction, or quadrature nodes.

From m draws z, :math:`\kappa_1 = \frac1m \sum_a k(z_a, y)` and, for two predictions,
:math:`\kappa_2 = \frac1{m m'} \sum_{ab} k(z_a, z'_b)`; for a prediction with itself the sum runs
over different draws, so that every average is unbiased. Nodes have weights instead.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.kernel_means.dispatch import (
    Averages,
    NoClosedForm,
    check_dimension,
    gram,
    own_by_second,
    pair,
)
from jaxcal.kernels.points import Scaled, Sum, is_radial, profile, smoothness
from jaxcal.models.count_rules import CountRules
from jaxcal.models.counts import rounding
from jaxcal.models.families import Nodes, Particles
from jaxcal.models.line_rules import OUTSIDE, Rules
from jaxcal.numerics import safe_sqrt
from jaxcal.typing import KernelLike, Scalar


class FromDraws(eqx.Module):
    """O(m) a target and O(m^2) a pair, walked prediction by prediction."""

    route: ClassVar[str] = "draws of each prediction"
    kernel: KernelLike

    def first(self, rows: Particles, ys: Array) -> Array:
        check_dimension(ys, rows.points.shape[-1])
        return jax.lax.map(lambda p: jnp.mean(gram(self.kernel, p, ys), axis=0), rows.points)

    def second(self, rows: Particles, cols: Particles) -> Array:
        c, m, d = cols.points.shape
        flat = cols.points.reshape(c * m, d)

        def one(p: Array) -> Array:
            return jnp.mean(jnp.mean(gram(self.kernel, p, flat), axis=0).reshape(c, m), axis=1)

        return jax.lax.map(one, rows.points)

    def own(self, features: Particles) -> Array:
        m = features.points.shape[1]

        def one(p: Array) -> Array:
            between = gram(self.kernel, p, p)
            return (jnp.sum(between) - jnp.trace(between)) / (m * (m - 1))

        return jax.lax.map(one, features.points)


class FromNodes(eqx.Module):
    """Weighted sums over the nodes."""

    kernel: KernelLike
    error: Scalar | None = None
    route: str = eqx.field(static=True, default="given nodes")

    def first(self, rows: Nodes, ys: Array) -> Array:
        check_dimension(ys, rows.points.shape[-1])
        return jax.lax.map(lambda p: p.weights @ gram(self.kernel, p.points, ys), rows)

    def second(self, rows: Nodes, cols: Nodes) -> Array:
        c, m, d = cols.points.shape
        flat = cols.points.reshape(c * m, d)

        def one(p: Nodes) -> Array:
            between = p.weights @ gram(self.kernel, p.points, flat)
            return jnp.sum(between.reshape(c, m) * cols.weights, axis=1)

        return jax.lax.map(one, rows)

    def own(self, features: Nodes) -> Array:
        return own_by_second(self, features)


@pair(Sum, Particles)
@pair(Scaled, Particles)
@pair(object, Particles)
def over_draws(kernel: KernelLike, distribution: Particles) -> Averages:
    """Any kernel; at least two draws of each prediction."""
    if distribution.points.shape[1] < 2:
        raise ValueError(
            f"predictions: averages over two independent draws need at least 2 draws of each "
            f"prediction, got {distribution.points.shape[1]}"
        )
    return distribution, FromDraws(kernel)


@pair(Sum, Nodes)
@pair(Scaled, Nodes)
@pair(object, Nodes)
def over_nodes(kernel: KernelLike, distribution: Nodes) -> Averages:
    """Any kernel that the quadrature rule integrates well."""
    return distribution, FromNodes(kernel)


@pair(Sum, Rules)
@pair(Scaled, Rules)
@pair(object, Rules)
def over_the_quantiles(kernel: KernelLike, distribution: Rules) -> Averages:
    """Smooth kernels of a distance, over the coarse rule."""
    largest = _difference(kernel, distribution) + 2 * OUTSIDE
    return distribution.coarse, FromNodes(kernel, largest, "quadrature over the quantiles")


@pair(Sum, CountRules)
@pair(Scaled, CountRules)
@pair(object, CountRules)
def over_some_counts(kernel: KernelLike, distribution: CountRules) -> Averages:
    """Smooth kernels of a distance, over the coarse rule; NaN where it misses probability."""
    coarse, _, missing = distribution
    complete = missing <= rounding()
    largest = 2 * (_difference(kernel, distribution) + jnp.max(missing))  # of a pair: both sides
    nodes = Nodes(coarse.points, jnp.where(complete[:, None], coarse.weights, jnp.nan))
    return nodes, FromNodes(kernel, largest, f"sums over {coarse.weights.shape[1]} of the counts")


def _difference(kernel: KernelLike, rules: Rules | CountRules) -> Scalar:
    r"""Largest difference of an average between the two rules.

    With :math:`c` the weights of the coarse rule and minus those of the fine one and K the Gram
    matrix of all nodes, an average differs by at most :math:`(c^\top K c)^{1/2}` between the rules
    for kernels of height 1, wherever the target lies: the distance of the rules in the space of
    the kernel (Cauchy and Schwarz).
    """
    if smoothness(kernel) is not True or not (is_radial(kernel) or profile(kernel)):
        raise NoClosedForm("the rule needs a smooth kernel of a distance")

    def error(both: tuple[Nodes, Nodes]) -> Array:
        points = jnp.concatenate([nodes.points for nodes in both])
        weights = jnp.concatenate([both[0].weights, -both[1].weights])
        between = gram(kernel, points, points)
        return safe_sqrt(jnp.maximum(weights @ between @ weights / between[0, 0], 0))

    largest = jnp.max(jax.lax.map(error, (rules.coarse, rules.fine)))
    rounding_error = safe_sqrt(jnp.asarray(jnp.finfo(largest.dtype).eps, largest.dtype))
    return jnp.maximum(largest, rounding_error)
