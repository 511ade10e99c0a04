"""Calibration functions h(p, p'): their values, their mean, and a fit of one candidate."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.squared_ce.functions import (
    CalibrationFunction,
    Candidate,
    Estimator,
    Factors,
    candidate,
    on_diagonal,
)
from jaxcal.squared_ce.reductions import Reduced


class Mean(eqx.Module):
    """The mean of several functions h, which is the ensemble of Algorithm 1 (not of residuals)."""

    functions: tuple[CalibrationFunction, ...] = eqx.field(converter=tuple)

    def factors(self, inputs: Array) -> Factors:
        parts = [function.factors(inputs) for function in self.functions]
        left = jnp.concatenate([part.left for part in parts], axis=1)
        right = jnp.concatenate([part.right for part in parts], axis=1)
        return Factors(left / len(parts), right)


def gram(h: CalibrationFunction, ps: Float[Array, "n d"], qs: Float[Array, "m d"]) -> Array:
    """``[h(p_i, q_j)]``, shape [n, m]."""
    return h.factors(ps).left @ h.factors(qs).right.T


def diagonal(h: CalibrationFunction, ps: Float[Array, "n d"]) -> Float[Array, " n"]:
    """``h(p_i, p_i)``; the mean is the estimate of the squared error. Cost O(n r)."""
    return on_diagonal(h.factors(ps))


def fit_one(estimator: Estimator, train: Reduced) -> Candidate:
    """The only candidate of an estimator whose grid has one; ValueError where it has more."""
    if (c := len(estimator.grid(train))) != 1:
        raise ValueError(f"{estimator.name} has {c} candidates; give it one, or tune it")
    return candidate(estimator.fit(train, []), 0)
