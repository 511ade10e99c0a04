"""Ten networks and their ensemble on Friedman 1: accuracy and calibration while they train."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
import optax

from jaxcal.divergences import Wasserstein
from jaxcal.kernels import Gaussian, Laplace
from jaxcal.measures import nll, pinball_loss
from jaxcal.skce import skce_test

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner
from reference.definiteness import positive_definiteness
from reference.mixtures import mse
from reference.nulls import Multinomial
from reference.regression import friedman1
from reference.transport import MixtureWasserstein

FOLDER = Path(__file__).parent
WIDTHS = (10, 200, 50, 1)
ADAM = optax.adam(1e-3)
MEASURES = ("mse", "nll", "pinball", "unbiased", "biased", "p_value")
GRID = (0, 10, 20, 35, 50, 75, 100, 150, 200, 250, 300, 400, 500, 625, 750, 875, 1000, 1125)
GRID += (1250, 1500, 1750, 2000, 2500, 3000, 3500, 4000, 4500, 5000)


@dataclass(frozen=True)
class Config:
    iterations: tuple[int, ...] = GRID
    data_sets: int = 4
    members: int = 10
    n_train: int = 100
    n_test: int = 50
    n_draws: int = 1000
    seed: int = 20210504


QUICK = Config(iterations=(0, 20), data_sets=1, members=3, n_train=15, n_test=15, n_draws=50)


def initial(key: jax.Array) -> list[dict[str, jax.Array]]:
    """Uniform Glorot weights, zero biases."""
    glorot = jax.nn.initializers.glorot_uniform()
    keys = jax.random.split(key, len(WIDTHS) - 1)
    return [
        {"weights": glorot(k, (a, b), float), "biases": jnp.zeros(b)}
        for k, a, b in zip(keys, WIDTHS, WIDTHS[1:], strict=False)
    ]


def network(params: Any, xs: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        xs = jax.nn.relu(xs @ layer["weights"] + layer["biases"])
    return (xs @ params[-1]["weights"] + params[-1]["biases"])[:, 0]


def loss(params: Any, xs: jax.Array, ys: jax.Array) -> jax.Array:
    return jnp.mean((network(params, xs) - ys) ** 2)


@jax.jit
def train(state: Any, xs: jax.Array, ys: jax.Array, steps: jax.Array) -> Any:
    """So many steps of Adam on all data, every initialisation beside the others."""

    def step(_: Any, state: Any) -> Any:
        params, moments = state
        updates, moments = ADAM.update(jax.grad(loss)(params, xs, ys), moments)
        return optax.apply_updates(params, updates), moments

    return jax.vmap(lambda state: jax.lax.fori_loop(0, steps, step, state))(state)


@cache
def history(config: Config, data_set: int) -> dict[str, Any]:
    """Data, and predictions at every iteration of the grid: means [members, n], deviations."""
    root = jax.random.fold_in(jax.random.key(config.seed), data_set)
    train_key, test_key, init_key, width_key = jax.random.split(root, 4)
    data = {
        "train": friedman1(train_key, config.n_train),
        "test": friedman1(test_key, config.n_test),
    }
    params = jax.vmap(initial)(jax.random.split(init_key, config.members))
    state, done, by_name = (params, jax.vmap(ADAM.init)(params)), 0, {}
    apply = jax.jit(jax.vmap(network, in_axes=(0, None)))
    for iteration in config.iterations:
        state = train(state, *data["train"], jnp.asarray(iteration - done))
        done = iteration
        means = {name: apply(state[0], xs) for name, (xs, _) in data.items()}
        deviation = jnp.sqrt(jnp.mean((means["train"] - data["train"].ys) ** 2, axis=1))
        if iteration == 0:  # the untrained networks' widths are drawn
            deviation = jax.random.exponential(width_key, (config.members,))
        by_name[iteration] = means, deviation
    return {"data": data, "predictions": by_name}


def described(key: jax.Array, predictions: Any, ys: jax.Array, divergence: Any, n_draws: int):
    """Every measure of one model, [6]."""
    result = skce_test(
        key,
        predictions,
        ys,
        divergence=divergence,
        standardize=False,
        target_kernel=Gaussian(1.0),
        prediction_kernel=Laplace(1.0),
        null=Multinomial(n_draws),
    )
    around = [measure(predictions, ys) for measure in (mse, nll, pinball_loss)]
    return jnp.stack([*around, result.estimate, result.biased, result.p_value])


@partial(jax.jit, static_argnames="n_draws")
def measures(key: jax.Array, means: jax.Array, deviation: jax.Array, ys: jax.Array, n_draws: int):
    """The measures of the members [members, 6] and of their ensemble [6]."""

    def member(mean: jax.Array, deviation: jax.Array) -> jax.Array:
        wide = jnp.broadcast_to(deviation, mean.shape)
        return described(key, dist.Normal(mean, wide), ys, Wasserstein(), n_draws)

    mixture = together(means, deviation)
    ensemble = described(key, mixture, ys, MixtureWasserstein(), n_draws)
    spectrum = positive_definiteness(
        mixture, divergence=MixtureWasserstein(), prediction_kernel=Laplace(1.0)
    )
    return jax.lax.map(lambda m: member(*m), (means, deviation)), ensemble, spectrum.smallest


def together(means: jax.Array, deviation: jax.Array) -> dist.Distribution:
    """The mixture of the members' normals, with equal weights."""
    k, n = means.shape
    parts = dist.Normal(means.T, jnp.broadcast_to(deviation, (n, k)))
    return dist.MixtureSameFamily(dist.Categorical(jnp.full((n, k), 1 / k)), parts)


def make(config: Config) -> runner.Study:
    """Networks and their ensemble on Friedman 1 while they train."""
    cells = [
        {"data_set": k, "iteration": iteration, "data": name, "members": config.members}
        for k in range(config.data_sets)
        for iteration in config.iterations
        for name in ("train", "test")
    ]

    def measure(cell, key):
        past = history(config, cell["data_set"])
        means, deviation = past["predictions"][cell["iteration"]]
        ys = past["data"][cell["data"]].ys
        of_members, of_ensemble, smallest = measures(
            key, means[cell["data"]], deviation, ys, config.n_draws
        )
        by_name = {}
        for k, name in enumerate(MEASURES):
            column = of_members[:, k]
            by_name |= {
                name: jnp.mean(column),
                f"{name}_low": jnp.min(column),
                f"{name}_high": jnp.max(column),
                f"{name}_ensemble": of_ensemble[k],
            }
        by_name["rejected"] = int(jnp.sum(of_members[:, -1] < 0.05))
        by_name["smallest_eigenvalue"] = smallest
        by_name["not_a_number"] = int(jnp.sum(~jnp.isfinite(of_members)))
        by_name["not_a_number"] += int(jnp.sum(~jnp.isfinite(of_ensemble)))
        return by_name

    parts = ("", "_low", "_high", "_ensemble")
    columns = tuple(f"{name}{part}" for name in MEASURES for part in parts)
    columns += ("rejected", "smallest_eigenvalue", "not_a_number")
    return runner.Study(cells, columns, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    jax.config.update("jax_enable_x64", True)  # late in training h is 1e-6 and smaller
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
