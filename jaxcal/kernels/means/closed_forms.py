r"""Compute kernel means in closed form: Gaussian kernels over normals, `L1Laplace` over Laplaces.

:math:`\kappa_1(p, y) = E k(Z, y)` and :math:`\kappa_2(p, q) = E k(Z, Z')` for Z ~ p, Z' ~ q. For
normals N(mu, Sigma), with :math:`k = \exp(-\frac12 \sum_i (x_i - y_i)^2 / l_i^2)`, G = diag(l^2):

.. math:: \kappa_1 = |I + G^{-1}\Sigma|^{-1/2} \exp(-\tfrac12 (\mu - y)^\top (G + \Sigma)^{-1}
          (\mu - y)),

and :math:`\kappa_2` the same with :math:`\mu - \mu'` and :math:`\Sigma + \Sigma'`: the difference
of two independent normals is normal. Source: Widmann, Lindsten and Zachariah (2021), App. D.1,
with gamma = 1 / (2 l^2).

For Laplace predictions, one coordinate of the kernel is :math:`e^{-\gamma z}` at distance z, and a
prediction of scale beta has rate :math:`\alpha = 1/\beta`. Averages are convolutions of
exponentials. Up to a constant, their Fourier transform is a product over rates r of :math:`1 / (r^2
+ t^2)`, the transform of :math:`G(r) = e^{-rz} / (2r)`. With divided differences G[..] of G in r^2,

.. math:: \kappa_1 = -2\gamma\alpha^2\, G[\alpha^2, \gamma^2], \qquad
          \kappa_2 = 2\gamma\alpha^2\alpha'^2\, G[\alpha^2, \alpha'^2, \gamma^2].

Both are computed as sums of positive terms, from :math:`E_1(x) = (1 - e^{-x}) / x` and the second
divided difference :math:`E_2` of :math:`e^{-x}` at 0, x, y. Equal or nearly equal rates therefore
lose no digits. The formulas of Widmann, Lindsten and Zachariah (2021), App. D.2, are the same
functions, but divide by differences of rates such as :math:`\beta^2\gamma^2 - 1`.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.kernels.means.dispatch import (
    Averages,
    NoClosedForm,
    check_dimension,
    own_by_second,
    pair,
)
from jaxcal.kernels.points import Gaussian, L1Laplace, Laplace, Product, by_rows
from jaxcal.numerics import at_most
from jaxcal.read.families import Laplaces, Normals
from jaxcal.read.predictions import along_last
from jaxcal.typing import Point, Points, Scalar

UNROLLED = 16  # largest number of coordinates for which loops are unrolled
SMALL = 4  # largest dimension of matrices for which loops over them are unrolled


class DiagonalNormals(NamedTuple):
    """n normals with independent coordinates. ``means`` and ``variances`` are tuples of d arrays
    [n], one per coordinate; for d > 16 (`UNROLLED`) each is one array [n, d]."""

    means: tuple[Float[Array, " n"], ...] | Points
    variances: tuple[Float[Array, " n"], ...] | Points


class FullNormals(NamedTuple):
    """n normals with full covariances. ``precision``: inverse of diag(l^2) + ``cov``, flattened,
    with lengths l of the kernel; ``log_peak``: log of E k(Z, y) at y = ``mean``."""

    mean: Points
    cov: Float[Array, "n d d"]
    precision: Float[Array, "n dd"]
    log_peak: Float[Array, " n"]


class Diagonal(eqx.Module):
    """Kernel means over `DiagonalNormals`, at a cost of O(d) per pair."""

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
    """Return (mu - mu')^2 / v and v / l^2 of one coordinate for all pairs of normals, [r, c] each,
    where v = l^2 + cov + cov' and ``square`` is l^2 of the kernel."""
    width = (square + cov)[:, None] + other_cov[None]
    shift = mean[:, None] - other_mean[None]
    return shift * (shift / width), width / square


class Full(eqx.Module):
    """Kernel means over `FullNormals`: ``first`` costs O(d^2) per pair, ``second`` O(d^3)."""

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
        """Return ``second`` of one pair from an unrolled Cholesky factorization."""
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
    """Return features and formulas (see `pair`) for any covariances and a bandwidth [] or [d]."""
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
    """Return features and formulas (see `pair`) for a product of two Gaussian kernels. Raise
    `NoClosedForm` for other products."""
    left, right = kernel.left, kernel.right
    if not (isinstance(left, Gaussian) and isinstance(right, Gaussian)):
        raise NoClosedForm("of products of kernels, those of two Gaussian ones have a closed form")
    assert left.bandwidth is not None
    assert right.bandwidth is not None
    both = (left.bandwidth**-2 + right.bandwidth**-2) ** -0.5
    return gaussian_over_normals(Gaussian(both), distribution)


TERMS = 18  # terms of the series of E_2 for arguments below 1: 1 / 20! is below 1e-18


def e1(x: Array) -> Array:
    """Return ``(1 - exp(-x)) / x`` for x >= 0, 1 at 0."""
    small = x < 1e-4
    far = jnp.where(small, 1.0, x)
    return jnp.where(small, 1 - x / 2 + x**2 / 6, -jnp.expm1(-far) / far)


def _e2(x: Array, y: Array) -> Array:
    """Return the second divided difference of ``exp(-x)`` at 0, x, y, for 0 <= x <= y."""
    small = y < 1
    a, b = jnp.where(small, x, 0.0), jnp.where(small, y, 0.0)
    series, symmetric, power, factor = jnp.zeros_like(a), jnp.ones_like(a), jnp.ones_like(a), 0.5
    for k in range(TERMS):
        series = series + factor * symmetric
        power = power * b
        symmetric = power + a * symmetric  # sum of a^i b^j over i + j = k + 1
        factor = -factor / (k + 3)
    far_y = jnp.where(small, 1.0, y)
    far_x = jnp.where(small, 0.0, x)
    far = (e1(far_x) - jnp.exp(-far_x) * e1(far_y - far_x)) / far_y
    return jnp.where(small, series, far)


def _ordered(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the smaller and the larger argument; if a = b, with the derivatives for a < b."""
    first = a <= b
    return jnp.where(first, a, b), jnp.where(first, b, a)


def first_average(z: Array, alpha: Array, gamma: Array) -> Array:
    r"""Return ``E exp(-gamma |Z - y|)`` for Laplace Z of rate alpha and location y + z or y - z.

    With r <= R the two rates alpha and gamma in ascending order and E_1 the function `e1`, it is
    :math:`\frac{\alpha}{\alpha + \gamma} e^{-rz} (1 + r z E_1((R - r) z))`.
    """
    low, high = _ordered(alpha, gamma)
    return alpha / (alpha + gamma) * jnp.exp(-low * z) * (1 + low * z * e1((high - low) * z))


def second_average(z: Array, alpha: Array, beta: Array, gamma: Array) -> Array:
    r"""Return ``E exp(-gamma |Z - Z'|)``, Z and Z' Laplace of rates alpha, beta and locations 0, z.

    Let :math:`r_0 \le r_1 \le r_2` be the sorted rates. G[..] are divided differences of
    G in r^2 (see the module), and f[..] of the same G in r. Then :math:`G[r_0^2, r_1^2, r_2^2]
    = (f[r_0, r_1, r_2] - f[r_0, r_1] / (r_0 + r_1)) / ((r_1 + r_2)(r_0 + r_2))`.
    """
    least, most = _ordered(alpha, beta)
    rest, high = _ordered(most, gamma)
    low, middle = _ordered(least, rest)
    x, y = (middle - low) * z, (high - low) * z
    once = e1(x)
    # 2 r0 r1 r2 e^(r0 z) times -f[r0, r1] / (r0 + r1), and times f[r0, r1, r2]
    slope = high * (1 + low * z * once) / (low + middle)
    bend = 1 + low * z * (once + middle * z * _e2(x, y))
    ratio = (alpha / (middle + high)) * (beta / (low + high))
    return ratio * jnp.exp(-low * z) * (slope + bend)


class Products(eqx.Module):
    """Kernel means of `L1Laplace` over Laplaces: products over coordinates, with about four
    exponentials for each. ``gamma`` [d]: reciprocal lengths of the kernel."""

    gamma: Point

    def _rates(self, rows: Laplaces) -> Array:
        # scales below rounding are treated as rounding: the rate of a point mass is infinite
        least = jnp.finfo(rows.scale.dtype).eps / self.gamma[None]
        floored = jnp.where(rows.scale < least, least, rows.scale)
        return 1 / floored

    def first(self, rows: Laplaces, ys: Array) -> Array:
        check_dimension(ys, rows.loc.shape[-1])
        rates = self._rates(rows)

        def coordinate(loc: Array, alpha: Array, y: Array, gamma: Array) -> Array:
            return first_average(jnp.abs(loc[:, None] - y[None]), alpha[:, None], gamma)

        return _product(coordinate, (rows.loc.T, rates.T, ys.T, self.gamma))

    def second(self, rows: Laplaces, cols: Laplaces) -> Array:
        left, right = self._rates(rows), self._rates(cols)

        def coordinate(loc: Array, alpha: Array, other: Array, beta: Array, gamma: Array) -> Array:
            shift = jnp.abs(loc[:, None] - other[None])
            return second_average(shift, alpha[:, None], beta[None, :], gamma)

        return _product(coordinate, (rows.loc.T, left.T, cols.loc.T, right.T, self.gamma))

    def own(self, features: Laplaces) -> Array:
        return own_by_second(self, features)


def _product(coordinate: Callable[..., Array], by_coordinate: tuple[Array, ...]) -> Array:
    """Return the product over k of coordinate(a[k], b[k], ..); ``by_coordinate`` is (a, b, ..)."""
    total = coordinate(*(part[0] for part in by_coordinate))
    if by_coordinate[0].shape[0] == 1:
        return total

    @jax.checkpoint
    def step(total: Array, one: tuple[Array, ...]) -> tuple[Array, None]:
        return total * coordinate(*one), None

    return jax.lax.scan(step, total, tuple(part[1:] for part in by_coordinate))[0]


@pair(L1Laplace, Laplaces)
def l1_laplace_over_laplaces(kernel: L1Laplace, distribution: Laplaces) -> Averages:
    """Return features and formulas (see `pair`) for any scales and a bandwidth [] or [d]."""
    d = distribution.loc.shape[-1]
    assert kernel.bandwidth is not None
    if kernel.bandwidth.shape not in ((), (1,), (d,)):
        raise ValueError(
            f"kernel: a bandwidth of {kernel.bandwidth.size} lengths for predictions of {d} "
            f"coordinates"
        )
    return distribution, Products(
        jnp.broadcast_to(1 / kernel.bandwidth, (d,)).astype(distribution.loc.dtype)
    )


@pair(Laplace, Laplaces)
def laplace_over_laplaces(kernel: Laplace, distribution: Laplaces) -> Averages:
    """Return the result of `L1Laplace` if d = 1 (equal kernels); raise `NoClosedForm` if d > 1."""
    if distribution.loc.shape[-1] != 1:
        raise NoClosedForm(
            "the radial Laplace kernel has no closed form over Laplace predictions of several "
            "coordinates: L1Laplace has"
        )
    return l1_laplace_over_laplaces(L1Laplace(kernel.bandwidth), distribution)
