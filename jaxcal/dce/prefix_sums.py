"""Prefix sums of any associative operation over a long axis, in two short loops.

A sequence of n elements is folded to about sqrt(n) rows. One loop walks all rows at once, one walks
the rows' totals: about 2 sqrt(n) steps of vectors instead of n steps of numbers, and a program that
compiles in no time whatever n is.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree


def prefixes(
    combine: Callable[[PyTree, PyTree], PyTree], elements: PyTree[Array], *, reverse: bool = False
) -> PyTree[Array]:
    """Inclusive prefixes ``x_0 * .. * x_i`` along the leading axis n of every leaf.

    ``combine(earlier, later)`` must be associative and act on leaves elementwise. With ``reverse``
    the sequence is read from its end. Cost O(n) calls for single elements, O(sqrt n) steps.
    """
    if reverse:
        flipped = jax.tree.map(lambda leaf: leaf[::-1], elements)
        backward = prefixes(combine, flipped)
        return jax.tree.map(lambda leaf: leaf[::-1], backward)
    n = jax.tree.leaves(elements)[0].shape[0]
    columns = max(1, math.isqrt(n))
    rows = -(-n // columns)

    def fold(leaf: Array) -> Array:
        # what follows the last element changes no earlier prefix
        whole = jnp.concatenate([leaf, jnp.broadcast_to(leaf[-1:], (rows * columns - n,))])
        return whole.reshape(rows, columns).T

    folded = jax.tree.map(fold, elements)
    within = _scan(combine, folded)
    totals = _scan(combine, jax.tree.map(lambda leaf: leaf[-1], within))
    before = jax.tree.map(lambda leaf: leaf[None, :-1], totals)
    rest = combine(before, jax.tree.map(lambda leaf: leaf[:, 1:], within))

    def unfold(first: Array, others: Array) -> Array:
        return jnp.concatenate([first[:, :1], others], axis=1).T.reshape(-1)[:n]

    return jax.tree.map(unfold, within, rest)


def sums(x: Array) -> Array:
    """Cumulative sums, as ``jnp.cumsum``; its program is far shorter, so it compiles sooner."""
    return prefixes(jnp.add, x)


def least(x: Array, *, reverse: bool = False) -> Array:
    """Cumulative minima."""
    return prefixes(jnp.minimum, x, reverse=reverse)


def _scan(combine: Callable[[PyTree, PyTree], PyTree], elements: PyTree[Array]) -> PyTree[Array]:
    """Inclusive prefixes along the leading axis, one step an entry."""

    def step(carry: PyTree, item: PyTree) -> tuple[PyTree, PyTree]:
        total = combine(carry, item)
        return total, total

    first = jax.tree.map(lambda leaf: leaf[0], elements)
    _, later = jax.lax.scan(step, first, jax.tree.map(lambda leaf: leaf[1:], elements))
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, later)
