"""What users bring, in the form the library computes with: keys and integers."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from jaxcal.typing import Key

DIGIT = 2**32  # a threefry key is seeded by one such digit


def key(value: Any, name: str = "key") -> Key:
    """A typed random key from a typed key, a legacy ``PRNGKey`` array or an integer seed.

    Seeds from 0 to 2**32 - 1 give ``jax.random.key(seed)``; the digits of a larger or negative one
    (as its two's complement) are folded in one after the other, so that no seed is cut off and
    none depends on the float type. A traced seed has the digits of its type. Raises TypeError for
    anything else and ValueError for a batch of keys.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return _seeded(int(value))
    dtype = getattr(value, "dtype", None)
    if dtype is not None and isinstance(value, np.ndarray | jax.Array):
        if jnp.issubdtype(dtype, jnp.integer) and value.ndim == 0:
            return jax.random.key(value) if isinstance(value, Tracer) else _seeded(int(value))
        if dtype == jnp.uint32:
            value = _legacy(value, name)
            dtype = value.dtype
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            if value.shape != ():
                raise ValueError(f"{name}: wanted one key, got a batch of shape {value.shape}")
            return jnp.asarray(value)
    raise TypeError(
        f"{name}: wanted a random key such as jax.random.key(0), a legacy jax.random.PRNGKey or an "
        f"integer seed, got {say(value)}"
    )


def _seeded(seed: int) -> Key:
    typed, rest = jax.random.key(np.uint32(seed % DIGIT)), seed // DIGIT
    while rest:
        typed = jax.random.fold_in(typed, np.uint32(rest % DIGIT))
        rest = 0 if rest == -1 else rest // DIGIT
    return typed


def _legacy(value: Any, name: str) -> Array:
    try:
        return jax.random.wrap_key_data(jnp.asarray(value))
    except TypeError:
        raise TypeError(
            f"{name}: {say(value)} is not the data of a key of the default generator; pass "
            f"jax.random.key(seed)"
        ) from None


def integer(value: Any, name: str, *, least: int = 1, most: int | None = None) -> int:
    """A Python integer from one of Python, NumPy or JAX, or ValueError; True is none."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        range_ = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}: wanted an integer {range_}, got {say(value)}")
    return number


def say(value: Any) -> str:
    """What came, for an error's sentence."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {tuple(value.shape)} and type {value.dtype}"
    return f"{type(value).__name__} {value!r}"[:80]
