"""Densities known up to their constant."""

from typing import Any

import equinox as eqx
from jaxtyping import Array, PyTree

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
    params: PyTree[Array]
    in_axes: Any = eqx.field(default=0, static=True)
