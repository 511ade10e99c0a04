"""Distributions over counts as probabilities of 0, 1, 2, ..: any numpyro distribution of one
integer at or above 0, also in mixtures and zero-inflated."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxcal.read.families import Lattice, bare
from jaxcal.typing import PredictionsLike

SIZES = (64, 128, 256, 512, 1024, 2048)
LARGEST = 2**27  # largest number of probabilities in memory
OMITTED = 1e-9  # largest probability of each prediction that is left out


def is_count(predictions: Any) -> bool:
    """Return whether these are distributions of one integer each, batch shape [n]."""
    support = getattr(predictions, "support", None)
    discrete = getattr(support, "is_discrete", False) and hasattr(predictions, "log_prob")
    return discrete and len(predictions.batch_shape) == 1 and predictions.event_shape in ((), (1,))


def lattice_size(predictions: PredictionsLike) -> int | None:
    """Return how many of the counts 0, 1, .. hold all but `OMITTED` of every probability.

    One of `SIZES`, so that compiled programs are shared. None if predictions are no counts, have
    more probability elsewhere, or are traced.
    """
    if not is_count(predictions):
        return None
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(predictions)):
        return None
    for size in SIZES:
        if predictions.batch_shape[0] * size > LARGEST:  # pyright: ignore
            return None
        p = np.asarray(_probabilities(predictions, 2 * size), float)
        p = p[np.isfinite(p).all(axis=1)]  # others are reported later
        tails, totals = p[:, size:].sum(axis=1), p.sum(axis=1)
        if np.all(tails <= OMITTED) and np.all(abs(totals - 1) <= rounding()):
            return size
    return None


def rounding() -> float:
    """Return how much the sum of all probabilities may differ from 1."""
    return 1e-6 if jnp.result_type(float) == jnp.float64 else 1e-3


def lattice(predictions: PredictionsLike, size: int) -> Lattice:
    """Return normalized probabilities of 0, .., size - 1; NaN if these are not all counts."""
    p = _probabilities(predictions, size)
    total = jnp.sum(p, axis=1, keepdims=True)
    weights = jnp.where(jnp.abs(total - 1) <= rounding(), p / total, jnp.nan)
    return Lattice(jnp.arange(size, dtype=p.dtype)[:, None], weights)


def _probabilities(predictions: Any, size: int) -> Float[Array, "n m"]:
    base = bare(predictions)  # without masks, which hide probabilities
    shape = (size, *predictions.batch_shape, *predictions.event_shape)
    values = jnp.arange(size, dtype=float).reshape(size, *(1,) * (len(shape) - 1))
    values = jnp.broadcast_to(values, shape)
    with warnings.catch_warnings():  # values outside the support correctly have probability 0
        warnings.simplefilter("ignore")
        p = jnp.where(base.support(values), jnp.exp(base.log_prob(values.astype(int))), 0)
    return p.reshape(size, -1).T
