"""Score matching: fits a density without its constant."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.demo.forecasters import Energy
from jaxcal.typing import Key, Point, Points, Scalar


class Trained(NamedTuple):
    """The network after the round ``best_round`` with the smallest loss on the validation days,
    and the losses after each round, shape [r], on training and validation days."""

    energy: Energy
    best_round: Int[Array, ""]
    training_loss: Float[Array, " r"]
    validation_loss: Float[Array, " r"]


def score_matching_loss(energy: Energy, xs: Float[Array, "n q"], ts: Points) -> Scalar:
    r"""Mean of :math:`\tfrac12 \|s(t)\|^2 + \mathrm{tr}\,\nabla s(t)`, s the score at t given x.

    Its minimum over densities is the distribution of the data, and the constant drops out. Inputs
    [n, q] and targets [n, d] in standard units. The trace is exact: d products with the Hessian.
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
) -> Trained:
    """Adam on all training days at once, ``rounds`` rounds of ``steps`` steps; one program.

    ``training`` and ``validation`` are (inputs, targets) in the units of the data. The parameters
    with the smallest loss on the validation days after a round are kept: a network trained to the
    end would learn its training days by heart. ``resolution``: the step in which targets were
    recorded. A density could put a spike on each recorded value and lower the loss without end, so
    every step adds new noise, uniform over one such step, to the targets it learns from.
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
    seen, unseen = standard(training), spread(validation_key, standard(validation))
    optimizer = optax.adam(rate)

    def step(state, key: Key):
        learned, memory = state
        value, gradient = jax.value_and_grad(loss)(learned, spread(key, seen))
        updates, memory = optimizer.update(gradient, memory)
        return (optax.apply_updates(learned, updates), memory), value

    def a_round(state, key: Key):
        current, best, best_loss = state
        current, values = jax.lax.scan(step, current, jax.random.split(key, steps))
        value = loss(current[0], unseen)
        better = value < best_loss
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), current[0], best)
        return (current, best, jnp.minimum(value, best_loss)), (values[-1], value)

    learned = (energy.layers, energy.center, energy.root)
    state = ((learned, optimizer.init(learned)), learned, jnp.asarray(jnp.inf, energy.root.dtype))
    (_, best, _), losses = jax.lax.scan(a_round, state, jax.random.split(training_key, rounds))
    return Trained(_with(energy, best), jnp.argmin(losses[1]), *losses)


def _with(energy: Energy, learned: tuple) -> Energy:
    layers, center, root = learned
    return Energy(layers, center, root, energy.input_units, energy.target_units)
