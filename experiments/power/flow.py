"""A conditional normalizing flow for the simulator of `network`, trained as users do.

Two affine autoregressive layers, the second over the coordinates in reverse order: density and
draws are exact. A tenth of the simulations decides when the training has been best.
"""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import network
import optax

LAYERS, WIDTH, SEED = 2, 32, 6
SIMULATIONS, STEPS = 1000, 600


class Flow(eqx.Module):
    """``first[l]``: x -> shift and log scale of the first coordinate of layer l; ``second[l]``: x
    and the first coordinate -> those of the second."""

    first: list[eqx.nn.MLP]
    second: list[eqx.nn.MLP]

    def __init__(self, key: jax.Array):
        keys = jax.random.split(key, (LAYERS, 2))
        self.first = [eqx.nn.MLP(2, 2, WIDTH, 2, jnp.tanh, key=k[0]) for k in keys]
        self.second = [eqx.nn.MLP(3, 2, WIDTH, 2, jnp.tanh, key=k[1]) for k in keys]

    def noise(self, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Standard normal noise for a parameter, and the log of the volume that one of it has."""
        log_volume = jnp.zeros(())
        for first, second in zip(self.first, self.second, strict=True):
            shift_0, log_0 = _shift_and_log_scale(first, x)
            shift_1, log_1 = _shift_and_log_scale(second, jnp.append(x, y[0]))
            inside = (y - jnp.stack([shift_0, shift_1])) * jnp.exp(-jnp.stack([log_0, log_1]))
            y, log_volume = inside[::-1], log_volume + log_0 + log_1
        return y, log_volume

    def log_density(self, x: jax.Array, y: jax.Array) -> jax.Array:
        noise, log_volume = self.noise(x, y)
        return -jnp.sum(noise**2) / 2 - log_volume

    def forward(self, x: jax.Array, noise: jax.Array) -> jax.Array:
        """The parameter whose `noise` that is."""
        y = noise
        for first, second in zip(self.first[::-1], self.second[::-1], strict=True):
            inside = y[::-1]
            shift, log_scale = _shift_and_log_scale(first, x)
            y_0 = shift + jnp.exp(log_scale) * inside[0]
            shift, log_scale = _shift_and_log_scale(second, jnp.append(x, y_0))
            y = jnp.stack([y_0, shift + jnp.exp(log_scale) * inside[1]])
        return y


def _shift_and_log_scale(net: eqx.nn.MLP, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    shift, log_scale = net(inputs)
    return shift, 3 * jnp.tanh(log_scale / 3)


@lru_cache
def trained() -> Flow:
    """By maximum likelihood with Adam, the same flow each time."""
    with jax.ensure_compile_time_eval():  # also where a program that needs it is being traced
        return _train()


def _train() -> Flow:
    net_key, data_key = jax.random.split(jax.random.key(SEED))
    theta, x = network.simulate(data_key, SIMULATIONS)
    last = SIMULATIONS // 10
    params, static = eqx.partition(Flow(net_key), eqx.is_array)
    optimizer = optax.adam(5e-3)

    def loss(params, part):
        logs = jax.vmap(eqx.combine(params, static).log_density)(x[part], theta[part])
        return -jnp.mean(logs)

    def step(carry, _):
        params, state, best, lowest = carry
        updates, state = optimizer.update(jax.grad(loss)(params, slice(last, None)), state)
        params = optax.apply_updates(params, updates)
        held_out = loss(params, slice(last))
        better = held_out < lowest
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), params, best)
        return (params, state, best, jnp.minimum(held_out, lowest)), held_out

    start = params, optimizer.init(params), params, jnp.inf
    (_, _, best, _), _ = jax.jit(lambda start: jax.lax.scan(step, start, length=STEPS))(start)
    return eqx.combine(best, static)


def log_density(x: jax.Array, y: jax.Array) -> jax.Array:
    return trained().log_density(x, y)


def draw(key: jax.Array, x: jax.Array, m: int) -> jax.Array:
    return jax.vmap(lambda noise: trained().forward(x, noise))(jax.random.normal(key, (m, 2)))


def posterior() -> network.Posterior:
    return network.Posterior(lambda x: x, log_density, draw)
