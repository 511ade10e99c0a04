"""Predictions that were evaluated elsewhere (PyTorch, R, Julia) and arrive as arrays."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.typing import ArrayLike

SETTLED = 1.01  # R-hat up to here counts as settled


def _array(value: ArrayLike) -> Any:
    """The value unchanged: tests read it and say what is wrong with it."""
    return value


def _array_or_none(value: ArrayLike | None) -> Any:
    return value


class Scores(eqx.Module):
    """Precomputed scores of n predictions, as arrays or tensors of any library.

    A score is the gradient of log f in the target, in units of 1 / target.

    Args:
        at_targets: Gradient of log f_i at target i, [n, d], or the shape of the targets.
        at_nodes: The same at m nodes, the same points for every prediction, [n, m, d]. The
            Fisher divergences need it.
        nodes: Those points, [m, d]. The kernelized Fisher divergence and preconditioning need
            them.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100, 1))
        >>> targets, nodes = centers + noise, jnp.linspace(-2, 2, 8)[:, None]
        >>> scores = jaxcal.Scores(centers - targets, centers[:, None] - nodes, nodes)
        >>> jaxcal.kccsd_test(1, scores, targets).contributions.shape
        (100,)
    """

    at_targets: Any = eqx.field(converter=_array)
    at_nodes: Any = eqx.field(default=None, converter=_array_or_none)
    nodes: Any = eqx.field(default=None, converter=_array_or_none)


class LogDensities(eqx.Module):
    """Precomputed log densities of n predictions, as arrays or tensors of any library.

    Each prediction's may lack a constant of its own.

    Args:
        at_targets: log f_i at target i, [n].
        at_draws: The same at m independent draws from prediction i, [n, m].

    Example:
        >>> import jax, jaxcal
        >>> targets, draws = jax.random.normal(jax.random.key(0), (2, 99, 20))
        >>> logs = jaxcal.LogDensities(-(targets[:, 0] ** 2), -(draws**2))
        >>> jaxcal.coverage.coverage(logs).ranks.shape
        (99,)
    """

    at_targets: Any = eqx.field(converter=_array)
    at_draws: Any = eqx.field(converter=_array)


class Draws(eqx.Module):
    """m draws from each of n predictions, in the units of the targets.

    Args:
        samples: Draws, [n, m, d], or [n, m] for targets of shape [n].
        rhat: R-hat of the chains of each prediction, [n], NaN where it is not known; None where
            draws do not come from chains. Tests warn where chains have not settled (R-hat above
            1.01, or unknown).

    Example:
        >>> import jax, jaxcal
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> samples = centers[:, None] + jax.random.normal(jax.random.key(1), (100, 16))
        >>> jaxcal.skce_test(2, jaxcal.Draws(samples), centers + 0.8 + noise).verdict
        'rejected'
    """

    samples: Any = eqx.field(converter=_array)
    rhat: Any = eqx.field(default=None, converter=_array_or_none)

    def unsettled(self) -> Float[Array, ""] | None:
        """The share of predictions not known to have settled, []; None without R-hat."""
        if self.rhat is None:
            return None
        return jnp.mean(~(jnp.asarray(self.rhat) <= SETTLED), dtype=float)
