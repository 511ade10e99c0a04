"""Does the population interval of `distance_from_calibration` hold the truth, with rare labels too?

Every distribution of predictions and labels here has a known distance: where all errors have one
sign it is |E[y - v]| (a lower bound that the ECE, an upper bound, meets); for three atoms it is the
best of all partitions. For odds squared it is between the lower distance and the ECE, and the
interval must hold both.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcal.dce.population import population_bounds
from jaxcal.dce.predictions import binary, ordered

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner
from reference.distances import Domain, true_distance

FOLDER = Path(__file__).parent


class Population(NamedTuple):
    """``predict(u)``: the prediction from a uniform number; ``rate(v)``: P(y = 1 | v); the distance
    from calibration; and what it may be at most, where it is not known."""

    predict: Callable[[Any], Any]
    rate: Callable[[Any], Any]
    distance: float
    most: float | None = None


def atoms(u: Any) -> Any:
    return jnp.select([u < 0.3, u < 0.7], [0.2, 0.5], 0.8)


THREE = Domain(jnp.array([0.3, 0.4, 0.3]), jnp.array([0.2, 0.5, 0.8]), jnp.array([0.35, 0.5, 0.65]))
POPULATIONS = {
    "rare, ten times too low": Population(lambda u: 0.002 * u, lambda v: 10 * v, 0.009),
    "rare, .001 for .03": Population(lambda u: 0 * u + 0.001, lambda v: 0 * v + 0.03, 0.029),
    "rare, five times too high": Population(lambda u: 0.1 * u, lambda v: v / 5, 0.04),
    "rare, calibrated": Population(lambda u: 0.02 * u, lambda v: v, 0.0),
    "rarely wrong by .9": Population(lambda u: 0.9 * (u < 0.02), lambda v: 0 * v, 0.018),
    "common but for ten times too few 0": Population(
        lambda u: 1 - 0.002 * u, lambda v: 1 - 10 * (1 - v), 0.009
    ),
    "common, calibrated": Population(lambda u: u, lambda v: v, 0.0),
    "common, too high": Population(lambda u: u, lambda v: v**2, 1 / 6),
    "three atoms, overconfident": Population(
        atoms, lambda v: 0.25 + v / 2, true_distance(THREE).value
    ),
    "odds squared": Population(
        lambda u: u**2 / (u**2 + (1 - u) ** 2),
        lambda v: jnp.sqrt(v) / (jnp.sqrt(v) + jnp.sqrt(1 - v)),
        0.039723,  # the lower distance
        0.0965736,  # the ECE
    ),
}


@dataclass(frozen=True)
class Config:
    data_sets: int = 500
    sizes: tuple[int, ...] = (50, 100, 300, 1000)
    populations: tuple[str, ...] = tuple(POPULATIONS)
    n_resamples: int = 100
    batch: int = 50  # data sets a step
    seed: int = 20231121


QUICK = Config(data_sets=4, sizes=(20,), populations=tuple(POPULATIONS)[:2])


def study(config: Config) -> runner.Study:
    """Shares of data sets whose 95 % interval holds the distance of the population."""

    @jax.jit
    def intervals(keys: jax.Array, v: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        def one(data: Any) -> Any:
            return population_bounds(data[0], ordered(binary(*data[1:])), 0.05)[:2]

        return jax.lax.map(one, (keys, v, y), batch_size=config.batch)

    def measure(cell: runner.Cell, key: jax.Array) -> dict[str, Any]:
        population = POPULATIONS[cell["population"]]
        place, label, resample = jax.random.split(key, 3)
        sets = config.data_sets
        shape = (sets, cell["n"])
        v = population.predict(jax.random.uniform(place, shape))
        y = jax.random.bernoulli(label, population.rate(v)).astype(v.dtype)
        low, high = intervals(jax.random.split(resample, sets), v, y)
        truth = population.distance
        most = truth if population.most is None else population.most
        return {
            "distance": truth,
            "most": most,
            "coverage": jnp.mean((low <= truth + 1e-6) & (most <= high + 1e-6)),
            "too_low": jnp.mean(high < most - 1e-6),
            "mean_low": jnp.mean(low),
            "mean_high": jnp.mean(high),
            "data_sets": sets,
        }

    cells = [{"population": name, "n": n} for n, name in product(config.sizes, config.populations)]
    measured = ("distance", "most", "coverage", "too_low", "mean_low", "mean_high", "data_sets")
    return runner.Study(cells, measured, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(study, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
