r"""Gaussian kernel averaged over normal predictions.

With :math:`k = \exp(-\frac12 \sum_i (x_i - y_i)^2 / l_i^2)`, G = diag(l^2):

.. math:: \kappa_1 = |I + G^{-1}\Sigma|^{-1/2} \exp(-\tfrac12 (\mu - y)^\top (G + \Sigma)^{-1}
          (\mu - y)),

and :math:`\kappa_2` the same with :math:`\mu - \mu'` and :math:`\Sigma + \Sigma'`: the difference
of two independent normals is normal. Source: Widmann, Lindsten and Zachariah (2021), App. D.1,
with gamma = 1 / (2 l^2).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.kernel_means.dispatch import (
    Averages,
    NoClosedForm,
    check_dimension,
    own_by_second,
    pair,
)
from jaxcal.kernels.points import Gaussian, Product, by_rows
from jaxcal.numerics import at_most
from jaxcal.read.families import Normals
from jaxcal.read.predictions import along_last
from jaxcal.typing import Point, Points, Scalar

UNROLLED = 16  # largest number of coordinates for which loops are unrolled
SMALL = 4  # the same for loops over matrices


class DiagonalNormals(NamedTuple):
    """Normals with independent coordinates: one contiguous array [n] per coordinate or, for many
    coordinates, one array [n, d] over which a loop runs.
    """

    means: tuple[Float[Array, " n"], ...] | Points
    variances: tuple[Float[Array, " n"], ...] | Points


class FullNormals(NamedTuple):
    """Normals with full covariances, flat inverses of G + Sigma, and the log of kappa_1's peak."""

    mean: Points
    cov: Float[Array, "n d d"]
    precision: Float[Array, "n dd"]
    log_peak: Float[Array, " n"]


class Diagonal(eqx.Module):
    """Independent coordinates: O(d) per pair; for many, kappa_1 as one matrix product."""

    squares: Point  # l^2 of each coordinate

    def first(self, rows: DiagonalNormals, ys: Array) -> Array:
        if isinstance(rows.means, tuple):
            # differences of points are accurate for narrow kernels too
            check_dimension(ys, len(rows.means))
            points = DiagonalNormals(tuple(ys.T), tuple(jnp.zeros_like(ys).T))
            return self.second(rows, points)
        mean, cov = map(_together, rows)
        check_dimension(ys, mean.shape[-1])
        squares = along_last(self.squares, cov)
        width = squares + cov
        log_peak = -jnp.sum(jnp.log1p(cov / squares), -1, keepdims=True) / 2
        # -1/2 sum (mu - y)^2 / width, as one product
        left = jnp.concatenate(
            [mean / width, -1 / (2 * width), log_peak - _half(mean**2 / width)], -1
        )
        right = jnp.concatenate([ys, ys**2, jnp.ones_like(ys[:, :1])], -1)
        return jnp.exp(at_most(left @ right.T, log_peak))

    def second(self, rows: DiagonalNormals, cols: DiagonalNormals) -> Array:
        if isinstance(rows.means, tuple):
            exponent, volume = 0.0, 1.0
            for q, coordinate in enumerate(zip(*rows, *cols, strict=True)):
                term, ratio = _coordinate(self.squares[q], *coordinate)
                exponent, volume = exponent + term, volume * ratio
            return jnp.exp(-exponent / 2) * jax.lax.rsqrt(volume)

        @jax.checkpoint
        def step(total: Array, coordinate: tuple[Array, ...]) -> tuple[Array, None]:
            term, ratio = _coordinate(*coordinate)
            return total + term + jnp.log(ratio), None

        by_coordinate = tuple(jnp.transpose(jnp.asarray(side)) for side in (*rows, *cols))
        sizes = (by_coordinate[0].shape[1], by_coordinate[2].shape[1])
        start = jnp.zeros(sizes, by_coordinate[0].dtype)
        return jnp.exp(-jax.lax.scan(step, start, (self.squares, *by_coordinate))[0] / 2)

    def own(self, features: DiagonalNormals) -> Array:
        variances = _together(features.variances)
        return jnp.exp(-jnp.sum(jnp.log1p(2 * variances / self.squares[None]), axis=-1) / 2)


def _together(side: tuple[Array, ...] | Array) -> Array:
    return jnp.stack(side, axis=-1) if isinstance(side, tuple) else side


def _coordinate(square, mean, cov, other_mean, other_cov):
    """Return a coordinate's term of every exponent, and its width relative to the kernel's."""
    width = (square + cov)[:, None] + other_cov[None]
    shift = mean[:, None] - other_mean[None]
    return shift * (shift / width), width / square


