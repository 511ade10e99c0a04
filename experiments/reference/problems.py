"""Problems of simulation-based inference: simulators with priors (Lueckmann et al., 2021)."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from jaxcal.read import convert
from jaxcal.typing import Distribution, KeyLike, Point, Scalar


class Pairs(NamedTuple):
    """n independent pairs of parameters and observations.

    Attributes:
        thetas: Parameters from the prior, [n, d].
        xs: Observations simulated from them, [n, q].
    """

    thetas: Float[Array, "n d"]
    xs: Float[Array, "n q"]


def _as_partial(function: Callable[..., Array], name: str, takes: str) -> Partial:
    """Convert a function to a pytree whose leaves are the arrays that it was bound to."""
    convert.function(function, name, takes)
    return function if isinstance(function, Partial) else Partial(function)


class Simulator(eqx.Module):
    """A problem of simulation-based inference: prior, simulator, and known properties.

    Args:
        name: Name of the problem.
        prior: A numpyro distribution over parameter vectors [d].
        draw: Function ``draw(key, theta)`` that simulates one observation [q].
        log_likelihood: Function ``log_likelihood(theta, x)``, [], up to a term without theta.
        names: Names of the d parameters.
        draw_posterior: Function ``draw_posterior(key, x, m)`` that returns m exact draws [m, d], if
            known.
        edge: A sentence if the exact posterior has a jump that no transform of the prior's support
            removes, so that Stein tests do not apply to it; otherwise empty.
    """

    name: str = eqx.field(static=True)
    prior: Distribution
    draw: Callable[..., Array] = eqx.field(
        converter=lambda function: _as_partial(function, "draw", "key and theta")
    )
    log_likelihood: Callable[..., Array] = eqx.field(
        converter=lambda function: _as_partial(function, "log_likelihood", "theta and x")
    )
    names: tuple[str, ...] = eqx.field(static=True)
    draw_posterior: Callable[..., Array] | None = eqx.field(default=None, static=True)
    edge: str = eqx.field(default="", static=True)

    def __check_init__(self):
        if isinstance(self.prior, type) or not hasattr(self.prior, "log_prob"):
            raise TypeError(f"prior: wanted a numpyro distribution, got {convert.say(self.prior)}")

    def pairs(self, key: KeyLike, n: int) -> Pairs:
        """Draw n independent pairs from the joint distribution of parameters and observations.

        Args:
            key: Random key: typed, legacy or an integer seed.
            n: Number of pairs.

        Returns:
            `Pairs`.
        """
        n = convert.integer(n, "n")
        prior_key, draw_key = jax.random.split(convert.key(key))
        thetas = self.prior.sample(prior_key, (n,))
        return Pairs(thetas, jax.vmap(self.draw)(jax.random.split(draw_key, n), thetas))

    def log_posterior(self, theta: Point, x: Float[Array, " q"]) -> Scalar:
        """Return log prior + log likelihood of one pair: the log posterior up to its constant.

        Args:
            theta: Parameters, [d].
            x: Observation, [q].

        Returns:
            The log density, [].
        """
        return self.prior.log_prob(theta) + self.log_likelihood(theta, x)


VARIANCE = 0.1  # variance of the prior and of the noise in the linear problem
YEARS_APART, NOISE = 2.1, 0.1  # interval and noise of observed populations
POINTS = 10  # number of observed times, the first at the start
RADIUS, WIDTH, OFFSET = 0.1, 0.01, 0.25  # of the moons


def gaussian_linear(d: int = 10) -> Simulator:
    """Linear Gaussian problem: theta ~ N(0, 0.1 I), x ~ N(theta, 0.1 I).

    The posterior is N(x / 2, 0.05 I).

    Args:
        d: Number of parameters.

    Returns:
        `Simulator` with exact draws of the posterior.

    Source: Lueckmann et al. (2021), task T.1.
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


def _draw_linear(key: Array, theta: Array) -> Array:
    return theta + VARIANCE**0.5 * jax.random.normal(key, theta.shape, theta.dtype)


def _linear_log_likelihood(theta: Array, x: Array) -> Array:
    return jnp.sum(normal_log_density((x - theta) / VARIANCE**0.5) - jnp.log(VARIANCE) / 2)


def _draw_linear_posterior(key: Array, x: Array, m: int) -> Array:
    return x[None] / 2 + (VARIANCE / 2) ** 0.5 * jax.random.normal(key, (m, *x.shape), x.dtype)


