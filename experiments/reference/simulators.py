"""More problems, on which studies compare posteriors (Lueckmann et al., 2021)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from jaxcal.read import convert
from reference.problems import (
    VARIANCE,
    Simulator,
    _draw_linear,
    _linear_log_likelihood,
    box,
    normal_log_density,
    numbered,
    runge_kutta,
)

NARROW = 0.1  # standard deviation of the narrow half of the mixture's noise
BINS, LAGS = 100, 9  # of the neuron's response
POPULATION, TESTED, DAYS_APART = 1e6, 1000, 17.0  # of the epidemic
DRAWS = 4  # points of two coordinates in one observation
JITTER = 1e-6  # added to both variances


def gaussian_linear_uniform(d: int = 10) -> Simulator:
    """Gaussian likelihood with a uniform prior: theta ~ U(-1, 1)^d, x ~ N(theta, 0.1 I).

    The posterior is a Gaussian cut off at the box: the smallest example of one with edges.

    Args:
        d: Number of parameters.

    Returns:
        `Simulator` with exact draws of the posterior.

    Source: Lueckmann et al. (2021), task T.2.
    """
    return Simulator(
        "Gaussian linear uniform",
        box(-1.0, 1.0, d),
        _draw_linear,
        _linear_log_likelihood,
        numbered(d),
        _draw_truncated_posterior,
    )


def _draw_truncated_posterior(key: Array, x: Array, m: int) -> Array:
    sd = VARIANCE**0.5
    low, high = (-1 - x[None]) / sd, (1 - x[None]) / sd
    z = jax.random.truncated_normal(key, low, high, (m, *x.shape), x.dtype)
    return jnp.clip(x[None] + sd * z, -1, 1)


def gaussian_mixture(d: int = 2) -> Simulator:
    """Mixture of a wide and a narrow Gaussian: x ~ N(theta, I) / 2 + N(theta, 0.01 I) / 2.

    theta ~ U(-10, 10)^d. The posterior is the same mixture about x, cut off at the box.

    Args:
        d: Number of parameters.

    Returns:
        `Simulator` with exact draws of the posterior.

    Source: Lueckmann et al. (2021), task T.7.
    """
    return Simulator(
        "Gaussian mixture",
        box(-10.0, 10.0, d),
        _draw_mixture,
        _mixture_log_likelihood,
        numbered(d),
        _draw_mixture_posterior,
    )


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


def bernoulli_glm(stimulus: Float[Array, "100"] | None = None) -> Simulator:
    """Bernoulli generalized linear model: an offset and a filter of 9 lags, theta [10].

    Spikes z_t ~ Bernoulli(sigmoid(v_t theta)) in 100 bins, v_t = (1, I_t, .., I_{t-8}) of the
    stimulus I. x = sum_t v_t z_t [10] are the sufficient statistics: the number of spikes and the
    spike-triggered stimulus. The prior is N(0, P^-1) with precision 1/2 for the offset and F^T F
    for the filter, which punishes second differences. The likelihood depends on z through x
    alone.

    Args:
        stimulus: Another stimulus than the fixed noise, [100].

    Returns:
        `Simulator`.

    Source: Lueckmann et al. (2021), task T.5; Goncalves et al. (2020).
    """
    import numpyro.distributions as dist

    noise = np.random.default_rng(42).normal(size=BINS) if stimulus is None else stimulus
    design = design_matrix(_stimulus(noise))
    difference = np.eye(LAGS) - np.eye(LAGS, k=-1)
    smooth = difference @ difference + np.diag(np.sqrt(np.arange(LAGS) / LAGS))
    precision = np.zeros((LAGS + 1, LAGS + 1))
    precision[0, 0] = 0.5
    precision[1:, 1:] = smooth.T @ smooth
    prior = dist.MultivariateNormal(jnp.zeros(LAGS + 1), precision_matrix=jnp.asarray(precision))
    return Simulator(
        "Bernoulli GLM",
        prior,
        Partial(_draw_spikes, design),
        Partial(_glm_log_likelihood, design),
        ("offset", *(f"lag_{k}" for k in range(LAGS))),
    )


def _stimulus(value: object) -> Array:
    stimulus = convert.floats(value, "stimulus").astype(jnp.result_type(float))
    if stimulus.ndim != 1 or stimulus.size < LAGS:
        raise ValueError(
            f"stimulus: wanted one number a bin, at least {LAGS}, got shape {stimulus.shape}"
        )
    return stimulus


def design_matrix(stimulus: Float[Array, " t"]) -> Float[Array, "t 10"]:
    """A column of ones and the stimulus at lags 0 to 8, 0 before it begins."""
    padded = jnp.concatenate([jnp.zeros(LAGS - 1, stimulus.dtype), stimulus])
    lagged = [padded[LAGS - 1 - k : LAGS - 1 - k + stimulus.size] for k in range(LAGS)]
    return jnp.stack([jnp.ones_like(stimulus), *lagged], axis=1)


def _draw_spikes(design: Array, key: Array, theta: Array) -> Array:
    spikes = jax.random.bernoulli(key, jax.nn.sigmoid(design @ theta))
    return spikes.astype(theta.dtype) @ design


def _glm_log_likelihood(design: Array, theta: Array, x: Array) -> Array:
    return x @ theta - jnp.sum(jax.nn.softplus(design @ theta))


def sir() -> Simulator:
    """An epidemic (SIR) with contact rate beta and recovery rate gamma per day.

    dS = -beta S I / N, dI = beta S I / N - gamma I from I = 1 among N = 10^6. Every 17 days a
    Binomial(1000, I / N) of people tested is found infected: x is [10] counts.
    beta ~ LogNormal(log 0.4, 0.5), gamma ~ LogNormal(log 1/8, 0.2).

    Returns:
        `Simulator`.

    Source: Lueckmann et al. (2021), task T.9.
    """
    import numpyro.distributions as dist

    prior = dist.LogNormal(jnp.log(jnp.asarray([0.4, 0.125])), jnp.asarray([0.5, 0.2]))
    return Simulator(
        "SIR", prior.to_event(1), _draw_sir, _sir_log_likelihood, ("contact", "recovery")
    )


def _log_infected(theta: Array) -> Float[Array, "10"]:
    """log(I / N) at the observed times: in logarithms I never becomes negative."""
    beta, gamma = theta

    def slope(y: Array) -> Array:  # log S / N and log I / N
        return jnp.stack([-beta * jnp.exp(y[1]), beta * jnp.exp(y[0]) - gamma])

    start = jnp.stack([jnp.log1p(-1 / POPULATION), -jnp.log(POPULATION)]).astype(theta.dtype)
    return runge_kutta(slope, start, DAYS_APART, 34)[:, 1]


def _draw_sir(key: Array, theta: Array) -> Array:
    positives = jax.random.binomial(key, TESTED, jnp.exp(_log_infected(theta)))
    return positives.astype(theta.dtype)


def _sir_log_likelihood(theta: Array, x: Array) -> Array:
    log_p = _log_infected(theta)
    log_q = jnp.log1p(-jnp.exp(log_p))
    return jnp.sum(x * log_p + (TESTED - x) * log_q)


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
    """
    return Simulator("SLCP", box(-3.0, 3.0, 5), _slcp_draw, _slcp_log_likelihood, numbered(5))


def _cholesky(theta: Array) -> tuple[Array, Array, Array]:
    """The lower factor's entries (1, 1), (2, 1) and (2, 2)."""
    s1, s2, rho = theta[2] ** 2, theta[3] ** 2, jnp.tanh(theta[4])
    first = jnp.sqrt(s1**2 + JITTER)
    across = rho * s1 * s2 / first
    return first, across, jnp.sqrt(s2**2 + JITTER - across**2)


def _slcp_draw(key: Array, theta: Array) -> Array:
    first, across, second = _cholesky(theta)
    z = jax.random.normal(key, (DRAWS, 2), theta.dtype)
    points = jnp.stack(
        [theta[0] + first * z[:, 0], theta[1] + across * z[:, 0] + second * z[:, 1]], axis=-1
    )
    return points.reshape(-1)


def _slcp_log_likelihood(theta: Array, x: Array) -> Array:
    first, across, second = _cholesky(theta)
    gaps = x.reshape(DRAWS, 2) - theta[None, :2]
    z1 = gaps[:, 0] / first
    z2 = (gaps[:, 1] - across * z1) / second
    logs = normal_log_density(z1) + normal_log_density(z2)
    return jnp.sum(logs) - DRAWS * (jnp.log(first) + jnp.log(second))
