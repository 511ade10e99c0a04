"""Distributions over counts as their probabilities of 0, 1, 2, ..: any numpyro distribution of one
whole number at or above 0, also inside mixtures and with excess zeros."""

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
LARGEST = 2**27  # probabilities in memory
OMITTED = 1e-9  # of the probability of each prediction


def is_count(predictions: Any) -> bool:
    """Whether these are distributions of one whole number each, batch shape [n]."""
    support = getattr(predictions, "support", None)
    discrete = getattr(support, "is_discrete", False) and hasattr(predictions, "log_prob")
    return discrete and len(predictions.batch_shape) == 1 and predictions.event_shape in ((), (1,))


def lattice_size(predictions: PredictionsLike) -> int | None:
    """How many of the counts 0, 1, .. hold all but `OMITTED` of every prediction's probability.

    A number of `SIZES`, so that programs are shared. None where the predictions are no counts,
    where a tail or a negative value leaves more outside, and where values are traced.
    """
    if not is_count(predictions):
        return None
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(predictions)):
        return None
    for size in SIZES:
        if predictions.batch_shape[0] * size > LARGEST:  # pyright: ignore
            return None
        p = np.asarray(_probabilities(predictions, 2 * size), float)
        p = p[np.isfinite(p).all(axis=1)]  # the others are counted later
        tails, totals = p[:, size:].sum(axis=1), p.sum(axis=1)
        if np.all(tails <= OMITTED) and np.all(abs(totals - 1) <= rounding()):
            return size
    return None


def rounding() -> float:
    """How far the sum of all probabilities may be from 1."""
    return 1e-6 if jnp.result_type(float) == jnp.float64 else 1e-3


def lattice(predictions: PredictionsLike, size: int) -> Lattice:
    """Probabilities of 0, .., size - 1, normalized; NaN where they do not hold all probability."""
    p = _probabilities(predictions, size)
    total = jnp.sum(p, axis=1, keepdims=True)
    weights = jnp.where(jnp.abs(total - 1) <= rounding(), p / total, jnp.nan)
    return Lattice(jnp.arange(size, dtype=p.dtype)[:, None], weights)


def _probabilities(predictions: Any, size: int) -> Float[Array, "n m"]:
    base = bare(predictions)  # a mask would hide probabilities
    shape = (size, *predictions.batch_shape, *predictions.event_shape)
    values = jnp.arange(size, dtype=float).reshape(size, *(1,) * (len(shape) - 1))
    values = jnp.broadcast_to(values, shape)
    with warnings.catch_warnings():  # of values outside the support, which have probability 0 here
        warnings.simplefilter("ignore")
        p = jnp.where(base.support(values), jnp.exp(base.log_prob(values.astype(int))), 0)
    return p.reshape(size, -1).T
