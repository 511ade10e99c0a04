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

from jaxcal.distance.scans import sums
from jaxcal.typing import Scalar, Vector


@jax.custom_jvp
def boxcars(v: Vector, rho: Vector, widths: Float[Array, " k"]) -> Float[Array, " k"]:
    """The average for each of ``widths`` [k] > 0, of residuals ``rho`` [n] at ascending ``v`` [n].

    Differentiable in all; the slopes cost a sort of 2 n numbers a width.
    """
    n = v.size
    length = max(1, math.isqrt(2 * n))
    # places[n] and f[n]: after the last
    places = jnp.concatenate([v, jnp.full(1, jnp.inf, v.dtype)])
    f = jnp.concatenate([jnp.zeros(1, rho.dtype), sums(rho)])
    w = widths[:, None]
    done = jnp.arange(-(-2 * n // length), dtype=jnp.int32) * length
    i = _split(places, w, done)
    j = done - i

    def before(index: Array) -> Array:
        return jnp.where(index > 0, places[jnp.maximum(index - 1, 0)], -jnp.inf)

    start = jnp.maximum(before(i) - w, before(j))  # -inf in the first piece, where nothing is yet

    def step(carry: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
        i, j, a, b, fa, fb, t, total = carry
        first = a <= b
        now = jnp.minimum(a, b)
        inside = (t > -jnp.inf) & (now < jnp.inf)
        total = total + jnp.abs(fa - fb) * jnp.where(inside, now - t, 0)
        k = jnp.where(first, i, j) + 1
        place, sum_ = places.at[k].get(mode="clip"), f.at[k].get(mode="clip")
        return (
            jnp.where(first, k, i),
            jnp.where(first, j, k),
            jnp.where(first, place - w, a),
            jnp.where(first, b, place),
            jnp.where(first, sum_, fa),
            jnp.where(first, fb, sum_),
            now,
            total,
        ), None

    carry = (i, j, places[i] - w, places[j], f[i], f[j], start, jnp.zeros_like(start))
    carry, _ = jax.lax.scan(step, carry, None, length=length)
    return jnp.sum(carry[-1], axis=1) / widths


def _split(places: Vector, w: Float[Array, "k 1"], done: Array) -> Array:
    """How many of the first ``done`` entries of the merged lists are predictions less w."""
    n = places.size - 1
    zeros = jnp.zeros((w.shape[0], 1), done.dtype)
    low, high = jnp.maximum(done - n, 0) + zeros, jnp.minimum(done, n) + zeros

    def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) // 2
        other = places.at[done - middle - 1].get(mode="clip")
        more = (low < high) & (places[middle] - w <= other)
        return jnp.where(more, middle + 1, low), jnp.where(more, high, jnp.minimum(middle, high))

    return jax.lax.fori_loop(0, n.bit_length(), halve, (low, high))[0]


@boxcars.defjvp
def _slopes(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    (v, rho, widths), (dv, drho, dwidths) = primals, tangents
    found = boxcars(v, rho, widths)

    def one(item: tuple[Array, ...]) -> Scalar:
        """How the sum of |F(t + w) - F(t)| times gaps changes, cell by cell."""
        width, dwidth = item
        order = jnp.argsort(jnp.concatenate([v - width, v]))
        gaps = jnp.diff(jnp.concatenate([v - width, v])[order])
        change = jnp.diff(jnp.concatenate([dv - dwidth, dv])[order])
        inside = sums(jnp.concatenate([rho, -rho])[order])[:-1]
        moved = sums(jnp.concatenate([drho, -drho])[order])[:-1]
        return jnp.sum(jnp.sign(inside) * moved * gaps + jnp.abs(inside) * change)

    slopes = jax.lax.map(one, (widths, dwidths))
    return found, (slopes - found * dwidths) / widths
