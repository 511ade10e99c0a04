"""Hashes of observations, for repeated rows and for a random order independent of positions.

Rows are compared by 32 pseudorandom bits each, in one sort: unequal rows collide in n^2 / 2^33
cases, 1 for 10^5 observations.
"""

from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, UInt32

from jaxcal.typing import DTypeLike, Key

Words = TypeVar("Words", UInt32[Array, "*s"], UInt32[np.ndarray, "*s"])
SHARE = 0.01  # share of observations up to which repeats are not reported
FLOAT32 = 2.0**-22  # times n^2: four times the chance repeats of a density's float32 draws


def fingerprints(tree: PyTree, n: int) -> UInt32[Array, " n"]:
    """Return a 32-bit hash of each of n rows of the arrays in a pytree with n rows."""
    bits = jnp.zeros(n, jnp.uint32)
    for place, leaf in enumerate(jax.tree.leaves(tree)):
        if getattr(leaf, "shape", ())[:1] == (n,) and _is_number(leaf.dtype):
            words = _mixed(_words(jax.lax.stop_gradient(leaf)))
            count = np.arange(1, words.shape[1] + 1, dtype=np.uint32)
            columns = _mixed(count * np.uint32(0x9E3779B9) + np.uint32(place + 1))
            bits += jnp.sum(_mixed(words ^ columns[None]), axis=1, dtype=jnp.uint32)
    return bits


@partial(jax.jit, static_argnames="n")
def drawn_order(key: Key, n: int, tree: PyTree, ties: PyTree = None) -> Int[Array, " n"]:
    """Return row numbers in a random order that does not depend on the order of the rows.

    ``ties`` distinguishes only rows that are equal in ``tree``; rows equal in both are
    interchangeable. Cost O(n log n).
    """
    order = jnp.lexsort((fingerprints(ties, n), fingerprints(tree, n)))
    return order[jax.random.permutation(key, n)]


def repeated_rows(
    targets: Array, of_targets: UInt32[Array, " n"], of_predictions: UInt32[Array, " n"]
) -> Int[Array, ""]:
    """Return how many observations repeat another one, from `fingerprints`; 0 for chance repeats or
    discrete targets. Cost O(n log n).

    Expected by chance: up to 1 % of the rows, and in float32 n^2 / 2^22 of them. Targets count as
    discrete if 1.5 times as many repeat alone as together with their predictions, or if 1.5 times
    as many pairs differ as targets; with one prediction for all, if fewer than a third differ.
    Integers are always discrete.
    """
    n = of_targets.size
    if not jnp.issubdtype(targets.dtype, jnp.inexact):
        return jnp.zeros((), jnp.int32)
    both = jnp.stack([_mixed(of_targets) + of_predictions, of_targets])
    ordered = jnp.sort(both, axis=1)
    whole, alone = jnp.sum(ordered[:, 1:] == ordered[:, :-1], axis=1, dtype=jnp.int32)
    one_prediction = jnp.all(of_predictions == of_predictions[0])
    discrete = (2 * alone > 3 * whole) | (2 * (n - whole) > 3 * (n - alone))
    discrete |= one_prediction & (3 * (n - alone) < n)
    limit = int(max(SHARE * n, FLOAT32 * n**2 if targets.dtype.itemsize <= 4 else 0.0))
    return jnp.where(discrete | (whole <= limit), jnp.zeros_like(whole), whole)


def _is_number(dtype: DTypeLike) -> bool:
    return jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)


def _words(leaf: Array) -> UInt32[Array, "n k"]:
    """Return each row as 32-bit words."""
    rows = leaf.reshape(leaf.shape[0], -1)
    if jnp.issubdtype(rows.dtype, jnp.complexfloating):
        rows = jnp.concatenate([rows.real, rows.imag], axis=1)
    if rows.dtype.itemsize < 4:
        rows = rows.astype(jnp.float32)
    return jax.lax.bitcast_convert_type(rows, jnp.uint32).reshape(rows.shape[0], -1)


def _mixed(words: Words) -> Words:
    """Return scrambled words: the finalizer of MurmurHash3 (Appleby, 2011)."""
    words = (words ^ (words >> 16)) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * np.uint32(0xC2B2AE35)
    return words ^ (words >> 16)
