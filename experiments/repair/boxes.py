"""Simulators with two parameters in a box, whose posteriors fit on a grid."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from reference import problems as simulators

PEOPLE, TESTED = 1000, 40
PREDATION, SEASONS = 0.3, 50  # deviation of the noise of Ricker's map, steps


class Box(NamedTuple):
    """A uniform prior between ``low`` and ``high`` [2], and ``draw(key, theta)`` of x [q]."""

    low: np.ndarray
    high: np.ndarray
    draw: Callable[[Array, Array], Array]

    @property
    def volume(self) -> float:
        return float(np.prod(self.high - self.low))

    def pairs(self, key: Array, n: int) -> tuple[np.ndarray, np.ndarray]:
        first, second = jax.random.split(key)
        thetas = jax.random.uniform(first, (n, 2), minval=self.low, maxval=self.high)
        xs = jax.vmap(self.draw)(jax.random.split(second, n), thetas)
        return np.array(thetas), np.array(xs)


def epidemic(key: Array, theta: Array) -> Array:
    """Chain binomial model of 30 days, with logarithms of the rates of infection and recovery; x:
    transformed shares of 40 tests that are positive, every 5 days."""
    infection, recovery = jnp.exp(theta)

    def day(state: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], Array]:
        susceptible, infected = state
        first, second = jax.random.split(key)
        caught = jax.random.binomial(
            first, susceptible, 1 - jnp.exp(-infection * infected / PEOPLE)
        )
        healed = jax.random.binomial(second, infected, 1 - jnp.exp(-recovery))
        state = susceptible - caught, infected + caught - healed
        return state, state[1]

    keys = jax.random.split(key, 3)
    start = jnp.asarray(PEOPLE - 10.0), jnp.asarray(10.0)
    infected = jax.lax.scan(day, start, jax.random.split(keys[0], 30))[1][4::5]
    positive = jax.random.binomial(keys[1], float(TESTED), infected / PEOPLE)
    shares = (positive + jax.random.uniform(keys[2], positive.shape)) / (TESTED + 1)
    return jnp.arcsin(jnp.sqrt(shares))


def ricker(key: Array, theta: Array) -> Array:
    """Ricker's map with logarithms of the growth rate and of the scale of counts; x: six
    statistics of square roots of 50 Poisson counts."""
    keys = jax.random.split(key)

    def season(size: Array, noise: Array) -> tuple[Array, Array]:
        size = size * jnp.exp(theta[0] - size + PREDATION * noise)
        return size, size

    sizes = jax.lax.scan(season, jnp.asarray(1.0), jax.random.normal(keys[0], (SEASONS,)))[1]
    counts = jax.random.poisson(keys[1], jnp.exp(theta[1]) * sizes)
    ys = jnp.sqrt(counts.astype(sizes.dtype))
    gaps = ys - jnp.mean(ys)
    square = jnp.mean(gaps**2) + 1e-3
    lags = [jnp.mean(gaps[k:] * gaps[: SEASONS - k]) / square for k in (1, 2)]
    none = jnp.mean(counts == 0, dtype=ys.dtype)
    return jnp.stack([jnp.mean(ys), jnp.sqrt(square), none, *lags, jnp.max(ys)])


def _box(low: list[float], high: list[float], draw: Callable[[Array, Array], Array]) -> Box:
    return Box(np.asarray(low, np.float32), np.asarray(high, np.float32), draw)


SIMULATORS = {
    "two moons": _box([-1, -1], [1, 1], simulators.two_moons().draw),
    "epidemic": _box([-2, -3], [0.5, 0], epidemic),
    "Ricker": _box([2, 0], [5, 3], ricker),
}
