r"""Calibration functions: guesses h(p, p') of the product of two true residuals.

The target is :math:`h^*(p, p') = \langle p - q(p), p' - q(p')\rangle` with q(p) the conditional
mean of the outcome given the prediction p; its mean on the diagonal is the squared calibration
error. Every function here is a finite sum of products, :math:`h(p, p') = l(p) \cdot r(p')`, so
one pair of `Factors` describes it on a data set. Source: Gruber and Bach (2025), eq. 12, 13, 22.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class Factors(NamedTuple):
    """``h(p_i, p_j) = left_i . right_j``, each of shape [n, r]; the same array where h is a product
    of residuals."""

    left: Float[Array, "n r"]
    right: Float[Array, "n r"]


@runtime_checkable
class CalibrationFunction(Protocol):
    """A symmetric function of two predictions, by its factors at inputs [n, d]."""

    def factors(self, inputs: Array, /) -> Factors: ...


class Residual(eqx.Module):
    """``h(p, p') = r(p) . r(p')`` for a function r from inputs [n, d] to residuals [n, d]."""

    function: Callable[[Array], Array] = eqx.field(static=True)

    def residual(self, inputs: Array) -> Array:
        return self.function(inputs)

    def factors(self, inputs: Array) -> Factors:
        residual = self.function(inputs)
        return Factors(residual, residual)


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


def on_diagonal(factors: Factors) -> Float[Array, " n"]:
    """``h(p_i, p_i)``: negative values occur where h is not a product of residuals."""
    return jnp.sum(factors.left * factors.right, axis=1)


def diagonal(h: CalibrationFunction, ps: Float[Array, "n d"]) -> Float[Array, " n"]:
    """``h(p_i, p_i)``; the mean is the estimate of the squared error. Cost O(n r)."""
    return on_diagonal(h.factors(ps))


def finite_rows(factors: Factors) -> Array:
    """Which observations [n] have finite factors."""
    return jnp.all(jnp.isfinite(factors.left) & jnp.isfinite(factors.right), axis=1)
