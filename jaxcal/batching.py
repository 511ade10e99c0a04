"""How a program that fills the machine behaves under ``vmap``."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jax.custom_batching import custom_vmap


def one_at_a_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose ``vmap`` on a CPU walks the batch instead of widening it.

    A walk over blocks of H is built to stay in cache; a thousand of them side by side would not.
    On other devices ``vmap`` is what it always is. Gradients (reverse mode) go through, and walk
    the batch too. What is not an array among the arguments is held fixed.
    """
    if jax.default_backend() != "cpu":
        return function

    def call(*args: Any) -> Any:
        arrays, fixed = eqx.partition(args, eqx.is_array)
        return _differentiable(lambda given: function(*eqx.combine(given, fixed)))(arrays)

    return call


def _differentiable(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``custom_vmap`` knows no reverse mode, so the backward pass is written beside the forward."""
    forward = _walking(function)
    pull = _walking(lambda given, cotangent: jax.vjp(function, given)[1](cotangent))
    both = jax.custom_vjp(forward)
    both.defvjp(lambda given: (forward(given), given), pull)
    return both


def _walking(function: Callable[..., Any]) -> Callable[..., Any]:
    batched = custom_vmap(function)

    @batched.def_vmap
    def rule(size: int, is_batched: Any, *args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        marks = jax.tree.leaves(is_batched)

        def one(along: list[Any]) -> Any:
            rest = iter(along)
            mixed = zip(leaves, marks, strict=True)
            return batched(*jax.tree.unflatten(tree, [next(rest) if m else x for x, m in mixed]))

        along = [leaf for leaf, mark in zip(leaves, marks, strict=True) if mark]
        results = jax.lax.map(one, along)
        return results, jax.tree.map(lambda _: True, results)

    return batched
