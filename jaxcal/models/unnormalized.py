"""Densities known up to their constant."""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
from jaxtyping import Array, PyTree

from jaxcal import convert
from jaxcal.typing import LogDensity


class Unnormalized(eqx.Module):
    """A batch of n predictions with densities proportional to ``exp(log_density(params, y))``.

    Args:
        log_density: Function of the parameters of ONE prediction and one target that returns a
            scalar; any term that does not depend on y may be left out. It is compared by
            identity: pass one named function, not a new lambda for each call, or every call
            compiles again.
        params: Any pytree; its leaves have a leading axis n, except where ``in_axes`` says
            otherwise.
        in_axes: As in ``jax.vmap``: None for leaves that all predictions share, such as the
            weights of a network: ``Unnormalized(energy, (net, xs), in_axes=(None, 0))``.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> def log_density(params, y):  # a quartic well, whose constant nobody needs
        ...     center, width = params
        ...     return -jnp.sum(((y - center) / width) ** 4)
        >>> centers = jax.random.normal(jax.random.key(0), (100, 2))
        >>> predictions = jaxcal.Unnormalized(log_density, (centers, jnp.ones(100)))
        >>> jaxcal.kccsd_test(1, predictions, centers + 0.5).verdict
        'rejected'
    """

    log_density: LogDensity = eqx.field(static=True)
    params: PyTree
    in_axes: PyTree = eqx.field(static=True)

    def __init__(self, log_density: LogDensity, params: PyTree, in_axes: PyTree = 0):
        if not callable(log_density):
            raise TypeError(
                f"log_density: wanted a function log_density(params, y), got "
                f"{convert.say(log_density)}: Unnormalized(log_density, params)"
            )
        self.log_density = log_density
        self.params = convert.leaves(params, "params")
        self.in_axes = in_axes

    def sliced(self, rows: Callable[[Array, int], Array]) -> "Unnormalized":
        """The predictions of some rows: ``rows(leaf, axis)`` takes those of a leaf."""

        def shared(axis: object) -> bool:
            return axis is None

        each = jax.tree.broadcast(self.in_axes, self.params, is_leaf=shared)
        axes = jax.tree.leaves(each, is_leaf=shared)
        leaves, tree = jax.tree.flatten(self.params)
        pairs = zip(leaves, axes, strict=True)
        taken = [leaf if axis is None else rows(leaf, axis) for leaf, axis in pairs]
        return Unnormalized(self.log_density, jax.tree.unflatten(tree, taken), self.in_axes)

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
    leaves: tuple[PyTree, ...]
    tree: PyTree

    def __call__(self, params: PyTree, y: Array) -> Array:
        rest = jax.tree.unflatten(self.tree, self.leaves)
        return self.log_density(eqx.combine(params, rest), y)
