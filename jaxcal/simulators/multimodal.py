"""Posteriors with several modes: two moons, and a simple likelihood with a complex posterior."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.simulators.simulator import Simulator, box, normal_log_density, numbered

RADIUS, WIDTH, OFFSET = 0.1, 0.01, 0.25  # of the moons
DRAWS = 4  # points of two coordinates in one observation
JITTER = 1e-6  # added to both variances


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
        _moons_draw,
        _moons_log_likelihood,
        numbered(2),
        _moons_draw_posterior,
        edge="the ends of the moons are edges of the exact posterior, where its density jumps to "
        "0: Stein tests do not apply to it, only to smooth approximations",
    )


def _moons_draw(key: Array, theta: Array) -> Array:
    return _crescent(key, (), theta.dtype) + _shift(theta)


def _crescent(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    angle_key, radius_key = jax.random.split(key)
    a = jax.random.uniform(angle_key, shape, dtype, -jnp.pi / 2, jnp.pi / 2)
    r = RADIUS + WIDTH * jax.random.normal(radius_key, shape, dtype)
    return jnp.stack([r * jnp.cos(a) + OFFSET, r * jnp.sin(a)], axis=-1)


def _shift(theta: Array) -> Array:
    total, difference = theta[..., 0] + theta[..., 1], theta[..., 1] - theta[..., 0]
    return jnp.stack([-jnp.abs(total), difference], axis=-1) / jnp.sqrt(2.0)


def _moons_log_likelihood(theta: Array, x: Array) -> Array:
    u, v = (x - _shift(theta)) - jnp.asarray([OFFSET, 0.0], theta.dtype)
    r = jnp.sqrt(u**2 + v**2)
    inside = normal_log_density((r - RADIUS) / WIDTH) - jnp.log(WIDTH) - jnp.log(jnp.pi * r)
    return jnp.where(u > 0, inside, -jnp.inf)


def _moons_draw_posterior(key: Array, x: Array, m: int) -> Array:
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
