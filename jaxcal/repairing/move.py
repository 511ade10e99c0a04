r"""Predictions moved by an affine map in their own units, and their densities.

A prediction p with centre c and scale M becomes the distribution of

.. math:: Y = c + M (a + B M^{-1} (Y_0 - c)), \quad Y_0 \sim p.

:math:`\log p'(y) = \log p(y_0) - \log |B|` keeps the constant of the density, so maps can be fitted
by maximum likelihood even if constants are unknown.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.numerics import full_precision
from jaxcal.read import Unnormalized
from jaxcal.typing import Key, LogDensity, Points, Scalar


class Move(NamedTuple):
    """The map of each prediction, in the units of the data: :math:`y = c + F (y_0 - c) + t`.

    ``center`` [n, d]; ``forward`` [n, d, d] and ``inverse`` [n, d, d], F and its inverse; ``shift``
    [n, d]; ``log_size`` [n], the logarithm of the determinant of F.
    """

    center: Points
    forward: Float[Array, "*n d d"]
    inverse: Float[Array, "*n d d"]
    shift: Points
    log_size: Float[Array, "*n"]

    @full_precision
    def of(self, y0: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Return moved points, one per prediction, or one point for a single move."""
        gaps = y0 - self.center
        return self.center + jnp.einsum("...ij,...j->...i", self.forward, gaps) + self.shift

    @full_precision
    def back(self, y: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Return the inverse of `of`: the points before the move."""
        gaps = y - self.center - self.shift
        return self.center + jnp.einsum("...ij,...j->...i", self.inverse, gaps)


@dataclass(frozen=True)
class MovedDensity:
    """The log density of a moved prediction; two are equal if their original log densities are."""

    log_density: LogDensity

    def __call__(self, params: tuple[Any, Move], y: Array) -> Scalar:
        inner, move = params
        return self.log_density(inner, move.back(y.reshape(-1)).reshape(y.shape)) - move.log_size


class MovedDistribution(eqx.Module):
    """A distribution with batch shape [n] after a move, with the numpyro methods that tests use."""

    distribution: Any
    move: Move

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return (len(self.move.log_size),)

    @property
    def event_shape(self) -> tuple[int, ...]:
        return tuple(self.distribution.event_shape)

    @property
    def support(self) -> Any:
        return self.distribution.support

    def log_prob(self, ys: Float[Array, "*batch"]) -> Float[Array, "*m n"]:
        logs = self.distribution.log_prob(self._each(self.move.back, ys))
        return logs - jnp.expand_dims(self.move.log_size, range(logs.ndim - 1))

    def sample(self, key: Key, shape: tuple[int, ...] = ()) -> Float[Array, "*batch"]:
        n = () if self.distribution.batch_shape else self.batch_shape
        drawn = self.distribution.sample(key, (*shape, *n))  # of the widest type
        return self._each(self.move.of, drawn.astype(self.move.shift.dtype))

    def _each(self, function: Callable[[Array], Array], ys: Array) -> Array:
        """Apply a function of points [n, d] to points [.., n, *event]."""
        n, event = len(self.move.log_size), len(self.event_shape)
        if ys.ndim == event:  # one point for all
            ys = jnp.broadcast_to(ys[None], (n, *ys.shape))
        rows = ys.reshape(
            -1, *ys.shape[ys.ndim - event - 1 : ys.ndim - event], self.move.shift.shape[1]
        )
        return jax.vmap(function)(rows).reshape(ys.shape)


def move_all(predictions: Any, move: Move) -> Any:
    """Return n predictions, an `Unnormalized` or a distribution, after the moves of their rows."""
    if isinstance(predictions, Unnormalized):
        params, axes = (predictions.params, move), (predictions.in_axes, 0)
        return Unnormalized(MovedDensity(predictions.log_density), params, in_axes=axes)
    return MovedDistribution(predictions, move)


@jax.jit
def no_move(like: Move) -> Move:
    """Return as many identity moves, so that one program tests predictions before and after."""
    eyes = jnp.zeros_like(like.forward) + jnp.eye(like.shift.shape[1], dtype=like.shift.dtype)[None]
    nothing = jnp.zeros_like(like.shift)
    return Move(like.center, eyes, eyes, nothing, jnp.zeros_like(like.log_size))
