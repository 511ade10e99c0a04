r"""Average kernels by finite sums over draws, random quantiles, nodes, counts or classes.

For m draws z of p and m' draws z' of q, :math:`\kappa_1(p, y) = \frac1m \sum_a k(z_a, y)` and
:math:`\kappa_2(p, q) = \frac1{m m'} \sum_{ab} k(z_a, z'_b)`. For a prediction with itself the sum
is over pairs of different draws. Random quantiles consist of two independent halves
(`jaxcal.read.sampling`); pairs take one point from each half. Averages over draws and quantiles
are thus unbiased. For nodes, weights replace 1/m.

Predictions of counts share the points 0, 1, .., with Gram matrix K. For probabilities p and q,
:math:`\kappa_1(p, y) = p^\top k(y)` and :math:`\kappa_2(p, q) = p^\top K q`. For kernels bounded
by 1, the absolute error in float64 is at most `COUNTS_ERROR`. Omitted counts add at most 4e-9
(`jaxcal.read.sampling.OMITTED`); numpyro's probabilities with Beta functions err by about 1e-7.

With the Gram matrix Lambda of classes, :math:`\kappa_1(p, y) = (\Lambda p)_y` and
:math:`\kappa_2(p, q) = p^\top \Lambda q`. The inner product of residuals, :math:`h_Y = k(y, y') -
\kappa_1(p, y') - \kappa_1(p', y) + \kappa_2(p, p')` (`jaxcal.statistics.skce`), is
:math:`(e_y - p)^\top \Lambda (e_{y'} - p')` with unit vectors e.
Source: Widmann, Lindsten and Zachariah (2021), App. E.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.kernels import points
from jaxcal.kernels.classes import ClassGram, Delta, MatrixKernel
from jaxcal.kernels.means.dispatch import Averages, check_dimension, gram, own_by_second, pair
from jaxcal.kernels.points import Scaled, Sum
from jaxcal.numerics import safe_sqrt
from jaxcal.read.families import Classes, Lattice, Nodes, Particles, Stratified
from jaxcal.typing import KernelLike, Scalar

COUNTS_ERROR = 1e-6
DRAWS, QUANTILES = "draws of each prediction", "64 random quantiles of each prediction"


class FromDraws(eqx.Module):
    """Kernel means from m draws: O(m) per target, O(m^2) per pair, one prediction at a time.

    ``error`` is the standard error of `first` for random quantiles (`Stratified`), of which ``own``
    pairs the two halves; None for draws."""

    kernel: KernelLike
    error: Scalar | None = None

    @property
    def route(self) -> str:
        """Return a text on how the means are computed."""
        return DRAWS if self.error is None else QUANTILES

    def first(self, rows: Particles, ys: Array) -> Array:
        check_dimension(ys, rows.points.shape[-1])
        return jax.lax.map(lambda p: jnp.mean(_about(self.kernel, p, ys), axis=0), rows.points)

    def second(self, rows: Particles, cols: Particles) -> Array:
        c, m, d = cols.points.shape
        flat = cols.points.reshape(c * m, d)

        def one(p: Array) -> Array:
            return jnp.mean(jnp.mean(_about(self.kernel, p, flat), axis=0).reshape(c, m), axis=1)

        return jax.lax.map(one, rows.points)

    def own(self, features: Particles) -> Array:
        m = features.points.shape[1]

        def one(p: Array) -> Array:
            if self.error is not None:
                return jnp.mean(gram(self.kernel, p[: m // 2], p[m // 2 :]))
            between = _about(self.kernel, p, p)
            return (jnp.sum(between) - jnp.trace(between)) / (m * (m - 1))

        return jax.lax.map(one, features.points)


def _about(kernel: KernelLike, draws: Array, others: Array) -> Array:
    """Return the Gram matrix of draws and other points. For kernels with a `profile`, both are
    first centred at the mean of the draws, so that a common offset costs no digits."""
    if draws.shape[1] > 1 and points.profile(kernel) is not None:
        middle = jnp.mean(draws, axis=0, keepdims=True)
        draws, others = draws - middle, others - middle
    return gram(kernel, draws, others)


class FromNodes(eqx.Module):
    """Kernel means as weighted sums over nodes."""

    route: ClassVar[str] = "given nodes"
    kernel: KernelLike

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
    """Return features and formulas (see `pair`) for any kernel; ValueError if m < 2 draws."""
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
    """Return features and formulas (see `pair`) for any kernel, by the weights of the nodes."""
    return distribution, FromNodes(kernel)


@pair(Sum, Stratified)
@pair(Scaled, Stratified)
@pair(object, Stratified)
def over_quantiles(kernel: KernelLike, distribution: Stratified) -> Averages:
    """Return features and formulas (see `pair`) for any kernel, from random quantiles."""
    return distribution, FromDraws(kernel, _standard_error(kernel, distribution))


class Smoothed(NamedTuple):
    """Features of n predictions of m counts: probabilities, and ``averages`` = ``weights`` @ K."""

    weights: Float[Array, "n m"]
    averages: Float[Array, "n m"]


class OverCounts(eqx.Module):
    """Kernel means over m counts, computed by matrix products."""

    route: ClassVar[str] = f"sums over counts, error below {COUNTS_ERROR:g}"
    error: ClassVar[float] = COUNTS_ERROR
    kernel: KernelLike
    points: Float[Array, "m d"]

    def first(self, rows: Smoothed, ys: Array) -> Array:
        check_dimension(ys, self.points.shape[1])
        return rows.weights @ gram(self.kernel, self.points, ys)

    def second(self, rows: Smoothed, cols: Smoothed) -> Array:
        return rows.averages @ cols.weights.T

    def own(self, features: Smoothed) -> Array:
        return jnp.sum(features.averages * features.weights, axis=1)


@pair(Sum, Lattice)
@pair(Scaled, Lattice)
@pair(object, Lattice)
def over_counts(kernel: KernelLike, distribution: Lattice) -> Averages:
    """Return features and formulas (see `pair`) for any kernel over counts."""
    points, weights = distribution
    averages = weights @ gram(kernel, points, points)
    return Smoothed(weights, averages), OverCounts(kernel, points)


def _standard_error(kernel: KernelLike, distribution: Stratified) -> Scalar:
    """Return an estimate of the standard error of ``first``: sqrt(mean((A(z) - B(z))^2)) / 2, where
    A(z) and B(z) average k(., z) over one half of the points each, and z runs over all points."""

    def squared(points: Array) -> Array:
        between = gram(kernel, points, points)
        half = points.shape[0] // 2
        return jnp.mean((jnp.mean(between[:half], 0) - jnp.mean(between[half:], 0)) ** 2)

    return safe_sqrt(jnp.mean(jax.lax.map(squared, distribution.points))) / 2


class ClassMeans(eqx.Module):
    """Kernel means of classes, with Gram matrix ``matrix``; None stands for the identity."""

    matrix: Float[Array, "m m"] | None

    def _times(self, vectors: Array) -> Array:
        return vectors if self.matrix is None else vectors @ self.matrix.astype(vectors.dtype)

    def first(self, rows: Classes, ys: Array) -> Array:
        return self._times(rows.probabilities)[:, ys]

    def second(self, rows: Classes, cols: Classes) -> Array:
        return self._times(rows.probabilities) @ cols.probabilities.T

    def own(self, features: Classes) -> Array:
        return jnp.sum(self._times(features.probabilities) * features.probabilities, axis=-1)

    def residual(self, rows: Classes, ys: Array, cols: Classes, others: Array) -> Array:
        """Return h_Y (see the module), [r, c], of predictions ``rows`` with classes ``ys`` [r] and
        predictions ``cols`` with classes ``others`` [c]."""
        return self._times(_residuals(rows, ys)) @ _residuals(cols, others).T

    def own_residual(self, features: Classes, ys: Array) -> Array:
        """Return h_Y of each observation with itself, [n], for predictions and classes ``ys``."""
        residuals = _residuals(features, ys)
        return jnp.sum(self._times(residuals) * residuals, axis=-1)


class MatrixMeans(eqx.Module):
    r"""Formulas of :math:`h_Y = (e_y - p)^\top K(p, q) (e_{y'} - q)` (see the module docstring)."""

    kernel: MatrixKernel

    def residual(self, rows: Classes, ys: Array, cols: Classes, others: Array) -> Array:
        """Return h_Y of all pairs of r and c observations, [r, c]; memory for c matrices [m, m]."""
        p, q = rows.probabilities, cols.probabilities
        at_cols = (q, _residuals(cols, others))

        def of_row(row: tuple[Array, Array]) -> Array:
            return jax.vmap(lambda col: row[1] @ self.kernel.function(row[0], col[0]) @ col[1])(
                at_cols
            )

        return jax.lax.map(of_row, (p, _residuals(rows, ys)))

    def own_residual(self, features: Classes, ys: Array) -> Array:
        """Return h_Y of each observation with itself, [n]."""

        def own(p: Array, residual: Array) -> Array:
            return residual @ self.kernel.function(p, p) @ residual

        return jax.vmap(own)(features.probabilities, _residuals(features, ys))

    def _of_pairs(self, *_: PyTree) -> Array:
        raise TypeError("target_kernel: a function of two predictions has no mean without both")

    first = second = own = _of_pairs


def _residuals(distribution: Classes, ys: Array) -> Array:
    p = distribution.probabilities
    return jax.nn.one_hot(ys, p.shape[-1], dtype=p.dtype) - p


@pair(Delta, Classes)
def delta_over_classes(kernel: Delta, distribution: Classes) -> Averages:
    """Return features and formulas (see `pair`) for `Delta`."""
    return distribution, ClassMeans(None)


@pair(MatrixKernel, Classes)
def matrix_over_classes(kernel: MatrixKernel, distribution: Classes) -> Averages:
    """Return features and formulas for a kernel of pairs (prediction, class): `MatrixMeans`."""
    return distribution, MatrixMeans(kernel)


@pair(ClassGram, Classes)
def gram_over_classes(kernel: ClassGram, distribution: Classes) -> Averages:
    """Return features and formulas (see `pair`); ValueError if the numbers of classes differ."""
    if kernel.matrix.shape[0] != (m := distribution.probabilities.shape[-1]):
        raise ValueError(
            f"target_kernel: a Gram matrix of {kernel.matrix.shape[0]} classes for probabilities "
            f"of {m}"
        )
    return distribution, ClassMeans(kernel.matrix)
