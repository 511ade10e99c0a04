"""The order of numbers >= 0, by NumPy on a CPU: its vectorised sort of whole numbers is many times
faster than the compiler's, which calls a comparison for every pair.

The bits of nonnegative floats, read as integers, have the order of the floats. So the leading bits
of a number and its place share one word of 64 bits, and one sort of these words gives the order.
All bits fit for float32. For float64 only the first 64 - log2(n) bits that differ within the range
of the numbers are kept; where that leaves neighbours in the wrong order, a second sort of the
nearly sorted numbers mends it.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from jaxcal.typing import ArrayLike

LEAST = 2**14  # numbers for which a compiled program calls NumPy


def order(x: Float[Array, " n"]) -> Int[Array, " n"]:
    """Places of ``x`` [n] >= 0 from the least to the largest, NaN last, ties as they come.

    Works under jit, vmap and differentiation (the order has no slope). On a CPU a compiled program
    calls NumPy for 16,384 numbers or more.
    """
    x = jax.lax.stop_gradient(x)
    if jax.default_backend() == "cpu":
        if not isinstance(x, Tracer):
            return jnp.asarray(host_order(np.asarray(x)))
        if x.shape[-1] >= LEAST:
            shape = jax.ShapeDtypeStruct(x.shape, np.int32)
            return jax.pure_callback(_orders, shape, x, vmap_method="broadcast_all")
    return jnp.argsort(x).astype(jnp.int32)


def ascending(x: Float[Array, " n"]) -> Float[Array, " n"]:
    """The numbers ``x`` [n] in ascending order, NaN last, without a slope: a third of `order`."""
    x = jax.lax.stop_gradient(x)
    if jax.default_backend() == "cpu":
        if not isinstance(x, Tracer):
            return jnp.asarray(np.sort(np.asarray(x)))
        if x.shape[-1] >= LEAST:
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return jax.pure_callback(_sorts, shape, x, vmap_method="broadcast_all")
    return jnp.sort(x)


def _sorts(x: ArrayLike) -> Float[np.ndarray, "..."]:
    return np.sort(np.asarray(x), axis=-1)


def _orders(x: ArrayLike) -> Int[np.ndarray, "..."]:
    """By NumPy alone: JAX must not be called from here."""
    x = np.asarray(x)
    rows = x.reshape(-1, x.shape[-1])
    return np.stack([host_order(row) for row in rows]).reshape(x.shape)


def host_order(x: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """The same of a NumPy array."""
    word = np.uint32 if x.dtype == np.float32 else np.uint64
    nonnegative = np.iinfo(word).max >> 1
    keys = (x.view(word) & word(nonnegative)).astype(np.uint64, copy=False)  # -0.0 is 0.0
    least = keys.min()
    place_bits = (x.size - 1).bit_length()
    over = int(keys.max() - least).bit_length() + place_bits - 64
    keys -= least
    if over > 0:
        keys >>= np.uint64(over)
    keys <<= np.uint64(place_bits)
    keys |= np.arange(x.size, dtype=np.uint64)
    keys.sort()
    keys &= np.uint64((1 << place_bits) - 1)
    places = keys.astype(np.int32)
    if over > 0:
        ascending = x[places]
        if not np.all(ascending[1:] >= ascending[:-1]):
            places = places[np.argsort(ascending, kind="stable")]
    return places
