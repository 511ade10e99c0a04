r"""Laplacian kernel averaged over Laplace predictions, without loss of digits.

A coordinate of the kernel is :math:`e^{-\gamma z}`; a prediction is a density with rate
:math:`\alpha = 1/\beta`. Convolutions multiply factors :math:`1 / (r^2 + t^2)` over the rates r.
The product is a divided difference, in r squared, of the transform of
:math:`G(r) = e^{-rz} / (2r)`:

.. math:: \kappa_1 = -2\gamma\alpha^2\, G[\alpha^2, \gamma^2], \qquad
          \kappa_2 = 2\gamma\alpha^2\alpha'^2\, G[\alpha^2, \alpha'^2, \gamma^2].

Expanded from the smallest rate up these are sums of positive terms, with
:math:`E_1(x) = (1 - e^{-x}) / x` and the second divided difference :math:`E_2` of
:math:`e^{-x}` at 0, x, y, so that (nearly) equal rates cost no digits. The formulas of Widmann,
Lindsten and Zachariah (2021), App. D.2, are the same functions, but divide by
:math:`\beta^2\gamma^2 - 1` and the like.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.kernel_means.dispatch import (
    Averages,
    NoClosedForm,
    check_dimension,
    own_by_second,
    pair,
)
from jaxcal.kernels.points import L1Laplace, Laplace
from jaxcal.read.families import Laplaces
from jaxcal.typing import Point

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
    """Return the smaller and the larger argument; with ties, each keeps its full derivative."""
    first = a <= b
    return jnp.where(first, a, b), jnp.where(first, b, a)


def first_average(z: Array, alpha: Array, gamma: Array) -> Array:
    r"""Return ``E exp(-gamma |Z - y|)`` at distance z = abs(loc - y) >= 0.

    For rates alpha and gamma, :math:`\frac{\alpha}{\alpha + \gamma} e^{-rz} (1 + r z E_1((R - r)
    z))` with r <= R the two rates.
    """
    low, high = _ordered(alpha, gamma)
    return alpha / (alpha + gamma) * jnp.exp(-low * z) * (1 + low * z * e1((high - low) * z))


def second_average(z: Array, alpha: Array, beta: Array, gamma: Array) -> Array:
    r"""Return ``E exp(-gamma |Z - Z'|)`` at distance z >= 0 of the locations.

    With sorted rates :math:`r_0 \le r_1 \le r_2`, f(r) = G and divided differences of f in r,
    :math:`G[r_0^2, r_1^2, r_2^2] = (f[r_0, r_1, r_2] -
    f[r_0, r_1] / (r_0 + r_1)) / ((r_1 + r_2)(r_0 + r_2))`.
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
    """Kernel means as products over coordinates: about four exponentials per coordinate."""

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
    """Return the product over the leading axis, one coordinate at a time."""
    total = coordinate(*(part[0] for part in by_coordinate))
    if by_coordinate[0].shape[0] == 1:
        return total

    @jax.checkpoint
    def step(total: Array, one: tuple[Array, ...]) -> tuple[Array, None]:
        return total * coordinate(*one), None

    return jax.lax.scan(step, total, tuple(part[1:] for part in by_coordinate))[0]


@pair(L1Laplace, Laplaces)
def l1_laplace_over_laplaces(kernel: L1Laplace, distribution: Laplaces) -> Averages:
    """Return kernel means in closed form for any scales; one bandwidth or one per coordinate."""
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
    """Return kernel means in one dimension, where `Laplace` is `L1Laplace`."""
    if distribution.loc.shape[-1] != 1:
        raise NoClosedForm(
            "the radial Laplace kernel has no closed form over Laplace predictions of several "
            "coordinates: L1Laplace has"
        )
    return l1_laplace_over_laplaces(L1Laplace(kernel.bandwidth), distribution)
