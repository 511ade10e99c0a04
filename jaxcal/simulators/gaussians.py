"""Problems whose posterior is made of Gaussians: linear, linear in a box, and a mixture."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.read import convert
from jaxcal.simulators.simulator import Simulator, box, normal_log_density, numbered

VARIANCE = 0.1  # of the prior and of the noise of the linear problems
NARROW = 0.1  # standard deviation of the narrow half of the mixture's noise


def gaussian_linear(d: int = 10) -> Simulator:
    """Linear Gaussian problem: theta ~ N(0, 0.1 I), x ~ N(theta, 0.1 I).

    The posterior is N(x / 2, 0.05 I).

    Args:
        d: Number of parameters.

    Returns:
        `Simulator` with exact draws of the posterior.

    Source: Lueckmann et al. (2021), task T.1.

    Example:
        >>> import jax, jaxcal
        >>> simulator = jaxcal.simulators.gaussian_linear(d=2)
        >>> pairs = simulator.pairs(0, 5)
        >>> simulator.draw_posterior(jax.random.key(1), pairs.xs[0], 3).shape
        (3, 2)
    """
    import numpyro.distributions as dist

    d = convert.integer(d, "d")
    prior = dist.Normal(jnp.zeros(d), VARIANCE**0.5).to_event(1)
    return Simulator(
        "Gaussian linear",
        prior,
        _draw_linear,
        _linear_log_likelihood,
        numbered(d),
        _draw_linear_posterior,
    )


def gaussian_linear_uniform(d: int = 10) -> Simulator:
    """Gaussian likelihood with a uniform prior: theta ~ U(-1, 1)^d, x ~ N(theta, 0.1 I).

    The posterior is a Gaussian cut off at the box: the smallest example of one with edges.

    Args:
        d: Number of parameters.

    Returns:
        `Simulator` with exact draws of the posterior.

    Source: Lueckmann et al. (2021), task T.2.

    Example:
        >>> import jaxcal
        >>> jaxcal.simulators.gaussian_linear_uniform(d=2).pairs(0, 5).xs.shape
        (5, 2)
    """
    return Simulator(
        "Gaussian linear uniform",
        box(-1.0, 1.0, d),
        _draw_linear,
        _linear_log_likelihood,
        numbered(d),
        _draw_truncated_posterior,
    )


def gaussian_mixture(d: int = 2) -> Simulator:
    """Mixture of a wide and a narrow Gaussian: x ~ N(theta, I) / 2 + N(theta, 0.01 I) / 2.

    theta ~ U(-10, 10)^d. The posterior is the same mixture about x, cut off at the box.

    Args:
        d: Number of parameters.

    Returns:
        `Simulator` with exact draws of the posterior.

    Source: Lueckmann et al. (2021), task T.7.

    Example:
        >>> import jaxcal
        >>> jaxcal.simulators.gaussian_mixture().pairs(0, 5).thetas.shape
        (5, 2)
    """
    return Simulator(
        "Gaussian mixture",
        box(-10.0, 10.0, d),
        _draw_mixture,
        _mixture_log_likelihood,
        numbered(d),
        _draw_mixture_posterior,
    )


def _draw_linear(key: Array, theta: Array) -> Array:
    return theta + VARIANCE**0.5 * jax.random.normal(key, theta.shape, theta.dtype)


def _linear_log_likelihood(theta: Array, x: Array) -> Array:
    return jnp.sum(normal_log_density((x - theta) / VARIANCE**0.5) - jnp.log(VARIANCE) / 2)


def _draw_linear_posterior(key: Array, x: Array, m: int) -> Array:
    return x[None] / 2 + (VARIANCE / 2) ** 0.5 * jax.random.normal(key, (m, *x.shape), x.dtype)


def _draw_truncated_posterior(key: Array, x: Array, m: int) -> Array:
    sd = VARIANCE**0.5
    low, high = (-1 - x[None]) / sd, (1 - x[None]) / sd
    z = jax.random.truncated_normal(key, low, high, (m, *x.shape), x.dtype)
    return jnp.clip(x[None] + sd * z, -1, 1)


def _draw_mixture(key: Array, theta: Array) -> Array:
    half_key, noise_key = jax.random.split(key)
    sd = jnp.where(jax.random.bernoulli(half_key), 1.0, NARROW)
    return theta + sd * jax.random.normal(noise_key, theta.shape, theta.dtype)


def _mixture_log_likelihood(theta: Array, x: Array) -> Array:
    wide = jnp.sum(normal_log_density(x - theta))
    narrow = jnp.sum(normal_log_density((x - theta) / NARROW) - jnp.log(NARROW))
    return jnp.logaddexp(wide, narrow) - jnp.log(2.0)


def _draw_mixture_posterior(key: Array, x: Array, m: int) -> Array:
    """The halves of the mixture weigh what they have inside the box."""
    half_key, noise_key = jax.random.split(key)
    sds = jnp.asarray([1.0, NARROW], x.dtype)
    low, high = (-10 - x[None]) / sds[:, None], (10 - x[None]) / sds[:, None]  # [2, d]
    cdf = jax.scipy.stats.norm.cdf
    inside = jnp.log(cdf(high) - cdf(low)).sum(axis=1)
    half = jax.random.categorical(half_key, inside, shape=(m,))
    z = jax.random.truncated_normal(noise_key, low[half], high[half], dtype=x.dtype)
    return jnp.clip(x[None] + sds[half, None] * z, -10, 10)
