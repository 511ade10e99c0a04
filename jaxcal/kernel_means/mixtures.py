r"""Kernel means of mixtures by bilinearity, and of sums and multiples of kernels by linearity.

:math:`\kappa_1(\sum_a w_a p_a, y) = \sum_a w_a \kappa_1(p_a, y)` and
:math:`\kappa_2 = \sum_{ab} w_a w'_b \kappa_2(p_a, p'_b)`.
Source: Widmann, Lindsten and Zachariah (2021), App. D.3.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.kernel_means.dispatch import Averages, Formulas, make, own_by_second, pair
from jaxcal.kernels.points import Scaled, Sum
from jaxcal.read.families import Mixtures
from jaxcal.typing import Distribution, KernelLike


class Weighted(NamedTuple):
    """``weights`` [n, k], and the features of the components, leaves [n, k, ...]."""

    weights: Float[Array, "n k"]
    parts: PyTree


class OfMixtures(eqx.Module):
    """Kernel means of mixtures: k k' times the cost of components, one pair of them at a time."""

    inner: Formulas

    def first(self, rows: Weighted, ys: Array) -> Array:
        @jax.checkpoint
        def step(total: Array, part: tuple[PyTree, Array]) -> tuple[Array, None]:
            features, weight = part
            return total + weight[:, None] * self.inner.first(features, ys), None

        start = jnp.zeros((rows.weights.shape[0], ys.shape[0]), rows.weights.dtype)
        return jax.lax.scan(step, start, _by_component(rows))[0]

    def second(self, rows: Weighted, cols: Weighted) -> Array:
        k, other = rows.weights.shape[1], cols.weights.shape[1]
        left, right = _by_component(rows), _by_component(cols)

        @jax.checkpoint
        def step(total: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
            a, b = (jax.tree.map(lambda leaf, i=i: leaf[i], side) for i, side in _sides(pair))
            between = self.inner.second(a[0], b[0])
            return total + a[1][:, None] * b[1][None] * between, None

        def _sides(pair: tuple[Array, Array]):
            return (pair[0], left), (pair[1], right)

        i, j = jnp.divmod(jnp.arange(k * other), other)
        start = jnp.zeros((rows.weights.shape[0], cols.weights.shape[0]), rows.weights.dtype)
        return jax.lax.scan(step, start, (i, j))[0]

    def own(self, features: Weighted) -> Array:
        return own_by_second(self, features)


def _by_component(features: Weighted) -> tuple[PyTree, Array]:
    """Return features with leaves [k, n, ...], and weights."""
    swapped = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), features)
    return swapped.parts, swapped.weights


@pair(object, Mixtures)
def over_mixtures(kernel: KernelLike, distribution: Mixtures) -> Averages:
    """Return kernel means of any kernel with a closed form over the components."""
    n, k = distribution.weights.shape
    flat = jax.tree.map(lambda leaf: leaf.reshape(n * k, *leaf.shape[2:]), distribution.parts)
    features, inner = make(kernel, flat)
    parts = jax.tree.map(lambda leaf: leaf.reshape(n, k, *leaf.shape[1:]), features)
    return Weighted(distribution.weights, parts), OfMixtures(inner)


class OfSum(eqx.Module):
    """Kernel means of k1 + k2."""

    left: Formulas
    right: Formulas

    def first(self, rows: tuple[PyTree, PyTree], ys: Array) -> Array:
        return self.left.first(rows[0], ys) + self.right.first(rows[1], ys)

    def second(self, rows: tuple[PyTree, PyTree], cols: tuple[PyTree, PyTree]) -> Array:
        return self.left.second(rows[0], cols[0]) + self.right.second(rows[1], cols[1])

    def own(self, features: tuple[PyTree, PyTree]) -> Array:
        return self.left.own(features[0]) + self.right.own(features[1])


class OfMultiple(eqx.Module):
    """Kernel means of scale k."""

    scale: Array
    inner: Formulas

    def first(self, rows: PyTree, ys: Array) -> Array:
        return self.scale * self.inner.first(rows, ys)

    def second(self, rows: PyTree, cols: PyTree) -> Array:
        return self.scale * self.inner.second(rows, cols)

    def own(self, features: PyTree) -> Array:
        return self.scale * self.inner.own(features)


@pair(Sum, object)
def of_sum(kernel: Sum, distribution: Distribution) -> Averages:
    """Return kernel means of a sum, of which both parts need a closed form."""
    (left, one), (right, other) = make(kernel.left, distribution), make(kernel.right, distribution)
    return (left, right), OfSum(one, other)


@pair(Scaled, object)
def of_multiple(kernel: Scaled, distribution: Distribution) -> Averages:
    """Return kernel means of a multiple of a kernel, which needs a closed form."""
    features, inner = make(kernel.kernel, distribution)
    return features, OfMultiple(kernel.scale, inner)
