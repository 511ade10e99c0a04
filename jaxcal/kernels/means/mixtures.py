r"""Kernel means by linearity: mixtures, sums of kernels, and scale mixtures of Gaussian kernels.

For mixtures :math:`\kappa_1(\sum_a w_a p_a, y) = \sum_a w_a \kappa_1(p_a, y)` and
:math:`\kappa_2 = \sum_{ab} w_a w'_b \kappa_2(p_a, p'_b)`.
Source: Widmann, Lindsten and Zachariah (2021), App. D.3.

IMQ, rational quadratic, Matern 5/2 and Laplace kernels are averages of Gaussian kernels over their
precision (Schoenberg): with u the squared distance in bandwidths and S ~ Gamma(shape, 1),

.. math:: (1 + u)^{-\beta} = E e^{-S u}, \qquad
          (1 + u / 2\alpha)^{-\alpha} = E e^{-S u / 2 \alpha}, \qquad
          \mathrm{Matern}_\nu(u) = E e^{-\nu u / 2 S},

with shapes beta, alpha and nu (Laplace is the Matern kernel of nu = 1/2). The expectations over S
become weighted sums by the trapezoidal rule in x, with nodes
:math:`\log s = x - c\,\mathrm{softplus}(-x)^2`, c = `GRADING`. Nodes are sparse far below s = 1,
where integrands are small. Kernel means over normals are the same sums of kernel means of Gaussian
kernels. `ERROR` bounds the absolute error of a kernel of height 1 in float64 at all distances up to
1e7 bandwidths, and so the error of every average of the kernel, in any dimension.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcal.kernels.means.closed_forms import gaussian_over_normals
from jaxcal.kernels.means.dispatch import Averages, Formulas, make, own_by_second, pair
from jaxcal.kernels.points import IMQ, Gaussian, Laplace, Matern52, RationalQuadratic, Scaled, Sum
from jaxcal.read.families import Mixtures, Normals
from jaxcal.typing import Distribution, KernelLike

SIZES = ((0.5, 96), (1, 56), (1.5, 40), (math.inf, 32))  # (shapes below, number of nodes)
ERROR = 1e-7
LEAST = 1e-24  # the smallest node, which also carries the mass below it
GRADING = 0.1  # the constant c in the rule above


class Weighted(NamedTuple):
    """Features of n mixtures of k components: ``weights``, and the features of the components,
    ``parts``, a pytree with leaves [n, k, ...]."""

    weights: Float[Array, "n k"]
    parts: PyTree


class OfMixtures(eqx.Module):
    """Kernel means of mixtures: weighted sums over components; ``second`` sums over their pairs."""

    inner: Formulas

    def first(self, rows: Weighted, ys: Array) -> Array:
        return _total(lambda p: p[1][:, None] * self.inner.first(p[0], ys), _by_component(rows))

    def second(self, rows: Weighted, cols: Weighted) -> Array:
        left, right = _by_component(rows), _by_component(cols)

        def term(pair: tuple[Array, Array]) -> Array:
            (a, weight), (b, other) = (
                jax.tree.map(lambda leaf, i=i: leaf[i], side)
                for i, side in zip(pair, (left, right), strict=True)
            )
            return weight[:, None] * other[None] * self.inner.second(a, b)

        k, m = rows.weights.shape[1], cols.weights.shape[1]
        return _total(term, jnp.divmod(jnp.arange(k * m), m))

    def own(self, features: Weighted) -> Array:
        return own_by_second(self, features)


def _total(term: Callable[[Any], Array], parts: PyTree) -> Array:
    """Return the sum of ``term(part)`` over parts, slices of the leaves along their first axis."""

    @jax.checkpoint
    def step(total: Array, part: PyTree) -> tuple[Array, None]:
        return total + term(part), None

    like = jax.eval_shape(lambda parts: term(jax.tree.map(lambda leaf: leaf[0], parts)), parts)
    return jax.lax.scan(step, jnp.zeros(like.shape, like.dtype), parts)[0]


def _by_component(features: Weighted) -> tuple[PyTree, Array]:
    swapped = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), features)
    return swapped.parts, swapped.weights


@pair(object, Mixtures)
def over_mixtures(kernel: KernelLike, distribution: Mixtures) -> Averages:
    """Return features and formulas (see `pair`) for mixtures of components with a closed form."""
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
    """Kernel means of ``scale`` times a kernel."""

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
    """Return features and formulas (see `pair`) for a sum of two kernels with closed forms."""
    (left, one), (right, other) = make(kernel.left, distribution), make(kernel.right, distribution)
    return (left, right), OfSum(one, other)


@pair(Scaled, object)
def of_multiple(kernel: Scaled, distribution: Distribution) -> Averages:
    """Return features and formulas (see `pair`) for a multiple of a kernel with a closed form."""
    features, inner = make(kernel.kernel, distribution)
    return features, OfMultiple(kernel.scale, inner)


def log_node(x: np.ndarray) -> np.ndarray:
    """Return log s = x - c softplus(-x)^2 with c = `GRADING`, elementwise."""
    return x - GRADING * np.logaddexp(0, -x) ** 2


def gamma_rule(shape: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes s > 0 and weights of sum 1 for E f(S), S ~ Gamma(shape, 1), f smooth."""
    # the mass below the first and above the last node is about 1e-9
    size = next(size for above, size in SIZES if shape < above)
    low = max(LEAST, 1e-9 ** (1 / shape))
    wide = np.linspace(-40, 40, 80001)
    start, stop = np.interp(np.log([low, 22 + 4 * shape]), log_node(wide), wide)
    x = np.linspace(start, stop, size)
    s, slope = np.exp(log_node(x)), 1 + 2 * GRADING * np.logaddexp(0, -x) / (1 + np.exp(x))
    steps = (x[1] - x[0]) * slope
    weights = steps * np.exp(shape * np.log(s) - s - math.lgamma(shape))
    weights[0] += 1 - weights.sum()
    return s, weights


