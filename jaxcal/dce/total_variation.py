r"""L1 total variation denoising of a function on [0, 1], exactly: it is isotonic regression.

Wanted is the step function a that minimises

.. math:: \sum_i |a_i - a_{i-1}| + \sum_i g_i |F_i - a_i|, \qquad a_{-1} = 0,\ a_{n-1} = F_{n-1},

where the widths :math:`g_i` add up to no more than 2 (on [0, 1], to 1). Both terms are integrals
over levels :math:`\lambda`, with :math:`u_i = 1(a_i > \lambda)`. To leave the state of an end and
come back costs two jumps and saves no more than the widths: so each level has no jump where both
ends agree, and ONE where they differ. Hence a is monotone from 0 to :math:`F_{n-1}`, its variation
is :math:`|F_{n-1}|`, and what is left is the L1 isotonic regression of F cut off at both ends.

Where a level jumps is where a cumulative sum is least. All levels are found by halving their ranks:
each round settles one bit of every :math:`a_i` by one cumulative sum and its running minimum within
runs of places not yet told apart. log2(n) rounds of O(n); one sort for the ranks.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from jaxcal.dce.sorting import order
from jaxcal.typing import Vector


def denoise(f: Vector, g: Vector) -> Vector:
    """The minimiser a [n] of the sum above; where several are, one of them.

    ``f`` [n] the function, ``g`` [n] >= 0 the widths of its steps, of sum at most 2 (not checked);
    the last width counts as 0. Every a_i is exactly 0 or one of the f. Cost: one sort and
    O(n log n), memory O(n).
    """
    n = f.size
    sign = jnp.where(f[-1] < 0, -1, 1).astype(f.dtype)
    clipped = jnp.clip(sign * f, 0, sign * f[-1])
    slots = jnp.arange(n, dtype=jnp.int32)
    places = order(clipped)
    levels = clipped[places]
    rank = jnp.zeros_like(slots).at[places].set(slots, unique_indices=True)
    ranks = _isotonic(rank, g.at[-1].set(0))
    return (sign * levels.at[ranks].get(mode="clip")).at[-1].set(f[-1])


def _isotonic(rank: Int[Array, " n"], g: Vector) -> Int[Array, " n"]:
    """The nondecreasing sequence of ranks a that minimises sum g |1(rank >= q) - 1(a >= q)| for
    every q at once. Places are folded to columns that are walked together."""
    n = rank.size
    columns = max(1, math.isqrt(n))
    rows = -(-n // columns)
    none = jnp.iinfo(rank.dtype).max

    def fold(x: Array) -> Array:
        # what follows the last place has no width
        return jnp.pad(x, (0, rows * columns - n)).reshape(columns, rows).T

    rank, g = fold(rank), fold(g)
    rounds = (n - 1).bit_length()

    def halve(k: Array, low: Array) -> Array:
        step = jnp.left_shift(jnp.ones((), low.dtype), rounds - 1 - k)
        # what a place adds to the cost of a jump after it, if its rank decides for low + step
        cost = jnp.where(rank >= low + step, g, -g)
        begin = jnp.cumsum(jnp.sum(cost, axis=0))
        begin = jnp.concatenate([jnp.zeros(1, g.dtype), begin[:-1]])

        def walk(carry: PyTree, item: PyTree) -> PyTree:
            total, run, least = carry
            least = jnp.where(item[1] == run, least, total)  # a new run starts afresh
            total = total + item[0]
            return (total, item[1], jnp.minimum(least, total)), (total, least)

        ends, (total, least) = jax.lax.scan(walk, (begin, low[0], begin), (cost, low))

        def join(carry: PyTree, column: PyTree) -> PyTree:
            run, least = column
            least = jnp.where(run == carry[0], jnp.minimum(least, carry[1]), least)
            return (run, least), carry

        start = (jnp.full((), -1, low.dtype), jnp.full((), jnp.inf, g.dtype))
        _, (run, before) = jax.lax.scan(join, start, ends[1:])
        least = jnp.where(low == run[None], jnp.minimum(least, before[None]), least)
        # a place before the last new minimum of its run stays; others jump
        key = jnp.where(total < least, low, none)

        def back(carry: Array, item: Array) -> tuple[Array, Array]:
            return jnp.minimum(carry, item), carry

        _, after = jax.lax.scan(back, jnp.full((), none), jnp.min(key, axis=0), reverse=True)
        _, later = jax.lax.scan(back, after, key, reverse=True)
        return jnp.where(jnp.minimum(later, key) == low, low, low + step)

    ranks = jax.lax.fori_loop(0, rounds, halve, jnp.zeros_like(rank))
    return ranks.T.reshape(-1)[:n]
