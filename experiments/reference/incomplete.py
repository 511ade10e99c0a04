"""Estimates from fewer pairs, or from draws in the place of means: noisier ones."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.squared_ce.functions import Factors
from jaxcal.typing import Key, Scalar


def consecutive_risk(residuals: Float[Array, "n d"], factors: Factors) -> Scalar:
    """The n - 1 pairs (i, i + 1) alone: unbiased, O(n (d + r)), for observations in random order.

    Its variance is about that of n / 2 independent pairs, much more than that of all pairs.
    """
    first = jnp.arange(residuals.shape[0] - 1)
    return _mean_of_pairs(residuals, factors, first, first + 1)


def random_pairs_risk(
    key: Key, residuals: Float[Array, "n d"], factors: Factors, *, n_pairs: int
) -> Scalar:
    """``n_pairs`` pairs i != j drawn with replacement: unbiased, O(n_pairs (d + r))."""
    n = residuals.shape[0]
    first_key, step_key = jax.random.split(key)
    first = jax.random.randint(first_key, (n_pairs,), 0, n)
    second = (first + jax.random.randint(step_key, (n_pairs,), 1, n)) % n
    return _mean_of_pairs(residuals, factors, first, second)


def _mean_of_pairs(residuals: Array, factors: Factors, i: Array, j: Array) -> Scalar:
    targets = jnp.sum(residuals[i] * residuals[j], axis=1)
    values = jnp.sum(factors.left[i] * factors.right[j], axis=1)
    return jnp.mean((targets - values) ** 2)


def sampled_residuals(
    key: Key, q: Float[Array, "n m"], labels: Int[Array, " n"], *, n_samples: int = 1
) -> Float[Array, "n m"]:
    """Targets minus the mean of ``n_samples`` classes drawn from each prediction.

    CKCE from them exceeds the exact value by `conditional_means.null_mean` over ``n_samples``.
    Source: Moskvichev and Sejdinovic, Section 3.1, which replaces draws by their means.
    """
    drawn = jax.random.categorical(key, jnp.log(q), axis=1, shape=(n_samples, q.shape[0]))
    counts = jax.vmap(lambda z: jax.nn.one_hot(z, q.shape[1], dtype=q.dtype))(drawn)
    return jax.nn.one_hot(labels, q.shape[1], dtype=q.dtype) - jnp.mean(counts, axis=0)