def gaussians_of(kernel: KernelLike) -> tuple[np.ndarray, np.ndarray]:
    """Return l^2 and w, [q] each: the kernel is sum w exp(-r^2 / (2 l^2)) at r bandwidths."""
    match kernel:
        case IMQ(beta=beta):
            s, weights = gamma_rule(beta)
            return 1 / (2 * s), weights
        case RationalQuadratic(alpha=alpha):
            s, weights = gamma_rule(alpha)
            return alpha / s, weights
        case Matern52():
            s, weights = gamma_rule(2.5)
            return s / 2.5, weights
        case Laplace():
            s, weights = gamma_rule(0.5)
            return 2 * s, weights
    raise TypeError(f"{type(kernel).__name__} is no scale mixture of Gaussian kernels known here")


class ScaleMixture(eqx.Module):
    """Kernel means of a weighted sum of q Gaussian kernels, computed one kernel at a time."""

    route: ClassVar[str] = f"a mixture of Gaussian kernels, error below {ERROR:g}"
    error: ClassVar[float] = ERROR
    weights: Float[Array, " q"]
    inner: Formulas  # leaves [q, ...]
    own_features: bool = eqx.field(static=True)  # whether features are [n, q, ...], one per node

    def first(self, rows: PyTree, ys: Array) -> Array:
        return self._sum(lambda formulas, p: formulas.first(p, ys), rows)

    def second(self, rows: PyTree, cols: PyTree) -> Array:
        return self._sum(lambda formulas, p, q: formulas.second(p, q), rows, cols)

    def own(self, features: PyTree) -> Array:
        return self._sum(lambda formulas, p: formulas.own(p), features)

    def _sum(self, one: Callable[..., Array], *sides: PyTree) -> Array:
        arrays, rest = eqx.partition(self.inner, eqx.is_array)

        def at(q: Array) -> Array:
            formulas = eqx.combine(jax.tree.map(lambda leaf: leaf[q], arrays), rest)
            if not self.own_features:
                return one(formulas, *sides)
            return one(formulas, *(jax.tree.map(lambda leaf: leaf[:, q], s) for s in sides))

        return _total(lambda q: self.weights[q] * at(q), jnp.arange(self.weights.size))


@pair(IMQ, Normals)
@pair(RationalQuadratic, Normals)
@pair(Matern52, Normals)
@pair(Laplace, Normals)
def scale_mixture_over_normals(kernel: Any, distribution: Normals) -> Averages:
    """Return features and formulas (see `pair`) for a kernel as a weighted sum of Gaussian ones."""
    squares, weights = gaussians_of(kernel)
    dtype = distribution.mean.dtype
    lengths = jnp.sqrt(jnp.asarray(squares, dtype))
    bandwidths = jnp.broadcast_to(kernel.bandwidth, distribution.mean.shape[-1:]).astype(dtype)
    pairs = [
        gaussian_over_normals(Gaussian(length * bandwidths), distribution) for length in lengths
    ]
    formulas = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(inner for _, inner in pairs))
    diagonal = distribution.cov.ndim == distribution.mean.ndim
    features = pairs[0][0]
    if not diagonal:
        features = jax.tree.map(lambda *a: jnp.stack(a, 1), *(part for part, _ in pairs))
    return features, ScaleMixture(jnp.asarray(weights, dtype), formulas, not diagonal)
