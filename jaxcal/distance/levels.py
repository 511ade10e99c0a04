r"""L1 total variation denoising of a step function, exactly, in O(n log n), without a queue.

Wanted is the step function a that minimises

.. math:: \sum_i |a_i - a_{i-1}| + \sum_i g_i |F_i - a_i|, \qquad a_{-1} = 0,\ a_{n-1} = F_{n-1}.

Both terms are integrals over levels: with :math:`u_i = 1(a_i > \lambda)` each level
:math:`\lambda` is a problem of its own with two states a place, and its solution can only shrink as
:math:`\lambda` grows. So each place has ONE threshold, which is :math:`a_i`.

A block of places is, at one level, a 2 x 2 matrix of least costs between its two ends; it changes
only where :math:`\lambda` passes one of the block's own F. Merging two blocks of s places is
therefore the merging of two sorted lists, with a (min, +) product an entry. At each merge the level
up to which the place in the middle is "on" is read off for the four states of the ends; a walk
back down from the ends puts in the levels found there. log2(n) rounds of n vectorised products:
nothing depends on values, so it compiles once a shape, and vmap widens it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.distance.scans import prefixes, sums
from jaxcal.typing import Vector


class _Block(NamedTuple):
    """A matrix C of least costs, less C_00: ``p`` = C_01, ``q`` = C_10, ``r`` = C_11."""

    p: Array
    q: Array
    r: Array


def denoise(f: Vector, g: Vector) -> Vector:
    """The minimiser a [n] of the sum above; where several are, the smallest.

    ``f`` [n] the function, ``g`` [n] >= 0 the widths of its steps; the last width counts as 0.
    Every a_i is exactly 0 or one of the f. Cost O(n log n), memory O(n log n) integers.
    """
    n = f.size
    rounds = max(1, int(np.ceil(np.log2(n))))
    size = 2**rounds
    f = jnp.concatenate([f, jnp.broadcast_to(f[-1:], (size - n,))])
    g = jnp.concatenate([g[:-1], jnp.zeros(size - n + 1, g.dtype)])
    orders = _orders(jnp.argsort(f), rounds)
    # the last place is free: it may as well be at the end
    return _down(f, _up(f, g, orders))[:n].at[-1].set(f[-1])


def _orders(order: Int[Array, " n"], rounds: int) -> Int[Array, "rounds n"]:
    """For blocks of 2, 4, .., n places: each block's places in ascending order of F.

    From the order of all, each round splits every block in its two halves and keeps the order.
    """
    slots = jnp.arange(order.size)

    def split(order: Array, k: Array) -> tuple[Array, Array]:
        half = jnp.left_shift(1, k)  # of the block that ``order`` lists
        left = ((order & half) == 0).astype(slots.dtype)
        lefts = sums(left) - left - (slots >> (k + 1)) * half  # before it, in its block
        start = slots & ~(2 * half - 1)
        to = jnp.where(left == 1, start + lefts, half + slots - lefts)
        return jnp.zeros_like(order).at[to].set(order, unique_indices=True), order

    _, orders = jax.lax.scan(split, order.astype(slots.dtype), jnp.arange(rounds)[::-1])
    return orders[::-1]


def _up(f: Vector, g: Vector, orders: Int[Array, "rounds n"]) -> Float[Array, "4 n"]:
    """For each place but the last, the level up to which it is on, given the states of the ends of
    the block whose middle it is: rows (0, 0), (0, 1), (1, 0), (1, 1).

    The table of matrices has one row for each F of each block, in their order: the block's matrix
    above that F; and n rows further, at the block's first slot, its matrix below all of them.
    """
    n = f.size
    slots = jnp.arange(n)
    one = jnp.ones_like(g)
    above, below = jnp.stack([1 + g, one, g], axis=1), jnp.stack([1 - g, one, -g], axis=1)

    def merge(carry: tuple[Array, Array], item: tuple[Array, Array]):
        (table, found), (k, order) = carry, item
        half = jnp.left_shift(1, k)
        first = slots & ~(2 * half - 1)
        other = first + half
        left = ((order & half) == 0).astype(slots.dtype)
        lefts = sums(left) - (slots >> (k + 1)) * half  # in the block, up to the slot
        rights = slots - first + 1 - lefts

        def at(side: Array, count: Array) -> _Block:
            row = jnp.where(count > 0, side + count - 1, n + side)
            return _Block(*_take(table, row).T)

        a, b = at(first, lefts), at(other, rights)
        low_a, low_b = (_Block(*_take(table, n + i).T) for i in (first, other))
        on, low_on = _middle(a, b), _middle(low_a, low_b)

        # the place in the middle of a block of this round, and the slots of that block
        middle = ((slots + 1) & (2 * half - 1)) == half
        begin = jnp.where(middle, slots + 1 - half, 0)
        rows = tuple(on)
        counts = jnp.stack(prefixes(_add, rows), axis=1)
        low_on = jnp.stack(low_on, axis=1)
        before = _take(counts, begin) - _take(jnp.stack(rows, axis=1), begin)
        count = _take(counts, begin + 2 * half - 1) - before + _take(low_on, begin)
        # on in the first ``count`` versions, that is up to the F that ends the last of them
        upper = _take(f, _take(order, jnp.clip(begin[:, None] + count - 1, 0, n - 1)))
        level = jnp.where(count == 0, -jnp.inf, jnp.where(count > 2 * half, jnp.inf, upper))
        found = jnp.where(middle[:, None], level, found)
        both = [jnp.stack(_product(*pair), axis=1) for pair in ((a, b), (low_a, low_b))]
        return (jnp.concatenate(both), found), None

    start = (jnp.concatenate([above, below]), jnp.full((n, 4), jnp.inf, f.dtype))
    (_, found), _ = jax.lax.scan(merge, start, (jnp.arange(orders.shape[0]), orders))
    return found.T


def _take(array: Array, i: Array) -> Array:
    return array.at[i].get(mode="clip")


def _add(x: tuple[Array, ...], y: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(a + b for a, b in zip(x, y, strict=True))


def _product(a: _Block, b: _Block) -> _Block:
    """Two neighbouring blocks as one: the (min, +) product."""
    c00 = jnp.minimum(0, a.p + b.q)
    return _Block(
        jnp.minimum(b.p, a.p + b.r) - c00,
        jnp.minimum(a.q, a.r + b.q) - c00,
        jnp.minimum(a.q + b.p, a.r + b.r) - c00,
    )


def _middle(a: _Block, b: _Block) -> list[Array]:
    """Whether the place between two blocks costs less when on, by the states of their ends."""
    left, right = (a.p, a.r - a.q), (b.q, b.r - b.p)
    return [(x + y < 0).astype(jnp.int32) for x in left for y in right]


def _down(f: Vector, found: Float[Array, "4 n"]) -> Vector:
    """Levels of all places, from the two ends inwards."""
    n = f.size
    slots = jnp.arange(n)
    off, rising, falling, on = found

    def halve(k: Array, a: Vector) -> Vector:
        half = jnp.right_shift(n, k + 1)
        left = jnp.where(slots >= half, _take(a, slots - half), 0)
        right = _take(a, slots + half)
        low, high = jnp.minimum(left, right), jnp.maximum(left, right)
        between = jnp.where(left > right, falling, rising)
        level = jnp.maximum(jnp.maximum(jnp.minimum(low, on), jnp.minimum(high, between)), off)
        return jnp.where(((slots + 1) & (2 * half - 1)) == half, level, a)

    start = jnp.zeros_like(f).at[-1].set(f[-1])
    return jax.lax.fori_loop(0, int(np.log2(n)), halve, start)
