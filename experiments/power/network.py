"""Small neural posteriors, trained as they should not be: faults that nobody put there."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

COMPONENTS, SEED = 3, 5


class Training(NamedTuple):
    simulations: int
    steps: int = 600  # of Adam
    penalty: float = 0.0  # on the mean square of all weights of the network


SIMULATIONS = {"network": Training(1000)}
STUDIED = {
    "overconfident": Training(600, 600),
    "regularized": Training(3000, 600, 60.0),
    "few simulations": Training(400, 150),
}


def simulate(key: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """Parameters [n, 2] and observations [n, 2], which hardly know the sign of the first."""
    theta_key, noise_key = jax.random.split(key)
    theta = jax.random.normal(theta_key, (n, 2))
    seen = jnp.stack([jnp.abs(theta[:, 0] + 0.2), theta[:, 1] + 0.5 * theta[:, 0] ** 2], axis=1)
    return theta, seen + 0.3 * jax.random.normal(noise_key, (n, 2))


def mixture(net: eqx.nn.MLP, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log weights [k], means [k, 2] and log deviations [k, 2] for one observation."""
    out = net(x).reshape(COMPONENTS, 5)
    return jax.nn.log_softmax(out[:, 0]), out[:, 1:3], jnp.clip(out[:, 3:], -5, 3)


def log_density(params: tuple[jax.Array, jax.Array, jax.Array], y: jax.Array) -> jax.Array:
    weights, means, widths = params
    z = (y - means) * jnp.exp(-widths)
    return jax.nn.logsumexp(weights - jnp.sum(z**2 / 2 + widths, axis=1))


@lru_cache
def trained(name: str) -> eqx.nn.MLP:
    """By maximum likelihood, the same network each time."""
    with jax.ensure_compile_time_eval():  # also where a program that needs it is being traced
        return _train((SIMULATIONS | STUDIED)[name])


def _train(training: Training) -> eqx.nn.MLP:
    net_key, data_key = jax.random.split(jax.random.key(SEED))
    theta, x = simulate(data_key, training.simulations)
    net = eqx.nn.MLP(2, 5 * COMPONENTS, 32, 2, activation=jnp.tanh, key=net_key)
    params, static = eqx.partition(net, eqx.is_array)
    optimizer = optax.adam(5e-3)

    def loss(params):
        fitted = jax.vmap(lambda x: mixture(eqx.combine(params, static), x))(x)
        flat, _ = ravel_pytree(params)
        penalty = training.penalty * jnp.mean(flat**2) if training.penalty else 0.0
        return penalty - jnp.mean(jax.vmap(log_density)(fitted, theta))

    def step(_, carry):
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    walk = jax.jit(lambda start: jax.lax.fori_loop(0, training.steps, step, start))
    params, _ = walk((params, optimizer.init(params)))
    return eqx.combine(params, static)


def draw(key: jax.Array, params, m: int) -> jax.Array:
    """m draws [m, 2] of one posterior."""
    which_key, noise_key = jax.random.split(key)
    weights, means, widths = params
    k = jax.random.categorical(which_key, weights, shape=(m,))
    return means[k] + jnp.exp(widths[k]) * jax.random.normal(noise_key, (m, 2))


class Posterior(NamedTuple):
    """A trained posterior: ``params`` of one observation, a log density of these at a parameter,
    and draws (key, params, m) [m, 2]."""

    params: Callable[[jax.Array], Any]
    log_density: Callable[[Any, jax.Array], jax.Array]
    draw: Callable[[jax.Array, Any, int], jax.Array]


def posterior(name: str) -> Posterior:
    net = trained(name)
    return Posterior(lambda x: mixture(net, x), log_density, draw)
