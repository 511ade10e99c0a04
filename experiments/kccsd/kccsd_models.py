"""The paper's models: Gaussian predictions given x, and targets from the truth; d = 5 or 1."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Data = tuple[jax.Array, jax.Array, jax.Array]  # mean, variance, targets: each [n, d]


def _shifted(shift: jax.Array) -> Callable[[jax.Array, int], Data]:
    """Truth N(x, I) in five dimensions, model N(x + shift, I)."""

    def draw(key: jax.Array, n: int) -> Data:
        x, noise = jax.random.normal(key, (2, n, 5))
        return x + shift, jnp.ones_like(x), x + noise

    return draw


def mgm(key: jax.Array, n: int) -> Data:
    """Truth and model N(x, I_5)."""
    return _shifted(jnp.zeros(5))(key, n)


def mmgm_all(key: jax.Array, n: int) -> Data:
    """The mean off by 0.1 in every coordinate."""
    return _shifted(jnp.full(5, 0.1))(key, n)


def mmgm_one(key: jax.Array, n: int) -> Data:
    """The mean off by 0.1 in the first coordinate."""
    return _shifted(jnp.zeros(5).at[0].set(0.1))(key, n)


def _line(mean: jax.Array, variance: jax.Array, targets: jax.Array) -> Data:
    return mean[:, None], jnp.broadcast_to(variance, mean.shape)[:, None], targets[:, None]


def lgm(key: jax.Array, n: int) -> Data:
    """Truth and model N(sum_i i x_i, 1)."""
    x_key, y_key = jax.random.split(key)
    mean = jax.random.normal(x_key, (n, 5)) @ jnp.arange(1.0, 6.0)
    return _line(mean, jnp.ones(()), mean + jax.random.normal(y_key, (n,)))


def hgm(key: jax.Array, n: int) -> Data:
    """Truth N(sum x, 1); the model's variance is 1 + 10 exp(-|x - c|^2 / (2 0.8^2)), c = 2/3."""
    x_key, y_key = jax.random.split(key)
    x = jax.random.normal(x_key, (n, 3))
    variance = 1 + 10 * jnp.exp(-jnp.sum((x - 2 / 3) ** 2, axis=1) / (2 * 0.8**2))
    mean = jnp.sum(x, axis=1)
    return _line(mean, variance, mean + jax.random.normal(y_key, (n,)))


def qgm(key: jax.Array, n: int) -> Data:
    """Truth N(0.1 x^2 + x + 1, 1), x uniform on (-2, 2); the model's mean lacks the square."""
    x_key, y_key = jax.random.split(key)
    x = jax.random.uniform(x_key, (n,), minval=-2.0, maxval=2.0)
    targets = 0.1 * x**2 + x + 1 + jax.random.normal(y_key, (n,))
    return _line(x + 1, jnp.ones(()), targets)


def hgm_true(key: jax.Array, n: int) -> Data:
    """HGM with targets drawn from the model."""
    data_key, y_key = jax.random.split(key)
    mean, variance, _ = hgm(data_key, n)
    return mean, variance, mean + jnp.sqrt(variance) * jax.random.normal(y_key, mean.shape)


MODELS = {
    "MGM": mgm,
    "LGM": lgm,
    "MMGM (all)": mmgm_all,
    "MMGM (one)": mmgm_one,
    "HGM": hgm,
    "QGM": qgm,
}
CALIBRATED = {"MGM": mgm, "LGM": lgm, "HGM (true)": hgm_true}
