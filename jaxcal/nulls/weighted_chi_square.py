r"""Tail probabilities of :math:`Q = \sum_j \lambda_j \chi^2_{\nu_j}`, far into the tail.

.. math:: P(Q > x) = \frac{1}{2\pi i} \int e^{g(t)}\,dt, \qquad
          g(t) = -\tfrac12 \sum_j \nu_j \log(1 - 2 \lambda_j t) - x t - \log t,

over a contour that crosses the real axis between the pole at 0 and the branch points
:math:`1 / 2\lambda_j`. It crosses at the minimum of g and bends around the branch points like a
parabola, so that terms hardly cancel even for tiny probabilities and the trapezoidal rule converges
exponentially. Inversion as in Imhof (1961), on the contour of Rice (1980).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.numerics import at_least, at_most
from jaxcal.typing import Scalar

STEP, NODES = 1 / 8, 96  # of the trapezoidal rule: up to v = sinh(12)
BENDS = tuple(0.25 * 2.0**-k for k in range(9))  # bends of the parabola, in widths of the peak
# only these avoid cancellation for a small weight with many degrees, up to 10^9
STRAIGHT = tuple(2.0**-k for k in range(12, 34, 3))


class Tail(NamedTuple):
    """``p`` and its logarithm, which does not underflow; ``slopes`` [k] are derivatives of log p
    in :math:`\\log\\lambda_j`."""

    p: Scalar
    log_p: Scalar
    slopes: Float[Array, " k"]


def tail(x: Scalar, weights: Float[Array, " k"], degrees: Float[Array, " k"] | None = None) -> Tail:
    """Return the probability that a weighted sum of chi-square variables exceeds ``x``, [].

    At least one weight [k] must be positive; negative ones count as 0. ``degrees`` [k] of freedom
    are 1 by default. In float64 relative errors of p are below 1e-9 for p < 0.9, and absolute
    errors below 1e-5 otherwise; in float32 below 2e-4, or 1e-3 if a small weight has more than 10^4
    degrees. p = 1 for x <= 0. NaN if x or a weight is NaN, or if no weight is positive. Cost: 1,700
    k complex logarithms. Source: Imhof (1961), eq. 3.2; the contour after Rice (1980).
    """
    degrees = jnp.ones_like(weights) if degrees is None else degrees
    bad = jnp.isnan(x) | jnp.any(jnp.isnan(weights)) | ~jnp.any(weights > 0)
    scale = jnp.where(bad, 1, jnp.max(weights))
    lam = jnp.where(bad, 1, at_least(weights, 0) / scale)
    # 1 - lam: exactly 0 for the largest weight, for any rounding of the division
    below = jnp.where(bad, 0, (scale - at_least(weights, 0)) / scale)
    level = jnp.where(bad | (x <= 0), 1, x / scale)
    logit = jax.lax.stop_gradient(_crossing(level, lam, below, degrees))
    # the crossing point c, and 1 - 2 c without cancellation
    c, room = jax.nn.sigmoid(logit) / 2, jax.nn.sigmoid(-logit)
    gaps = below + lam * room
    width = jax.lax.rsqrt(jnp.sum(2 * degrees * (lam / gaps) ** 2) + c**-2)
    step = STEP * jnp.arange(NODES, dtype=lam.dtype)
    v, speed = jnp.sinh(step), jnp.where(step == 0, 0.5, 1) * STEP * jnp.cosh(step)

    def along(bend: Scalar) -> tuple[Array, Array, Array, Array]:
        """Return the integrand's exponent, its direction, t - c, and 1 - 2 lambda t relative to
        its value at c."""
        shift = jax.lax.complex(width * bend * v**2, width * v)
        direction = jax.lax.complex(speed, -2 * bend * v * speed)
        ratios = 1 - shift[None, :] * _complex(2 * lam / gaps)[:, None]
        growth = -_complex(degrees / 2) @ jnp.log(ratios)
        growth = growth - _complex(level) * shift - jnp.log1p(shift / _complex(c))
        return growth, direction, shift, ratios

    def size(bend: Scalar) -> Scalar:
        # in real arithmetic: the absolute value of a complex overflow may lose its NaN
        growth = along(bend)[0].real
        return jnp.sum(jnp.exp(growth) * speed * jnp.sqrt(1 + (2 * bend * v) ** 2))

    # choose the bend with the least cancellation
    bends = jnp.asarray(BENDS + STRAIGHT, lam.dtype)
    sizes = jax.lax.map(size, bends)
    sizes = jnp.where(jnp.isfinite(sizes), sizes, jnp.inf)
    bent = jnp.arange(bends.size) < len(BENDS)
    enough = jnp.any(bent & (sizes < 1e3))
    best = jnp.argmin(jnp.where(bent | ~enough, sizes, jnp.inf))
    growth, direction, shift, ratios = along(jax.lax.stop_gradient(bends[best]))
    terms = jnp.exp(growth) * direction
    mass = jnp.sum(terms.real)
    # d g / d log lambda_j = nu_j lambda_j t / (1 - 2 lambda_j t)
    pulls = ((_complex(c) + shift) * terms)[None] / ratios
    slopes = degrees * lam / gaps * jnp.sum(pulls.real, axis=1) / mass
    log_peak = -0.5 * jnp.sum(degrees * jnp.log(gaps)) - level * c - jnp.log(c)
    log_p = at_most(log_peak + jnp.log(width * mass / jnp.pi), 0)
    # Chernoff's bound on 1 - p, used where the terms above cancel
    s = 2.0 ** jnp.arange(-1, 8, dtype=lam.dtype) / level
    bound = s * level - 0.5 * jnp.log1p(2 * s[:, None] * lam[None]) @ degrees
    certain = (x <= 0) | (mass <= 0) | (jnp.min(bound) < math.log(1e-5))
    log_p = jnp.where(certain, 0, log_p)
    slopes = jnp.where(certain, 0, slopes)
    hide = jnp.where(bad, jnp.nan, 0)
    return Tail(jnp.exp(log_p) + hide, log_p + hide, slopes + hide)


def _complex(x: Array) -> Array:
    return jax.lax.complex(x, jnp.zeros_like(x))


def _crossing(
    level: Scalar,
    lam: Float[Array, " k"],
    below: Float[Array, " k"],
    degrees: Float[Array, " k"],
) -> Scalar:
    """Return the logit of 2 c, with c in (0, 1/2) the minimum of g on the real axis (bisection)."""

    def halve(_, ends: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = ends
        middle = (low + high) / 2
        c, room = jax.nn.sigmoid(middle) / 2, jax.nn.sigmoid(-middle)
        rising = jnp.sum(degrees * lam / (below + lam * room)) - level - 1 / c > 0
        return jnp.where(rising, low, middle), jnp.where(rising, middle, high)

    end = jnp.asarray(40.0, lam.dtype)
    low, high = jax.lax.fori_loop(0, 40, halve, (-end, end))
    return (low + high) / 2
