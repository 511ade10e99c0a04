"""Two moons: a posterior with two crescents, and with edges that no change of variables removes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.simulators.simulator import Simulator, box, normal_log_density, numbered

RADIUS, WIDTH, OFFSET = 0.1, 0.01, 0.25


def two_moons() -> Simulator:
    """Two moons: x = crescent + (-|theta_1 + theta_2|, theta_2 - theta_1) / sqrt 2.

    theta ~ U(-1, 1)^2. The crescent is r (cos a, sin a) + (0.25, 0) with r ~ N(0.1, 0.01^2),
    a ~ U(-pi/2, pi/2). Its density jumps to 0 at both ends, so the exact posterior has edges
    inside the prior's box and no Stein test applies to it; neural posteriors, which are smooth,
    can be tested.

    Returns:
        `Simulator` with exact draws of the posterior.

    Source: Lueckmann et al. (2021), task T.8; Greenberg et al. (2019).

    Example:
        >>> import jaxcal
        >>> simulator = jaxcal.simulators.two_moons()
        >>> simulator.pairs(0, 5).xs.shape, bool(simulator.edge)
        ((5, 2), True)
    """
    return Simulator(
        "two moons",
        box(-1.0, 1.0, 2),
        _draw,
        _log_likelihood,
        numbered(2),
        _draw_posterior,
        edge="the ends of the moons are edges of the exact posterior, where its density jumps to "
        "0: Stein tests do not apply to it, only to smooth approximations",
    )


def _draw(key: Array, theta: Array) -> Array:
    return _crescent(key, (), theta.dtype) + _shift(theta)


def _crescent(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    angle_key, radius_key = jax.random.split(key)
    a = jax.random.uniform(angle_key, shape, dtype, -jnp.pi / 2, jnp.pi / 2)
    r = RADIUS + WIDTH * jax.random.normal(radius_key, shape, dtype)
    return jnp.stack([r * jnp.cos(a) + OFFSET, r * jnp.sin(a)], axis=-1)


def _shift(theta: Array) -> Array:
    total, difference = theta[..., 0] + theta[..., 1], theta[..., 1] - theta[..., 0]
    return jnp.stack([-jnp.abs(total), difference], axis=-1) / jnp.sqrt(2.0)


def _log_likelihood(theta: Array, x: Array) -> Array:
    u, v = (x - _shift(theta)) - jnp.asarray([OFFSET, 0.0], theta.dtype)
    r = jnp.sqrt(u**2 + v**2)
    inside = normal_log_density((r - RADIUS) / WIDTH) - jnp.log(WIDTH) - jnp.log(jnp.pi * r)
    return jnp.where(u > 0, inside, -jnp.inf)


def _draw_posterior(key: Array, x: Array, m: int) -> Array:
    """m draws by rejection: crescents that x can have, either sign, inside the box.

    Makes 64 m proposals; draws repeat where fewer than m of them are possible.
    """
    crescent_key, sign_key = jax.random.split(key)
    p = _crescent(crescent_key, (64 * m,), x.dtype)
    first, second = jnp.moveaxis((x[None] - p) * jnp.sqrt(2.0), -1, 0)  # -|total|, difference
    total = jax.random.rademacher(sign_key, first.shape, x.dtype) * first
    thetas = jnp.stack([total - second, total + second], axis=-1) / 2
    possible = (first <= 0) & jnp.all(jnp.abs(thetas) <= 1, axis=-1)
    chosen = jnp.argsort(~possible, stable=True)[:m]
    return thetas[chosen[jnp.arange(m) % jnp.maximum(jnp.sum(possible), 1)]]