class Full(eqx.Module):
    """Any covariances: kappa_1 as one matrix product of width d^2, kappa_2 in O(d^3) per pair."""

    squares: Point

    def first(self, rows: FullNormals, ys: Array) -> Array:
        r, d = rows.mean.shape
        check_dimension(ys, d)
        matrices = rows.precision.reshape(r, d, d)
        pulled = jnp.einsum("nij,nj->ni", matrices, rows.mean)
        peak = rows.log_peak[:, None]
        base = peak - _half(pulled * rows.mean)
        left = jnp.concatenate([pulled, -rows.precision / 2, base], -1)
        outer = (ys[:, :, None] * ys[:, None, :]).reshape(-1, d * d)
        right = jnp.concatenate([ys, outer, jnp.ones_like(ys[:, :1])], -1)
        return jnp.exp(at_most(left @ right.T, peak))

    def second(self, rows: FullNormals, cols: FullNormals) -> Array:
        return by_rows(self._pair, rows, cols)

    def _pair(self, p: FullNormals, q: FullNormals) -> Scalar:
        if p.mean.shape[-1] <= SMALL:
            return self._small_pair(p, q)
        low = jnp.linalg.cholesky(jnp.diag(self.squares) + p.cov + q.cov)
        white = jax.scipy.linalg.solve_triangular(low, p.mean - q.mean, lower=True)
        log_ratio = jnp.log(jnp.diagonal(low)) - jnp.log(self.squares) / 2
        return jnp.exp(-jnp.sum(log_ratio + white**2 / 2))

    def _small_pair(self, p: FullNormals, q: FullNormals) -> Scalar:
        """Return kappa_2 of a pair from an unrolled Cholesky factorization."""
        total, gap = p.cov + q.cov, p.mean - q.mean
        low: list[list[Array]] = []
        white: list[Array] = []
        volume, exponent = jnp.ones_like(gap[0]), jnp.zeros_like(gap[0])
        for i in range(gap.size):
            row: list[Array] = []
            for j in range(i):
                row.append((total[i, j] - _dot(row, low[j][:j])) / low[j][j])
            row.append(jnp.sqrt(self.squares[i] + total[i, i] - _dot(row, row)))
            white.append((gap[i] - _dot(row[:-1], white)) / row[i])
            low.append(row)
            volume, exponent = volume * row[i] ** 2 / self.squares[i], exponent + white[i] ** 2
        return jnp.exp(-exponent / 2) * jax.lax.rsqrt(volume)

    def own(self, features: FullNormals) -> Array:
        return own_by_second(self, features)


def _dot(left: list[Array], right: list[Array]) -> Array | float:
    return sum((a * b for a, b in zip(left, right, strict=True)), start=0.0)


def _half(terms: Array) -> Array:
    return jnp.sum(terms, axis=-1, keepdims=True) / 2


@pair(Gaussian, Normals)
def gaussian_over_normals(kernel: Gaussian, distribution: Normals) -> Averages:
    """Return kernel means in closed form; any covariances, one bandwidth or one per coordinate."""
    d = distribution.mean.shape[-1]
    lengths = kernel.bandwidth
    assert lengths is not None
    if lengths.shape not in ((), (1,), (d,)):
        raise ValueError(
            f"kernel: a bandwidth of {lengths.size} lengths for predictions of {d} coordinates"
        )
    squares = jnp.broadcast_to(lengths**2, (d,)).astype(distribution.mean.dtype)
    if distribution.cov.ndim == distribution.mean.ndim:
        features = DiagonalNormals(distribution.mean, distribution.cov)
        if d <= UNROLLED:
            features = jax.tree.map(lambda leaf: tuple(leaf.T), features)
        return features, Diagonal(squares)
    low = jnp.linalg.cholesky(jnp.diag(squares)[None] + distribution.cov)
    eye = jnp.broadcast_to(jnp.eye(d, dtype=distribution.cov.dtype), distribution.cov.shape)
    precision = jax.scipy.linalg.cho_solve((low, True), eye).reshape(-1, d * d)
    roots = jnp.log(jnp.diagonal(low, axis1=-2, axis2=-1)) - jnp.log(squares)[None] / 2
    return FullNormals(
        distribution.mean, distribution.cov, precision, -jnp.sum(roots, axis=-1)
    ), Full(squares)


@pair(Product, Normals)
def product_over_normals(kernel: Product, distribution: Normals) -> Averages:
    """Return kernel means of a product of two Gaussian kernels, which is a Gaussian kernel."""
    left, right = kernel.left, kernel.right
    if not (isinstance(left, Gaussian) and isinstance(right, Gaussian)):
        raise NoClosedForm("of products of kernels, those of two Gaussian ones have a closed form")
    assert left.bandwidth is not None
    assert right.bandwidth is not None
    both = (left.bandwidth**-2 + right.bandwidth**-2) ** -0.5
    return gaussian_over_normals(Gaussian(both), distribution)
