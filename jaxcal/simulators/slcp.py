"""SLCP: a simple likelihood and a complex posterior."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.simulators.simulator import Simulator, box, normal_log_density, numbered

DRAWS = 4  # points of two coordinates in one observation
JITTER = 1e-6  # added to both variances


def slcp() -> Simulator:
    """Simple likelihood, complex posterior (SLCP): four points of a normal distribution.

    theta ~ U(-3, 3)^5, x = four points of N(m, S), flattened to [8]; m = (theta_1, theta_2),
    standard deviations theta_3^2 and theta_4^2, correlation tanh(theta_5). Two signs that nothing
    can tell make four modes, and the mean score of theta_3 and theta_4 is 0 whatever else is
    right. The reference draws of the benchmark, which are independent, fit this posterior: of 150
    witnesses the largest is 3.3 standard errors from 0 (``experiments/sbi/reference_draws.py``).

    Returns:
        `Simulator`.

    Source: Lueckmann et al. (2021), task T.3; Papamakarios et al. (2019).

    Example:
        >>> import jaxcal
        >>> pairs = jaxcal.simulators.slcp().pairs(0, 5)
        >>> pairs.thetas.shape, pairs.xs.shape
        ((5, 5), (5, 8))
    """
    return Simulator("SLCP", box(-3.0, 3.0, 5), _draw, _log_likelihood, numbered(5))


def _cholesky(theta: Array) -> tuple[Array, Array, Array]:
    """The lower factor's entries (1, 1), (2, 1) and (2, 2)."""
    s1, s2, rho = theta[2] ** 2, theta[3] ** 2, jnp.tanh(theta[4])
    first = jnp.sqrt(s1**2 + JITTER)
    across = rho * s1 * s2 / first
    return first, across, jnp.sqrt(s2**2 + JITTER - across**2)


def _draw(key: Array, theta: Array) -> Array:
    first, across, second = _cholesky(theta)
    z = jax.random.normal(key, (DRAWS, 2), theta.dtype)
    points = jnp.stack(
        [theta[0] + first * z[:, 0], theta[1] + across * z[:, 0] + second * z[:, 1]], axis=-1
    )
    return points.reshape(-1)


def _log_likelihood(theta: Array, x: Array) -> Array:
    first, across, second = _cholesky(theta)
    gaps = x.reshape(DRAWS, 2) - theta[None, :2]
    z1 = gaps[:, 0] / first
    z2 = (gaps[:, 1] - across * z1) / second
    logs = normal_log_density(z1) + normal_log_density(z2)
    return jnp.sum(logs) - DRAWS * (jnp.log(first) + jnp.log(second))
