"""Predictions that were evaluated elsewhere (PyTorch, R, Julia) and arrive as arrays."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

SETTLED = 1.1  # R-hat up to here counts as settled


class Scores(eqx.Module):
    """Precomputed scores, in the units of 1 / target, as arrays or tensors of any library.

    ``at_targets`` [n, d]: the gradient of log f_i at target i. ``at_nodes`` [n, m, d]: the same at
    m base points, the same points for every prediction; the Fisher distances need it. ``nodes``
    [m, d]: those points; the kernelized Fisher distance and preconditioning need them.
    """

    at_targets: Any
    at_nodes: Any = None
    nodes: Any = None


class Draws(eqx.Module):
    """m draws from each of n predictions, shape [n, m, d], in the units of the targets.

    ``rhat`` [n], where they come from chains: R-hat of each prediction, NaN where it is not known.
    Tests warn where chains have not settled.
    """

    samples: Any
    rhat: Any = None

    def unsettled(self) -> Float[Array, ""] | None:
        """The share of predictions not known to have settled; None without R-hat."""
        if self.rhat is None:
            return None
        return jnp.mean(~(jnp.asarray(self.rhat) <= SETTLED), dtype=float)
