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

from jaxcal.typing import Vector


class _Block(NamedTuple):
    """A matrix C of least costs, less C_00: ``p`` = C_01, ``q`` = C_10, ``r`` = C_11."""

    p: Array
    q: Array
    r: Array


class _Versions(NamedTuple):
    """``after`` [n]: the block's matrix above each of its F, in their order; ``base`` [n]: below
    all of them, held at the block's first slot."""

    after: _Block
    base: _Block


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
        left = (order & half) == 0
        lefts = jnp.cumsum(left) - left - (slots >> (k + 1)) * half  # before it, in its block
        start = slots & ~(2 * half - 1)
        to = jnp.where(left, start + lefts, half + slots - lefts)
        return jnp.zeros_like(order).at[to].set(order, unique_indices=True), order

    _, orders = jax.lax.scan(split, order.astype(slots.dtype), jnp.arange(rounds)[::-1])
    return orders[::-1]


def _up(f: Vector, g: Vector, orders: Int[Array, "rounds n"]) -> Float[Array, "4 n"]:
    """For each place but the last, the level up to which it is on, given the states of the ends of
    the block whose middle it is: rows (0, 0), (0, 1), (1, 0), (1, 1)."""
    n = f.size
    slots = jnp.arange(n)
    one = jnp.ones_like(g)
    start = _Versions(_Block(1 + g, one, g), _Block(1 - g, one, -g))
    ends = jnp.full(1, jnp.inf, f.dtype)

    def merge(carry: tuple[_Versions, Array], item: tuple[Array, Array]):
        (versions, found), (k, order) = carry, item
        half = jnp.left_shift(1, k)
        first = slots & ~(2 * half - 1)
        left = (order & half) == 0
        lefts = jnp.cumsum(left) - (slots >> (k + 1)) * half  # in the block, up to the slot
        rights = slots - first + 1 - lefts

        def at(side: Array, count: Array) -> _Block:
            def pick(after: Array, base: Array) -> Array:
                return jnp.where(count > 0, after[side + count - 1], base[side])

            return jax.tree.map(pick, versions.after, versions.base)

        other = jnp.minimum(first + half, n - 1)
        a, b = at(first, lefts), at(other, rights)
        low_a, low_b = (jax.tree.map(lambda x, i=i: x[i], versions.base) for i in (first, other))
        on, low_on = _middle(a, b), _middle(low_a, low_b)

        # the place in the middle of a block of this round, and the slots of that block
        middle = ((slots + 1) & (2 * half - 1)) == half
        begin = jnp.where(middle, slots + 1 - half, 0)
        counts = jnp.pad(jnp.cumsum(on, axis=1), ((0, 0), (1, 0)))
        count = counts[:, jnp.minimum(begin + 2 * half, n)] - counts[:, begin] + low_on[:, begin]
        # on in the first ``count`` versions, that is up to the F that ends the last of them
        upper = f[order[jnp.clip(begin + count - 1, 0, n - 1)]]
        level = jnp.where(count == 0, -jnp.inf, jnp.where(count > 2 * half, jnp.inf, upper))
        found = jnp.where(middle, level, found)
        return (_Versions(_product(a, b), _product(low_a, low_b)), found), None

    begun = (start, jnp.broadcast_to(ends, (4, n)))
    (_, found), _ = jax.lax.scan(merge, begun, (jnp.arange(orders.shape[0]), orders))
    return found


def _product(a: _Block, b: _Block) -> _Block:
    """Two neighbouring blocks as one: the (min, +) product."""
    c00 = jnp.minimum(0, a.p + b.q)
    return _Block(
        jnp.minimum(b.p, a.p + b.r) - c00,
        jnp.minimum(a.q, a.r + b.q) - c00,
        jnp.minimum(a.q + b.p, a.r + b.r) - c00,
    )


def _middle(a: _Block, b: _Block) -> Int[Array, "4 n"]:
    """Whether the place between two blocks costs less when on, by the states of their ends."""
    left = jnp.stack([a.p, a.p, a.r - a.q, a.r - a.q])
    right = jnp.stack([b.q, b.r - b.p, b.q, b.r - b.p])
    return (left + right < 0).astype(jnp.int32)


def _down(f: Vector, found: Float[Array, "4 n"]) -> Vector:
    """Levels of all places, from the two ends inwards."""
    n = f.size
    slots = jnp.arange(n)
    off, rising, falling, on = found

    def halve(k: Array, a: Vector) -> Vector:
        half = jnp.right_shift(n, k + 1)
        left = jnp.where(slots >= half, a[jnp.maximum(slots - half, 0)], 0)
        right = a[jnp.minimum(slots + half, n - 1)]
        low, high = jnp.minimum(left, right), jnp.maximum(left, right)
        between = jnp.where(left > right, falling, rising)
        level = jnp.maximum(jnp.maximum(jnp.minimum(low, on), jnp.minimum(high, between)), off)
        return jnp.where(((slots + 1) & (2 * half - 1)) == half, level, a)

    start = jnp.zeros_like(f).at[-1].set(f[-1])
    return jax.lax.fori_loop(0, int(np.log2(n)), halve, start)
