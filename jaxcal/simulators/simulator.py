"""Interface of simulators: a prior, draws of observations, and their likelihood."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
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

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> simulator = jaxcal.simulators.Simulator(
        ...     "normal mean",
        ...     dist.Normal(jnp.zeros(1), 1.0).to_event(1),
        ...     lambda key, theta: theta + jax.random.normal(key, (3,)),
        ...     lambda theta, x: -jnp.sum((x - theta) ** 2) / 2,
        ...     ("mean",),
        ... )
        >>> simulator.pairs(0, 5).xs.shape
        (5, 3)
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
