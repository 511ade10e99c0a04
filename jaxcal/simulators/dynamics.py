"""Two problems with differential equations: an epidemic, and predators and prey."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.simulators.simulator import Simulator, normal_log_density

POPULATION, TESTED, DAYS_APART = 1e6, 1000, 17.0
YEARS_APART, NOISE = 2.1, 0.1
POINTS = 10  # observed times of each problem, the first at the start


def sir() -> Simulator:
    """An epidemic (SIR) with contact rate beta and recovery rate gamma per day.

    dS = -beta S I / N, dI = beta S I / N - gamma I from I = 1 among N = 10^6. Every 17 days a
    Binomial(1000, I / N) of people tested is found infected: x is [10] counts.
    beta ~ LogNormal(log 0.4, 0.5), gamma ~ LogNormal(log 1/8, 0.2).

    Returns:
        `Simulator`.

    Source: Lueckmann et al. (2021), task T.9.

    Example:
        >>> import jaxcal
        >>> jaxcal.simulators.sir().names
        ('contact', 'recovery')
    """
    import numpyro.distributions as dist

    prior = dist.LogNormal(jnp.log(jnp.asarray([0.4, 0.125])), jnp.asarray([0.5, 0.2]))
    return Simulator(
        "SIR", prior.to_event(1), _draw_sir, _sir_log_likelihood, ("contact", "recovery")
    )


def lotka_volterra() -> Simulator:
    """Lotka-Volterra dynamics of prey X and predators Y, with rates alpha, beta, gamma, delta.

    dX = alpha X - beta X Y, dY = delta X Y - gamma Y from (30, 1), seen at ten times 2.1 apart
    with log-normal errors of standard deviation 0.1: x is [20], first prey then predators. All
    rates are log-normal with deviation 0.5; logarithmic means -0.125 (alpha, gamma) and -3 (beta,
    delta).

    Returns:
        `Simulator`.

    Source: Lueckmann et al. (2021), task T.10.

    Example:
        >>> import jaxcal
        >>> jaxcal.simulators.lotka_volterra().names
        ('alpha', 'beta', 'gamma', 'delta')
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
    """The solution of dy = slope(y) dt at 10 times ``spacing`` apart, the first at the start.

    The classical method of fourth order with ``steps`` equal steps between two of them.
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
