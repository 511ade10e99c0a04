"""Data to bandwidth: the median heuristic, the only rule of the library."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.typing import Distance, Key, Scalar

MAX_PAIRS = 5000


def pairs(key: Key, n: int, *, most: int = MAX_PAIRS) -> tuple[Int[Array, " p"], Int[Array, " p"]]:
    """Pairs of different observations: all, or ``most`` drawn at random where n is large."""
    if n * (n - 1) // 2 <= most:
        i, j = np.triu_indices(n, 1)
        return jnp.asarray(i), jnp.asarray(j)
    first, step = jax.random.split(key)
    i = jax.random.randint(first, (most,), 0, n)
    return i, (i + jax.random.randint(step, (most,), 1, n)) % n


def positive_median(values: Float[Array, " p"]) -> Scalar:
    """Median; where that is 0, of the positive values; where all are 0, 1. NaN gives NaN."""
    ordered = jnp.sort(values)
    p = values.size
    median = (ordered[(p - 1) // 2] + ordered[p // 2]) / 2
    zeros = jnp.sum(values <= 0)
    rest = jnp.maximum(p - zeros, 1)
    low = jnp.minimum(zeros + (rest - 1) // 2, p - 1)
    high = jnp.minimum(zeros + rest // 2, p - 1)
    of_positive = (ordered[low] + ordered[high]) / 2
    median = jnp.where(median > 0, median, jnp.where(zeros < p, of_positive, 1.0))
    return jnp.where(jnp.any(jnp.isnan(values)), jnp.nan, median)


def median_heuristic(
    key: Key, distance: Distance, features: Any, *, most: int = MAX_PAIRS
) -> tuple[Scalar, Scalar]:
    """Bandwidth for a kernel on a distance, and the largest distance among the pairs looked at.

    The bandwidth is the median distance (not its square) over pairs of different observations,
    in the units of the distance. Cost O(min(n^2, most)) distances. Not finite where a feature is
    not; a largest distance of 0 says that all observations looked at coincide.
    """
    n = jax.tree.leaves(features)[0].shape[0]
    i, j = pairs(key, n, most=most)
    squared = distance.paired(
        jax.tree.map(lambda a: a[i], features), jax.tree.map(lambda a: a[j], features)
    )
    squared = jnp.maximum(squared, 0)
    return positive_median(jnp.sqrt(squared)), jnp.sqrt(jnp.max(squared))
