"""A neuron's response to noise: a Bernoulli generalized linear model with a smooth filter."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from jaxcal.read import convert
from jaxcal.simulators.simulator import Simulator

BINS, LAGS = 100, 9


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

    Example:
        >>> import jaxcal
        >>> jaxcal.simulators.bernoulli_glm().pairs(0, 5).xs.shape
        (5, 10)
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
        Partial(_draw, design),
        Partial(_log_likelihood, design),
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


def _draw(design: Array, key: Array, theta: Array) -> Array:
    spikes = jax.random.bernoulli(key, jax.nn.sigmoid(design @ theta))
    return spikes.astype(theta.dtype) @ design


def _log_likelihood(design: Array, theta: Array, x: Array) -> Array:
    return x @ theta - jnp.sum(jax.nn.softplus(design @ theta))
