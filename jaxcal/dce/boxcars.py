r"""The absolute cumulative residual in a moving window, averaged exactly for many widths at once.

.. math:: \frac1w \int |F(t + w) - F(t)|\,dt

changes only where t or t + w meets a prediction, so it is a walk along two sorted lists, the
predictions and the predictions less w. No second sort is needed. The walk is cut into about
sqrt(2 n) pieces of equal length, whose starts are found by halving; all pieces of all widths step
together: about sqrt(2 n) steps of vectors, O(n) work a width.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.dce.prefix_sums import sums
from jaxcal.numerics import at_least
from jaxcal.typing import Scalar, Vector


@jax.custom_jvp
def boxcars(v: Vector, rho: Vector, widths: Float[Array, " k"]) -> Float[Array, " k"]:
    """The average for each of ``widths`` [k] > 0, of residuals ``rho`` [n] at ascending ``v`` [n].

    Only differences of two predictions meet a width, never v - w: widths far below the spacing of
    floating-point numbers lose nothing, and below the least gap the average is the ECE. Widths
    below the root of the smallest normal number (1e-19 in float32) count as that root.
    Differentiable in all; the slopes cost O(n log n) a width.
    """
    n = v.size
    length = max(1, math.isqrt(2 * n))
    places, f = _padded(v, rho)
    widths = _resolved(widths)
    w = widths[:, None]
    done = jnp.arange(-(-2 * n // length), dtype=jnp.int32) * length
    i = _split(places, w, done)
    j = done[None] - i

    def before(index: Array) -> Array:
        return jnp.where(index > 0, places[jnp.maximum(index - 1, 0)], -jnp.inf)

    # -inf in the first piece, where nothing is yet
    shifted = ~(before(i) - before(j) <= w)
    last = jnp.where(shifted, before(i), before(j))

    def step(carry: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
        i, j, a, b, fa, fb, last, shifted, total = carry
        first = a - b <= w
        now = jnp.where(first, a, b)
        inside = (last > -jnp.inf) & (now < jnp.inf)
        total = total + jnp.abs(fa - fb) * jnp.where(inside, _gap(last, shifted, now, first, w), 0)
        k = jnp.where(first, i, j) + 1
        place, sum_ = places.at[k].get(mode="clip"), f.at[k].get(mode="clip")
        return (
            jnp.where(first, k, i),
            jnp.where(first, j, k),
            jnp.where(first, place, a),
            jnp.where(first, b, place),
            jnp.where(first, sum_, fa),
            jnp.where(first, fb, sum_),
            now,
            first,
            total,
        ), None

    carry = (i, j, places[i], places[j], f[i], f[j], last, shifted, jnp.zeros_like(last))
    carry, _ = jax.lax.scan(step, carry, None, length=length)
    return jnp.sum(carry[-1], axis=1) / widths


def _resolved(widths: Array) -> Array:
    """Widths, raised where a width times a residual would underflow."""
    return at_least(widths, float(jnp.finfo(widths.dtype).tiny) ** 0.5)


def _padded(v: Vector, rho: Vector) -> tuple[Array, Array]:
    """The predictions, then infinity, and at each the sum of the residuals before it [n + 1]."""
    places = jnp.concatenate([v, jnp.full(1, jnp.inf, v.dtype)])
    return places, jnp.concatenate([jnp.zeros(1, rho.dtype), sums(rho)])


def _gap(last: Array, was_shifted: Array, now: Array, shifted: Array, w: Array) -> Array:
    """From one entry of the merged lists to the next, each a prediction or one less w."""
    apart = now - last
    return jnp.where(shifted == was_shifted, apart, jnp.where(shifted, apart - w, apart + w))


def _split(places: Vector, w: Float[Array, "k 1"], done: Array) -> Array:
    """How many of the first ``done`` entries of the merged lists are predictions less w."""
    n = places.size - 1
    done = jnp.broadcast_to(done, (w.shape[0], done.size))
    low, high = jnp.maximum(done - n, 0), jnp.minimum(done, n)

    def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) // 2
        other = places.at[done - middle - 1].get(mode="clip")
        more = (low < high) & (places[middle] - other <= w)
        return jnp.where(more, middle + 1, low), jnp.where(more, high, jnp.minimum(middle, high))

    return jax.lax.fori_loop(0, n.bit_length(), halve, (low, high))[0]


@boxcars.defjvp
def _slopes(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    (v, rho, widths), (dv, drho, dwidths) = primals, tangents
    values = boxcars(v, rho, widths)
    widths = _resolved(widths)
    places, f = _padded(v, rho)
    df = jnp.concatenate([jnp.zeros(1, drho.dtype), sums(drho)])
    done = jnp.arange(2 * v.size + 1, dtype=jnp.int32)

    def one(item: tuple[Array, ...]) -> Scalar:
        """How the sum of |F(t + w) - F(t)| times gaps changes, cell by cell."""
        width, dwidth = item
        i = _split(places, width[None, None], done)[0]
        j = done - i
        shifted = jnp.diff(i) > 0
        entry = jnp.where(shifted, i[:-1], j[:-1])
        at, moves = v[entry], dv[entry] - jnp.where(shifted, dwidth, 0)
        gaps = _gap(at[:-1], shifted[:-1], at[1:], shifted[1:], width)
        inside, moved = ((x[i] - x[j])[1:-1] for x in (f, df))
        return jnp.sum(jnp.sign(inside) * moved * gaps + jnp.abs(inside) * jnp.diff(moves))

    slopes = jax.lax.map(one, (widths, dwidths))
    return values, (slopes - values * dwidths) / widths
