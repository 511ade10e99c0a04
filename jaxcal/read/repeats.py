"""Observations by their bits: those that stand in the data more than once, and a random order of
all that does not depend on where they stand.

Rows are compared by 32 random-looking bits of each, in one sort: unequal rows are taken for equal
in n^2 / 2^33 cases, 1 in 10^5 observations.
"""

from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, UInt32

from jaxcal.typing import DTypeLike, Key

Words = TypeVar("Words", UInt32[Array, "*s"], UInt32[np.ndarray, "*s"])
SHARE = 0.01  # of the observations, up to which repeats are not named
FLOAT32 = 2.0**-22  # times n^2: four times the chance repeats of one density's float32 draws


def fingerprints(tree: PyTree, n: int) -> UInt32[Array, " n"]:
    """32 bits of each of n rows of the arrays in a pytree that have n; others are left out."""
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
    """Row numbers in random order, the same rows wherever they stand in the arrays of a pytree.

    What ``ties`` holds counts only among rows that are equal in ``tree``. Rows equal in both may
    change places, which changes nothing. Cost O(n log n).
    """
    order = jnp.lexsort((fingerprints(ties, n), fingerprints(tree, n)))
    return order[jax.random.permutation(key, n)]


def repeated_rows(
    targets: Array, of_targets: UInt32[Array, " n"], of_predictions: UInt32[Array, " n"]
) -> Int[Array, ""]:
    """How many observations repeat another one beyond chance, from their `fingerprints`; 0 where
    it is chance, or where targets are discrete. Cost O(n log n).

    Chance: up to 1 % of the rows, and in float32 n^2 / 2^22 of them. Targets are taken for discrete
    where half as many again repeat as do together with their predictions, or half as many again
    pairs differ as do targets; with one prediction for all, where fewer than a third of them
    differ. Integers always are.
    """
    n = of_targets.size
    if not jnp.issubdtype(targets.dtype, jnp.inexact):
        return jnp.zeros((), jnp.int32)
    both = jnp.stack([_mixed(of_targets) + of_predictions, of_targets])
    whole, alone = _repeated(both)
    one_prediction = jnp.all(of_predictions == of_predictions[0])
    discrete = (2 * alone > 3 * whole) | (2 * (n - whole) > 3 * (n - alone))
    discrete |= one_prediction & (3 * (n - alone) < n)
    limit = int(max(SHARE * n, FLOAT32 * n**2 if targets.dtype.itemsize <= 4 else 0.0))
    return jnp.where(discrete | (whole <= limit), jnp.zeros_like(whole), whole)


def _repeated(bits: UInt32[Array, "k n"]) -> Int[Array, " k"]:
    """How many entries of each row equal one before them."""
    ordered = jnp.sort(bits, axis=1)
    return jnp.sum(ordered[:, 1:] == ordered[:, :-1], axis=1, dtype=jnp.int32)


def _is_number(dtype: DTypeLike) -> bool:
    return jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)


def _words(leaf: Array) -> UInt32[Array, "n k"]:
    """Each row as words of 32 bits."""
    rows = leaf.reshape(leaf.shape[0], -1)
    if jnp.issubdtype(rows.dtype, jnp.complexfloating):
        rows = jnp.concatenate([rows.real, rows.imag], axis=1)
    if rows.dtype.itemsize < 4:
        rows = rows.astype(jnp.float32)
    return jax.lax.bitcast_convert_type(rows, jnp.uint32).reshape(rows.shape[0], -1)


def _mixed(words: Words) -> Words:
    """One word to another, near ones to far ones: the finalizer of MurmurHash3 (Appleby, 2011)."""
    words = (words ^ (words >> 16)) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * np.uint32(0xC2B2AE35)
    return words ^ (words >> 16)
