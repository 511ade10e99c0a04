"""Fit two forecasters of a target given an input: a Gaussian by least squares, and an unnormalized
density by score matching."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.read import Units, Unnormalized
from jaxcal.typing import Distribution, Key, Point, Points, Scalar


class Regression(NamedTuple):
    """Linear model ``y = intercept + slope x + noise`` with constant noise ``covariance``."""

    slope: Float[Array, "d q"]
    intercept: Point
    covariance: Float[Array, "d d"]

    @classmethod
    def fit(cls, inputs: Float[Array, "n q"], targets: Points) -> "Regression":
        """Return the least-squares fit, with the covariance of the residuals."""
        n, q = inputs.shape
        x_mean, y_mean = jnp.mean(inputs, axis=0), jnp.mean(targets, axis=0)
        xs, ys = inputs - x_mean[None], targets - y_mean[None]
        slope = jnp.linalg.lstsq(xs, ys)[0].T
        residuals = ys - xs @ slope.T
        return cls(slope, y_mean - slope @ x_mean, residuals.T @ residuals / (n - q - 1))

    def predict(self, inputs: Float[Array, "n q"]) -> Distribution:
        """Return a numpyro distribution with batch shape [n]: a Gaussian per row of ``inputs``."""
        from numpyro.distributions import MultivariateNormal  # numpyro only where it is used

        return MultivariateNormal(
            inputs @ self.slope.T + self.intercept[None], covariance_matrix=self.covariance
        )


class Layer(NamedTuple):
    """Layer of a network: the map from x to ``weight x + bias``."""

    weight: Float[Array, "after before"]
    bias: Float[Array, " after"]

    def __call__(self, x: Float[Array, " before"]) -> Float[Array, " after"]:
        return self.weight @ x + self.bias


class Energy(eqx.Module):
    r"""A density known up to its constant, ``log f(y | x) = -E(x, y)``.

    .. math:: E(x, y) = \tfrac12 \|u\|^2 - g(x, u), \qquad u = L^\top (t - A x - b)

    Here t is the standardized target y, and x is standardized. A, b (``center``) and L (``root``)
    start as a Gaussian regression; g, a tanh network (``layers``), starts at 0. As g is bounded, f
    can be integrated; its integral has no formula and is never needed.
    """

    layers: tuple[Layer, ...]
    center: Layer
    root: Float[Array, "d d"]
    input_units: Units
    target_units: Units

    @classmethod
    def create(cls, key: Key, inputs: Float[Array, "n q"], targets: Points) -> "Energy":
        """Return the untrained energy, equal to a Gaussian regression; two hidden layers of 32."""
        input_units, target_units = Units.of(inputs), Units.of(targets)
        linear = Regression.fit(input_units.points(inputs), target_units.points(targets))
        q, d = inputs.shape[1], targets.shape[1]
        first, second = jax.random.normal(key, (2, 32, 32), targets.dtype)  # one draw compiles fast
        zeros = jnp.zeros(32, targets.dtype)
        layers = (
            Layer(first[:, : q + d] / (q + d) ** 0.5, zeros),
            Layer(second / 32**0.5, zeros),
            Layer(zeros[None], zeros[:1]),
        )
        return cls(
            layers,
            Layer(linear.slope, linear.intercept),
            jnp.linalg.cholesky(jnp.linalg.inv(linear.covariance)),
            input_units,
            target_units,
        )

    def __call__(self, x: Float[Array, " q"], y: Point) -> Scalar:
        """Return ``-E(x, y)`` for one input x and target y in the units of the data."""
        return self.standard(self.input_units.points(x), self.target_units.points(y))

    def standard(self, x: Float[Array, " q"], t: Point) -> Scalar:
        """Return ``-E``, for input x and target t in standard units."""
        first, second, last = self.layers
        u = jnp.tril(self.root).T @ (t - self.center(x))
        hidden = jnp.tanh(second(jnp.tanh(first(jnp.concatenate([x, u])))))
        return last(hidden)[0] - jnp.sum(u**2) / 2

    def predict(self, inputs: Float[Array, "n q"]) -> Unnormalized:
        """Return n unnormalized densities, one per row of ``inputs``; all share the network."""
        return Unnormalized(log_density, (self, inputs), in_axes=(None, 0))


def log_density(params: tuple[Energy, Float[Array, " q"]], y: Point) -> Scalar:
    """Return ``-E(x, y)``, for ``params`` = (energy, x) of one prediction and one target y."""
    energy, x = params
    return energy(x, y)


def score_matching_loss(energy: Energy, xs: Float[Array, "n q"], ts: Points) -> Scalar:
    r"""Return the mean of :math:`\tfrac12 \|s(t)\|^2 + \mathrm{tr}\,\nabla s(t)`, with score s.

    The expectation of this loss is smallest for the density of the data; normalizing constants do
    not matter. Inputs xs and targets ts are in standard units. The trace is exact, from products of
    the Hessian with d unit vectors.
    Source: Hyvarinen (2005), eq. 4, given an input.
    """

    def of_one_day(x: Float[Array, " q"], t: Point) -> Scalar:
        score, slope = jax.linearize(jax.grad(energy.standard, argnums=1), x, t)
        basis = jnp.eye(t.size, dtype=t.dtype)
        trace = jnp.trace(jax.vmap(lambda along: slope(jnp.zeros_like(x), along))(basis))
        return jnp.sum(score**2) / 2 + trace

    return jnp.mean(jax.vmap(of_one_day)(xs, ts))


@eqx.filter_jit
def train(
    key: Key,
    energy: Energy,
    training: tuple[Array, Array],
    validation: tuple[Array, Array],
    *,
    rounds: int,
    resolution: float,
    steps: int = 20,
    rate: float = 3e-4,
) -> Energy:
    """Train by Adam on all training days at once, for ``rounds`` rounds of ``steps`` steps each.

    ``training`` and ``validation`` are (inputs, targets) in the units of the data. The parameters
    with the smallest validation loss after a round are kept, to avoid overfitting. ``rate`` is the
    learning rate. Targets were recorded in multiples of ``resolution``; each step adds new uniform
    noise of that width, since spikes at recorded values could lower the loss without bound.
    """
    import optax  # only where it is used

    def standard(days: tuple[Array, Array]) -> tuple[Array, Array]:
        return energy.input_units.points(days[0]), energy.target_units.points(days[1])

    def spread(key: Key, days: tuple[Array, Array]) -> tuple[Array, Array]:
        noise = jax.random.uniform(key, days[1].shape, days[1].dtype, -0.5, 0.5)
        return days[0], days[1] + noise * resolution / energy.target_units.scale[None]

    def loss(learned, days: tuple[Array, Array]) -> Scalar:
        return score_matching_loss(_with(energy, learned), *days)

    training_key, validation_key = jax.random.split(key)
    train_days, held_out = standard(training), spread(validation_key, standard(validation))
    optimizer = optax.adam(rate)

    def step(state, key: Key):
        learned, memory = state
        gradient = jax.grad(loss)(learned, spread(key, train_days))
        updates, memory = optimizer.update(gradient, memory)
        return (optax.apply_updates(learned, updates), memory), None

    def a_round(state, key: Key):
        current, best, best_loss = state
        current, _ = jax.lax.scan(step, current, jax.random.split(key, steps))
        value = loss(current[0], held_out)
        better = value < best_loss
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), current[0], best)
        return (current, best, jnp.minimum(value, best_loss)), None

    learned = (energy.layers, energy.center, energy.root)
    state = ((learned, optimizer.init(learned)), learned, jnp.asarray(jnp.inf, energy.root.dtype))
    (_, best, _), _ = jax.lax.scan(a_round, state, jax.random.split(training_key, rounds))
    return _with(energy, best)


def _with(energy: Energy, learned: tuple) -> Energy:
    layers, center, root = learned
    return Energy(layers, center, root, energy.input_units, energy.target_units)
