"""Random numbers of `jax.random`, the same ones, by one kernel each where it takes ten.

On a CPU the rounds of its generator, Threefry, are a loop, and compiling that costs five times what
the rounds written one after another do: most of what a small program takes to its first number.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32
from jaxtyping import Key as _Key

from jaxcal.typing import DTypeLike, Key

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)


def words(key: Key, n: int) -> UInt32[Array, " n"]:
    """``jax.random.bits(key, (n,), uint32)``.

    Source: Salmon, Moraes, Dror and Shaw (2011), Threefry-2x32 of 20 rounds.
    """
    if not _is_threefry(key):
        return jax.random.bits(key, (n,), jnp.uint32)
    first, second = _threefry(key, n)
    # a quotient is computed once, where the compiler repeats cheaper words for each use of their
    # bits; it does not know that the divisor is 1
    one = jnp.minimum(jax.random.key_data(key)[0] | 1, 1)
    return (first ^ second) // one


def split(key: Key, n: int) -> _Key[Array, " n"]:
    """``jax.random.split(key, n)``."""
    if not _is_threefry(key):
        return jax.random.split(key, n)
    return jax.random.wrap_key_data(jnp.stack(_threefry(key, n), axis=-1), impl="threefry2x32")


def permutation(key: Key, n: int) -> Int[Array, " n"]:
    """``jax.random.permutation(key, n)``."""
    if not _is_threefry(key):
        return jax.random.permutation(key, n)
    order = jnp.arange(n)
    rounds = math.ceil(3 * math.log(max(n, 1)) / math.log(2**32 - 1))  # so that few words agree
    for _ in range(rounds):
        key, sort_key = split(key, 2)
        order = jax.lax.sort_key_val(words(sort_key, n), order)[1]
    return order


def normal(key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """``jax.random.normal(key, shape, dtype)``."""
    kind, n = jnp.dtype(dtype), int(np.prod(shape))
    if kind not in (jnp.float32, jnp.float64) or not _is_threefry(key):
        return jax.random.normal(key, shape, dtype)
    if kind == jnp.float32:
        bits = words(key, n)
    else:
        first, second = (part.astype(jnp.uint64) for part in _threefry(key, n))
        bits = (first << 32) | second
    one, info = np.ones((), kind), jnp.finfo(kind)
    mantissas = (bits >> (info.bits - info.nmant)) | one.view(bits.dtype)
    unit = jax.lax.bitcast_convert_type(mantissas, kind) - one  # [0, 1)
    low = np.nextafter(-one, 0 * one)
    uniform = jnp.maximum(low, unit * (one - low) + low)
    return (jax.lax.erf_inv(uniform) * np.sqrt(2 * one)).reshape(shape)


def _is_threefry(key: Key) -> bool:
    by_counter = jax.config.jax_threefry_partitionable  # pyright: ignore
    return by_counter and str(jax.random.key_impl(key)) == "threefry2x32"


def _threefry(key: Key, n: int) -> tuple[UInt32[Array, " n"], UInt32[Array, " n"]]:
    """The two words of each block of the cipher, of the numbers 0, .., n - 1."""
    start, end = jax.random.key_data(key)
    keys = start, end, start ^ end ^ PARITY
    a, b = jnp.full(n, start), jnp.arange(n, dtype=jnp.uint32) + end
    for group in range(5):
        for turn in ROTATIONS[group % 2]:
            a = a + b
            b = a ^ ((b << turn) | (b >> (32 - turn)))
        a, b = a + keys[(group + 1) % 3], b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a, b
