"""Densities known up to their constant."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, PyTree

from jaxcal import convert
from jaxcal.typing import LogDensity


class Unnormalized(eqx.Module):
    """A batch of n predictions with densities proportional to ``exp(log_density(params, y))``.

    ``log_density(params, y)`` sees ONE prediction and one target and returns a scalar; any term
    that does not depend on y may be left out. ``params`` is any pytree; its leaves have a leading
    axis n except where ``in_axes`` (as in ``jax.vmap``) says ``None``, so that the weights of one
    network serve all predictions: ``Unnormalized(energy, (net, xs), in_axes=(None, 0))``.

    ``log_density`` is compared by identity: pass one named function, not a new lambda a call, or
    every call compiles again.
    """

    log_density: LogDensity = eqx.field(static=True)
    params: PyTree = eqx.field(converter=lambda params: convert.leaves(params, "params"))
    in_axes: Any = eqx.field(default=0, static=True)

    def arrays_only(self) -> "Unnormalized":
        """The same predictions, with nothing but arrays among their parameters.

        Networks keep functions among their leaves (the activation of an ``equinox.nn.MLP``); these
        move into the log density.
        """
        arrays, rest = eqx.partition(self.params, eqx.is_array_like)
        leaves, tree = jax.tree.flatten(rest)
        if not leaves:
            return self
        return Unnormalized(_Completed(self.log_density, tuple(leaves), tree), arrays, self.in_axes)


@dataclass(frozen=True)
class _Completed:
    """A log density with the leaves that its parameters lack; equal where these leaves are."""

    log_density: LogDensity
    leaves: tuple[Any, ...]
    tree: Any

    def __call__(self, params: Any, y: Array) -> Array:
        rest = jax.tree.unflatten(self.tree, self.leaves)
        return self.log_density(eqx.combine(params, rest), y)