def lotka_volterra() -> Simulator:
    """Lotka-Volterra dynamics of prey X and predators Y, with rates alpha, beta, gamma, delta.

    dX = alpha X - beta X Y, dY = delta X Y - gamma Y from (30, 1), observed at ten times 2.1 apart
    with log-normal errors of standard deviation 0.1: x is [20], prey before predators. All rates
    are log-normal with deviation 0.5 and logarithmic means -0.125 (alpha, gamma) and -3 (beta,
    delta).

    Returns:
        `Simulator`.

    Source: Lueckmann et al. (2021), task T.10.
    """
    import numpyro.distributions as dist

    prior = dist.LogNormal(jnp.asarray([-0.125, -3.0, -0.125, -3.0]), jnp.full(4, 0.5))
    return Simulator(
        "Lotka-Volterra",
        prior.to_event(1),
        _draw_lotka_volterra,
        _lotka_volterra_log_likelihood,
        ("alpha", "beta", "gamma", "delta"),
    )


def runge_kutta(
    slope: Callable[[Array], Array], start: Float[Array, " k"], spacing: float, steps: int
) -> Float[Array, "10 k"]:
    """Solve dy = slope(y) dt at 10 times ``spacing`` apart, the first at the start.

    Uses the classical method of fourth order, with ``steps`` equal steps between two times.
    """
    h = spacing / steps

    def step(y: Array, _: None) -> tuple[Array, None]:
        a = slope(y)
        b = slope(y + h / 2 * a)
        c = slope(y + h / 2 * b)
        return y + h / 6 * (a + 2 * b + 2 * c + slope(y + h * c)), None

    def between(y: Array, _: None) -> tuple[Array, Array]:
        return jax.lax.scan(step, y, None, length=steps)[0], y

    return jax.lax.scan(between, start, None, length=POINTS)[1]


def _log_populations(theta: Array) -> Float[Array, "20"]:
    alpha, beta, gamma, delta = theta

    def slope(y: Array) -> Array:
        return jnp.stack([alpha - beta * jnp.exp(y[1]), delta * jnp.exp(y[0]) - gamma])

    start = jnp.log(jnp.asarray([30.0, 1.0], theta.dtype))
    return runge_kutta(slope, start, YEARS_APART, 42).T.reshape(-1)


def _draw_lotka_volterra(key: Array, theta: Array) -> Array:
    center = _log_populations(theta)
    return jnp.exp(center + NOISE * jax.random.normal(key, center.shape, theta.dtype))


def _lotka_volterra_log_likelihood(theta: Array, x: Array) -> Array:
    errors = (jnp.log(x) - _log_populations(theta)) / NOISE
    return jnp.sum(normal_log_density(errors) - jnp.log(NOISE) - jnp.log(x))


def two_moons() -> Simulator:
    """Two moons: x = crescent + (-|theta_1 + theta_2|, theta_2 - theta_1) / sqrt 2.

    theta ~ U(-1, 1)^2. The crescent is r (cos a, sin a) + (0.25, 0) with r ~ N(0.1, 0.01^2),
    a ~ U(-pi/2, pi/2). Its density jumps to 0 at both ends, so the exact posterior has edges
    inside the prior's box, and Stein tests do not apply to it. Neural posteriors are smooth and can
    be tested.

    Returns:
        `Simulator` with exact draws of the posterior.

    Source: Lueckmann et al. (2021), task T.8; Greenberg et al. (2019).
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
    """Return m draws by rejection: crescents that are possible for x, both signs, inside the box.

    Makes 64 m proposals; draws repeat if fewer than m of them are accepted.
    """
    crescent_key, sign_key = jax.random.split(key)
    p = _crescent(crescent_key, (64 * m,), x.dtype)
    first, second = jnp.moveaxis((x[None] - p) * jnp.sqrt(2.0), -1, 0)  # -|total|, difference
    total = jax.random.rademacher(sign_key, first.shape, x.dtype) * first
    thetas = jnp.stack([total - second, total + second], axis=-1) / 2
    possible = (first <= 0) & jnp.all(jnp.abs(thetas) <= 1, axis=-1)
    chosen = jnp.argsort(~possible, stable=True)[:m]
    return thetas[chosen[jnp.arange(m) % jnp.maximum(jnp.sum(possible), 1)]]


def box(low: float, high: float, d: int) -> Distribution:
    """Return the uniform distribution over [low, high]^d."""
    import numpyro.distributions as dist

    d = convert.integer(d, "d")
    return dist.Uniform(jnp.full(d, low), jnp.full(d, high)).to_event(1)


def numbered(d: int) -> tuple[str, ...]:
    """Return the names theta_1, .., theta_d."""
    return tuple(f"theta_{i + 1}" for i in range(d))


def normal_log_density(z: Array) -> Array:
    """Return log N(z; 0, 1) with its constant."""
    return -(z**2 + jnp.log(2 * jnp.pi)) / 2
